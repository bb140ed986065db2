#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ucmfs.plugins.sglang_linker by the factory of an installed SGLang, over its
own pools in memory of the host, driven as its tree does it."""

import random
import threading
import time
import unittest
from array import array
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Sequence
from unittest import mock

from plugin_case import DEADLINE_MS, PluginCase, use_sglang

use_sglang()

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams, InitLoadBackParams, InsertParams, MatchPrefixParams)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hicache_storage import (
    PoolHitPolicy, PoolName, PoolTransfer)
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
    DevicePoolEntry, DevicePoolGroup)
from sglang.srt.mem_cache.memory_pool import (
    MHATokenToKVPool, MLATokenToKVPool)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.linker_factory import (
    create_unified_cache_linker)
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from test_plugin_sglang import indices, keys_of
from ucmfs.loader import Group

TOKENS, LAYERS, HEADS, HEAD_DIM, PAGES = 16, 4, 2, 64, 64
PAGE = 2 * TOKENS * LAYERS * HEADS * HEAD_DIM * 2
FULL = {ComponentType.FULL}


def pool_of(dtype: torch.dtype = torch.bfloat16, layers: int = LAYERS) -> Any:
    return MHATokenToKVPool(PAGES * TOKENS, TOKENS, dtype, HEADS, HEAD_DIM,
                            layers, "cpu", False)


def tensors_of(pool: Any) -> List[torch.Tensor]:
    planes = pool.kv_buffer if isinstance(pool, MLATokenToKVPool) \
        else [*pool.k_buffer, *pool.v_buffer]
    return [tensor.view(torch.uint8).flatten(1) for tensor in planes]


def content(number: int, rows: torch.Tensor) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 + number)
    return torch.randint(0, 256, rows.shape, dtype=torch.uint8,
                         generator=source)


def fill(pool: Any, page: int, number: int) -> None:
    for i, tensor in enumerate(tensors_of(pool)):
        rows = tensor[page * TOKENS:(page + 1) * TOKENS]
        rows.copy_(content(number * 100 + i, rows))


def holds(pool: Any, page: int, number: int,
          layer: Optional[int] = None) -> bool:
    """All of it, or a layer."""
    for i, tensor in enumerate(tensors_of(pool)):
        rows = tensor[page * TOKENS:(page + 1) * TOKENS]
        if layer in (None, i % pool.layer_num) and not torch.equal(
                rows, content(number * 100 + i, rows)):
            return False
    return True


def params_of(pool: Any, **more: Any) -> CacheInitParams:
    return CacheInitParams(
        disable=False, req_to_token_pool=mock.Mock(), page_size=TOKENS,
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool),
        **more)


def transfer(numbers: Sequence[int], pages: Optional[Sequence[int]] = None,
             name: PoolName = PoolName.KV, **more: Any) -> PoolTransfer:
    return PoolTransfer(
        name=name, keys=keys_of(numbers), device_indices=None
        if pages is None else indices(pages), **more)


class Case(PluginCase):

    def open(self, pool: Any = None, server: Optional[Dict[str, Any]] = None,
             params: Optional[Dict[str, Any]] = None, **extra: Any) -> Any:
        """A linker as SGLang makes it."""
        self.pool = pool or pool_of()
        linker = create_unified_cache_linker(
            SimpleNamespace(**{"model_path": "org/tiny-model",
                               **(server or {})}),
            params_of(self.pool, **(params or {})), backend="dynamic",
            config={"linker": "UcmfsLinker",
                    "linker_module_path": "ucmfs.plugins.sglang_linker",
                    "linker_extra_config": {
                        "weights": "v1", **self.mount.where,
                        "deadline_ms": DEADLINE_MS, **extra}},
            components=FULL)
        self.addCleanup(linker.close)
        return linker

    def put(self, linker: Any, numbers: Sequence[int]) -> bool:
        for page, number in enumerate(numbers):
            fill(self.pool, page, number)
        self.assertTrue(linker.offload(
            [transfer(numbers, range(len(numbers)))]))
        return self.end_of_offload(linker)

    def end_of_offload(self, linker: Any) -> bool:
        end = time.monotonic() + 60
        while not linker.num_completed_offloads():
            self.assertLess(time.monotonic(), end, "it has no end")
            time.sleep(0.001)
        return linker.pop_completed_offload()

    def prefix(self, linker: Any, numbers: Sequence[int]) -> int:
        lengths = linker.lookup("r", [transfer(numbers)])
        self.assertEqual(lengths, list(range(1, len(lengths) + 1)))
        return len(lengths)

    def run_batch(self, linker: Any) -> bool:
        """As a forward does it: layer after layer, and then the end."""
        index = linker.start_layer_wise_loading()
        linker.layer_done_counter.set_consumer(index)
        for layer in range(LAYERS):
            linker.layer_done_counter.wait_until(layer)
        return linker.finish_layer_wise_loading(index)

    def get(self, linker: Any, numbers: Sequence[int],
            first: int = 0) -> bool:
        """What has landed is right."""
        pages = range(first, first + len(numbers))
        for page in pages:
            fill(self.pool, page, -1 - page)
        self.assertTrue(linker.load("r", [transfer(numbers, pages)]))
        landed = self.run_batch(linker)
        if landed:
            for page, number in zip(pages, numbers):
                self.assertTrue(holds(self.pool, page, number), number)
        return landed


class Contract(Case):

    def test_pages_are_stored_found_and_loaded(self) -> None:
        linker = self.open()
        numbers = list(range(8))
        self.assertEqual(self.prefix(linker, numbers), 0)
        self.assertTrue(self.put(linker, numbers))
        self.assertEqual(self.prefix(linker, numbers), 8)
        self.assertEqual(self.prefix(linker, [0, 1, 99, 2]), 2)
        self.assertTrue(self.get(linker, [3, 1]))
        self.assertTrue(self.put(linker, numbers))
        linker.close()
        self.mount.stop()
        self.mount.start()
        after = self.open()
        self.assertEqual(self.prefix(after, numbers), 8)
        self.assertTrue(self.get(after, numbers))

    def test_latent_pages(self) -> None:
        """MLA's: each rank has the same, and one stores them."""
        pool = MLATokenToKVPool(PAGES * TOKENS, TOKENS, torch.bfloat16, 128,
                                64, LAYERS, "cpu", False)
        linker = self.open(pool)
        self.assertTrue(self.put(linker, [1, 2]))
        self.assertTrue(self.get(linker, [2, 1]))
        with mock.patch("ucmfs.plugins.sglang_linker._rank_of",
                        return_value=(1, 1)):
            other = self.open(pool)
        self.assertTrue(self.put(other, [3]))
        self.assertEqual(self.prefix(other, [3]), 0)
        self.assertTrue(self.get(other, [1, 2]))

    def test_a_layer_is_there_when_it_is_waited_for(self) -> None:
        """Several requests of a batch, and before the others have landed."""
        linker = self.open(order="blocks")  # which is not obeyed
        self.assertTrue(self.put(linker, range(32)))
        for page in range(32):
            fill(self.pool, page, 99)
        for first in range(0, 32, 8):
            pages = range(first, first + 8)
            linker.load(f"r{first}", [transfer(pages, pages)])
        with mock.patch.object(Group, "load", autospec=True,
                               side_effect=Group.load) as load:
            index = linker.start_layer_wise_loading()
            linker.layer_done_counter.set_consumer(index)
            linker.layer_done_counter.wait_until(0)
        self.assertEqual([one.kwargs["order"] for one in load.mock_calls],
                         ["layers"] * 4)
        for layer in range(LAYERS):
            linker.layer_done_counter.wait_until(layer)
            for page in range(32):
                self.assertTrue(holds(self.pool, page, page, layer))
        self.assertTrue(linker.finish_layer_wise_loading(index))
        self.assertTrue(linker.finish_layer_wise_loading(index))
        self.assertEqual(linker.start_layer_wise_loading(), -1)
        linker.layer_done_counter.set_consumer(-1)
        linker.layer_done_counter.wait_until(0)

    def test_queued_loads_are_cancelled(self) -> None:
        linker = self.open()
        self.put(linker, [1, 2])
        fill(self.pool, 0, 9)
        self.assertTrue(linker.load("a", [transfer([2], [0])]))
        self.assertTrue(linker.load("b", [transfer([1], [5])]))
        self.assertFalse(linker.load("b", [transfer([1], [6])]))
        self.assertTrue(linker.cancel_queued_load("a"))
        self.assertFalse(linker.cancel_queued_load("a"))
        self.assertTrue(self.run_batch(linker))
        self.assertTrue(holds(self.pool, 0, 9) and holds(self.pool, 5, 1))
        self.assertFalse(linker.cancel_queued_load("b"))
        self.assertFalse(linker.load("c", [transfer([])]))
        self.assertFalse(linker.offload([transfer([])]))
        self.assertEqual(linker.lookup("c", [transfer([])]), [])

    def test_offloads_end_in_their_order(self) -> None:
        linker = self.open()
        for number in range(4):
            fill(self.pool, number, number)
        linker.offload([transfer([0, 1], [0, 1])])
        linker.offload([transfer([2], [PAGES + 8])])  # no such page
        linker.offload([transfer([3], [3])])
        self.until(lambda: linker.num_completed_offloads() == 3, "no end")
        self.assertEqual([linker.pop_completed_offload() for _ in range(3)],
                         [True, False, True])
        self.assertEqual(linker.num_completed_offloads(), 0)
        self.assertTrue(self.get(linker, [3, 1, 0], first=8))

    def test_what_is_not_shared(self) -> None:
        """Models, weights, tenants, types and numbers of ranks."""
        self.assertTrue(self.put(self.open(), [1]))
        for more in ({"server": {"model_path": "org/other"}},
                     {"server": {"quantization": "fp8"}},
                     {"weights": "v2"}, {"namespace": "another"},
                     {"pool": pool_of(torch.float16)},
                     {"params": {"pp_size": 2}},
                     {"params": {"pp_size": 2, "pp_rank": 1}}):
            other = self.open(**more)
            self.assertEqual(self.prefix(other, [1]), 0, more)
            self.assertFalse(self.get(other, [1]))
            self.assertTrue(self.put(other, [1]))
            self.assertTrue(self.get(other, [1]))
        self.assertTrue(self.get(self.open(), [1]))

    def test_refusals(self) -> None:
        from ucmfs.errors import ConfigError, from_errno
        from ucmfs.plugins import sglang_linker

        self.assertRaises(ConfigError, self.open, server={"dcp_size": 2})
        for device, refusal in (("xpu:0", "of CUDA or of the host"),
                                ("cuda:1", "built without CUDA")):
            with mock.patch("torch.version.cuda", "13.0"), \
                    mock.patch.object(sglang_linker, "Loader",
                                      side_effect=from_errno(95, "loader")):
                self.assertRaisesRegex(
                    ConfigError, refusal, sglang_linker._copy_of,
                    torch.device(device))

    def test_random_operations_against_a_map(self) -> None:
        source = random.Random(34)
        linker = self.open()
        there: Dict[int, bool] = {}
        for step in range(1000):
            numbers = source.sample(range(400), source.randint(1, 6))
            wanted = [there.get(number, False) for number in numbers]
            what = source.choice(["put", "get", "has"])
            if what == "put":
                self.assertTrue(self.put(linker, numbers), step)
                there.update(dict.fromkeys(numbers, True))
            elif what == "has":
                self.assertEqual(self.prefix(linker, numbers),
                                 (wanted + [False]).index(False), step)
            else:
                self.assertEqual(self.get(linker, numbers), all(wanted), step)


