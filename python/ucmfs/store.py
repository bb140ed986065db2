# SPDX-License-Identifier: Apache-2.0
"""Blocks and shards of them by id: the store interface of UCM's connectors.

Two forms beside each other, as in ucm_shards(3): Store (V1) moves shards by
index, and a block is committed by itself once all its shards have been dumped;
StoreV0 moves bytes by offset, and a block is created, dumped, and committed or
given up by a call. Data are tensors (torch, numpy, Raw) or raw addresses.
"""

from __future__ import annotations

import ctypes
import math
import threading
from array import array
from typing import Any, Optional, Sequence

from . import _c, _lib, _log, _pack
from ._handle import Handle
from .errors import InvalidArgument
from .layout import Geometry, Raw, _verify_of, is_dense, raw_of
from .loader import Loader, Path, Tiers, device_of
from .task import Task, TaskOwner, new_eventfd

_OUTCOME_BYTES = ctypes.sizeof(_c.Outcome)
_ENOENT, _EIO = -2, -5
Shards = Optional[_pack.Numbers]


class StoreTask(Task):
    """A call of a store; see Task."""

    def __init__(self, store: _Base, handle: int, ids: bytes, keep: Any,
                 what: str) -> None:
        self._told: array | None = None  # by a wait, which ends the handle
        self._ended = threading.Event()
        eventfd = -1
        try:
            eventfd = new_eventfd()
            store._lib.ucm_shards_notify(store._open(), handle, eventfd)
        finally:
            super().__init__(store, handle, ids, keep, eventfd, what)

    def _buffer(self) -> ctypes.Array:
        return (_c.Outcome * max(self.num, 1))()

    def _outcomes_of(self, buffer: ctypes.Array) -> array:
        out = array("i")
        out.frombytes(bytes(buffer)[:_OUTCOME_BYTES * self.num])
        return out

    def _told_by_another(self) -> array | None:
        self._ended.wait()
        return self._told

    def _c_poll(self, handle: int) -> array | None:
        if self._told is not None:
            return self._told
        buffer = self._buffer()
        done = self._owner._lib.ucm_shards_check(
            self._owner._handle, handle, buffer, self.num)
        if done == _ENOENT:
            return self._told_by_another()
        return self._outcomes_of(buffer) if done == 1 else None

    def _c_wait(self, handle: int, timeout_ms: int) -> int:
        buffer = self._buffer()
        err = self._owner._lib.ucm_shards_wait(
            self._owner._handle, handle, timeout_ms, buffer, self.num)
        if err in (0, _EIO):
            self._told = self._outcomes_of(buffer)
            self._ended.set()
        elif err == _ENOENT:
            self._told_by_another()
            err = 0
        return err

    def _c_cancel(self, handle: int) -> None:
        self._owner._lib.ucm_shards_cancel(self._owner._handle, handle)

    def _c_free(self, handle: int) -> None:
        if self._told is None:
            self._c_wait(handle, -1)


