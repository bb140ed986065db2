# SPDX-License-Identifier: Apache-2.0
"""Stores that keep no data, to measure what is around a store.

EmptyStore finds nothing, and drops what it is given: what an engine costs
that never hits, but computes ids, looks them up and hands over its pages.
FakeStore remembers ids and says yes to them, and moves no byte: what an engine
gains at most, from a store that takes no time. What it loads is whatever was
in the pages.

Neither touches a mount, a directory or the library. Each says in the log what
it is, and `kind` says so to programs; that of a real store is "ucmfs".
"""

from __future__ import annotations

import errno
import hashlib
import logging
import mmap
import os
import stat
from array import array
from typing import Any, Sequence

from . import _pack
from .errors import InvalidArgument
from .store import ByPrefix
from .task import _OUTCOME, Task, TaskOwner

log = logging.getLogger("ucmfs")

SLOTS = 1 << 20  # ids that a FakeStore remembers, about
_NONE = bytes(_pack.ID_BYTES)


class _Settled(Task):
    """A task that is over."""

    def __init__(self, owner: TaskOwner, ids: _pack.Ids, what: str,
                 errors: Sequence[int]) -> None:
        super().__init__(owner, None, _pack.pack_ids(ids), None, -1, what)
        owner._tasks.discard(self)
        outcomes = array("i")
        outcomes.frombytes(b"".join(_OUTCOME.pack(-err, 0, 0, 0, 0)
                                    for err in errors))
        self._outcomes = outcomes


class _Ids:
    """Ids in a table of slots: another one with the same slot takes its place.

    With a name all processes of this user that give it share the table, as a
    scheduler and its workers must; whoever made it removes it.
    """

    def __init__(self, slots: int, name: str | None) -> None:
        self.slots = slots
        self.path: str | None = None  # ours to remove
        self.table: Any = bytearray(slots * _pack.ID_BYTES) \
            if name is None else self._share(name)

    def _share(self, name: str) -> mmap.mmap:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        path = f"/dev/shm/ucmfs-fake-{os.geteuid()}-{digest}"
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            self.path = path
        except FileExistsError:
            fd = os.open(path, flags)
        try:
            st = os.fstat(fd)
            if st.st_uid != os.geteuid() or not stat.S_ISREG(st.st_mode):
                raise PermissionError(errno.EPERM, "it is another user's",
                                      path)
            size = self.slots * _pack.ID_BYTES
            if st.st_size < size:  # by two at once: to the same
                os.ftruncate(fd, size)
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def _at(self, block: bytes) -> int:
        return int.from_bytes(block[:8], "little") % self.slots \
            * _pack.ID_BYTES

    def add(self, block: bytes) -> None:
        at = self._at(block)
        self.table[at:at + _pack.ID_BYTES] = block

    def __contains__(self, block: bytes) -> bool:
        at = self._at(block)
        return block != _NONE and self.table[at:at + _pack.ID_BYTES] == block

    def close(self) -> None:
        if isinstance(self.table, mmap.mmap):
            self.table.close()
        self.table = b""
        if self.path is not None:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
            self.path = None


class Sized(TaskOwner):
    """Sizes, and what is asked of a store that is not in C."""

    def __init__(self, *, tensor_size: int, shard_size: int = 0,
                 block_size: int = 0) -> None:
        super().__init__()
        for name, value in (("tensor_size", tensor_size),
                            ("shard_size", shard_size),
                            ("block_size", block_size)):
            _pack.u64("store", name, value)
        shard_size = shard_size or block_size or tensor_size
        block_size = block_size or shard_size
        if not tensor_size or shard_size % tensor_size or \
                block_size % shard_size:
            raise InvalidArgument("store: a tensor divides a shard, and a "
                                  "shard divides a block")
        self.tensor_size, self.shard_size = tensor_size, shard_size
        self.block_size = block_size
        self.shards = block_size // shard_size
        self.tensors_per_shard = shard_size // tensor_size

    @staticmethod
    def _split(ids: _pack.Ids) -> list[bytes]:
        return _pack.split_ids(_pack.pack_ids(ids))

    def cc_store(self) -> int:
        """0: there is nothing in C."""
        return 0

    def lookup(self, block_ids: _pack.Ids, shard_index: Any = None,
               ) -> list[bool]:
        raise NotImplementedError

    def lookup_on_prefix(self, block_ids: _pack.Ids) -> int:
        found = self.lookup(block_ids)
        return (found.index(False) if False in found else len(found)) - 1


