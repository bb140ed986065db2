# SPDX-License-Identifier: Apache-2.0
"""Transfers under way: to be polled, waited for, or awaited.

A task belongs to a group of a loader or to a store; what the two do in C is in
the subclasses there. Calls may come from any thread and at once. When the end
is seen the outcomes are copied and what C holds is given back, so that a done
task is plain data; unless it has pages lent, until they are back.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import os
import select
import struct
import threading
import time
from array import array
from typing import Any, Callable, Generator, NamedTuple

from . import _c, _lib, _pack
from ._handle import Handle
from .errors import BlockDamaged, Timeout, UcmfsError, from_errno

_OUTCOME = struct.Struct("=iHBBI")
_WORDS = _OUTCOME.size // 4
_EINPROGRESS, _EBADMSG, _ENOENT = 115, 74, 2
# A wait without an end is cut in pieces, so that signals are seen.
_SLICE = 1.0


class TaskType(str, enum.Enum):
    """What a task does to blocks. A save is a dump."""

    LOAD = "load"
    DUMP = "dump"
    COMMIT = "commit"  # or to give up


_TYPES = {"load": TaskType.LOAD, "dump": TaskType.DUMP,
          "save": TaskType.DUMP}
_numbers = itertools.count(1)


class Outcome(NamedTuple):
    """How a block fared.

    err: 0, or an errno above 0. fault: what is wrong with a damaged block, in
    words. skipped: of a save, the block was there. plane: whose checksum
    differs, 2 * layer, + 1 for V. refused: of a save, the mount did not want
    it, and it is not there.
    """

    err: int
    fault: str = ""
    skipped: bool = False
    plane: int | None = None
    refused: bool = False

    @property
    def ok(self) -> bool:
        return self.err == 0

    @property
    def text(self) -> str:
        """"layer 2 V: plane checksum differs" and the like."""
        if self.plane is not None:
            which = "V" if self.plane & 1 else "K"
            return f"layer {self.plane // 2} {which}: {self.fault}"
        if self.fault:
            return self.fault
        if self.err == _ENOENT:
            return "absent"
        if self.skipped:
            return "was there already"
        if self.refused:
            return "refused"
        return os.strerror(self.err) if self.err else "ok"

    def exception(self, block: bytes) -> UcmfsError:
        """For a failed block, whose id is given."""
        if self.err == _EBADMSG:
            return BlockDamaged(block, self.fault, self.plane)
        return from_errno(self.err, f"block {block.hex()}", self.text)


def _outcome(err: int, fault: int, skipped: int, refused: int,
             plane: int) -> Outcome:
    if not err:
        return Outcome(0, "", bool(skipped), None, bool(refused))
    bad = err == -_EBADMSG
    return Outcome(
        -err,
        _lib.lib().ucm_fault_text(fault).decode() if bad and fault else "",
        bool(skipped), plane if bad and fault == _c.UCM_FAULT_PLANE else None)


def new_eventfd() -> int:
    """One that is not inherited and does not block; OSError."""
    if hasattr(os, "eventfd"):
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    # Python 3.9
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.eventfd(0, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "eventfd")
    return fd


def milliseconds(seconds: float) -> int:
    """For C, rounded up, so that a wait is not cut to a poll."""
    return int(min(seconds * 1000 + 0.999, 0x7fffffff)) if seconds > 0 else 0


class Completions(Handle):
    """Tasks that have ended: one call for all of them, see take().

    What is submitted with completions=this is told here, by loaders of any
    number; it is closed after them. Any thread.
    """

    _CLOSE = "ucm_completions_free"
    _CLOSED = RuntimeError

    def __init__(self) -> None:
        super().__init__("completions")
        self._check(self._lib.ucm_completions_new(self._handle))
        self._lock = threading.Lock()
        self._tasks: dict[int, Task] = {}  # by what C has of them

    def fileno(self) -> int:
        """Readable while tasks can be taken; for select() and the like."""
        return int(_lib.lib().ucm_completions_fd(self._open()))

    def take(self, timeout: float = 0.0, most: int = 256) -> list[Task]:
        """Tasks that have ended and were not seen to, in that order; those
        that had pages lent once more, when they are back; and saves with
        tell_copied whose pages are free. Where there is none it waits for one
        so many seconds."""
        if timeout > 0:  # without the lock, which submits need
            poll = select.poll()  # select() takes descriptors below 1024
            poll.register(self, select.POLLIN)
            poll.poll(milliseconds(timeout))
        elif not self._tasks:
            self._open()
            return []
        found = (ctypes.c_void_p * most)()
        with self._lock:
            num = _lib.lib().ucm_completions_take(self._open(), found, most, 0)
            # one that is not known is being freed by who saw its end
            tasks = [self._tasks[handle] for handle in found[:num]
                     if handle in self._tasks]
        for task in tasks:
            task.done()
        return tasks

    def _forget(self, handle: int) -> None:
        with self._lock:
            self._tasks.pop(handle, None)

    def close(self) -> None:
        """RuntimeError: tasks are under way that it is to tell of."""
        if self._tasks:
            raise RuntimeError(f"completions: {len(self._tasks)} tasks are "
                               "under way")
        super().close()

    def __del__(self) -> None:
        if not getattr(self, "_tasks", None):
            super().__del__()


class Task:
    """A transfer of `num` entries, `ids` (num * 16 bytes): blocks, or shards
    of them.

    task_id: a number that no other task of this process has. task_type: a
    TaskType. start_time: by time.monotonic(). A task that is dropped goes on,
    and what it works on stays referenced until it is done. free() ends it.
    """

    def __init__(self, owner: Any, handle: Any, ids: bytes, keep: Any,
                 eventfd: int, what: str,
                 queue: Completions | None = None) -> None:
        self.ids = ids
        self.num = len(ids) // _pack.ID_BYTES
        self.task_id = next(_numbers)
        self.task_type = _TYPES.get(what, TaskType.COMMIT)
        self.start_time = time.monotonic()
        self._owner = owner
        self._handle = handle
        self._keep = keep  # memory that is moved into or out of
        self._eventfd = eventfd  # ours; -1: none
        self._queue = queue
        self._what = what
        self._lock = threading.Lock()
        self._users = 0  # calls in C that have the handle
        self._per_block = 1  # entries, of load_prefix()
        self._outcomes: array | None = None  # when it is done
        owner._tasks.add(self)

    # ---- what C does: of a loader's task, or of a store's handle ----

    def _c_poll(self, handle: Any) -> array | None:
        """The outcomes if it is done, else None. Never waits."""
        raise NotImplementedError

    def _c_wait(self, handle: Any, timeout_ms: int) -> int:
        raise NotImplementedError

    def _c_cancel(self, handle: Any) -> None:
        raise NotImplementedError

    def _c_free(self, handle: Any) -> None:
        """Of a task that is done."""
        raise NotImplementedError

    def _c_wait_layer(self, handle: Any, layer: int, timeout_ms: int) -> int:
        raise from_errno(95, self._what, "it has no layers to wait for")

    def _c_wait_copied(self, handle: Any, timeout_ms: int) -> int:
        return self._c_wait(handle, timeout_ms)

    def _c_wait_returned(self, handle: Any, timeout_ms: int) -> int:
        return self._c_wait(handle, timeout_ms)

    def _c_is_returned(self, handle: Any) -> bool:
        """Of a task that is done: are its pages the caller's again?"""
        return True

    # ---- the handle, which nobody may free while another is in C ----

    def _enter(self) -> Any:
        """The handle, or None once it is done and has no pages lent."""
        with self._lock:
            if self._handle is not None:
                self._users += 1
            return self._handle

    def _leave(self, outcomes: array | None = None) -> None:
        with self._lock:
            self._users -= 1
            if outcomes is not None and self._outcomes is None:
                self._outcomes = outcomes
            if self._outcomes is None or self._users or self._handle is None:
                return
            if not self._c_is_returned(self._handle):
                return
            handle, self._handle = self._handle, None
            eventfd, self._eventfd = self._eventfd, -1
        self._owner._tasks.discard(self)
        if self._queue is not None:
            self._queue._forget(handle)
        self._c_free(handle)
        if eventfd >= 0:
            os.close(eventfd)
        self._keep = None

    def _call(self, call: Callable[[Any], int], timeout: float | None) -> int:
        """call(handle, timeout_ms) until it is no longer -ETIMEDOUT."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if end is None else \
                min(end - time.monotonic(), _SLICE)
            handle = self._enter()
            if handle is None:
                return -5 if self.num_failed else 0
            result, outcomes = -110, None
            try:
                result = call(handle, milliseconds(left))
                outcomes = self._c_poll(handle)
            finally:
                self._leave(outcomes)
            if result != -110:
                return result
            if end is not None and time.monotonic() >= end:
                raise Timeout(110, f"{self._what}: not done within "
                              f"{timeout:g} s; it goes on")

    # ---- questions ----

    @property
    def block_count(self) -> int:
        """How many blocks its entries are of."""
        return len(set(_pack.split_ids(self.ids)))

    def done(self) -> bool:
        """Never waits."""
        handle = self._enter()
        if handle is None:
            return True
        outcomes = None
        try:
            outcomes = self._c_poll(handle)
        finally:
            self._leave(outcomes)
        return outcomes is not None

    def returned(self) -> bool:
        """Is it done, and are all of its pages the caller's again? What a
        load has lent may be written to after its end. Never waits."""
        return self.done() and self._handle_is_gone()

    def _handle_is_gone(self) -> bool:
        with self._lock:
            return self._handle is None

    def copied(self) -> bool:
        """Of a save: may its pages change again? Never waits."""
        try:
            self.wait_copied(0)
        except Timeout:
            return False
        return True

    def _final(self) -> array:
        if self._outcomes is None and not self.done():
            raise RuntimeError(f"{self._what}: not done yet")
        assert self._outcomes is not None
        return self._outcomes

    def errors(self) -> list[int]:
        """An errno for each block, 0: it is well. RuntimeError: not done."""
        return [-err for err in self._final()[::_WORDS]]

    def skipped(self) -> list[bool]:
        """Of a save, which blocks were there. RuntimeError: not done."""
        return self._byte_of_each(6)

    def refused(self) -> list[bool]:
        """Of a save, which blocks the mount did not want. RuntimeError: not
        done."""
        return self._byte_of_each(7)

    def _byte_of_each(self, offset: int) -> list[bool]:
        return list(map(bool, self._final().tobytes()[offset::_OUTCOME.size]))

    @property
    def num_skipped(self) -> int:
        """Blocks of a save that were there. RuntimeError: not done."""
        return self.num - self._final().tobytes()[6::_OUTCOME.size].count(0)

    @property
    def num_refused(self) -> int:
        """Blocks of a save that the mount did not want. RuntimeError: not
        done."""
        return self.num - self._final().tobytes()[7::_OUTCOME.size].count(0)

    @property
    def num_loaded(self) -> int:
        """Of load_prefix(), blocks that were loaded whole, up to the first
        that was not; of others entries. RuntimeError: not done."""
        errors = self._final()[::_WORDS]
        well = next((i for i, err in enumerate(errors) if err), self.num)
        return well // self._per_block

    @property
    def num_failed(self) -> int:
        """Blocks that are not well. RuntimeError: not done."""
        errors = self._final()[::_WORDS]
        return len(errors) - errors.count(0)

    def outcomes(self) -> list[Outcome]:
        """One for each block. RuntimeError: not done."""
        raw = self._final().tobytes()
        return [_outcome(*o) for o in _OUTCOME.iter_unpack(raw)]

    # ---- waiting ----

    def result(self, timeout: float | None = None) -> list[Outcome]:
        """Wait; outcomes, well or not. timeout in seconds: Timeout."""
        self._call(self._c_wait, timeout)
        return self.outcomes()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all blocks are well.

        Timeout: not done within so many seconds; the task goes on. Or the
        exception of the first block that failed, with the outcomes of all in
        its .outcomes.
        """
        self._call(self._c_wait, timeout)
        self._raise_failed()

    def _raise_failed(self) -> None:
        if not self.num_failed:
            return
        outcomes = self.outcomes()
        first = next(i for i, o in enumerate(outcomes) if o.err)
        at = first * _pack.ID_BYTES
        error = outcomes[first].exception(self.ids[at:at + _pack.ID_BYTES])
        error.outcomes = outcomes  # type: ignore[attr-defined]
        raise error

    def wait_layer(self, layer: int, timeout: float | None = None) -> bool:
        """Of a load: wait for a layer of all blocks.

        True: of all; False: of all but those that have failed. Timeout;
        InvalidArgument: no layer of the task.
        """
        layer = _pack.u32(self._what, "layer", layer)
        return self._partly(
            lambda handle, ms: self._c_wait_layer(handle, layer, ms), timeout,
            f"layer {layer}")

    def wait_copied(self, timeout: float | None = None) -> bool:
        """Of a save: wait until its pages may change again. Else as
        wait_layer()."""
        return self._partly(self._c_wait_copied, timeout, "pages")

    def _partly(self, call: Callable[[Any, int], int],
                timeout: float | None, what: str) -> bool:
        err = self._call(call, timeout)
        if err not in (0, -5):
            raise from_errno(err, f"{self._what}: {what}")
        return err == 0

    def wait_returned(self, timeout: float | None = None) -> None:
        """Wait until it is done and all of its pages are the caller's again.
        Timeout."""
        self._call(self._c_wait_returned, timeout)

    def __await__(self) -> Generator[Any, None, None]:
        """As wait(), in an event loop: its selector watches an eventfd."""
        if not self.done():
            yield from self._wait_in_loop().__await__()
        self._raise_failed()

    async def _wait_in_loop(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        with self._lock:
            # one for each who awaits: a loop knows a descriptor once
            fd = os.dup(self._eventfd) if self._eventfd >= 0 else -1
        if fd < 0:
            # the end is told by an eventfd of the caller's
            await loop.run_in_executor(None, self.result)
            return
        told = loop.create_future()
        loop.add_reader(fd, lambda: told.done() or told.set_result(None))
        try:
            await told
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        # it is told before the last lock is given back
        self._call(self._c_wait, None)

    # ---- ends ----

    def cancel(self) -> None:
        """What is not done yet ends with ECANCELED, soon; wait for it."""
        handle = self._enter()
        if handle is None:
            return
        try:
            self._c_cancel(handle)
        finally:
            self._leave()

    def free(self) -> None:
        """Cancel, wait for the end and for pages that are lent, and let go of
        the memory. Again: none."""
        self.cancel()
        self.wait_returned()


class TaskOwner:
    """What has tasks. It refers to each until its end has been seen, also
    where nobody else does: the memory stays that a task works on."""

    _REAP = 16  # so many are left alone

    def __init__(self) -> None:
        self._tasks: set[Task] = set()
        self._reap_at = self._REAP
        self._closing = threading.RLock()  # several may close it

    def _reap(self) -> None:
        """Look after those that nobody has asked for; costs little on
        average, as it is put off for longer the more there are."""
        if len(self._tasks) < self._reap_at:
            return
        for task in list(self._tasks):
            if task._queue is None:  # which tells of its end
                task.done()
        self._reap_at = 2 * len(self._tasks) + self._REAP

    def _end_tasks(self, cancel: bool) -> None:
        """Loads are cancelled, the others only if so asked."""
        for task in list(self._tasks):
            if cancel or task._what == "load":
                task.cancel()
        for task in list(self._tasks):
            task.wait_returned()
