#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ucmfs.plugins.lmcache below the adapters of an installed LMCache."""

import dataclasses
import random
import signal
import threading
import unittest
from typing import Any, Dict, List, Optional

from plugin_case import DEADLINE_MS, PluginCase, use_packages

use_packages()

import torch
from lmcache_client import SHAPE, AdapterStore, bits, chunk_of, memory
from lmcache.v1.distributed.l2_adapters.config import (
    get_l2_adapter_config_class)
from lmcache.v1.distributed.l2_adapters.factory import (
    create_l2_adapter_from_registry)

OBJECT = 512 << 10
SMALL = torch.Size([1000])  # no multiple of a page


class Adapter(AdapterStore):
    """LMCache's adapter by its configuration, and what is asked of it."""

    def __init__(self, where: Dict[str, str], fault: Optional[dict] = None,
                 **parameters: Any) -> None:
        config = {
            "type": "native_plugin", "module_path": "ucmfs.plugins.lmcache",
            "class_name": "UcmfsClient", "adapter_params": {
                **where, "deadline_ms": DEADLINE_MS, **parameters}}
        if fault is not None:
            config = {"type": "fault_inject", "inner": config, **fault}
        self.adapter = create_l2_adapter_from_registry(
            get_l2_adapter_config_class(config["type"]).from_dict(config))
        self.memory = memory()
        self.change: Dict[str, Any] = {}  # of all keys
        self.shape = SHAPE

    def keys(self, numbers: List[int]) -> List[Any]:
        return [dataclasses.replace(key, **self.change)
                for key in AdapterStore.keys(numbers)]

    def objects(self, num: int) -> List[Any]:
        return [self.memory.allocate(self.shape, torch.bfloat16)
                for _ in range(num)]

    def delete(self, numbers: List[int]) -> None:
        self.adapter.delete(self.keys(numbers))


class Case(PluginCase):

    def open(self, **more: Any) -> Adapter:
        adapter = Adapter(self.mount.where, **more)
        self.addCleanup(adapter.close)
        return adapter

    def check(self, adapter: Adapter, numbers: List[int],
              there: Any = True) -> None:
        """All are there and right, or all absent; or those listed are."""
        wanted = [n in there if isinstance(there, list) else there
                  for n in numbers]
        self.assertEqual(adapter.has(numbers), wanted)
        self.compare(adapter, numbers, wanted)

    def compare(self, adapter: Adapter, numbers: List[int],
                wanted: List[bool]) -> None:
        found = adapter.get(numbers)
        self.assertEqual([one is not None for one in found], wanted)
        for number, one in zip(numbers, found):
            if one is not None:
                self.assertTrue(torch.equal(bits(one), bits(chunk_of(number))))


class Contract(Case):

    def test_put_get_exists_delete(self) -> None:
        adapter = self.open()
        numbers = list(range(8))
        self.check(adapter, numbers, False)
        self.assertTrue(adapter.put(numbers))
        self.check(adapter, numbers)
        self.check(adapter, [99, 3, 98], [3])
        self.assertEqual(adapter.adapter.get_usage().total_bytes_used,
                         len(numbers) * OBJECT)
        self.assertTrue(adapter.put(numbers), "they are there")
        adapter.delete([0, 5])
        self.check(adapter, numbers, [1, 2, 3, 4, 6, 7])
        self.assertEqual(adapter.adapter.get_usage().total_bytes_used,
                         6 * OBJECT)
        self.assertTrue(adapter.put([0, 5]))
        self.check(adapter, numbers)

    def test_another_process_of_the_server(self) -> None:
        """What one has stored the next finds, and one that has looked
        before there was anything."""
        early, adapter = self.open(), self.open()
        self.check(early, [1, 2], False)
        self.assertTrue(adapter.put([1, 2]))
        self.check(self.open(), [1, 2])
        self.until(lambda: early.has([1, 2]) == [True, True], "not found")
        self.check(early, [1, 2])

    def test_objects_of_other_sizes(self) -> None:
        """Groups, and a size that is no multiple of a page."""
        adapter = self.open()
        self.assertTrue(adapter.put([1]))
        adapter.change, adapter.shape = {"object_group_id": 1}, SMALL
        small = adapter.objects(1)[0]
        small.tensor.copy_(torch.arange(1000))
        task = adapter.adapter.submit_store_task(adapter.keys([1]), [small])
        done: Dict[int, Any] = {}

        def result() -> Any:
            done.update(adapter.adapter.pop_completed_store_tasks())
            return done.get(task)

        self.assertTrue(adapter.wait(adapter.adapter.get_store_event_fd(),
                                     result).is_successful())
        after = self.open()
        after.change, after.shape = adapter.change, SMALL
        self.assertEqual(after.has([1, 2]), [True, False])
        self.assertTrue(torch.equal(after.get([1])[0], small.tensor))
        after.change, after.shape = {}, SHAPE
        self.check(after, [1])

    def test_what_is_not_shared(self) -> None:
        """Models, ranks, groups and salts by the key; weights, types and
        tenants by the configuration (sglang#33268, sglang#37058)."""
        stored = self.open()
        self.assertTrue(stored.put([1]))
        for change in ({"model_name": "org/other"}, {"cache_salt": "b"},
                       {"kv_rank": 77}, {"object_group_id": 3}):
            other = self.open()
            other.change = change
            self.check(other, [1], False)
            self.assertTrue(other.put([1]))
            self.check(other, [1])
        for parameters in ({"weights": "v2"}, {"namespace": "float16"}):
            other = self.open(**parameters)
            self.check(other, [1], False)
        self.check(stored, [1])

    def test_random_operations_against_a_map(self) -> None:
        source = random.Random(34)
        adapter = self.open()
        there: Dict[int, bool] = {}
        for step in range(1000):
            numbers = sorted(source.sample(range(12), source.randint(1, 3)))
            what = source.choice(["put", "get", "has", "delete"])
            wanted = [there.get(n, False) for n in numbers]
            if what == "put":
                self.assertTrue(adapter.put(numbers), step)
                there.update(dict.fromkeys(numbers, True))
            elif what == "get":
                self.compare(adapter, numbers, wanted)
            elif what == "has":
                self.assertEqual(adapter.has(numbers), wanted, step)
            else:
                adapter.delete(numbers)
                there.update(dict.fromkeys(numbers, False))
        self.assertEqual(adapter.adapter.get_usage().total_bytes_used,
                         sum(there.values()) * OBJECT)

    def test_configurations_that_cannot_be(self) -> None:
        from ucmfs.errors import ConfigError

        for where in ({}, {"mount": "/a", "socket": "/b"}):
            with self.assertRaisesRegex(ConfigError, "mount, socket and"):
                Adapter(where)


