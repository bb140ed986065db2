# SPDX-License-Identifier: Apache-2.0
"""Stores of UCM's older interface (V0), used as those of the newer one (V1).

V0 has create, lookup, prefetch, load, dump, wait, check and commit, with an
offset in bytes and a tensor for each entry. The adapter makes offsets of
shards and tensors of addresses, and creates and commits by itself.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Any, Callable

from .errors import InvalidArgument, UcmfsError
from .layout import Raw
from .measuring import Sized
from .store import _flat_numbers, _flat_tensors


class _Flags(list):
    """UCM's documents have commit() with a flag for each block, and with one
    for all, to which a plain [False] would be true."""

    def __bool__(self) -> bool:
        return all(self)


def bytes_at(address: int, size: int) -> memoryview:
    """Host memory; numpy.frombuffer() and torch.frombuffer() take it."""
    return memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B")


def raw_at(address: int, size: int) -> Raw:
    """Host memory, as StoreV0 takes it."""
    return Raw(address, (size,), (1,), 1, "cpu")


def _refused(blocks: list[bytes], answer: Any) -> list[bytes]:
    """What an answer says is not well: a number for each or for all; None:
    the form that has no answer."""
    if not isinstance(answer, (list, tuple)):
        answer = [answer] * len(blocks)
    return [block for block, status in zip(blocks, answer) if status]


class V0ToV1Adapter(Sized):
    """A store of V0 as one of V1; tasks are the V0 store's own.

    Sizes in bytes, as of Store. to_tensor: makes what V0 is given for an
    address and a size: for stores of UCM, lambda address, size:
    torch.frombuffer(bytes_at(address, size), dtype=torch.uint8).

    A block is created by its first dump, and committed by the wait() or
    check() that sees the end of its last one, or given up there if a dump
    failed. What exists, and what V0 does not create, is skipped. One thread
    at a time.
    """

    def __init__(self, v0_store: Any, *, to_tensor: Callable[
            [int, int], Any] = raw_at, **sizes: int) -> None:
        super().__init__(**sizes)
        self.v0_store, self.to_tensor = v0_store, to_tensor
        self._left: dict[bytes, set[int]] = {}  # shards, of what was created
        self._dumps: dict[int, Any] = {}  # by id(): task, blocks and shards

    def lookup(self, block_ids: Any, shard_index: Any = None) -> list[bool]:
        return list(map(bool, self.v0_store.lookup(self._split(block_ids))))

    def prefetch(self, block_ids: Any) -> None:
        self.v0_store.prefetch(self._split(block_ids))

    def load(self, block_ids: Any, shard_index: Any, dst_tensor: Any) -> Any:
        return self._move("load", block_ids, shard_index,
                          _flat_tensors(dst_tensor)[0])

    def dump(self, block_ids: Any, shard_index: Any, src_tensor: Any) -> Any:
        return self._move("dump", block_ids, shard_index,
                          _flat_tensors(src_tensor)[0])

    def load_data(self, block_ids: Any, shard_index: Any,
                  dst_addr: Any) -> Any:
        return self._move("load", block_ids, shard_index,
                          self._tensors_at(dst_addr))

    def dump_data(self, block_ids: Any, shard_index: Any,
                  src_addr: Any) -> Any:
        return self._move("dump", block_ids, shard_index,
                          self._tensors_at(src_addr))

    def _tensors_at(self, addresses: Any) -> list[Any]:
        return [self.to_tensor(address, self.tensor_size)
                for address in _flat_numbers(addresses, "addresses")]

    def _move(self, what: str, block_ids: Any, shard_index: Any,
              tensors: list[Any]) -> Any:
        ids, each = self._split(block_ids), self.tensors_per_shard
        shards = [0] * len(ids)
        if shard_index is not None:
            shards = list(shard_index)
        if len(tensors) != len(ids) * each or len(shards) != len(ids) or \
                not all(0 <= shard < self.shards for shard in shards):
            raise InvalidArgument(
                f"{what}: {len(shards)} of {self.shards} shards and "
                f"{len(tensors)} tensors, {each} each, for {len(ids)} blocks")
        moved = self._create(ids) if what == "dump" else range(len(ids))
        try:
            task = getattr(self.v0_store, what)(
                [ids[i] for i in moved for _ in range(each)],
                [shards[i] * self.shard_size + j * self.tensor_size
                 for i in moved for j in range(each)],
                [tensors[i * each + j] for i in moved for j in range(each)])
        except BaseException:
            if what == "dump":
                self._commit({ids[i] for i in moved}, False)
            raise
        if what == "dump":  # a store may have one task for all
            self._dumps.setdefault(id(task), (task, []))[1].extend(
                (ids[i], shards[i]) for i in moved)
        return task

    def _create(self, ids: list[bytes]) -> list[int]:
        """The numbers of those that will be dumped."""
        absent = [i for i, there in enumerate(self.lookup(ids)) if not there]
        new = list(dict.fromkeys(
            ids[i] for i in absent if ids[i] not in self._left))
        refused = _refused(new, self.v0_store.create(new)) if new else []
        self._left.update((block, set(range(self.shards)))
                          for block in new if block not in refused)
        return [i for i in absent if ids[i] in self._left]

    def _commit(self, blocks: set[bytes], well: bool) -> list[bytes]:
        """Or give them up. Those that the store has refused."""
        ended = list(blocks & self._left.keys())
        for block in ended:
            del self._left[block]
        return ended and _refused(ended, self.v0_store.commit(
            ended, _Flags([well] * len(ended))))

    def _ended(self, task: Any, status: int) -> None:
        """Commit blocks that have no shard left, or give all up."""
        ended = set()
        for block, shard in self._dumps.pop(id(task), (task, []))[1]:
            left = self._left.get(block, set())
            left.discard(shard)
            if block in self._left and (status or not left):
                ended.add(block)
        refused = self._commit(ended, not status)
        if refused and not status:
            self.v0_store.commit(refused, _Flags([False] * len(refused)))
            raise UcmfsError(errno.EIO, f"the store does not commit "
                             f"{len(refused)} of {len(ended)} blocks")

    def wait(self, task: Any) -> None:
        """UcmfsError: the store says that an entry failed."""
        status = self.v0_store.wait(task) or 0
        self._ended(task, status)
        if status:
            raise UcmfsError(errno.EIO, f"the store says {status}")

    def check(self, task: Any) -> bool:
        """Whether it is done; never waits."""
        status, done = self.v0_store.check(task)
        if done:
            self._ended(task, status or 0)
        return done
