# SPDX-License-Identifier: Apache-2.0
"""Blocks of a mount, and the slots of a memory they come from and go to.

All of UcmfsTier that does not need vLLM's types: the space and its index, the
loader, and what becomes of both when the daemon ends. A key is vLLM's
OffloadKey: a block hash of 16 or 32 bytes and 4 bytes of group.

Nothing here waits for the mount but the constructor, drain() and close(): a
look-up is a read of shared memory, transfers run in the loader's threads, and
whatever has to open or remove files does so in a thread of its own, which may
hang with a mount that hangs.
"""

from __future__ import annotations

import errno
import functools
import itertools
import time
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from ucmfs._pack import split_ids
from ucmfs.errors import InvalidArgument, Timeout, UcmfsError, from_errno
from ucmfs.hash import Hasher
from ucmfs.layout import Geometry, Layout, Region
from ucmfs.loader import Group, Loader
from ucmfs.namespace import space_id
from ucmfs.task import Completions, Outcome, Task

from .expected import Expected
from .hugepages import use_huge_pages
from .mount import (LATE_SECONDS, Attempt, Chores, Link, Pause, Space, Teller,
                    Touches, apart, close_all, deadline_of, end_tasks_in_time,
                    leave_spaces, log, remove_blocks, settle_blocks)

ID_BYTES = 16
NO_ID = bytes(ID_BYTES)
GROUP_BYTES = 4
PAGE = 4096
PIECE_BYTES = 1 << 20  # of a slot that are read and checked as one, about
PIECES_MOST = 1024
MOVE_SECONDS = 0.5    # a step waits for another space to be open
SPACES_MOST = 128     # that a loader is used for: it has room for 256
AVOID_SECONDS = 30.0  # what failed is not offered again for so long
AVOID_MOST = 100_000


def pieces_of(slot_bytes: int) -> int:
    """Into how many equal pieces of whole pages a slot is cut: checks of one
    run while the next is read. The number nearest to PIECE_BYTES each."""
    if slot_bytes <= 0 or slot_bytes % PAGE:
        raise InvalidArgument(
            f"slots of {slot_bytes} bytes: no multiple of {PAGE}")
    pages = slot_bytes // PAGE
    fitting = [n for n in range(1, min(pages, PIECES_MOST) + 1)
               if pages % n == 0]
    wanted = max(1.0, slot_bytes / PIECE_BYTES)
    return min(fitting, key=lambda n: max(n / wanted, wanted / n))