class Trouble(Case):

    def test_a_damaged_block_is_a_miss(self) -> None:
        """Also after a restart (LMCache#4492), until it is stored again."""
        numbers = list(range(6))
        self.assertTrue(self.open().put(numbers))
        self.mount.stop()
        self.mount.start()
        files = self.blocks(OBJECT)
        self.assertEqual(len(files), 6)
        self.damage(files[2])
        adapter = self.open()
        found = adapter.get(numbers)
        bad = [n for n, one in zip(numbers, found) if not torch.is_tensor(one)]
        self.assertEqual(len(bad), 1)
        self.check(adapter, numbers, [n for n in numbers if n not in bad])
        self.until(lambda: len(self.blocks(OBJECT)) == 5, "it stays")
        self.assertTrue(adapter.put(bad))
        self.check(adapter, numbers)

    def test_injected_faults(self) -> None:
        """LMCache's own: what it drops is a gap, and the others are right."""
        adapter = self.open(fault={"gap_indices": [1, 4]})
        numbers = list(range(6))
        self.assertTrue(adapter.put(numbers))
        self.assertEqual(adapter.has(numbers), [True] * 6)
        self.compare(adapter, numbers, [True, False, True, True, False, True])

    def test_a_daemon_that_is_killed(self) -> None:
        """LMCache#4991: a store that has failed is said to have."""
        adapter = self.open()
        self.assertTrue(adapter.put([1, 2]))
        self.mount.crash()
        self.in_time(lambda: adapter.get([1, 2]))
        self.assertFalse(self.in_time(lambda: adapter.put([3])))
        self.in_time(lambda: adapter.has([1, 2]))
        self.assertEqual(self.in_time(lambda: self.open().has([1])), [False])
        self.mount.start()
        self.until(lambda: adapter.has([1, 2]) == [True, True], "not back")
        self.until(lambda: adapter.put([3]), "stores fail")
        self.check(adapter, [1, 2, 3])

    def test_a_daemon_that_hangs(self) -> None:
        adapter = self.open()
        self.assertTrue(adapter.put([1, 2]))
        self.stop_daemon()
        late = self.open()
        self.assertEqual(self.in_time(lambda: late.has([1])), [False])
        self.assertFalse(self.in_time(lambda: late.put([4])))
        self.assertEqual(self.in_time(lambda: late.get([1])), [None])
        self.assertFalse(self.in_time(lambda: adapter.put([3])))
        self.in_time(lambda: adapter.get([1, 2]))
        self.continue_daemon()
        self.until(lambda: adapter.has([1, 2]) == [True, True], "not back")
        self.until(lambda: late.has([1, 2]) == [True, True], "not found")

    def test_the_end_while_it_hangs(self) -> None:
        adapter = self.open()
        self.assertTrue(adapter.put([1]))
        self.stop_daemon()
        adapter.adapter.submit_store_task(adapter.keys([7]),
                                          adapter.objects(1))
        thread = threading.Thread(target=adapter.close)
        thread.start()
        thread.join(60)
        self.assertFalse(thread.is_alive())


class Bounded(Case):
    """A tier of some 60 objects, which evicts."""

    OPTIONS = {"tmpfs": 32 << 20}

    def test_it_is_bounded_after_a_restart(self) -> None:
        """LMCache#4564: its own count begins at 0; the mount's does not."""
        for first in (0, 50, 100):
            adapter = self.open()
            numbers = list(range(first, first + 50))
            for number in numbers:
                self.assertTrue(adapter.put([number]))
            there = adapter.has(numbers)
            # the policy keeps some that were loaded, and not all that are new
            self.assertGreater(sum(there), 10)
            self.compare(adapter, numbers, there)
            adapter.close()
            self.mount.stop()
            self.mount.start()
            self.assertLessEqual(len(self.blocks(OBJECT)) * OBJECT, 32 << 20)


class Full(Case):
    """A tier of 16 objects, without evictions."""

    OPTIONS = {"tmpfs": 8 << 20, "options": "policy=none"}

    def test_a_store_that_failed_is_visible(self) -> None:
        """LMCache#4991: and what is there is whole."""
        adapter = self.open()
        numbers = list(range(32))
        self.assertFalse(adapter.put(numbers))
        there = adapter.has(numbers)
        self.assertLess(0, sum(there))
        self.assertLess(sum(there), 16)
        self.compare(adapter, numbers, there)


if __name__ == "__main__":
    unittest.main()
