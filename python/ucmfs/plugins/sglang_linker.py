# SPDX-License-Identifier: Apache-2.0
"""SGLang's external linker on ucmfs: pages move between the store and the
pools of the device, with no pool of the host between them.

    --enable-unified-cache-external-linker
    --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config '{
        "linker": "UcmfsLinker",
        "linker_module_path": "ucmfs.plugins.sglang_linker",
        "linker_extra_config": {"mount": "/mnt/kv"}}'

A page of a pool is a block whose pieces are in the order of the layers, and a
load reads the first layers of all pages first: a layer's attention waits for
the pieces of that layer alone. What a page's name does not say is in the
identity of its space, as with HiCache (ucmfs.plugins.sglang).

A look-up asks shared memory, and a space that is not open yet has nothing. A
page that cannot be loaded after all fails the batch that it is of: SGLang
(0.5.23) asks for the end of a batch, and aborts its requests that load.
"""

from __future__ import annotations

import errno
import itertools
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Iterable, Sequence

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import (
    PoolHitPolicy, PoolName, PoolTransfer)
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
    DevicePoolEntry, DevicePoolGroup, resolve_hybrid_device_pool_group)
from sglang.srt.mem_cache.memory_pool import (
    MHATokenToKVPool, MLATokenToKVPool)
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    UnifiedCacheLinker)

from ..errors import ConfigError, UcmfsError
from ..loader import Loader
from ..task import Task
from . import work
from .sglang import ENGINE, fields_of, never_raises, restorable_of, start
from .work import FIND, LOAD, SAVE, Request, Want, Worker