def geometry_of(slot_bytes: int, tokens: int) -> Geometry:
    """Of a block that is a slot's bytes, whatever they mean."""
    pieces = pieces_of(slot_bytes)
    return Geometry(num_layers=pieces, block_size=max(1, tokens),
                    k_bytes=slot_bytes // pieces, order="opaque")


def layout_of(geometry: Geometry, address: int, num_slots: int,
              direct: bool = False) -> Layout:
    layout = Layout(geometry, num_slots)
    piece = geometry.k_bytes
    for i in range(geometry.num_layers):
        layout.add_region(Region(
            base=address + i * piece, page_stride=geometry.payload_bytes,
            run_bytes=piece, offset=i * piece, layer=i))
    layout.seal()
    return layout.set_direct() if direct else layout


class Memory(NamedTuple):
    """Slots in a row; the owner keeps it mapped until close()."""

    address: int
    slot_bytes: int
    num_slots: int


class Avoided(dict[bytes, float]):
    """Ids of blocks that are absent for a while: until when."""

    def add(self, id: bytes, seconds: float) -> None:
        if len(self) >= AVOID_MOST:
            self.clear()
        self[id] = time.monotonic() + seconds

    def has_now(self, id: bytes) -> bool:
        until = self.get(id)
        if until is None or time.monotonic() < until:
            return until is not None
        self.pop(id, None)
        return False


class Movers(NamedTuple):
    """What moves blocks: a loader, and its group to load and save by.
    entered: spaces that it has had; groups that are busy stay."""

    loader: Loader
    group: Group
    entered: int = 1

    @classmethod
    def open(cls, mount: str, space: str, layout: Callable[[bool], Layout],
             direct: bool, options: Mapping[str, Any]) -> Movers:
        loader = Loader(mount, **options)
        try:
            return cls(loader, loader.add_group(layout(direct), space))
        except BaseException:
            loader.close()
            raise

    def enter(self, space: str, layout: Callable[[bool], Layout],
              direct: bool) -> Movers:
        """The same loader in another space."""
        return self._replace(
            group=self.loader.add_group(layout(direct), space),
            entered=self.entered + 1)

    def leave(self) -> None:
        """Let go of the group, and of what it has pinned. May take a
        while."""
        try:
            self.group.remove()
        except UcmfsError as error:  # the end of the loader removes it
            log.debug("ucmfs: %s: %s", self.group.space, error)

    def close(self) -> None:
        """May hang."""
        self.loader.close()


class Finished(NamedTuple):
    """A job at its end. present: keys whose blocks were loaded, or are in the
    space now; failed: the others, with an errno above 0, but for those that
    another job is storing, or that the mount did not want. moved: bytes;
    skipped: blocks not stored because they were there, or were being stored;
    refused: blocks that the mount did not want."""

    job: int
    is_load: bool
    present: list[bytes]
    failed: dict[bytes, int]
    moved: int
    skipped: int
    refused: int
    seconds: float


class _Job:
    def __init__(self, job: int, is_load: bool, keys: list[bytes]) -> None:
        self.job = job
        self.is_load = is_load
        self.keys = keys
        self.sent = keys  # those that the task moves, in its order
        self.ids = b""    # theirs
        self.present: list[bytes] = []
        self.failed: dict[bytes, int] = {}
        self.skipped = 0
        self.refused = 0
        self.task: Task | None = None  # None: nothing to wait for
        self.is_late = False  # it is done, and slots of it are lent
        self.start = time.monotonic()


class SlotStore:
    """Jobs between slots and blocks. One thread at a time.

    manifest: of the space, with the geometry of geometry_of(). direct: read
    into the slots themselves; "auto": if they can be made to lie in huge
    pages, as else a disk may be slower into them than into staging memory.
    What does not come from a local file system goes through staging memory all
    the same: there a server may stop, and a slot would be lent to a read until
    it runs again. may_miss: while the mount is missing there is nothing in it,
    and nothing is saved. Other errors of the constructor are UcmfsError; later
    ones become failed keys.
    """

    def __init__(self, memory: Memory, *, mount: str, space: str,
                 manifest: dict[str, Any], verify: str = "full",
                 deadline_ms: int = 0, direct: bool | str = False,
                 may_miss: bool = False, **loader_options: Any) -> None:
        geometry = Geometry.from_json(manifest["geometry"])
        self.memory = memory
        self.mount = mount
        self._private: list[str] = []  # spaces that nobody else knows
        self._left: list[Movers] = []
        self._verify = verify
        self._deadline_ms = deadline_ms
        self._direct = direct and self._reads_into_slots(direct == "auto")
        self._jobs: dict[int, _Job] = {}
        self._ends = Completions()  # what has become of tasks
        self._tasks: dict[Task, _Job] = {}
        self._over: list[_Job] = []  # perhaps, and the queue need not say so
        self._saving: set[bytes] = set()
        self._avoid = Avoided()
        self._pause = Pause(mount)
        self._expected = Expected(mount)
        self._teller = Teller(mount)
        self._chores = Chores("ucmfs-tier")
        self._named_after(space, manifest)
        self._link = Link(mount, [Space(space, manifest)], may_miss=may_miss)
        self._opening: Attempt | None = None
        self._open: Movers | None = None
        self._base: Movers | None = None  # the last that was open
        try:
            here = self._link.now
            if here is not None and not here.mapped:
                log.warning(
                    "ucmfs: %s: look-ups ask the daemon instead of its shared "
                    "memory (%s)", mount, here.why)
            self._layout = functools.partial(self._layout_of, geometry)
            self._make = lambda: Movers.open(
                mount, self.space, self._layout, self._direct,
                loader_options)
            if here is not None:
                self._open = self._base = self._make()
            else:
                self._opening = Attempt("ucmfs-loader", self._make,
                                        Movers.close)
        except BaseException:
            self.close()
            raise

    def _layout_of(self, geometry: Geometry, direct: bool) -> Layout:
        return layout_of(geometry, self.memory.address, self.memory.num_slots,
                         direct)

    def _places(self, slots: Sequence[int]) -> dict[str, Any]:
        """Where these are, for a group's load() and save()."""
        return {"pages": slots}

    def _reads_into_slots(self, only_huge: bool) -> bool:
        why = use_huge_pages(self.memory.address,
                             self.memory.slot_bytes * self.memory.num_slots)
        if why:
            log.info("ucmfs: the slots are not in huge pages, which loads "
                     "would be faster into: %s", why)
        return not (why and only_huge)

    def move(self, space: str, manifest: dict[str, Any],
             private: bool = False) -> None:
        """To another space, whose blocks have the same geometry. private:
        nobody else knows it, and it is removed when it is left."""
        if self._opening is not None:
            self._opening.give_up()
        self._open = None
        self._named_after(space, manifest)
        self._avoid.clear()
        self._saving.clear()
        self._link.move([Space(space, manifest)], MOVE_SECONDS)
        self._enter(space).wait_once(MOVE_SECONDS)
        leave_spaces(self.mount, self._private, self._chores)
        if private:
            self._private.append(space)

    def _named_after(self, space: str, manifest: dict[str, Any]) -> None:
        self.space = space
        self._hasher = Hasher(
            "external", space_id=space_id(manifest),
            block_size=manifest["geometry"]["block_size"])
        self._touches = Touches(self._chores, self.mount, space)

    def _enter(self, space: str) -> Attempt:
        base = self._base
        if base is not None and base.entered >= SPACES_MOST:
            self._left.append(base)
            self._close_left()
            base = self._base = None
        if base is None:
            self._opening = Attempt("ucmfs-loader", self._make,
                                    Movers.close)
        else:
            self._opening = Attempt("ucmfs-spaces", lambda: base.enter(
                space, self._layout, self._direct), Movers.leave)
        return self._opening

    def _close_left(self) -> None:
        """Loaders that are not used any more."""
        if not self._jobs:
            for movers in self._left:
                apart("ucmfs-close", movers.close)
            self._left = []

    @property
    def _movers(self) -> Movers | None:
        if self._open is None and self._opening is not None:
            self._open = self._opening.take()
            if self._open is not None:
                former, self._base = self._base, self._open
                if former is not None:  # with the same loaders
                    self._chores.add(former.leave)
        return self._open

    def _by_now(self) -> Movers:
        if self._movers is None:
            raise from_errno(errno.ENOTCONN, self.mount)
        return self._movers

    @property
    def connected(self) -> bool:
        """The daemon is there, and not known to hang."""
        return (self._link.now is not None and self._movers is not None
                and not self._pause)

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def describe(self) -> str:
        movers = self._movers
        if movers is None:
            return "no mount yet"
        into = ["reads go into the slots"] if self._direct else []
        return "; ".join([movers.loader.describe()] + into)

    # ---- look-ups ----

    def ids_of(self, keys: Sequence[bytes]) -> bytes:
        """16 bytes for each key."""
        if len(keys) == 1:
            return self._id_of(keys[0])
        if not keys:
            return b""
        size = len(keys[0]) - GROUP_BYTES
        import numpy as np
        table = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(
            len(keys), size + GROUP_BYTES)
        hashes = np.ascontiguousarray(table[:, :size])
        groups = np.ascontiguousarray(table[:, size:]).view(">u4").ravel()
        if (groups == groups[0]).all():
            return self._hasher.external(hashes.tobytes(), size,
                                         int(groups[0]))
        out = np.empty((len(keys), ID_BYTES), dtype=np.uint8)
        for group in np.unique(groups):
            mine = groups == group
            out[mine] = np.frombuffer(
                self._hasher.external(hashes[mine].tobytes(), size,
                                      int(group)),
                dtype=np.uint8).reshape(-1, ID_BYTES)
        return out.tobytes()

    def _id_of(self, key: bytes) -> bytes:
        return self._hasher.external(
            key[:-GROUP_BYTES], len(key) - GROUP_BYTES,
            int.from_bytes(key[-GROUP_BYTES:], "big"))

    def lookup(self, keys: Sequence[bytes]) -> bytes:
        """A byte of 1 for each key whose block is there."""
        ids = self.ids_of(keys)
        found = self._there(ids)
        if not self._avoid:
            return found
        return bytes(there and not self._avoid.has_now(id)
                     for id, there in zip(split_ids(ids), found))

    def expect(self, keys: Sequence[bytes]) -> None:
        """Let others be evicted before their blocks."""
        self._expected.add(self.ids_of(keys), self.space)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Their blocks, those that are there, were used."""
        if self.connected:
            ids = self.ids_of(keys)
            self._touches.add(itertools.compress(split_ids(ids),
                                                 self._there(ids)))

    def settle(self, keys: Sequence[bytes], wanted: Any) -> None:
        """Do what is wanted of their blocks: those that are there when all
        that was added before has been done."""
        ids = split_ids(self.ids_of(list(dict.fromkeys(keys))))
        self._chores.add(
            lambda: settle_blocks(wanted, self.mount, self.space, ids))

    def gone(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those that are known not to be there."""
        here = self._link.now
        if not here or not here.mapped:
            return []
        ids = self.ids_of(keys)
        return list(itertools.compress(keys, self._ask(
            lambda index: [not any(seen) for seen in zip(*index.peek(ids))],
            b"")))

    def _there(self, ids: bytes) -> bytes:
        return self._ask(lambda index: index.lookup(ids)[0],
                         bytes(len(ids) // ID_BYTES))

    def _ask(self, look: Callable[[Any], Any], absent: Any) -> Any:
        """What nobody can say counts as absent: computing a block again is
        cheaper than a scheduler that waits. In a pause as well: the index of
        a daemon that hangs still answers."""
        here = None if self._pause else self._link.now
        if here is None or self._movers is None:
            return absent
        try:
            return look(here.indexes[0])
        except Timeout:
            self._pause.ended(errno.ETIMEDOUT, LATE_SECONDS)
        except UcmfsError as error:
            self._link.lost(error)
        return absent

    # ---- jobs ----

    def load(self, job: int, keys: Sequence[bytes],
             slots: Sequence[int]) -> None:
        """Start to fill slots[i] with the block of keys[i]."""
        one = _Job(job, True, list(keys))
        self._start(one, slots, lambda ids, pages: self._by_now().group.load(
            ids, **self._places(pages), verify=self._verify, lend="local",
            completions=self._ends, deadline_ms=self._deadline(pages)))

    def save(self, job: int, keys: Sequence[bytes], slots: Sequence[int],
             before: Mapping[bytes, bytes] | None = None) -> None:
        """Start to write slots[i] as the block of keys[i], where it is not
        there and not being written by another job. before: from a key to that
        of the chunk before it, as far as they are known."""
        one = _Job(job, False, list(keys))
        if not self.connected:
            err = errno.ETIMEDOUT if self._pause else errno.ENOTCONN
            one.failed = dict.fromkeys(one.keys, err)
            self._end(one)
            return
        slots = self._leave_out(one, slots)
        self._start(one, slots, lambda ids, pages: self._by_now().group.save(
            ids, **self._places(pages),
            parents=self._parents(one.sent, before or {}), may_refuse=True,
            completions=self._ends, deadline_ms=self._deadline(pages)))

    def _deadline(self, pages: Sequence[int]) -> int:
        return deadline_of(self._deadline_ms,
                           len(pages) * self.memory.slot_bytes)

    def leave(self, job: int, keys: Sequence[bytes]) -> None:
        """A job whose blocks are not wanted by who asked for it."""
        one = _Job(job, False, list(keys))
        one.skipped = len(one.keys)
        self._end(one)

    def refuse(self, job: int, keys: Sequence[bytes]) -> None:
        """A load of which nobody knows what it is to load: it fails."""
        one = _Job(job, True, list(keys))
        one.failed = dict.fromkeys(keys, errno.ECANCELED)
        self._end(one)

    def _end(self, one: _Job) -> None:
        """It has nothing to move, or no more."""
        one.sent = []
        self._jobs[one.job] = one
        self._over.append(one)

    def _parents(self, keys: Sequence[bytes],
                 before: Mapping[bytes, bytes]) -> bytes:
        known = [key for key in keys if key in before]
        ids = dict(zip(known, split_ids(self.ids_of(
            [before[key] for key in known]))))
        return b"".join(ids.get(key, NO_ID) for key in keys)

    def _leave_out(self, one: _Job, slots: Sequence[int]) -> list[int]:
        ids = self.ids_of(one.keys)
        there = self._there(ids)
        one.sent, left = [], []
        for i, key in enumerate(one.keys):
            id = ids[i * ID_BYTES:(i + 1) * ID_BYTES]
            if there[i] and id not in self._avoid:
                one.present.append(key)
                one.skipped += 1
            elif id in self._saving:
                one.skipped += 1
            else:
                one.sent.append(key)
                left.append(int(slots[i]))
        return left

    def _start(self, one: _Job, slots: Sequence[int],
               submit: Callable[[bytes, list[int]], Task]) -> None:
        if not one.sent:
            self._end(one)
            return
        self._jobs[one.job] = one
        one.ids = self.ids_of(one.sent)
        pages = [int(slot) for slot in slots]
        try:
            one.task = submit(one.ids, pages)
        except (UcmfsError, OSError) as error:
            self._teller.warn("load" if one.is_load else "save", "%s", error)
            one.failed.update(
                dict.fromkeys(one.sent, error.errno or errno.EIO))
            self._end(one)
            return
        self._tasks[one.task] = one
        if not one.is_load:
            self._saving.update(split_ids(one.ids))

    def finished(self) -> list[Finished]:
        """The jobs that have ended since the last call: with them their slots
        are the engine's again, so one whose slots are lent has not."""
        self._take_news()
        perhaps, self._over = dict.fromkeys(self._over), []
        done = [one for one in perhaps
                if one.job in self._jobs and self._is_over(one)]
        for one in done:
            del self._jobs[one.job]
            if one.task is not None:
                del self._tasks[one.task]
        if self._left:
            self._close_left()
        return [self._finish(one) for one in done]

    def _take_news(self) -> None:
        """A task whose slots are lent is told of when it is done, and again
        when they are back."""
        news = self._ends.take()
        while news:
            self._over += [self._tasks[task] for task in news
                           if task in self._tasks]
            news = self._ends.take()

    def _is_over(self, one: _Job) -> bool:
        if one.task is None or one.task.returned():
            return True
        if not one.is_late and self._is_late(one.task):
            # it may take its time, and what it has found out is needed now
            one.is_late = True
            self._teller.warn("lent", "job %d has failed; its slots wait for "
                              "reads that hang", one.job)
            self._pause.ended(errno.ETIMEDOUT, time.monotonic() - one.start)
        return False

    @staticmethod
    def _is_late(task: Any) -> bool:
        """Have its pages outlived its deadline? Any task that fails has a
        moment between its end and their return."""
        return task.done() and errno.ETIMEDOUT in {
            outcome.err for outcome in task.outcomes()}

    def _finish(self, one: _Job) -> Finished:
        moved = 0
        seconds = time.monotonic() - one.start
        if one.task is not None:
            ids = split_ids(one.ids)
            if not one.is_load:
                self._saving.difference_update(ids)
            if one.is_load and not one.task.num_failed:
                one.present += one.sent  # the common case, in no time
                moved = len(one.sent)
            else:
                for key, id, outcome in zip(one.sent, ids,
                                            one.task.outcomes()):
                    moved += self._settle(one, key, id, outcome)
            if not one.is_late:
                self._learn(one, seconds)
        return Finished(
            one.job, one.is_load, one.present, one.failed,
            moved * self.memory.slot_bytes, one.skipped, one.refused, seconds)

    def _learn(self, one: _Job, seconds: float) -> None:
        """What a job's end says of the mount."""
        errors = set(one.failed.values())
        if errno.ENOTCONN in errors:
            self._link.lost(from_errno(errno.ENOTCONN, f"job {one.job}"))
        elif errno.ETIMEDOUT in errors:
            self._pause.ended(errno.ETIMEDOUT, seconds)
        elif one.is_load:
            self._pause.ended(errno.EIO if errno.EIO in errors else 0, seconds)

    def _settle(self, one: _Job, key: bytes, id: bytes,
                outcome: Outcome) -> bool:
        """What becomes of a block; True: its bytes were moved."""
        if outcome.ok and outcome.skipped:
            one.skipped += 1
            if id not in self._avoid:  # else it is one that will be removed
                one.present.append(key)
            return False
        if outcome.refused:
            one.refused += 1
            return False
        if outcome.ok:
            one.present.append(key)
            self._avoid.pop(id, None)
            return True
        one.failed[key] = outcome.err
        if one.is_load:
            # the index may still have it: a request that is told so again
            # and again would never run
            self._avoid.add(id, AVOID_SECONDS)
            if outcome.err == errno.EBADMSG:
                self._teller.warn("damaged", "block %s of %s: %s; it is "
                                  "removed", id.hex(), self.space,
                                  outcome.text)
                self._chores.add(
                    lambda: remove_blocks(self.mount, self.space, [id]))
        return False

    def drain(self) -> None:
        """Wait until no job touches a slot; finished() has them then."""
        for one in self._jobs.values():
            if one.task is not None:
                one.task.wait_returned()
        # the queue does not tell of what somebody has waited for
        self._over = list(self._jobs.values())

    def close(self) -> bool:
        """Cancel loads, let saves end, and let go of all. Where the mount
        hangs what is left is abandoned, each step after CLOSE_SECONDS, and
        threads that hang end with the process. Slots are not touched any more;
        False: but those that are lent to reads that hang, so that the memory
        must stay mapped."""
        for one in self._jobs.values():
            if one.task is not None and one.is_load:
                one.task.cancel()
        ended = end_tasks_in_time([one.task for one in self._jobs.values()
                                   if one.task is not None])
        if not ended:
            log.warning("ucmfs: %s: slots are lent to reads that hang: the "
                        "memory stays mapped", self.mount)
        self._jobs.clear()
        self._tasks.clear()
        leave_spaces(self.mount, self._private, self._chores)
        idle = self._chores.end()
        if self._opening is not None:
            self._opening.give_up()
        movers = [*self._left, *([self._base] if self._base else [])]
        self._open = self._base = self._opening = None
        self._left = []
        closers = [self._link.close, self._expected.close,
                   *(each.close for each in movers)]
        if ended and idle:  # after those that it serves
            closers.append(self._ends.close)
        close_all(self.mount, closers, idle)
        return ended
