# SPDX-License-Identifier: Apache-2.0
"""What plug-ins share: an engine's requests for blocks of any spaces, by key
and address, done by one thread.

Nothing that an engine calls waits for the mount. Blocks are moved by the same
store as those of UcmfsTier (ucmfs.vllm.slots), which needs no vLLM: with
checksums, a deadline for each transfer, and a pause for a mount that hangs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import math
import os
import re
import select
import sys
import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import (Any, Callable, Iterable, Iterator, Mapping, NamedTuple,
                    Sequence)

from .._pack import split_ids
from ..errors import (ConfigError, InvalidArgument, NotConnected,
                      UcmfsError)
from ..layout import Geometry, Layout, Region
from ..namespace import default_name, read_manifest, spaces
from ..task import Task, new_eventfd
from ..vllm.mount import Attempt, Chores, Space, log
from ..vllm.slots import (AVOID_SECONDS, GROUP_BYTES, PAGE, PIECE_BYTES,
                          PIECES_MOST, Finished, Memory, SlotStore)

DEADLINE_MS = 10_000
OPENING_SECONDS = 0.02  # between looks at a space that is being opened
IDLE_SECONDS = 60.0
_BASE = 1 << 20  # of a layout whose blocks are all given by address

LOAD, SAVE, FIND, REMOVE = "load", "save", "find", "remove"


# ---- what is stored ----

def key_of(name: str) -> bytes:
    """A block's key in its space."""
    return hashlib.sha256(name.encode()).digest() + bytes(GROUP_BYTES)