class _Base(Handle, TaskOwner):
    """What both forms have in common."""

    _CLOSE = "ucm_shards_close"
    kind = "ucmfs"  # of ucmfs.measuring's stores something else

    def __init__(self, loader: Loader | None = None, *,
                 mount: Path | None = None, tiers: Tiers | None = None,
                 tensor_size: int, shard_size: int = 0, block_size: int = 0,
                 num_layers: int = 0, geometry: Geometry | None = None,
                 space: str | None = None, verify: str = "full",
                 deadline_ms: int = 0, may_refuse: bool = False,
                 timeout: float | None = None, **loader_options: Any) -> None:
        """Open a store on a loader, or on one of its own.

        loader, or mount (a mount point, or a daemon's socket) or tiers and
        loader_options for Loader(). Sizes in bytes: a tensor (what is at one
        address) divides a shard (0: the whole block), which divides a block
        (0: one shard). num_layers of the block
        files and geometry: see struct ucm_shards_config. deadline_ms: of each
        load, dump and commit. may_refuse: the mount may refuse blocks that
        are not worth their writing; outcomes say so, and are no errors.
        timeout: in seconds, of wait() where it is not given one.
        """
        TaskOwner.__init__(self)
        Handle.__init__(self, "store")
        self.timeout = timeout
        _log.start()
        self._owned: Loader | None = None
        if loader is None:
            loader = self._owned = Loader(mount, tiers, **loader_options)
        elif mount is not None or tiers is not None or loader_options:
            raise InvalidArgument("store: a loader is given, and what is for "
                                  "another one as well")
        self.loader = loader
        self.space = space
        try:
            self._open_store(_pack.fill(_c.ShardsConfig(
                size=ctypes.sizeof(_c.ShardsConfig),
                geometry=None if geometry is None
                else ctypes.pointer(geometry._c()),
                space=_lib.text_bytes(space), verify=_verify_of(verify),
                may_refuse=bool(may_refuse)), "store", {
                    "tensor_size": tensor_size, "shard_size": shard_size,
                    "block_size": block_size, "num_layers": num_layers,
                    "deadline_ms": deadline_ms}))
        except BaseException:
            if self._owned is not None:
                self._owned.close()
            raise
        shape = _c.ShardsShape()
        self._lib.ucm_shards_get_shape(self._handle, shape)
        self.tensor_size: int = shape.tensor_size
        self.shard_size: int = shape.shard_size
        self.block_size: int = shape.block_size
        self.layer_size: int = shape.layer_size
        self.num_layers: int = shape.num_layers
        self.shards: int = shape.num_shards
        self.tensors_per_shard: int = shape.tensors_per_shard

    def _open_store(self, config: _c.ShardsConfig) -> None:
        _lib.call(self._lib.ucm_shards_open, "store", self.loader._open(),
                  config, self._handle)
        # it must not end before the store
        self.loader._stores.add(self)

    # ---- questions ----

    def cc_store(self) -> int:
        """The address of struct ucm_shards, for C."""
        return self._open().value or 0

    def lookup(self, block_ids: _pack.Ids,
               shard_index: Shards = None) -> list[bool]:
        """Which blocks are there, each by itself. A block is there as a
        whole or not at all: shard_index changes nothing, but that there is
        such a shard."""
        packed, num = _pack.count_ids(block_ids)
        self._pack_shards(shard_index, num)
        found = ctypes.create_string_buffer(num or 1)
        self._check(self._lib.ucm_shards_lookup(
            self._open(), packed, num, found), "lookup")
        return list(map(bool, found.raw[:num]))

    def lookup_on_prefix(self, block_ids: _pack.Ids) -> int:
        """The index of the last block of which it and all before are there;
        -1: the first is not."""
        last = ctypes.c_int64()
        self._check(self._lib.ucm_shards_lookup_on_prefix(
            self._open(), *_pack.count_ids(block_ids), ctypes.byref(last)),
                    "lookup_on_prefix")
        return last.value

    def prefetch(self, block_ids: _pack.Ids) -> None:
        """A hint that these will be loaded soon: a mount copies those that
        lie in a slow tier to the fastest one, in the background. Of tiers:
        see Group.prefetch()."""
        self.loader._prefetch(block_ids, self.space)
        self._lib.ucm_shards_prefetch(self._open(),
                                      *_pack.count_ids(block_ids))

    def set_parents(self, block_ids: _pack.Ids, parents: _pack.Ids) -> None:
        """Say which block comes before each in its chain (no bytes but 0:
        none), before they are dumped or created: their files name it, and a
        mount that needs room goes by it."""
        packed, num = _pack.count_ids(block_ids)
        self._lib.ucm_shards_set_parents(
            self._open(), packed, _pack.pack_parents("store", parents, num),
            num)

    # ---- transfers ----

    def _pack_shards(self, shards: Shards, num: int) -> array | None:
        if shards is None:
            return None
        packed = _pack.pack_numbers(shards, "I", "shard_index")
        if len(packed) != num:
            raise InvalidArgument(
                f"shard_index: {len(packed)} for {num} blocks")
        if num and max(packed) >= self.shards:
            raise InvalidArgument(f"shard_index: {max(packed)} of "
                                  f"{self.shards}")
        return packed

    def _span_array(self, what: str, tensors: Sequence[Any]) -> array:
        """struct ucm_span[] of contiguous tensors."""
        device = device_of(self.loader.copy)
        out = array("Q")
        for i, tensor in enumerate(tensors):
            name = f"{what}: tensor {i}"
            raw = raw_of(tensor, name)
            if raw.device not in (None, device):
                raise InvalidArgument(f"{name}: {raw.device} memory, and the "
                                      f"loader copies {self.loader.copy}'s")
            out.append(raw.pointer)
            out.append(_contiguous_bytes(raw, name))
        return out

    def _start(self, function: str, what: str, ids: _pack.Ids, keep: Any,
               *arguments: Any) -> StoreTask:
        """Call function(store, ids, arguments..., handle, error)."""
        handle = self._open()
        self._reap()
        packed = _pack.pack_ids(ids)
        out = ctypes.c_uint64()
        _lib.call(getattr(self._lib, function), what, handle, packed,
                  *arguments, ctypes.byref(out))
        return StoreTask(self, out.value, packed, keep, what)

    def close(self, cancel: bool = False) -> None:
        """Cancel the loads that are left, wait for dumps (cancel: cancel them
        too); blocks that are not committed are given up. Its loader does so
        when it is closed. Again: nothing."""
        if not self._is_ours():
            return
        with self._closing:
            self._end_tasks(cancel)
            super().close()
            self.loader._stores.discard(self)
        if self._owned is not None:
            self._owned.close(cancel)