class Sidecars(Case):
    """Pools of hybrid models beside that of K and V."""

    def open_both(self) -> Any:
        self.state = pool_of(layers=2)
        pools = {PoolName.KV: (pool_of(), {i: i for i in range(LAYERS)}),
                 PoolName.SWA: (self.state, {1: 0, 3: 1})}
        entries = [DevicePoolEntry(
            name=name, indices_from_pool=name, device_pool=pool,
            components=[[*pool.k_buffer, *pool.v_buffer]],
            layer_mapping={layer: (i, pool.layer_num + i)
                           for layer, i in layers.items()},
            page_size=TOKENS, rows_are_pages=False)
            for name, (pool, layers) in pools.items()]
        with mock.patch("ucmfs.plugins.sglang_linker._group_of",
                        return_value=DevicePoolGroup(entries, LAYERS, TOKENS)):
            return self.open(pools[PoolName.KV][0])

    def test_lengths_that_can_be_restored(self) -> None:
        linker = self.open_both()
        self.assertTrue(self.put_both(linker, range(8), [1, 2, 4, 5]))

        def lengths(num: int, window: int) -> List[int]:
            return linker.lookup("r", [
                transfer(range(num)),
                transfer(range(num - window, num), name=PoolName.SWA,
                         hit_policy=PoolHitPolicy.TRAILING_PAGES)])

        self.assertEqual(lengths(10, 1), [2, 3, 5, 6])
        self.assertEqual(lengths(10, 2), [3, 6])
        self.assertEqual(lengths(2, 1), [2])
        self.assertEqual(linker.lookup("r", [transfer(range(4))]), [])

    def put_both(self, linker: Any, kv: Sequence[int],
                 states: Sequence[int]) -> bool:
        for pool, numbers in ((self.pool, kv), (self.state, states)):
            for page, number in enumerate(numbers):
                fill(pool, page, number)
        linker.offload([
            transfer(kv, range(len(kv))),
            transfer(states, range(len(states)), name=PoolName.SWA)])
        return self.end_of_offload(linker)

    def test_they_are_loaded_together(self) -> None:
        linker = self.open_both()
        self.assertTrue(self.put_both(linker, [1, 2, 3], [2, 3]))
        for pool in (self.pool, self.state):
            fill(pool, 9, 50)
        linker.load("r", [transfer([1, 2, 3], [7, 8, 9]),
                          transfer([3], [9], name=PoolName.SWA)])
        self.assertTrue(self.run_batch(linker))
        self.assertTrue(holds(self.pool, 9, 3) and holds(self.state, 9, 3))
        linker.load("r", [transfer([1], [7]),
                          transfer([1], [9], name=PoolName.SWA)])
        self.assertFalse(self.run_batch(linker))


