# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCache on ucmfs: a storage backend for its host pages.

    --hicache-mem-layout page_first --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{
        "backend_name": "ucmfs", "module_path": "ucmfs.plugins.sglang",
        "class_name": "UcmfsStorage", "interface_v1": 1, "mount": "/mnt/kv"}'

A page is a block, moved between the store and the pages of the pool that holds
it. SGLang (0.5.23) names pages after tokens and salt alone; their bytes depend
on more, and all of that is in the identity of the space: weights, types,
layout, sizes and parallelism. The ranks that a page is of are part of its key.

An exception would end a thread of SGLang's controller for good, and what waits
for it, so no call raises once the backend is made: what fails is a miss, or a
page that is not stored, and a line of the log.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, Mapping, Sequence

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage, HiCacheStorageConfig, PoolHitPolicy, PoolName,
    PoolTransferResult)

from ..layout import Geometry
from ..vllm.fingerprint import plain
from ..vllm.mount import Space, Teller
from . import work
from .work import FIND, LOAD, SAVE, Want, Worker

ENGINE = "sglang"
# of the configuration and not of the plug-in
_THEIRS = frozenset(("backend_name", "module_path", "class_name",
                     "interface_v1", "tp_lcm_size"))
# of a pool, as far as it has them; types of numbers are plain as text
_OF_POOLS = ("layout", "page_size", "size_per_token", "layer_num",
             "start_layer", "end_layer", "head_num", "head_dim", "v_head_dim",
             "dtype", "conv_dtype", "temporal_dtype", "kv_lora_rank",
             "qk_rope_head_dim", "indexer_dtype", "index_head_dim")
_OF_SIZES = ("tp_size", "pp_size", "attn_cp_size", "dcp_size", "is_mla_model",
             "logical_page_size")
_OF_SERVERS = ("dtype", "kv_cache_dtype", "quantization", "revision",
               "quantization_param_path", "json_model_override_args")
KV, FLAT = str(PoolName.KV), "flat"


def never_raises(otherwise: Callable[[Sequence[Any]], Any]) -> Callable:
    """otherwise: what a call returns that has failed, from its first
    argument."""
    def wrap(call: Callable) -> Callable:
        @functools.wraps(call)
        def called(self: UcmfsStorage, first: Any = (), *more: Any,
                   **named: Any) -> Any:
            try:
                return call(self, first, *more, **named)
            except Exception as error:
                self._teller.warn(call.__name__, "%s: %s",
                                  type(error).__name__, error)
                return otherwise(first)

        return called

    return wrap


def _none_of(keys: Sequence[Any]) -> list[bool]:
    return [False] * len(keys)


def _none_of_pools(transfers: Sequence[Any]) -> dict[str, list[bool]]:
    return {each.name: _none_of(each.keys or ()) for each in transfers}


class _Pages:
    """A pool's pages: their space, and where they are in memory."""

    def __init__(self, space: Space, pool: Any, sizes: Sequence[int]) -> None:
        self.space = space
        self.pool = pool
        self.sizes = sizes
        self.geometry = Geometry.from_json(space.manifest["geometry"])

    def rows(self, indices: torch.Tensor, num: int) -> list[list[int]]:
        """Of `num` pages; ValueError where the pool has others."""
        addresses, sizes = self.pool.get_page_buffer_meta(indices)
        each = len(self.sizes)
        if len(addresses) != num * each or list(sizes) != self.sizes * num:
            raise ValueError(f"{len(addresses)} pieces for {num} pages of "
                             f"{self.space.name}")
        return [work.rows_of(self.geometry, addresses[at:at + each],
                             self.sizes)
                for at in range(0, num * each, each)]