class ByPrefix:
    """What V1's forms make of their other calls."""

    def load_prefix(self: Any, block_ids: _pack.Ids, dst_addr: Any) -> Task:
        """Load whole blocks up to the first that is not there. dst_addr: for
        each block the addresses of all its tensors, in the forms of
        load_data().

        The task is of those that were found; its num_loaded says, when it is
        done, how many blocks were loaded whole: fewer, if one was evicted or
        damaged. For that wait() raises, result() does not.
        """
        ids = _pack.split_ids(_pack.pack_ids(block_ids))
        numbers = _flat_numbers(dst_addr, "addresses")
        each = self.shards * self.tensors_per_shard
        if len(numbers) != len(ids) * each:
            raise InvalidArgument(f"load_prefix: {len(numbers)} addresses for "
                                  f"{len(ids)} blocks of {each} tensors")
        found = self.lookup_on_prefix(ids) + 1
        task = self.load_data(
            [block for block in ids[:found] for _ in range(self.shards)],
            list(range(self.shards)) * found, numbers[:found * each])
        task._per_block = self.shards
        return task


class Store(_Base, ByPrefix):
    """V1: shards by index.

    A shard is one layer, or the whole block, and has tensors_per_shard
    tensors of tensor_size bytes. `shards` is how many a block has. They may
    be dumped in any order, by any threads, in one call or in many; the last
    one commits the block. Memory belongs to a task until it is done. Any
    thread.
    """

    def load(self, block_ids: _pack.Ids, shard_index: Shards,
             dst_tensor: Sequence[Any]) -> Task:
        """Load shard shard_index[i] (None: 0) of block_ids[i] into
        dst_tensor[i]: a list of its tensors, or one that holds the whole
        shard. Tensors are contiguous, and their sizes are checked."""
        return self._tensors("load", block_ids, shard_index, dst_tensor)

    def dump(self, block_ids: _pack.Ids, shard_index: Shards,
             src_tensor: Sequence[Any]) -> Task:
        """Dump, likewise. A block that exists is skipped."""
        return self._tensors("dump", block_ids, shard_index, src_tensor)

    def load_data(self, block_ids: _pack.Ids, shard_index: Shards,
                  dst_addr: Any, sizes: Any = None) -> Task:
        """The same by addresses: a row of tensors_per_shard for each entry
        (rows, a flat sequence, or an array of 64 bits with one or two
        dimensions). sizes in bytes, of the same form: are checked; also one
        address and size for a whole shard then."""
        return self._addresses("load", block_ids, shard_index, dst_addr, sizes)

    def dump_data(self, block_ids: _pack.Ids, shard_index: Shards,
                  src_addr: Any, sizes: Any = None) -> Task:
        return self._addresses("dump", block_ids, shard_index, src_addr, sizes)

    def _tensors(self, what: str, ids: _pack.Ids, shards: Shards,
                 tensors: Sequence[Any]) -> Task:
        flat, keep = _flat_tensors(tensors)
        spans = self._span_array(what, flat)
        return self._spans(what, ids, shards, spans, keep)

    def _addresses(self, what: str, ids: _pack.Ids, shards: Shards,
                   addresses: Any, sizes: Any) -> Task:
        if sizes is not None:
            spans = _spans_of(what, addresses, sizes)
            return self._spans(what, ids, shards, spans, addresses)
        numbers = _flat_numbers(addresses, "addresses")
        packed, num = _pack.count_ids(ids)
        if len(numbers) != num * self.tensors_per_shard:
            raise InvalidArgument(
                f"{what}: {len(numbers)} addresses for {num} shards of "
                f"{self.tensors_per_shard} tensors")
        which = self._pack_shards(shards, num)
        return self._start(
            f"ucm_shards_{what}", what, packed, (numbers, addresses),
            _address(which), num, _pack.address_of(numbers))

    def _spans(self, what: str, ids: _pack.Ids, shards: Shards, spans: array,
               keep: Any) -> Task:
        packed, num = _pack.count_ids(ids)
        which = self._pack_shards(shards, num)
        return self._start(f"ucm_shards_{what}_data", what, packed, keep,
                           _address(which), num, _pack.address_of(spans),
                           len(spans) // 2)

    def give_up(self, block_ids: _pack.Ids) -> None:
        """Drop what was dumped of blocks that will not be finished; what is
        still being written of them goes when that has ended."""
        packed, num = _pack.count_ids(block_ids)
        self._start("ucm_shards_commit", "give up", packed, None, bytes(num),
                    num).result()

    def wait(self, task: Task, timeout: float | None = None) -> None:
        """task.wait(): raises for the first entry that failed. timeout in
        seconds, by default the store's."""
        task.wait(self.timeout if timeout is None else timeout)

    def check(self, task: Task) -> bool:
        """Whether it is done; never waits."""
        return task.done()


class StoreV0(_Base):
    """V0: bytes of the payload by offset, whole layers each.

    create() reserves blocks, dump() fills them, commit() makes them visible
    or gives them up. Any thread.
    """

    def create(self, block_ids: _pack.Ids) -> list[int]:
        """Reserve blocks; for each 0 or an errno: EEXIST: there is such a
        block; EALREADY: reserved before; EBUSY: being dumped by V1, or still
        being given up; ENOMEM."""
        packed, num = _pack.count_ids(block_ids)
        results = array("i", bytes(4 * num))
        self._check(self._lib.ucm_shards_create(
            self._open(), packed, num, _pack.address_of(results)), "create")
        return [-result for result in results]

    def load(self, block_ids: _pack.Ids, offset: Any, dst_tensor: Any) -> Task:
        """Load the bytes of block_ids[i] from offset[i] on (one number: for
        all; None: 0) into dst_tensor[i], as many as it has. One tensor
        instead of a sequence: it, or for several blocks its rows."""
        return self._rows("load", block_ids, offset, dst_tensor)

    def dump(self, block_ids: _pack.Ids, offset: Any, src_tensor: Any) -> Task:
        """Dump, likewise; nothing is committed. ENOENT: the block was not
        created."""
        return self._rows("dump", block_ids, offset, src_tensor)

    def load_data(self, block_ids: _pack.Ids, offset: Any, dst_addr: Any,
                  sizes: Any) -> Task:
        """The same by an address and a size in bytes for each block."""
        return self._move("load", block_ids, offset,
                          _spans_of("load", dst_addr, sizes), dst_addr)

    def dump_data(self, block_ids: _pack.Ids, offset: Any, src_addr: Any,
                  sizes: Any) -> Task:
        return self._move("dump", block_ids, offset,
                          _spans_of("dump", src_addr, sizes), src_addr)

    def _rows(self, what: str, ids: _pack.Ids, offset: Any,
              given: Any) -> Task:
        tensors = _per_block(ids, given)
        return self._move(what, ids, offset, self._span_array(what, tensors),
                          tensors)

    def _move(self, what: str, ids: _pack.Ids, offset: Any, spans: array,
              keep: Any) -> Task:
        packed, num = _pack.count_ids(ids)
        if len(spans) != 2 * num:
            raise InvalidArgument(f"{what}: {len(spans) // 2} tensors for "
                                  f"{num} blocks")
        if isinstance(offset, int):
            offset = [offset] * num
        offsets = None
        if offset is not None:
            offsets = _pack.pack_numbers(offset, "Q", "offset")
            if len(offsets) != num:
                raise InvalidArgument(f"{what}: {len(offsets)} offsets for "
                                      f"{num} blocks")
        return self._start(f"ucm_shards_{what}_at", what, packed, keep,
                           _address(offsets), _pack.address_of(spans), num)

    def commit_task(self, block_ids: _pack.Ids,
                    is_success: bool | Sequence[bool] = True) -> Task:
        """commit() without waiting."""
        packed, num = _pack.count_ids(block_ids)
        flags = [is_success] * num if isinstance(is_success, (bool, int)) \
            else is_success
        success = bytes(map(bool, flags))
        if len(success) != num:
            raise InvalidArgument(f"commit: {len(success)} flags for {num} "
                                  "blocks")
        return self._start("ucm_shards_commit", "commit", packed, None,
                           success, num)

    def commit(self, block_ids: _pack.Ids,
               is_success: bool | Sequence[bool] = True) -> list[int]:
        """Commit blocks, or give them up, and wait; for each 0 or an errno:
        EBUSY: dumps of it are not done; EAGAIN: bytes are missing (both: it
        stays reserved); ENOENT: it was not created."""
        task = self.commit_task(block_ids, is_success)
        task.result(self.timeout)
        return task.errors()

    def wait(self, task: Task, timeout: float | None = None) -> int:
        """Wait; 0: all well, or the errno of the first entry that is not.
        Timeout, as the task then goes on."""
        task.result(self.timeout if timeout is None else timeout)
        return next((err for err in task.errors() if err), 0)

    def check(self, task: Task) -> tuple[int, bool]:
        """(as wait(), True), or (0, False): not done yet. Never waits."""
        return (self.wait(task, 0), True) if task.done() else (0, False)


# ---- what callers give, as arrays ----

def _address(numbers: array | None) -> int | None:
    return None if numbers is None else _pack.address_of(numbers)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Raw) or hasattr(value, "data_ptr") or \
        hasattr(value, "__array_interface__") or \
        hasattr(value, "__cuda_array_interface__")