def geometry_of(sizes: Sequence[int], tokens: int = 1) -> Geometry:
    """Of blocks that are pieces of memory of these sizes, one after the
    other: cut into equal pieces that are read and checked by themselves."""
    if not sizes or min(sizes) <= 0:
        raise InvalidArgument(f"a block of {sum(sizes)} bytes")
    total, unit = sum(sizes), math.gcd(*sizes)
    least = total // unit
    # of those that are whole pages, the one nearest to PIECE_BYTES
    cuts = [n for n in range(1, max(1, unit // PAGE) + 1)
            if unit % (n * PAGE) == 0 and n * least <= PIECES_MOST] or [1]
    cut = min(cuts, key=lambda n: abs(math.log(unit / n / PIECE_BYTES)))
    if cut * least > PIECES_MOST:
        raise InvalidArgument(f"a block of {least} pieces of {unit} bytes")
    return Geometry(num_layers=cut * least, block_size=max(1, tokens),
                    k_bytes=unit // cut, order="opaque")


def rows_of(geometry: Geometry, addresses: Sequence[int],
            sizes: Sequence[int]) -> list[int]:
    """The addresses of a block's pieces."""
    step = geometry.k_bytes
    return [address + at for address, size in zip(addresses, sizes)
            for at in range(0, size, step)]


def space_of(engine: str, model: str, geometry: Geometry,
             identity: Mapping[str, Any]) -> Space:
    """The space of an engine's blocks. identity: all that their bytes depend
    on and that their keys do not say."""
    manifest = {"engine": {"name": engine}, "model": model, **identity,
                "geometry": geometry.to_json()}
    return Space(default_name(prefix_of(engine, model), manifest), manifest)


def prefix_of(engine: str, model: str) -> str:
    name = os.path.basename(model.rstrip("/"))
    return f"{engine}-" + re.sub("[^A-Za-z0-9._-]", "_", name)[:64]


def manifests_of(where: str, engine: str,
                 model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Spaces that may be those of an engine's model. May hang; UcmfsError."""
    prefix = prefix_of(engine, model) + "-"
    return ((name, read_manifest(where, name) or {}) for name in spaces(where)
            if name.startswith(prefix))


def weights_of(model: str, named: str) -> str:
    """What stands for a model's weights in the identity: the name that a user
    has given, or what a look at them says. May take a while."""
    from ..vllm.fingerprint import FULL, weights

    if named and named != FULL:
        return named
    try:
        return weights(SimpleNamespace(model=model), whole=named == FULL)
    except (ConfigError, OSError) as error:
        log.warning("ucmfs: %s; blocks are stored under the model's name "
                    "alone: \"weights\" gives them another", error)
        return ""


def where_of(mount: str, socket: str, tiers: str | Sequence[str]) -> str:
    """The place of a store, as Loader takes it; ConfigError."""
    given = [each for each in (mount, socket, tiers) if each]
    if len(given) != 1:
        raise ConfigError("mount", "one of mount, socket and tiers is needed")
    if tiers:
        return "tiers=" + (tiers if isinstance(tiers, str)
                           else ":".join(tiers))
    return mount or socket


class Store(SlotStore):
    """Blocks of one space, each somewhere in memory: a row of addresses."""

    def __init__(self, space: Space, mount: str, order: str = "blocks",
                 **options: Any) -> None:
        geometry = Geometry.from_json(space.manifest["geometry"])
        self._rows: Sequence[Sequence[int]] = ()
        self._orders = {True: {"order": order}, False: {}}  # of loads; saves
        self._is_load = False
        super().__init__(Memory(0, geometry.payload_bytes, 1), mount=mount,
                         space=space.name, manifest=space.manifest,
                         may_miss=True, **options)

    @property
    def news(self) -> int:
        """Readable when a job may have ended."""
        return self._ends.fileno()

    def _layout_of(self, geometry: Geometry, direct: bool) -> Layout:
        layout = Layout(geometry, 1)
        size = geometry.k_bytes
        for i in range(geometry.num_layers):
            layout.add_region(Region(
                base=_BASE + i * size, page_stride=geometry.payload_bytes,
                run_bytes=size, offset=i * size, layer=i))
        return layout.seal()

    def _places(self, slots: Sequence[int]) -> dict[str, Any]:
        return {"addresses": [address for slot in slots
                              for address in self._rows[slot]],
                **self._orders[self._is_load]}

    def move_rows(self, is_load: bool, job: int, keys: Sequence[bytes],
                  rows: Sequence[Sequence[int]],
                  before: Mapping[bytes, bytes]) -> Task | None:
        """load() or save(), by rows instead of slots. None: it has ended."""
        self._rows, self._is_load = rows, is_load
        if is_load:
            self.load(job, keys, range(len(rows)))
        else:
            self.save(job, keys, range(len(rows)), before)
        return self._jobs[job].task

    def finished(self) -> list[Finished]:
        if self._orders[True]["order"] == "layers":
            # the queue leaves out those that were waited for
            self._over += [one for one in self._jobs.values()
                           if one.task is not None and one.task.done()]
        return super().finished()

    def avoid(self, keys: Sequence[bytes]) -> None:
        """They are absent, until one is saved: the loader may have files open
        that are removed."""
        for id in split_ids(self.ids_of(keys)):
            self._avoid.add(id, AVOID_SECONDS)

    def is_avoided(self, key: bytes) -> bool:
        return bool(self._avoid) and self._avoid.has_now(self.ids_of([key]))

    def remove(self, keys: Sequence[bytes]) -> list[int]:
        """An errno for each. May hang; any thread."""
        return self._by_now().group.remove_blocks(self.ids_of(keys))


# ---- requests ----

def ring(eventfd: int) -> None:
    os.write(eventfd, (1).to_bytes(8, sys.byteorder))


def silence(eventfd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(eventfd, 8)


class Want(NamedTuple):
    """A block that is asked for. row: addresses of its pieces; before: the key
    of the one before it in its chain."""

    space: Space
    key: bytes
    row: Sequence[int] = ()
    before: bytes = b""


class Request:
    """What an engine has asked for. errors: an errno for each want, 0 of a
    block that is found, was moved, or was removed; empty, if the time was
    over before it was known which they are."""

    def __init__(self, done: Callable[[Request], None],
                 seconds: float) -> None:
        self.errors: list[int] = []
        self.keep: Any = None  # memory that is moved into or out of
        # called in the worker with each space's name and its transfer
        self.begun: Callable[[str, Task | None], None] | None = None
        self._done = done
        self._left = 0  # wants without an answer
        self._moves = False  # its end is that of the transfers
        self.ended = False
        self.until = time.monotonic() + seconds

    def begin(self, num: int, moves: bool) -> bool:
        """False: it has ended already."""
        if not self.ended:
            self.errors, self._left = [errno.ETIMEDOUT] * num, num
            self._moves = moves
            if not num:
                self.end()
        return not self.ended

    def answer(self, at: int, err: int) -> None:
        if not self.ended:
            self.errors[at] = err
            self._left -= 1
            if not self._left:
                self.end()

    def is_left(self, now: float) -> bool:
        """Whether its time can still be over; it ends where that is so."""
        if not self._moves and now >= self.until:
            self.end()
        return not self.ended and not self._moves

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.keep = None
            self._done(self)


Part = tuple[Request, str, list[int], list[Want]]


class _Shelf:
    """A space's store (None: not open yet), and what waits for that."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self.store: Store | None = None
        self.opening = Attempt("ucmfs-open", make, Store.close)
        self.waiting: deque[Part] = deque()


class Worker:
    """A thread that does requests. Any thread may ask; done() of a request is
    called in the worker's."""

    def __init__(self, where: str, *, deadline_ms: int = DEADLINE_MS,
                 **options: Any) -> None:
        self._where = where
        self.chores = Chores("ucmfs-chores")  # calls that may hang
        self._deadline_ms = deadline_ms
        self._options = {"deadline_ms": deadline_ms, **options}
        self._todo: deque[Callable[[], None]] = deque()
        self._shelves: dict[str, _Shelf] = {}
        self._jobs: dict[int, Part] = {}
        self._timed: list[Request] = []  # whose time can be over
        self._next = 0
        self._ending = False
        self._lock = threading.Lock()  # nothing to do is added after the end
        self._wake = new_eventfd()
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="ucmfs-worker")
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Have it called by the worker. NotConnected: that has ended."""
        with self._lock:
            if self._ending:
                raise NotConnected(errno.ENOTCONN, f"{self._where}: closed")
            self._todo.append(call)
            ring(self._wake)

    def promise(self, done: Callable[[Request], None]) -> Request:
        """A request that ends at its deadline if it is not begun by then."""
        request = Request(done, self._deadline_ms / 1000)
        self.post(lambda: self._timed.append(request))
        return request

    def begin(self, request: Request, what: str,
              wants: Sequence[Want]) -> None:
        self.post(lambda: self._begin(request, what, wants))

    def ask(self, what: str, wants: Sequence[Want], keep: Any = None,
            ) -> list[bool]:
        """Which are well, when all have an answer."""
        ended = threading.Event()
        request = self.promise(lambda _: ended.set())
        request.keep = keep
        self.begin(request, what, wants)
        ended.wait()
        return [not err for err in request.errors] or [False] * len(wants)

    def has_open(self, spaces: Iterable[Space]) -> bool:
        """Whether a look-up in them waits for nothing."""
        shelves = [self._shelves.get(space.name) for space in spaces]
        if all(shelf and shelf.store for shelf in shelves):
            return True
        self.look()  # whether they have been opened
        return False

    def look(self) -> None:
        """Have it see what has ended."""
        with contextlib.suppress(NotConnected):
            self.post(lambda: None)

    # ---- the thread ----

    def _run(self) -> None:
        while not self._ending:
            self._sleep()
            try:
                while self._todo:
                    self._todo.popleft()()
                for shelf in list(self._shelves.values()):
                    self._look(shelf)
                now = time.monotonic()
                self._timed = [one for one in self._timed if one.is_left(now)]
            except Exception:  # an engine must get its answers all the same
                log.exception("ucmfs: in the worker")

    def _sleep(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        seconds = IDLE_SECONDS
        for shelf in self._shelves.values():
            if shelf.store is not None:
                poll.register(shelf.store.news, select.POLLIN)
            elif shelf.waiting:
                seconds = OPENING_SECONDS
        if self._timed:
            seconds = min(seconds, max(0.0, min(
                one.until for one in self._timed) - time.monotonic()))
        if not self._todo:
            poll.poll(seconds * 1000 + 1)
        silence(self._wake)

    def _begin(self, request: Request, what: str,
               wants: Sequence[Want]) -> None:
        if not request.begin(len(wants), what in (LOAD, SAVE)):
            return
        parts: dict[str, list[int]] = {}
        for i, want in enumerate(wants):
            parts.setdefault(want.space.name, []).append(i)
        for places in parts.values():
            part = request, what, places, [wants[i] for i in places]
            self._shelf_of(wants[places[0]].space).waiting.append(part)

    def _shelf_of(self, space: Space) -> _Shelf:
        shelf = self._shelves.get(space.name)
        if not shelf:
            shelf = self._shelves[space.name] = _Shelf(
                lambda: Store(space, self._where, **self._options))
        return shelf

    def _look(self, shelf: _Shelf) -> None:
        if not shelf.store:
            shelf.store = shelf.opening.take()
        if not shelf.store:
            now = time.monotonic()
            while shelf.waiting and now >= shelf.waiting[0][0].until:
                self._answer(shelf.waiting.popleft(),
                             itertools.repeat(errno.ETIMEDOUT))
            return
        while shelf.waiting:
            part = shelf.waiting.popleft()
            try:
                self._do(shelf.store, part)
            except Exception:
                self._answer(part, itertools.repeat(errno.EIO))
                raise
        for finished in shelf.store.finished():
            self._settle(finished)

    def _do(self, store: Store, part: Part) -> None:
        request, what, places, wants = part
        keys = [want.key for want in wants]
        if what == FIND:
            found = store.lookup(keys)
            for at, there in zip(places, found):
                request.answer(at, 0 if there else errno.ENOENT)
            store.expect([key for key, there in zip(keys, found) if there])
            return
        if what == REMOVE:
            self._remove(store, part)
            return
        for at, want in list(zip(places, wants)):
            if what == LOAD and store.is_avoided(want.key):
                places.remove(at)
                wants.remove(want)
                request.answer(at, errno.ENOENT)
        keys = [want.key for want in wants]
        self._next += 1
        self._jobs[self._next] = part
        task = store.move_rows(
            what == LOAD, self._next, keys, [want.row for want in wants],
            {want.key: want.before for want in wants if want.before})
        if request.begun:
            request.begun(store.space, task)

    def _settle(self, finished: Finished) -> None:
        request, _, places, wants = self._jobs.pop(finished.job)
        present = set(finished.present)
        for at, want in zip(places, wants):
            # what another request is saving is not there yet, and what the
            # mount did not want is not there
            request.answer(at, 0 if want.key in present else
                           finished.failed.get(want.key, errno.EAGAIN))

    def _remove(self, store: Store, part: Part) -> None:
        store.avoid([want.key for want in part[3]])

        def remove() -> None:
            try:
                errors = store.remove([want.key for want in part[3]])
            except UcmfsError as error:
                errors = [error.errno or errno.EIO] * len(part[3])
            self.post(lambda: self._answer(part, errors))

        self.chores.add(remove)

    @staticmethod
    def _answer(part: Part, errors: Iterable[int]) -> None:
        for at, err in zip(part[2], errors):
            part[0].answer(at, err)

    # ---- the end ----

    def close(self) -> None:
        """What is left ends, and its memory is not touched any more. Again:
        nothing."""
        if self._ending:
            return
        with self._lock:
            self._ending = True
        ring(self._wake)
        self._thread.join()
        while self._todo:  # the thread had left them
            self._todo.popleft()()
        ended = self.chores.end()
        for shelf in self._shelves.values():
            shelf.opening.give_up()
            if shelf.store is not None:
                shelf.store.close()
            for part in shelf.waiting:
                self._answer(part, itertools.repeat(errno.ECANCELED))
        for part in self._jobs.values():
            self._answer(part, itertools.repeat(errno.ECANCELED))
        for request in self._timed:
            request.end()
        if ended:  # else there is still a chore that will use it
            os.close(self._wake)