class _Pages:
    """A pool's pages: their space, and where they are in memory."""

    def __init__(self, entry: DevicePoolEntry, model: str,
                 identity: dict[str, Any]) -> None:
        self._entry = entry
        pieces: list[tuple[int, int, int]] = []  # address of row 0, step, size
        ends = {}  # of a layer's pieces
        for layer in sorted(entry.layer_mapping):
            at = entry.layer_mapping[layer]
            for index in [at] if isinstance(at, int) else at:
                pieces += [parts[index] for parts in entry.buffer_meta]
            ends[layer] = len(pieces)
        if sorted(pieces) != sorted(itertools.chain(*entry.buffer_meta)):
            raise ConfigError("pool", f"{entry.name}: buffers of no layer, or "
                              "of several")
        for buffer, (_, step, size) in zip(
                entry.kv_buffer, itertools.chain(*entry.buffer_meta)):
            row = buffer.nbytes // buffer.shape[0]
            if not buffer[0].is_contiguous() or row not in (step, size):
                raise ConfigError("pool", f"{entry.name}: pages are not in "
                                  "one piece")
        sizes = [size for _, _, size in pieces]
        geometry = work.geometry_of(sizes, entry.page_size)
        self.space = work.space_of(ENGINE, model, geometry, {
            "use": f"linker-{entry.name}", **identity, "pieces": sizes,
            "layers": [[layer, end] for layer, end in ends.items()],
            "tensors": [[str(buffer.dtype), *buffer.shape[1:]]
                        for buffer in entry.kv_buffer],
            "pool": type(entry.device_pool).__name__,
            **fields_of(entry.device_pool)})
        self._addresses = np.array(work.rows_of(
            geometry, [address for address, _, _ in pieces], sizes), np.uint64)
        cuts = [size // geometry.k_bytes for size in sizes]
        self._steps = np.repeat(np.array(
            [step for _, step, _ in pieces], np.uint64), cuts)
        firsts = list(itertools.accumulate(cuts, initial=0))
        begins = [0, *ends.values()]
        self._layers = {layer: range(firsts[begin], firsts[end])
                        for begin, (layer, end) in zip(begins, ends.items())}

    def pieces_of(self, layer: int) -> Iterable[int]:
        """Layers of the block that are one of the model's."""
        return self._layers.get(layer, ())

    def rows(self, indices: torch.Tensor) -> list[list[int]]:
        """Addresses; waits for the indices to be computed."""
        rows = np.array(self._entry.prepare_locations(indices), np.uint64)
        return (rows[:, None] * self._steps + self._addresses).tolist()


class _Move:
    """A load of a request, or an offload. landed: whether all has been moved,
    when nothing of it is under way any more. Any thread."""

    def __init__(self, worker: Worker, pages: Sequence[_Pages]) -> None:
        self.landed: Future[bool] = Future()
        self._worker = worker
        self._pages = pages
        self._tasks: dict[str, Future[Task | None]] = {
            each.space.name: Future() for each in pages}
        self.is_well = True  # as far as it was waited for

    def begin(self, what: str, wants: Sequence[Want]) -> None:
        request = self._worker.promise(self._end)
        request.begun = self._begun
        self._worker.begin(request, what, wants)

    def _begun(self, space: str, task: Task | None) -> None:
        if not self._tasks[space].done():
            self._tasks[space].set_result(task)

    def _end(self, request: Request) -> None:
        self.end(bool(request.errors) and not any(request.errors))

    def end(self, is_well: bool) -> None:
        for task in self._tasks.values():
            if not task.done():
                task.set_result(None)
        if not self.landed.done():
            self.landed.set_result(is_well)

    def wait_layer(self, layer: int) -> None:
        """Until it is in memory, or will not be."""
        for pages in self._pages:
            pieces = pages.pieces_of(layer)
            task = self._tasks[pages.space.name].result() if pieces else None
            if not task:
                continue
            try:
                for piece in pieces:
                    task.wait_layer(piece)
            except UcmfsError:
                self.is_well = False
            if task.done():
                self._worker.look()  # it was not notified


class LayerCounter:
    """What SGLang's pools wait for before they read a layer."""

    def __init__(self) -> None:
        self.consumer_index = -1
        self.batches: dict[int, list[_Move]] = {}

    def set_consumer(self, index: int) -> None:
        self.consumer_index = index

    def wait_until(self, threshold: int) -> None:
        for move in self.batches.get(self.consumer_index, ()):
            move.wait_layer(threshold)


class UcmfsLinker(UnifiedCacheLinker):
    """extra_config: as of UcmfsStorage, without SGLang's own."""

    def __init__(self, server_args: Any, params: Any, *,
                 components: set[ComponentType], extra_config: Any = None,
                 forward_stream: Any = None) -> None:
        if (getattr(server_args, "dcp_size", 1) or 1) > 1:
            raise ConfigError("dcp_size", "context parallelism of decoding is "
                              "not supported")
        self.forward_stream = forward_stream
        self._group = _group_of(params, components)
        self.pools = self._group.entry_map
        rank, size = _rank_of(params)
        alike = self._group.rank_replicated  # all ranks have the same pages
        self._is_owner = not (alike and rank)
        self._rank = (f"{0 if alike else rank}.{params.pp_rank}."
                      f"{params.attn_cp_rank}")
        self._device = self._group.entries[0].kv_buffer[0].device
        options = {**(extra_config or {}), **_copy_of(self._device),
                   "order": "layers"}
        model = str(getattr(server_args, "model_path", "") or "")
        identity, self._teller, self._worker = start(
            options, model, server_args, {
                "tp_size": size, "pp_size": params.pp_size,
                "attn_cp_size": params.attn_cp_size})
        try:
            self._pages = {str(name): _Pages(entry, model, identity)
                           for name, entry in self.pools.items()}
            self._ask([(name, "") for name in self._pages])  # opens them
        except BaseException:
            self._worker.close()
            raise
        self.layer_done_counter = LayerCounter()
        if PoolName.MAMBA in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(
                self.layer_done_counter)
        self._queued: dict[str, list[PoolTransfer]] = {}
        self._numbers = itertools.count()
        self._offloads: deque[_Move] = deque()
        # which wait for what the device computes
        self._threads = {what: ThreadPoolExecutor(1, f"ucmfs-{what}")
                         for what in (LOAD, SAVE)}

    # ---- look-ups ----

    def _key(self, key: str) -> bytes:
        return work.key_of(f"{key}@{self._rank}")

    def _ask(self, pages: Iterable[tuple[str, str]]) -> list[bool]:
        return self._worker.ask(FIND, [
            Want(self._pages[name].space, self._key(key))
            for name, key in pages])

    @never_raises(lambda rid: [])
    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        of_pools = self._group.resolve_transfers(transfers)
        if not of_pools or not self._worker.has_open(
                pages.space for pages in self._pages.values()):
            return []
        keys = next(each.keys for each in transfers
                    if each.name == PoolName.KV)
        there = self._ask((str(each.name), key)
                          for each in of_pools for key in keys)
        able = set(range(1, len(keys) + 1))
        for i, each in enumerate(of_pools):
            last = len(keys) if each.hit_policy == PoolHitPolicy.ALL_PAGES \
                else len(each.keys)
            able &= restorable_of(
                there[i * len(keys):(i + 1) * len(keys)], last)
        return sorted(able)

    # ---- loads ----

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        of_pools = self._group.resolve_transfers(
            transfers, allow_partial=True, allow_missing_kv=True)
        if not of_pools or rid in self._queued:
            return False
        self._queued[rid] = of_pools
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        return self._queued.pop(rid, None) is not None

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        queued, self._queued = self._queued, {}
        ready = []
        if self._device.type != "cpu":  # pages may be in use until here
            ready = [torch.cuda.current_stream().record_event()]
        index = next(self._numbers)
        self.layer_done_counter.batches[index] = [
            self._send(LOAD, of_pools, ready) for of_pools in queued.values()]
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        moves = self.layer_done_counter.batches.get(counter_index, ())
        landed = [move.landed.result() for move in moves]
        self.layer_done_counter.batches.pop(counter_index, None)
        return all(landed) and all(move.is_well for move in moves)

    def _send(self, what: str, of_pools: Sequence[PoolTransfer],
              ready: Sequence[Any]) -> _Move:
        """ready: events on the device that it begins after."""
        move = _Move(self._worker, [
            self._pages[str(each.name)] for each in of_pools])
        self._threads[what].submit(self._begin, move, what, of_pools, ready)
        return move

    def _begin(self, move: _Move, what: str, of_pools: Sequence[PoolTransfer],
               ready: Sequence[Any]) -> None:
        try:
            for event in ready:
                event.synchronize()
            move.begin(what, [
                want for each in of_pools for want in self._wants(each)])
        except Exception as error:
            self._teller.warn(what, "%s: %s", type(error).__name__, error)
            move.end(False)

    def _wants(self, each: PoolTransfer) -> list[Want]:
        pages = self._pages[str(each.name)]
        rows = pages.rows(each.host_indices)
        keys = [self._key(key) for key in each.keys]
        if len(rows) != len(keys):
            raise ValueError(f"{len(rows)} pages of {each.name} for "
                             f"{len(keys)} keys")
        return [Want(pages.space, *more)
                for more in zip(keys, rows, [b"", *keys])]

    # ---- offloads ----

    @never_raises(lambda transfers: False)
    def offload(self, transfers: list[PoolTransfer],
                session_id: str | None = None) -> bool:
        of_pools = self._group.resolve_transfers(transfers, allow_partial=True)
        if not of_pools:
            return False
        if self._is_owner:
            move = self._send(SAVE, of_pools, self.record_offload_ready()
                              if self._device.type != "cpu" else ())
        else:  # another rank does it
            move = _Move(self._worker, ())
            move.end(True)
        self._offloads.append(move)
        return True

    def num_completed_offloads(self) -> int:
        return sum(1 for _ in itertools.takewhile(
            lambda move: move.landed.done(), list(self._offloads)))

    def pop_completed_offload(self) -> bool:
        return self._offloads.popleft().landed.result()

    # ---- the end ----

    def reset(self) -> None:
        self._queued.clear()
        for index in list(self.layer_done_counter.batches):
            self.finish_layer_wise_loading(index)
        while self._offloads:
            self.pop_completed_offload()
        self.layer_done_counter.set_consumer(-1)

    def close(self) -> None:
        self.reset()
        for threads in self._threads.values():
            threads.shutdown()
        self._worker.close()


def _group_of(params: Any, components: set[ComponentType]) -> DevicePoolGroup:
    """As SGLang has it; and for plain models, which it has none for."""
    pool = params.token_to_kv_pool_allocator.get_kvcache()
    page = params.page_size
    if components != {ComponentType.FULL} or type(pool) not in (
            MHATokenToKVPool, MLATokenToKVPool) or \
            params.mtp_draft_device_pools or params.sidecar_draft_device_pools:
        return resolve_hybrid_device_pool_group(
            kvcache=pool, page_size=page, params=params, components=components)
    layers: dict[int, Any] = {i: i for i in range(pool.layer_num)}
    is_mla = isinstance(pool, MLATokenToKVPool)
    if not is_mla:
        if (pool.kv_cache_layout != "nhd" or pool.k_scale_buffer is not None
                or pool.native_k_scale_buffer is not None):
            raise ConfigError("pool", "layouts other than nhd, and scales, "
                              "are not supported")
        layers = {i: (i, pool.layer_num + i) for i in layers}
    return DevicePoolGroup([DevicePoolEntry(
        name=PoolName.KV, indices_from_pool=PoolName.KV, device_pool=pool,
        components=[pool.kv_buffer if is_mla
                    else [*pool.k_buffer, *pool.v_buffer]],
        layer_mapping=layers, page_size=page, rows_are_pages=False)],
        pool.layer_num, page, rank_replicated=is_mla)


def _rank_of(params: Any) -> tuple[int, int]:
    """Of those that share a request's attention."""
    if not (torch.distributed.is_available()
            and torch.distributed.is_initialized()):
        return 0, 1
    ranks = params.attn_tp_cache_group or params.tp_cache_group
    return (torch.distributed.get_rank(group=ranks),
            torch.distributed.get_world_size(group=ranks))


def _copy_of(device: torch.device) -> dict[str, Any]:
    """The loader's options for pages there; ConfigError."""
    if device.type == "cpu":
        return {}
    if device.type != "cuda" or not torch.version.cuda:
        raise ConfigError("device", f"{device}: pages are in memory of CUDA "
                          "or of the host")
    options = {"copy": "cuda", "device": device.index or 0}
    try:
        Loader("/", **options).close()
    except UcmfsError as error:  # of no mount: what is looked for is another
        if error.errno == errno.EOPNOTSUPP:
            raise ConfigError("device", f"{device}: libucm was built without "
                              "CUDA") from None
    return options