def _flat_tensors(tensors: Any) -> tuple[list[Any], Any]:
    """Rows of tensors, or a sequence of tensors, in one row."""
    if _is_tensor(tensors):
        return [tensors], tensors
    flat: list[Any] = []
    for entry in tensors:
        if _is_tensor(entry):
            flat.append(entry)
        else:
            flat.extend(entry)
    return flat, flat


def _per_block(ids: _pack.Ids, tensors: Any) -> Sequence[Any]:
    if not _is_tensor(tensors):
        return tensors
    num = _pack.count_ids(ids)[1]
    if num == 1:
        return [tensors]
    raw = raw_of(tensors)
    if not raw.shape or raw.shape[0] != num:
        raise InvalidArgument(f"a tensor of shape {raw.shape} has no row for "
                              f"each of {num} blocks")
    return [Raw(raw.pointer + i * raw.strides[0] * raw.item_bytes,
                raw.shape[1:], raw.strides[1:], raw.item_bytes, raw.device,
                tensors) for i in range(num)]


def _contiguous_bytes(raw: Raw, name: str) -> int:
    """How many bytes it has; InvalidArgument where there are gaps."""
    if not is_dense(raw):
        raise InvalidArgument(f"{name}: shape {raw.shape}, strides "
                              f"{raw.strides}: it is not contiguous")
    return math.prod(raw.shape) * raw.item_bytes


def _spans_of(what: str, addresses: Any, sizes: Any) -> array:
    """struct ucm_span[] of addresses and sizes, or one size for all."""
    numbers = _flat_numbers(addresses, "addresses")
    each = _flat_numbers([sizes] * len(numbers) if isinstance(sizes, int)
                         else sizes, "sizes")
    if len(each) != len(numbers):
        raise InvalidArgument(f"{what}: {len(each)} sizes for "
                              f"{len(numbers)} addresses")
    spans = array("Q", bytes(16 * len(numbers)))
    spans[0::2] = numbers
    spans[1::2] = each
    return spans


def _flat_numbers(values: Any, what: str) -> array:
    """Numbers of 64 bits in rows, flat, or in an array of one or two
    dimensions."""
    if isinstance(values, (list, tuple)):
        if values and not isinstance(values[0], int):
            values = [number for row in values for number in row]
        return _pack.pack_numbers(values, "Q", what)
    try:
        view = memoryview(values)
        if view.ndim == 2 and view.c_contiguous:
            values = view.cast("B").cast(view.format)
    except (TypeError, ValueError):
        pass
    return _pack.pack_numbers(values, "Q", what)