class UcmfsStorage(HiCacheStorage):
    """extra_config: mount, socket or tiers, where the store is, as of
    ucmfs.vllm. weights, namespace: what pages must have in common to be shared
    and SGLang does not say; see weights_of(). model_path: where the weights
    are, if the model's name does not say so. deadline_ms: of each call. The
    others are the loader's."""

    def __init__(self, storage_config: HiCacheStorageConfig,
                 kwargs: Any = None) -> None:
        given = dict(storage_config.extra_config or {})
        self._zero_copy = bool(given.get("interface_v1"))
        options = {key: given[key] for key in given if key not in _THEIRS}
        self._model = str(storage_config.model_name or "")
        self._identity, self._teller, self._worker = start(
            options, self._model, _server_args(),
            {name: plain(getattr(storage_config, name, None))
             for name in _OF_SIZES})
        self._rank = _rank_of(storage_config)
        self._spaces: dict[tuple[str, int], Space] = {}
        self._pages: dict[str, _Pages] = {}

    # ---- pools ----

    @never_raises(lambda pool: None)
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        if self._zero_copy:
            self._register(KV, mem_pool_host)

    @never_raises(lambda pool: None)
    def register_mem_host_pool_v2(self, host_pool: Any,
                                  host_pool_name: str) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(str(host_pool_name), host_pool)

    def _register(self, name: str, pool: Any) -> None:
        tokens = getattr(pool, "logical_page_size", pool.page_size)
        sizes = [int(size) for size in
                 pool.get_page_buffer_meta(torch.arange(tokens))[1]]
        self._pages[name] = _Pages(self._space(name, sizes, pool), pool, sizes)

    def _space(self, name: str, sizes: Sequence[int], pool: Any) -> Space:
        identity = {"use": name, **self._identity, "pieces": list(sizes),
                    "pool": type(pool).__name__}
        device = getattr(pool, "device_pool", None)
        for of, where in (("", pool), ("device_", device)):
            identity.update(fields_of(where, of))
        return work.space_of(ENGINE, self._model, work.geometry_of(
            sizes, getattr(pool, "page_size", 1)), identity)

    def _flat(self, size: int) -> Space:
        """Of pages that SGLang copies to and from tensors."""
        space = self._spaces.get((FLAT, size))
        if not space:
            space = self._spaces[FLAT, size] = self._space(
                FLAT, [size], getattr(self, "mem_pool_host", None))
        return space

    # ---- requests ----

    def _key(self, key: str) -> bytes:
        return work.key_of(f"{key}@{self._rank}")

    def _found(self, space: Space, keys: Sequence[str]) -> list[bool]:
        return self._worker.ask(FIND, [
            Want(space, self._key(key)) for key in keys])

    def _move(self, what: str, name: str, keys: Sequence[str],
              indices: torch.Tensor, extra_info: Any) -> list[bool]:
        pages = self._pages[name]
        ids = [self._key(key) for key in keys]
        prefix = getattr(extra_info, "prefix_keys", None)
        before = [self._key(prefix[-1]) if prefix else b"", *ids]
        return self._worker.ask(what, [
            Want(pages.space, *each) for each
            in zip(ids, pages.rows(indices, len(keys)), before)], pages.pool)

    # ---- pages by their indices ----

    @never_raises(_none_of)
    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor,
                     extra_info: Any = None) -> list[bool]:
        return self._move(LOAD, KV, keys, host_indices, extra_info)

    @never_raises(_none_of)
    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor,
                     extra_info: Any = None) -> list[bool]:
        return self._move(SAVE, KV, keys, host_indices, extra_info)

    @never_raises(lambda keys: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many from the first on."""
        return _run_of(self._found(self._kv(), keys))

    def _kv(self) -> Space:
        """The space of the pages that the pool is filled from."""
        if self._zero_copy:
            return self._pages[KV].space
        page = self.mem_pool_host.get_dummy_flat_data_page()
        return self._flat(page.numel() * page.element_size())

    # ---- pools beside each other ----

    @never_raises(_none_of_pools)
    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None,
                     ) -> dict[str, list[bool]]:
        return self._move_v2(self._get_pool, transfers, extra_info)

    @never_raises(_none_of_pools)
    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None,
                     ) -> dict[str, list[bool]]:
        return self._move_v2(self._set_pool, transfers, extra_info)

    @staticmethod
    def _move_v2(move: Callable, transfers: Iterable[Any],
                 extra_info: Any) -> dict[str, list[bool]]:
        return {each.name: move(each.keys or [], each, extra_info)
                for each in transfers}

    @never_raises(_none_of)
    def _get_pool(self, keys: list[str], transfer: Any, extra_info: Any,
                  ) -> list[bool]:
        return self._move(LOAD, str(transfer.name), keys,
                          transfer.host_indices, extra_info)

    @never_raises(_none_of)
    def _set_pool(self, keys: list[str], transfer: Any, extra_info: Any,
                  ) -> list[bool]:
        return self._move(SAVE, str(transfer.name), keys,
                          transfer.host_indices, extra_info)

    @never_raises(lambda keys: PoolTransferResult.empty())
    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None,
                        extra_info: Any = None) -> PoolTransferResult:
        """As HiCacheFile does it: prefixes that all pools can restore. Of a
        pool with BLOCK_GROUPS, which never shortens one, nothing is said."""
        kv_pages = _run_of(self._found(self._kv(), keys))
        hits = {KV: kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        for transfer in pool_transfers or ():
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                continue
            there = self._found(self._pages[str(transfer.name)].space,
                                keys[:kv_pages])
            last = len(transfer.keys or (None,)) or 1
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                last = kv_pages
            able = restorable_of(there, last)
            if able:
                hits[transfer.name] = max(able)
            restorable = [num for num in restorable if num in able]
        return PoolTransferResult(max(restorable, default=0), hits, restorable)

    # ---- pages by tensors ----

    @never_raises(lambda key: None)
    def get(self, key: str, target_location: Any = None,
            target_sizes: Any = None) -> torch.Tensor | None:
        return self.batch_get([key], [target_location])[0]

    @never_raises(lambda keys: [None] * len(keys))
    def batch_get(self, keys: list[str], target_locations: Any = None,
                  target_sizes: Any = None) -> list[torch.Tensor | None]:
        well = self._tensors(LOAD, keys, target_locations)
        return [tensor if ok else None
                for tensor, ok in zip(target_locations, well)]

    @never_raises(lambda key: False)
    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    @never_raises(lambda keys: False)
    def batch_set(self, keys: list[str], values: Any = None,
                  target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        return all(self._tensors(SAVE, keys, [
            value.contiguous() for value in values]))

    @never_raises(lambda key: False)
    def exists(self, key: str) -> bool:
        return self._found(self._kv(), [key])[0]

    def _tensors(self, what: str, keys: Sequence[str],
                 tensors: Sequence[torch.Tensor]) -> list[bool]:
        wants = []
        for key, tensor in zip(keys, tensors):
            if not tensor.is_contiguous():
                raise ValueError("a tensor that is not contiguous")
            size = tensor.numel() * tensor.element_size()
            space = self._flat(size)
            wants.append(Want(space, self._key(key), work.rows_of(
                Geometry.from_json(space.manifest["geometry"]),
                [tensor.data_ptr()], [size])))
        return self._worker.ask(what, wants, tensors)

    # ---- the end ----

    @never_raises(lambda _: None)
    def close(self, _: Any = None) -> None:
        self._worker.close()


def start(options: dict[str, Any], model: str, server: Any,
          sizes: Mapping[str, Any]) -> tuple[dict[str, Any], Teller, Worker]:
    """What stands for the bytes of all pages, and who moves them. options:
    those that are left are the worker's. ConfigError."""
    where = work.where_of(*(options.pop(name, "") for name
                            in ("mount", "socket", "tiers")))
    weights = work.weights_of(
        str(options.pop("model_path", "")
            or getattr(server, "model_path", None) or model),
        options.pop("weights", ""))
    identity = {
        "weights": weights, "namespace": options.pop("namespace", ""), **sizes,
        **{name: plain(getattr(server, name, None)) for name in _OF_SERVERS}}
    return identity, Teller(where), Worker(where, **options)


def fields_of(pool: Any, of: str = "") -> dict[str, Any]:
    """What a pool says of its bytes."""
    return {of + field: plain(getattr(pool, field))
            for field in _OF_POOLS if hasattr(pool, field)}


def restorable_of(there: Iterable[bool], last: int) -> set[int]:
    """Lengths of a prefix whose last pages are all there."""
    able, run = set(), 0
    for num, one in enumerate(there, 1):
        run = run + 1 if one else 0
        if run >= min(last, num):
            able.add(num)
    return able


def _run_of(found: Sequence[bool]) -> int:
    return found.index(False) if False in found else len(found)


def _rank_of(config: HiCacheStorageConfig) -> str:
    """Which ranks a page is of: where all of a tensor's ranks have the same,
    the one that writes it is not."""
    tensor = config.dcp_rank if config.is_mla_model else config.tp_rank
    return f"{tensor}.{config.pp_rank}.{config.attn_cp_rank}"


def _server_args() -> Any:
    """Of the server; None: this is not one, or of another version."""
    try:
        from sglang.srt.runtime_context import get_server_args
        return get_server_args()
    except Exception:
        return None