class _Pretending(Sized):
    """What both forms are asked; ucmfs.store says what it means."""

    kind = ""
    warning = ""
    _COMMITS = True  # a dump does

    def __init__(self, *, timeout: float | None = None,
                 unique_id: str | None = None, slots: int = SLOTS,
                 tensor_size: int, shard_size: int = 0, block_size: int = 0,
                 **_: Any) -> None:
        """Sizes as for Store, whose other options change nothing.
        unique_id: stores of one share what they remember."""
        super().__init__(tensor_size=tensor_size, shard_size=shard_size,
                         block_size=block_size)
        _pack.u64("store", "slots", slots - 1)
        self.timeout = timeout
        self.counts: dict[str, int] = dict.fromkeys(
            ("lookups", "hits", "loads", "dumps"), 0)
        self._open(slots, unique_id)
        log.warning("ucmfs: %s STORE, for measuring only: %s",
                    self.kind.upper(), self.warning)

    def _open(self, slots: int, unique_id: str | None) -> None:
        pass

    def _has(self, block: bytes) -> bool:
        return False

    def _keep(self, block: bytes) -> None:
        pass

    # ---- questions ----

    def lookup(self, block_ids: _pack.Ids, shard_index: Any = None,
               ) -> list[bool]:
        found = [self._has(block) for block in self._split(block_ids)]
        self.counts["lookups"] += len(found)
        self.counts["hits"] += sum(found)
        return found

    def prefetch(self, block_ids: _pack.Ids) -> None:
        pass

    # ---- transfers ----

    def load(self, block_ids: _pack.Ids, where: Any, tensor: Any) -> Task:
        blocks = self._split(block_ids)
        self.counts["loads"] += len(blocks)
        return _Settled(self, block_ids, "load", [
            0 if self._has(block) else errno.ENOENT for block in blocks])

    def dump(self, block_ids: _pack.Ids, where: Any, tensor: Any) -> Task:
        blocks = self._split(block_ids)
        self.counts["dumps"] += len(blocks)
        for block in blocks if self._COMMITS else ():
            self._keep(block)
        return _Settled(self, block_ids, "dump", [0] * len(blocks))

    def load_data(self, block_ids: _pack.Ids, where: Any, address: Any,
                  sizes: Any = None) -> Task:
        return self.load(block_ids, where, address)

    def dump_data(self, block_ids: _pack.Ids, where: Any, address: Any,
                  sizes: Any = None) -> Task:
        return self.dump(block_ids, where, address)

    def give_up(self, block_ids: _pack.Ids) -> None:
        pass

    def wait(self, task: Task, timeout: float | None = None) -> Any:
        task.wait(timeout)

    def check(self, task: Task) -> Any:
        return True

    def close(self, cancel: bool = False) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ByOffset(_Pretending):
    """V0: what is committed was created before."""

    _COMMITS = False

    def create(self, block_ids: _pack.Ids) -> list[int]:
        return [errno.EEXIST if self._has(block) else 0
                for block in self._split(block_ids)]

    def commit_task(self, block_ids: _pack.Ids,
                    is_success: bool | Sequence[bool] = True) -> Task:
        blocks = self._split(block_ids)
        flags = [is_success] * len(blocks) \
            if isinstance(is_success, (bool, int)) else is_success
        for block, good in zip(blocks, flags):
            if good:
                self._keep(block)
        return _Settled(self, block_ids, "commit", [0] * len(blocks))

    def commit(self, block_ids: _pack.Ids,
               is_success: bool | Sequence[bool] = True) -> list[int]:
        return self.commit_task(block_ids, is_success).errors()

    def wait(self, task: Task, timeout: float | None = None) -> int:
        return next((err for err in task.errors() if err), 0)

    def check(self, task: Task) -> Any:
        return self.wait(task), True


class EmptyStore(_Pretending, ByPrefix):
    """Every look-up misses, every dump is well, and nothing is kept."""

    kind = "empty"
    warning = "it keeps nothing, and every look-up misses"


class FakeStore(_Pretending, ByPrefix):
    """What was dumped is there, and no byte of it is moved."""

    kind = "fake"
    warning = "it moves no bytes: what is loaded from it is garbage"

    def _open(self, slots: int, unique_id: str | None) -> None:
        self._ids = _Ids(slots, unique_id)

    def _has(self, block: bytes) -> bool:
        return block in self._ids

    def _keep(self, block: bytes) -> None:
        self._ids.add(block)

    def close(self, cancel: bool = False) -> None:
        self._ids.close()


class EmptyStoreV0(EmptyStore, _ByOffset):
    """EmptyStore, by offsets."""


class FakeStoreV0(FakeStore, _ByOffset):
    """FakeStore, by offsets."""
