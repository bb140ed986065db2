#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ucmfs.plugins.lmcache_engine as LMCache makes it in an engine, by its own
launcher, with its own memory objects."""

import asyncio
import random
import threading
import time
import unittest
from collections import OrderedDict
from typing import Any, Dict, List

from plugin_case import DEADLINE_MS, use_packages

use_packages()

import test_plugin_lmcache as server
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import storage_plugin_launcher
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend
from lmcache_client import (CHUNK, HEAD_DIM, HEADS, LAYERS, MODEL, SHAPE,
                            bits, chunk_of, memory)

OBJECT = server.OBJECT


class Engine:
    """The plug-in by LMCache's configuration, and what is asked of it."""

    REMOTE = False

    def __init__(self, where: Dict[str, str], **parameters: Any) -> None:
        ours = {**where, "deadline_ms": DEADLINE_MS, **parameters}
        kind = ("remote_" if self.REMOTE else "") + "storage_plugin"
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK, local_cpu=False, max_local_cpu_size=1,
            remote_serde="naive", extra_config={
                f"{kind}.ucmfs.module_path": "ucmfs.plugins.lmcache_" + (
                    "remote" if self.REMOTE else "engine"),
                f"{kind}.ucmfs.class_name":
                    "UcmfsRemote" if self.REMOTE else "UcmfsBackend",
                **{f"ucmfs.{key}": value for key, value in ours.items()}},
            **{f"{kind}s": ["ucmfs"]})
        metadata = LMCacheMetadata(
            model_name=MODEL, world_size=1, local_world_size=1, worker_id=0,
            local_worker_id=0, kv_dtype=torch.bfloat16, chunk_size=CHUNK,
            kv_shape=(LAYERS, 2, CHUNK, HEADS, HEAD_DIM))
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.memory = LocalCPUBackend(config, metadata,
                                      memory_allocator=memory())
        made: Any = OrderedDict()
        storage_plugin_launcher(config, metadata, self.loop, self.memory,
                                "cpu", made)
        self.backend = RemoteBackend(
            config, metadata, self.loop, self.memory, "cpu", "ucmfs",
        ) if self.REMOTE else made["ucmfs"]
        self.change: Dict[str, Any] = {}  # of all keys
        self.stored: List[Any] = []  # keys of callbacks

    def key(self, number: int) -> CacheEngineKey:
        return CacheEngineKey(**{
            "model_name": MODEL, "world_size": 1, "worker_id": 0,
            "chunk_hash": number << 40 | 0xabcdef, "dtype": torch.bfloat16,
            **self.change})

    def keys(self, numbers: List[int]) -> List[CacheEngineKey]:
        return [self.key(n) for n in numbers]

    def put_all(self, keys: List[Any], tensors: List[torch.Tensor]) -> bool:
        objs = []
        for tensor in tensors:
            obj = self.memory.allocate(tensor.shape, tensor.dtype,
                                       MemoryFormat.KV_2LTD)
            obj.tensor.copy_(tensor)
            objs.append(obj)
        futures = self.backend.batched_submit_put_task(
            keys, objs, on_complete_callback=self.stored.append)
        for obj in objs:
            obj.ref_count_down()
        well = [future.result(60)[1] for future in futures or ()]
        return len(well) == len(keys) and all(well)

    def put(self, numbers: List[int]) -> bool:
        return self.put_all(self.keys(numbers),
                            [chunk_of(n) for n in numbers])

    def has(self, numbers: List[int]) -> List[bool]:
        return [self.backend.contains(key) for key in self.keys(numbers)]

    @staticmethod
    def copies(objs: List[Any]) -> List[Any]:
        out = [None if obj is None else obj.tensor.clone() for obj in objs]
        for obj in objs:
            if obj is not None:
                obj.ref_count_down()
        return out

    def get(self, numbers: List[int]) -> List[Any]:
        return self.copies(self.backend.batched_get_blocking(
            self.keys(numbers)))

    def delete(self, numbers: List[int]) -> None:
        for key in self.keys(numbers):
            self.backend.remove(key)

    def run(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(60)

    def close(self) -> None:
        self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class Remote(Engine):
    """By remote_storage_plugins, and LMCache's own backend of those."""

    REMOTE = True

    def put_all(self, keys: List[Any], tensors: List[torch.Tensor]) -> bool:
        failed = self.backend.put_failed_count
        super().put_all(keys, tensors)
        end = time.monotonic() + 60
        while self.backend.put_tasks and time.monotonic() < end:
            time.sleep(0.001)
        return self.backend.put_failed_count == failed


class Case(server.Case):

    KIND = Engine

    def open(self, **more: Any) -> Any:
        engine = self.KIND(self.mount.where, **more)
        self.addCleanup(engine.close)
        return engine

    def free(self, engine: Engine) -> int:
        return engine.memory.memory_allocator.total_allocated_size


class Contract(Case):

    def test_put_get_contains_remove(self) -> None:
        engine = self.open()
        numbers = list(range(8))
        self.check(engine, numbers, False)
        self.assertTrue(engine.put(numbers))
        self.assertEqual(set(engine.stored), set(engine.keys(numbers)))
        self.check(engine, numbers)
        self.assertTrue(engine.put(numbers), "they are there")
        engine.delete([0, 5])
        self.check(engine, numbers, [1, 2, 3, 4, 6, 7])
        keys = engine.keys(numbers)
        self.assertEqual(engine.backend.batched_contains(keys), 0)
        self.assertEqual(engine.backend.batched_contains(keys[1:], True), 4)
        self.assertTrue(engine.backend.unpin(keys[1]))
        self.assertFalse(engine.backend.exists_in_put_tasks(keys[1]))
        self.assertFalse(engine.backend.remove(keys[0]))
        self.assertIs(engine.backend.get_allocator_backend(), engine.memory)
        self.assertEqual(self.free(engine), 0, "memory is kept")

    def test_calls_of_a_loop(self) -> None:
        engine = self.open()
        self.assertTrue(engine.put([1, 2, 4]))
        keys = engine.keys([1, 2, 3, 4])
        self.assertEqual(engine.run(
            engine.backend.batched_async_contains("r", keys, True)), 2)
        found = engine.copies(engine.run(
            engine.backend.batched_get_non_blocking("r", keys, {})))
        self.assertEqual(len(found), 2)
        for number, one in zip((1, 2), found):
            self.assertTrue(torch.equal(bits(one), bits(chunk_of(number))))
        self.assertEqual(self.free(engine), 0, "memory is kept")

    def test_shapes_after_a_restart(self) -> None:
        """They are what the store says, whatever this process has seen."""
        first = self.open()
        part = chunk_of(7)[:, :, :100].contiguous()
        half = torch.arange(3000, dtype=torch.float16).reshape(2, 1, 30, 50)
        self.assertTrue(first.put_all(first.keys([1, 2, 3]),
                                      [chunk_of(1), part, half]))
        first.close()
        self.mount.stop()
        self.mount.start()
        after = self.open()
        self.assertEqual(after.has([1, 2, 3, 4]), [True, True, True, False])
        found = after.get([1, 2, 3])
        self.assertEqual([(one.shape, one.dtype) for one in found],
                         [(SHAPE, torch.bfloat16), (part.shape, part.dtype),
                          (half.shape, half.dtype)])
        for one, wanted in zip(found, (chunk_of(1), part, half)):
            self.assertTrue(torch.equal(bits(one), bits(wanted)))

    def test_another_engine(self) -> None:
        early, engine = self.open(), self.open()
        self.check(early, [1, 2], False)
        self.assertTrue(engine.put([1, 2]))
        self.until(lambda: early.has([1, 2]) == [True, True], "not found")
        self.check(early, [1, 2])

    def test_what_is_not_shared(self) -> None:
        stored = self.open()
        self.assertTrue(stored.put([1]))
        for change in ({"model_name": "org/other"}, {"worker_id": 1},
                       {"world_size": 2}, {"dtype": torch.float16},
                       {"request_configs": {"lmcache.tag.salt": "b"}}):
            other = self.open()
            other.change = change
            self.check(other, [1], False)
        for parameters in ({"weights": "v2"}, {"namespace": "t"}):
            self.check(self.open(**parameters), [1], False)
        self.check(stored, [1])

    def test_shapes_are_bounded(self) -> None:
        engine = self.open()
        for n in range(16):
            self.assertTrue(engine.put_all(
                [engine.key(n)], [torch.zeros(2, 1, 4, n + 1)]), n)
        self.assertFalse(engine.put_all(
            [engine.key(99)], [torch.zeros(2, 1, 4, 99)]))
        self.assertEqual(engine.has([99, 15]), [False, True])
        self.assertEqual(self.free(engine), 0, "memory is kept")

    def test_random_operations_against_a_map(self) -> None:
        source = random.Random(34)
        engine = self.open()
        there: Dict[int, bool] = {}
        for step in range(1000):
            numbers = sorted(source.sample(range(12), source.randint(1, 3)))
            what = source.choice(["put", "get", "has", "delete"])
            wanted = [there.get(n, False) for n in numbers]
            if what == "put":
                self.assertTrue(engine.put(numbers), step)
                there.update(dict.fromkeys(numbers, True))
            elif what == "get":
                self.compare(engine, numbers, wanted)
            elif what == "has":
                self.assertEqual(engine.has(numbers), wanted, step)
            else:
                engine.delete(numbers)
                there.update(dict.fromkeys(numbers, False))
        self.assertEqual(self.free(engine), 0, "memory is kept")


class Trouble(Case):

    def test_a_damaged_block_is_a_miss(self) -> None:
        """Also after a restart, until it is stored again."""
        numbers = list(range(6))
        self.assertTrue(self.open().put(numbers))
        self.mount.stop()
        self.mount.start()
        files = self.blocks(OBJECT)
        self.assertEqual(len(files), 6)
        self.damage(files[2])
        engine = self.open()
        found = engine.get(numbers)
        bad = [n for n, one in zip(numbers, found) if one is None]
        self.assertEqual(len(bad), 1)
        self.check(engine, numbers, [n for n in numbers if n not in bad])
        self.until(lambda: len(self.blocks(OBJECT)) == 5, "it stays")
        self.assertTrue(engine.put(bad))
        self.check(engine, numbers)
        self.assertEqual(self.free(engine), 0, "memory is kept")

    def test_a_daemon_that_is_killed(self) -> None:
        """LMCache#4991: a store that has failed is said to have."""
        engine = self.open()
        self.assertTrue(engine.put([1, 2]))
        self.mount.crash()
        self.in_time(lambda: engine.get([1, 2]))
        self.assertFalse(self.in_time(lambda: engine.put([3])))
        self.assertNotIn(engine.key(3), engine.stored)
        self.assertEqual(self.in_time(lambda: self.open().has([1])), [False])
        self.mount.start()
        self.until(lambda: engine.has([1, 2]) == [True, True], "not back")
        self.until(lambda: engine.put([3]), "stores fail")
        self.check(engine, [1, 2, 3])

    def test_a_daemon_that_hangs(self) -> None:
        engine = self.open()
        self.assertTrue(engine.put([1, 2]))
        self.stop_daemon()
        late = self.open()
        self.assertEqual(self.in_time(lambda: late.has([1])), [False])
        self.assertFalse(self.in_time(lambda: late.put([4])))
        self.assertFalse(self.in_time(lambda: engine.put([3])))
        self.in_time(lambda: engine.get([1, 2]))
        self.continue_daemon()
        self.until(lambda: engine.has([1, 2]) == [True, True], "not back")
        self.until(lambda: late.has([1, 2]) == [True, True], "not found")


class Alias(Case):
    """The same by remote_storage_plugins."""

    KIND = Remote

    def test_it_is_the_same(self) -> None:
        """The chunks of both are the other's, too."""
        engine, other = self.open(), Engine(self.mount.where)
        self.addCleanup(other.close)
        self.assertTrue(engine.put([1, 2, 4]))
        self.check(other, [1, 2, 3, 4], [1, 2, 4])
        self.assertTrue(other.put([3]))
        self.check(engine, [1, 2, 3, 4, 5], [1, 2, 3, 4])
        keys = engine.keys([1, 2, 9, 4])
        self.assertEqual(engine.backend.batched_contains(keys), 2)
        self.assertEqual(engine.run(
            engine.backend.batched_async_contains("r", keys)), 2)
        found = engine.copies(engine.run(
            engine.backend.batched_get_non_blocking("r", keys)))
        self.assertEqual(len(found), 2)
        engine.delete([1])
        self.check(engine, [1, 2], [2])
        self.assertEqual(self.free(engine), 0, "memory is kept")

    def test_a_damaged_chunk_and_a_daemon_that_is_killed(self) -> None:
        self.assertTrue(self.open().put([1, 2]))
        self.damage(self.blocks(OBJECT)[0])
        engine = self.open()
        found = engine.get([1, 2])
        self.assertEqual(found.count(None), 1)
        self.mount.crash()
        self.in_time(lambda: engine.get([1, 2]))
        self.assertFalse(self.in_time(lambda: engine.put([3])))
        self.mount.start()
        self.until(lambda: any(engine.has([1, 2])), "not back")
        self.assertEqual(self.free(engine), 0, "memory is kept")

    def test_a_load_that_is_given_up(self) -> None:
        """After LMCache's own deadline: its memory comes back."""
        engine = self.open(deadline_ms=5000)
        self.assertTrue(engine.put([1]))
        slow = threading.Event()
        connector = engine.backend.connection.getWrappedConnector()
        load = connector._backend.batched_get_blocking
        connector._backend.batched_get_blocking = lambda keys: (
            load(keys), slow.wait(60))[0]
        engine.backend.config.blocking_timeout_secs = 0.1
        self.assertEqual(engine.get([1]), [None])
        self.until(lambda: self.free(engine) > 0, "nothing is loaded")
        slow.set()
        self.until(lambda: self.free(engine) == 0, "memory is kept", 30)


if __name__ == "__main__":
    unittest.main()