class Tree(Case):
    """What SGLang's own tree makes of it."""

    def tree(self) -> Any:
        linker = self.open()
        allocator = PagedTokenToKVPoolAllocator(
            PAGES * TOKENS, TOKENS, torch.bfloat16, "cpu", self.pool, False)
        tree = UnifiedRadixCache(CacheInitParams(
            disable=False, req_to_token_pool=mock.Mock(), page_size=TOKENS,
            token_to_kv_pool_allocator=allocator, tree_components=(
                ComponentType.FULL,)))
        tree.init_cache_linker(linker)
        return tree

    def insert(self, tree: Any, key: RadixKey) -> bool:
        """As computed, page n with what stands for n; whether it is stored."""
        slots = tree.token_to_kv_pool_allocator.alloc(len(key))
        for number, slot in enumerate(slots[::TOKENS].tolist()):
            fill(self.pool, slot // TOKENS, number)
        tree.insert(InsertParams(key=key, value=slots))
        self.until(lambda: tree.check_hicache_events() or
                   not tree.linker.pending_offloads, "an offload has no end")
        return tree.tree_core.build_external_linker_offload_transfers(
            self.match(tree, key, None).last_device_node) is None

    @staticmethod
    def match(tree: Any, key: RadixKey, req: Any) -> Any:
        with mock.patch("sglang.srt.mem_cache.unified_radix_cache.get_disagg",
                        return_value=SimpleNamespace(
                            disaggregation_mode="null")):
            return tree.match_prefix(MatchPrefixParams(key=key, req=req))

    def load(self, tree: Any, key: RadixKey) -> List[Any]:
        """Requests that SGLang aborts; those pages that are there are
        right."""
        tree.evict(EvictParams(num_tokens=PAGES * TOKENS))
        req = SimpleNamespace(rid="r", kv=None, session=None,
                              swa_branching_seqlen=None)
        found = self.match(tree, key, req)
        self.assertEqual(found.device_prefix_len, 0)
        self.assertEqual(found.host_hit_length, len(key))
        req.last_node = found.last_device_node
        num, _ = tree.init_load_back(InitLoadBackParams(
            best_match_node=found.best_match_node, req=req,
            host_hit_length=found.host_hit_length))
        slots = tree.linker.private_load_indices["r"]
        self.assertEqual((num, len(slots)), (len(key), len(key)))
        for slot in slots[::TOKENS].tolist():
            fill(self.pool, slot // TOKENS, 99)
        tree.linker.layer_done_counter.set_consumer(
            tree.ready_to_load_host_cache())
        for layer in range(LAYERS):
            tree.linker.layer_done_counter.wait_until(layer)
        aborted = tree.finish_external_linker_loads([req])
        for number, slot in enumerate(slots[::TOKENS].tolist()):
            self.assertEqual(holds(self.pool, slot // TOKENS, number),
                             not aborted)
        tree.token_to_kv_pool_allocator.free(slots)
        return aborted

    def test_what_was_evicted_is_loaded(self) -> None:
        tree = self.tree()
        key = RadixKey(array("q", range(4 * TOKENS)))
        self.assertTrue(self.insert(tree, key))
        self.assertEqual(self.load(tree, key), [])
        for change in ({"cache_salt": "tenant"}, {"extra_key": "adapter"}):
            found = self.match(tree, RadixKey(key.token_ids, **change),
                               SimpleNamespace(rid="s", session=None))
            self.assertEqual(found.host_hit_length, 0)
        tree.reset()
        self.assertEqual(self.load(tree, key), [])
        tree.release_host_resources()

    def test_only_requests_that_load_are_aborted(self) -> None:
        tree = self.tree()
        key = RadixKey(array("q", range(TOKENS)))
        self.assertTrue(self.insert(tree, key))
        self.damage(self.blocks(PAGE)[0])
        tree.evict(EvictParams(num_tokens=TOKENS))
        self.assertEqual([req.rid for req in self.load(tree, key)], ["r"])
        self.assertEqual(self.match(tree, key, SimpleNamespace(
            rid="s", session=None)).host_hit_length, 0)
        self.assertTrue(self.insert(tree, key))
        self.assertEqual(self.load(tree, key), [])


class Trouble(Case):

    def test_a_damaged_page_is_a_miss(self) -> None:
        numbers = list(range(6))
        self.assertTrue(self.put(self.open(), numbers))
        files = self.blocks(PAGE)
        self.assertEqual(len(files), 6)
        self.damage(files[3])
        linker = self.open()
        self.assertFalse(self.get(linker, numbers))
        self.assertLess(self.prefix(linker, numbers), 6)
        self.until(lambda: len(self.blocks(PAGE)) == 5, "it stays")
        self.assertTrue(self.put(linker, numbers))
        self.assertTrue(self.get(linker, numbers))

    def test_a_batch_fails_alone(self) -> None:
        linker = self.open()
        self.put(linker, [1, 2])
        linker.load("a", [transfer([1], [4])])
        first = linker.start_layer_wise_loading()
        linker.load("b", [transfer([77], [5])])
        second = linker.start_layer_wise_loading()
        linker.load("c", [transfer([2], [PAGES + 8])])  # no such page
        third = linker.start_layer_wise_loading()
        self.assertEqual([linker.finish_layer_wise_loading(index)
                          for index in (first, second, third)],
                         [True, False, False])
        self.assertTrue(holds(self.pool, 4, 1))

    def test_a_daemon_that_is_killed(self) -> None:
        """Also while it serves a load."""
        linker = self.open()
        self.assertTrue(self.put(linker, range(32)))
        kill = threading.Timer(0.001, self.mount.crash)
        for page in range(32):
            fill(self.pool, page, 99)
        linker.load("r", [transfer(range(32), range(32))])
        kill.start()
        if self.in_time(lambda: self.run_batch(linker)):
            for page in range(32):
                self.assertTrue(holds(self.pool, page, page))
        kill.join()
        self.assertFalse(self.in_time(lambda: self.put(linker, [50])))
        self.in_time(lambda: self.get(linker, [1, 2]))
        self.until(lambda: not self.prefix(linker, [1]), "still found")
        late = self.in_time(self.open)
        self.assertEqual(self.in_time(lambda: self.prefix(late, [1])), 0)
        self.mount.start()
        self.until(lambda: self.prefix(late, range(32)) == 32, "not back")
        self.assertTrue(self.get(late, range(32)))

    def test_a_daemon_that_hangs(self) -> None:
        linker = self.open()
        self.assertTrue(self.put(linker, [1, 2]))
        self.stop_daemon()
        late = self.in_time(self.open)
        self.assertEqual(self.in_time(lambda: self.prefix(late, [1])), 0)
        self.assertFalse(self.in_time(lambda: self.get(late, [1])))
        self.assertFalse(self.in_time(lambda: self.put(late, [3])))
        self.assertFalse(self.in_time(lambda: self.put(linker, [3])))
        self.in_time(lambda: self.get(linker, [1, 2]))
        self.continue_daemon()
        self.until(lambda: self.prefix(late, [1, 2]) == 2, "not back")
        self.assertTrue(self.get(late, [1, 2]))

    def test_reset_and_close_wait_for_what_is_under_way(self) -> None:
        linker = self.open()
        self.assertTrue(self.put(linker, range(16)))
        for end in (linker.reset, linker.close):
            for page in range(16):
                fill(self.pool, page, 99)
            linker.load("a", [transfer(range(16), range(16))])
            linker.start_layer_wise_loading()
            linker.load("b", [transfer([1], [40])])
            linker.offload([transfer([60], [50])])
            end()
            self.assertTrue(all(holds(self.pool, page, page)
                                for page in range(16)))
            self.assertFalse(linker.cancel_queued_load("b"))
            self.assertEqual(linker.num_completed_offloads(), 0)
            self.assertEqual(linker.layer_done_counter.consumer_index, -1)
        linker.close()
        self.assertEqual(linker.lookup("r", [transfer([1])]), [])


if __name__ == "__main__":
    unittest.main()
