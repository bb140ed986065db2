#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ucmfs.plugins.sglang by the factory of an installed SGLang, below pools of
pages as its controller has them."""

import hashlib
import os
import random
import threading
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Sequence
from unittest import mock

from plugin_case import DEADLINE_MS, PluginCase, use_sglang

use_sglang()

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig, HiCacheStorageExtraInfo,
    HiCacheStorageFailureInjector, PoolHitPolicy, PoolName, PoolTransfer)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_storage_hash_str

TOKENS, LAYERS, HEADS, HEAD_DIM = 16, 4, 2, 64
PAGE = 2 * TOKENS * LAYERS * HEADS * HEAD_DIM * 2  # 64 KiB of bfloat16


class Pool:
    """What MHATokenToKVPoolHost shows to a backend: K and V of all pages, in
    either layout of pages (mem_cache/pool_host/mha.py)."""

    def __init__(self, pages: int = 64, dtype: torch.dtype = torch.bfloat16,
                 layout: str = "page_first", heads: int = HEADS) -> None:
        self.dtype, self.layout, self.page_size = dtype, layout, TOKENS
        self.layer_num, self.head_num, self.head_dim = LAYERS, heads, HEAD_DIM
        self.start_layer, self.end_layer = 0, LAYERS
        self.size = pages * TOKENS
        self.size_per_token = LAYERS * heads * HEAD_DIM * 2 * dtype.itemsize
        self.kv_buffer = torch.zeros(
            2, pages, self.size_per_token * TOKENS // 2, dtype=torch.uint8)

    def get_page_buffer_meta(self, indices: torch.Tensor) -> Any:
        assert len(indices) % TOKENS == 0
        pointers = [self.kv_buffer[plane, int(at) // TOKENS].data_ptr()
                    for at in indices[::TOKENS] for plane in (0, 1)]
        return pointers, [self.kv_buffer.shape[2]] * len(pointers)

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros(2 * self.kv_buffer.shape[2], dtype=torch.uint8)

    def fill(self, page: int, number: int) -> None:
        self.kv_buffer[:, page] = content(number, self)

    def holds(self, page: int, number: int) -> bool:
        return torch.equal(self.kv_buffer[:, page], content(number, self))


def content(number: int, pool: Pool) -> torch.Tensor:
    source = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (2, pool.kv_buffer.shape[2]),
                         dtype=torch.uint8, generator=source)


def indices(pages: Sequence[int]) -> torch.Tensor:
    return torch.cat([torch.arange(page * TOKENS, (page + 1) * TOKENS)
                      for page in pages] or [torch.arange(0)])


def keys_of(numbers: Sequence[int]) -> List[str]:
    return [hashlib.sha256(b"%d" % n).hexdigest() for n in numbers]


class Case(PluginCase):

    def open(self, pool: Optional[Pool] = None,
             config: Optional[Dict[str, Any]] = None, **extra: Any) -> Any:
        """A backend as the controller makes it."""
        self.pool = pool or Pool()
        extra = {"backend_name": "ucmfs",
                 "module_path": "ucmfs.plugins.sglang",
                 "class_name": "UcmfsStorage", "interface_v1": 1,
                 "weights": "v1", **self.mount.where,
                 "deadline_ms": DEADLINE_MS, **extra}
        backend = StorageBackendFactory.create_backend(
            "dynamic", HiCacheStorageConfig(**{
                "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1,
                "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False,
                "enable_storage_metrics": False, "is_page_first_layout": True,
                "model_name": "org/tiny-model", "extra_config": extra,
                **(config or {})}), self.pool)
        self.addCleanup(backend.close)
        backend.register_mem_pool_host(self.pool)
        return backend

    def put(self, backend: Any, numbers: Sequence[int]) -> List[bool]:
        for page, number in enumerate(numbers):
            self.pool.fill(page, number)
        return backend.batch_set_v1(keys_of(numbers),
                                    indices(range(len(numbers))))

    def get(self, backend: Any, numbers: Sequence[int]) -> List[bool]:
        """Which are loaded; those are right, and the others as before."""
        pages = range(len(numbers))
        for page in pages:
            self.pool.fill(page, -1 - page)
        well = backend.batch_get_v1(keys_of(numbers), indices(pages))
        for page, number in enumerate(numbers):
            if well[page]:
                self.assertTrue(self.pool.holds(page, number), number)
        return well


class Contract(Case):

    def test_pages_are_stored_found_and_loaded(self) -> None:
        backend = self.open()
        numbers = list(range(8))
        self.assertEqual(backend.batch_exists(keys_of(numbers)), 0)
        self.assertEqual(self.put(backend, numbers), [True] * 8)
        self.assertEqual(backend.batch_exists(keys_of(numbers)), 8)
        self.assertEqual(backend.batch_exists(keys_of([0, 1, 99, 2])), 2)
        self.assertTrue(backend.exists(keys_of([5])[0]))
        self.assertEqual(self.get(backend, [3, 99, 1]), [True, False, True])
        self.assertEqual(self.put(backend, numbers), [True] * 8)
        self.mount.stop()
        self.mount.start()
        after = self.open()
        self.assertEqual(after.batch_exists(keys_of(numbers)), 8)
        self.assertEqual(self.get(after, numbers), [True] * 8)

    def test_a_chain_names_the_page_before(self) -> None:
        backend = self.open()
        for numbers, before in (([1, 2], []), ([3], keys_of([1, 2]))):
            self.assertEqual(
                backend.batch_set_v1(
                    keys_of(numbers), indices(numbers),
                    HiCacheStorageExtraInfo(prefix_keys=before)),
                [True] * len(numbers))
        parents = {}
        for path in self.blocks(PAGE):
            head = path.read_bytes()[:80]
            parents[path.stem] = head[64:80].hex() if head[52] & 2 else ""
        last = next(iter(set(parents) - set(parents.values())))
        chain = [last]
        while parents[chain[-1]]:
            chain.append(parents[chain[-1]])
        self.assertEqual(sorted(chain), sorted(parents))
        self.assertEqual(len(chain), 3)

    def test_pages_by_tensors(self) -> None:
        """Without interface_v1."""
        backend = self.open(interface_v1=0)
        keys = keys_of([1, 2])
        pages = [content(n, self.pool).reshape(-1) for n in (1, 2)]
        self.assertTrue(backend.batch_set(keys, pages))
        self.assertTrue(backend.set(keys_of([3])[0], pages[0]))
        self.assertEqual(backend.batch_exists(keys_of([1, 2, 4])), 2)
        found = backend.batch_get(keys_of([2, 4]), [
            self.pool.get_dummy_flat_data_page() for _ in range(2)])
        self.assertTrue(torch.equal(found[0], pages[1]))
        self.assertIsNone(found[1])
        self.assertTrue(torch.equal(backend.get(
            keys_of([3])[0], self.pool.get_dummy_flat_data_page()), pages[0]))

    def test_what_is_not_shared(self) -> None:
        """Of one size: types (sglang#33268), layouts, models, weights,
        tenants, ranks and their number."""
        self.assertEqual(self.put(self.open(), [1]), [True])
        for pool, config, extra in (
                (Pool(dtype=torch.float16), {}, {}),
                (Pool(layout="page_first_direct"), {}, {}),
                (None, {"model_name": "org/other"}, {}),
                (None, {"tp_rank": 1, "tp_size": 2}, {}),
                (None, {"tp_rank": 0, "tp_size": 2}, {}),
                (None, {}, {"weights": "v2"}),
                (None, {}, {"namespace": "another"})):
            other = self.open(pool, config, **extra)
            self.assertEqual(other.batch_exists(keys_of([1])), 0)
            self.assertEqual(self.get(other, [1]), [False])
            self.assertEqual(self.put(other, [1]), [True])
            self.assertEqual(self.get(other, [1]), [True])
        self.assertEqual(self.get(self.open(), [1]), [True])

    def test_weights_are_looked_at(self) -> None:
        """Those of the path: a model that was trained on shares nothing."""
        path = os.path.join(self.mount.work, "model")
        os.mkdir(path)
        for step, wanted in ((b"one", False), (b"one", True), (b"two", False)):
            name = os.path.join(path, "model.bin")
            if not os.path.exists(name) or not wanted:
                with open(name, "wb") as file:
                    file.write(step)
            backend = self.open(weights="", model_path=path)
            self.assertEqual(backend.batch_exists(keys_of([1])), wanted)
            self.assertEqual(self.put(backend, [1]), [True])

    def test_salts_are_in_the_keys(self) -> None:
        """sglang#37058: in those of this version."""
        class Key(list):
            extra_key: Optional[str] = None
            cache_salt: Optional[str] = None

        plain, salted = Key(range(TOKENS)), Key(range(TOKENS))
        salted.cache_salt = "tenant"
        keys = [get_storage_hash_str(key, page_size=TOKENS)
                for key in (plain, salted)]
        backend = self.open()
        self.pool.fill(0, 1)
        self.assertEqual(backend.batch_set_v1(keys[0], indices([0])), [True])
        self.assertEqual([backend.batch_exists(key) for key in keys], [1, 0])

    def test_ranks_of_mla_share(self) -> None:
        """All have the same, and the first writes."""
        mla = {"is_mla_model": True, "tp_size": 2}
        self.assertEqual(self.put(self.open(config=mla), [1]), [True])
        other = self.open(config={**mla, "tp_rank": 1})
        self.assertEqual(self.get(other, [1]), [True])

    def test_random_operations_against_a_map(self) -> None:
        source = random.Random(34)
        backend = self.open()
        there: Dict[int, bool] = {}
        for step in range(1000):
            numbers = source.sample(range(400), source.randint(1, 12))
            wanted = [there.get(n, False) for n in numbers]
            what = source.choice(["put", "get", "has"])
            if what == "put":
                self.assertEqual(self.put(backend, numbers),
                                 [True] * len(numbers), step)
                there.update(dict.fromkeys(numbers, True))
            elif what == "get":
                self.assertEqual(self.get(backend, numbers), wanted, step)
            else:
                self.assertEqual(
                    backend.batch_exists(keys_of(numbers)),
                    (wanted + [False]).index(False), step)

    def test_the_injectors(self) -> None:
        """SGLang's own, by its environment: what it lets through is right."""
        with mock.patch.dict(os.environ, {
                "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.01",
                "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.3"}):
            backend = self.open()
        self.assertIsInstance(backend, HiCacheStorageFailureInjector)
        results = set()
        for number in range(40):
            stored = self.put(backend, [number])[0]
            loaded = self.get(backend, [number])[0]
            self.assertLessEqual(loaded, stored)
            results.add((stored, loaded))
        self.assertEqual(len(results), 3)


class Controller(Case):
    """SGLang's own pool of K and V, and what its controller does with it."""

    def real_pool(self, dtype: torch.dtype, layout: str) -> Any:
        from sglang.srt.mem_cache.device_pool_info import (
            KVBufferLayout, KVBuffers, MHABufferInfo)
        from sglang.srt.mem_cache.pool_host.base import (
            host_memory_budget_scope)
        from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

        planes = [tuple(torch.zeros(4 * TOKENS, HEADS, HEAD_DIM, dtype=dtype)
                        for _ in range(LAYERS)) for _ in range(2)]
        pointers = [torch.tensor([one.data_ptr() for one in plane],
                                 dtype=torch.uint64) for plane in planes]
        info = MHABufferInfo(
            buffers=KVBuffers(
                k=planes[0], v=planes[1], k_data_ptrs=pointers[0],
                v_data_ptrs=pointers[1], layout=next(iter(KVBufferLayout))),
            page_size=TOKENS, head_num=HEADS, head_dim=HEAD_DIM,
            v_head_dim=HEAD_DIM, dtype=dtype, device=torch.device("cpu"))
        with host_memory_budget_scope(1 << 30):
            pool = MHATokenToKVPoolHost(
                info, 4.0, 0, TOKENS, layout, pin_memory=False,
                device_capacity_tokens=4 * TOKENS, start_layer=0,
                end_layer=LAYERS)
        return pool

    def test_its_own_pool(self) -> None:
        from sglang.srt.managers.cache_controller import HiCacheController

        numbers = list(range(4))
        for dtype in (torch.bfloat16, torch.float16):
            for layout in ("page_first", "page_first_direct", "layer_first"):
                pool = self.real_pool(dtype, layout)
                backend = self.open(pool)
                self.assertEqual(backend.batch_exists(keys_of(numbers)), 0)
                bits = pool.kv_buffer.view(torch.int16)
                bits.copy_(torch.randint(-9999, 9999, bits.shape,
                                         dtype=torch.int16))
                wanted = self.pages_of(pool, numbers)
                controller = SimpleNamespace(
                    storage_backend=backend, page_size=TOKENS,
                    page_set_func=lambda *more: HiCacheController.
                    _page_set_zero_copy(controller, *more))
                backup = SimpleNamespace(
                    hash_value=keys_of(numbers), prefix_keys=[],
                    host_indices=indices(numbers), completed_tokens=0)
                HiCacheController._page_backup(controller, backup)
                self.assertEqual(backup.completed_tokens, 4 * TOKENS)
                others = [9, 7, 8, 6, 5]
                self.assertEqual(HiCacheController._page_get_zero_copy(
                    controller, SimpleNamespace(request_id="r"),
                    keys_of(numbers + [99]), indices(others)), 4)
                self.assertTrue(torch.equal(
                    self.pages_of(pool, others[:4]), wanted))

    @staticmethod
    def pages_of(pool: Any, pages: Sequence[int]) -> torch.Tensor:
        return torch.stack([pool.get_data_page(page * TOKENS).view(torch.int16)
                            for page in pages])


class Sidecars(Case):
    """v2: pools of hybrid models beside that of K and V."""

    def both(self, backend: Any) -> Any:
        self.state = Pool(heads=1)
        backend.register_mem_host_pool_v2(self.pool, PoolName.KV)
        backend.register_mem_host_pool_v2(self.state, PoolName.MAMBA)
        backend.on_host_pools_registered()
        return backend

    def transfer(self, name: PoolName, numbers: Sequence[int],
                 **more: Any) -> PoolTransfer:
        return PoolTransfer(name=name, keys=keys_of(numbers),
                            host_indices=indices(range(len(numbers))), **more)

    def put_both(self, backend: Any, kv: Sequence[int],
                 states: Sequence[int]) -> None:
        for pool, numbers in ((self.pool, kv), (self.state, states)):
            for page, number in enumerate(numbers):
                pool.fill(page, number)
        self.assertEqual(backend.batch_set_v2(
            [self.transfer(PoolName.KV, kv),
             self.transfer(PoolName.MAMBA, states)]),
            {PoolName.KV: [True] * len(kv),
             PoolName.MAMBA: [True] * len(states)})

    def hits(self, backend: Any, num: int, policy: PoolHitPolicy,
             trailing: int = 1) -> Any:
        result = backend.batch_exists_v2(keys_of(range(num)), [PoolTransfer(
            name=PoolName.MAMBA, keys=["x"] * trailing, hit_policy=policy)])
        return (result.kv_hit_pages, result.restorable_prefix_pages,
                result.extra_pool_hit_pages)

    def test_policies(self) -> None:
        backend = self.both(self.open())
        self.put_both(backend, range(8), [0, 1, 2, 4, 5, 9])
        self.assertEqual(
            self.hits(backend, 10, PoolHitPolicy.ALL_PAGES),
            (3, [1, 2, 3], {PoolName.KV: 8, PoolName.MAMBA: 3}))
        self.assertEqual(
            self.hits(backend, 10, PoolHitPolicy.TRAILING_PAGES),
            (6, [1, 2, 3, 5, 6], {PoolName.KV: 8, PoolName.MAMBA: 6}))
        self.assertEqual(
            self.hits(backend, 10, PoolHitPolicy.TRAILING_PAGES, 2)[:2],
            (6, [1, 2, 3, 6]))
        self.assertEqual(
            self.hits(backend, 10, PoolHitPolicy.BLOCK_GROUPS),
            (8, list(range(1, 9)), {PoolName.KV: 8}))

    def test_they_are_loaded(self) -> None:
        backend = self.both(self.open())
        self.put_both(backend, [1, 2], [2, 3])
        for pool in (self.pool, self.state):
            pool.kv_buffer.zero_()
        self.assertEqual(backend.batch_get_v2(
            [self.transfer(PoolName.KV, [1, 2]),
             self.transfer(PoolName.MAMBA, [1, 3])]),
            {PoolName.KV: [True, True], PoolName.MAMBA: [False, True]})
        self.assertTrue(self.pool.holds(0, 1) and self.pool.holds(1, 2))
        self.assertTrue(self.state.holds(1, 3))

    def test_a_pool_that_is_unknown_is_a_miss(self) -> None:
        backend = self.both(self.open())
        self.put_both(backend, [1], [1])
        self.assertEqual(backend.batch_get_v2(
            [self.transfer(PoolName.KV, [1]),
             self.transfer(PoolName.SWA, [1])]),
            {PoolName.KV: [True], PoolName.SWA: [False]})
        result = backend.batch_exists_v2(keys_of([1]), [
            self.transfer(PoolName.SWA, [1])])
        self.assertEqual(result.kv_hit_pages, 0)


class Trouble(Case):

    def test_a_damaged_page_is_a_miss(self) -> None:
        numbers = list(range(6))
        self.assertEqual(self.put(self.open(), numbers), [True] * 6)
        files = self.blocks(PAGE)
        self.assertEqual(len(files), 6)
        self.damage(files[3])
        backend = self.open()
        well = self.get(backend, numbers)
        self.assertEqual(well.count(False), 1)
        self.until(lambda: len(self.blocks(PAGE)) == 5, "it stays")
        self.assertEqual(self.put(backend, numbers), [True] * 6)
        self.assertEqual(self.get(backend, numbers), [True] * 6)

    def test_nothing_raises(self) -> None:
        backend = self.open()
        broken: Any = object()
        self.assertEqual(backend.batch_get_v1(keys_of([1]), broken), [False])
        self.assertEqual(backend.batch_set_v1(keys_of([1]), indices([0, 1])),
                         [False])
        self.assertEqual(backend.batch_exists([broken]), 0)
        self.assertFalse(backend.exists(broken))
        self.assertIsNone(backend.get(keys_of([1])[0], broken))
        self.assertFalse(backend.set(keys_of([1])[0], broken))
        self.assertEqual(backend.batch_get(keys_of([1]), broken), [None])
        self.assertFalse(backend.batch_set(keys_of([1]), broken))
        backend.register_mem_pool_host(broken)
        backend.register_mem_host_pool_v2(broken, PoolName.SWA)
        backend.close()
        backend.close()

    def test_a_daemon_that_is_killed(self) -> None:
        backend = self.open()
        self.assertEqual(self.put(backend, [1, 2]), [True] * 2)
        self.mount.crash()
        self.in_time(lambda: self.get(backend, [1, 2]))
        self.assertEqual(self.in_time(lambda: self.put(backend, [3])), [False])
        self.in_time(lambda: backend.batch_exists(keys_of([1, 2])))
        late = self.in_time(self.open)
        self.assertEqual(self.in_time(lambda: late.batch_exists(keys_of([1]))),
                         0)
        self.mount.start()
        self.until(lambda: backend.batch_exists(keys_of([1, 2])) == 2,
                   "not back")
        self.assertEqual(self.get(late, [1, 2]), [True] * 2)

    def test_a_daemon_that_hangs(self) -> None:
        backend = self.open()
        self.assertEqual(self.put(backend, [1, 2]), [True] * 2)
        self.stop_daemon()
        late = self.in_time(self.open)
        self.assertEqual(self.in_time(lambda: late.batch_exists(keys_of([1]))),
                         0)
        self.assertEqual(self.in_time(lambda: self.get(late, [1])), [False])
        self.assertEqual(self.in_time(lambda: self.put(backend, [3])), [False])
        self.in_time(lambda: self.get(backend, [1, 2]))
        self.continue_daemon()
        self.until(lambda: late.batch_exists(keys_of([1, 2])) == 2, "not back")

    def test_threads_of_the_controller(self) -> None:
        """It stores by one and loads by another."""
        backend, pool = self.open(), self.pool
        wrong: List[Any] = []

        def work(first: int) -> None:
            for number in range(first, first + 50):
                page = number % 64
                pool.fill(page, number)
                if backend.batch_set_v1(keys_of([number]),
                                        indices([page])) != [True]:
                    wrong.append(number)
                pool.kv_buffer[:, page] = 0
                if backend.batch_get_v1(keys_of([number]), indices(
                        [page])) != [True] or not pool.holds(page, number):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(1000 * i + 16 * i,))
                   for i in range(1, 2)]
        for thread in threads:
            thread.start()
        work(16)
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
