# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector: resets of the cache, other weights, and what is told."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import threading
import unittest
from random import Random
from types import SimpleNamespace
from unittest import mock

from connector_case import (
    BLOCK, Case, Counted, FakeRunner, WithEvents, WithFiles, parents_of)

import torch
from ucmfs.errors import UcmfsError
from ucmfs.layout import Geometry, Layout
from ucmfs.namespace import spaces
from ucmfs.vllm import scheduler


class Reset(Case):

    def test_reset(self) -> None:
        runner = self.runner()
        self.one(runner, self.prompt(100))
        self.assertTrue(runner.scheduler.reset_prefix_cache(
            reset_connector=True))
        runner.epoch += 1  # what is found of before is wrong
        self.one(runner, self.prompt(100))
        self.assertEqual(runner.stats["loads"], 0)
        self.forget(runner)
        self.one(runner, self.prompt(100))
        self.assertEqual(runner.stats["tokens loaded"], 96)

    def weighing(self, **more: object) -> FakeRunner:
        """One whose workers say self.weights."""
        patch = mock.patch.object(scheduler.Engine, "weigh",
                                  lambda _, whole: self.weights)
        patch.start()
        self.addCleanup(patch.stop)
        return self.runner(**more)

    def test_the_same_weights_have_the_same_blocks(self) -> None:
        self.weights = "a"
        for load in ("async", "sync"):
            with self.subTest(load=load):
                runner = self.weighing(extra={"load": load, "tenant": load})
                self.one(runner, self.prompt(100))
                for turn in (1, 2):
                    self.reset(runner)
                    self.one(runner, self.prompt(100))
                    self.assertEqual(runner.stats["tokens loaded"],
                                     turn * 96)

    def test_requests_under_way_go_on_with_the_same_weights(self) -> None:
        self.weights = "a"
        runner = self.weighing(batch_tokens=48)
        counted = Counted(runner)
        name = runner.add(self.prompt(200), 3)
        self.until(runner, lambda: runner.scheduler.requests[
            name].num_computed_tokens >= 96)
        self.assertTrue(self.half(runner).reset_cache())
        runner.settle()
        self.assertEqual(counted["saved_blocks"], 12)

    def test_other_weights_have_other_blocks(self) -> None:
        self.weights = "a"
        runner = self.weighing()
        self.one(runner, self.prompt(100))
        for self.weights, runner.epoch, found in (
                ("b", 1, 0), ("b", 1, 96), ("a", 0, 96), ("b", 1, 96)):
            before = runner.stats["tokens loaded"]
            self.reset(runner)
            self.one(runner, self.prompt(100))
            self.assertEqual(runner.stats["tokens loaded"] - before, found)
        self.weights = "a"
        other = self.runner()
        self.weights, other.epoch = "b", 1
        self.one(other, self.prompt(100))  # no reset since the start
        self.assertEqual(other.stats["tokens loaded"], 96)

    def test_files_are_not_looked_at_again(self) -> None:
        """What an engine has started with keeps its name, whatever has become
        of the files; and they need not be there."""
        self.weights = "a"
        runner = self.weighing(extra={"weights": ""}, kind=WithFiles)
        names = lambda: self.half(runner)._link.now.names  # noqa: E731
        self.one(runner, self.prompt(100))
        usual = names()
        runner.write_weights(b"others")
        for self.weights, runner.epoch, found in (("b", 1, 0), ("a", 0, 96)):
            before = runner.stats["tokens loaded"]
            self.reset(runner)
            self.one(runner, self.prompt(100))
            self.assertEqual(runner.stats["tokens loaded"] - before, found)
        self.assertEqual(names(), usual)
        shutil.rmtree(runner.directory.name)
        self.weights, runner.epoch = "", 2
        self.reset(runner)
        self.one(runner, self.prompt(100))
        self.assertNotEqual(names(), usual)

    def test_private_spaces_do_not_pile_up(self) -> None:
        runner = self.runner()
        usual = set(spaces(self.mount.path))
        for _ in range(3):
            self.one(runner, self.prompt(100))
            self.reset(runner)
        self.one(runner, self.prompt(100))
        self.until(runner, lambda: len(self.half(runner)._private) == 1)
        name, = self.half(runner)._private
        self.assertIn(name, spaces(self.mount.path))
        runner.shutdown()
        self.assertEqual(set(spaces(self.mount.path)), usual)

    def test_reset_in_the_middle(self) -> None:
        """What a running request has computed before is not saved after."""
        runner = self.runner(batch_tokens=48)
        counted = Counted(runner)
        name = runner.add(self.prompt(200), 3)
        self.until(runner, lambda: runner.scheduler.requests[
            name].num_computed_tokens >= 96)
        half = self.half(runner)
        self.assertTrue(half.reset_cache())
        saves = counted["saved_blocks"]
        runner.settle()
        self.assertLessEqual(counted["saved_blocks"], saves + 6)
        self.forget(runner)
        self.one(runner, self.prompt(200))
        self.assertEqual(runner.stats["loads"], 0)

    def test_reset_while_others_wait(self) -> None:
        """They have nothing of before, also where they find in the engine
        what others have computed since."""
        runner = self.runner(max_running=1)
        counted = Counted(runner)
        prompt = self.prompt(100, of=5)
        runner.add(self.prompt(60, of=4), 20)
        self.until(runner, lambda: runner.scheduler.running)
        runner.add(prompt, 3)
        runner.add(prompt[:96] + self.prompt(64, of=6), 3)
        self.assertTrue(self.half(runner).reset_cache())
        saved = counted["saved_blocks"]
        runner.settle()
        self.assertGreaterEqual(counted["saved_blocks"] - saved, 6 + 4)

    def test_reset_before_saves_begin(self) -> None:
        """Saves that were let go, and not told to the workers yet, are of the
        space that is left."""
        runner = self.runner({"load": "sync"})
        half = self.half(runner)
        before = self.paths()
        runner.add(self.prompt(100), 3)
        self.until(runner, lambda: half._ready)
        self.assertTrue(half.reset_cache())
        runner.settle()
        self.assertEqual(self.paths(), before)

    def move(self, runner: FakeRunner) -> None:
        """Lead the engine into another space, with a request of its own."""
        self.assertTrue(self.half(runner).reset_cache())
        worker = self.worker(runner)
        before = worker._space
        runner.epoch += 1
        runner.add(self.prompt(40, of=3), 2)
        self.until(runner, lambda: worker._space != before)

    def test_saves_behind_their_step_stay_in_their_space(self) -> None:
        """As on CUDA, where an event tells that a step is done."""
        done = threading.Event()
        event = SimpleNamespace(record=lambda: None, query=done.is_set,
                                synchronize=done.set)
        self.weights = "a"
        runner = self.warm(self.weighing())
        worker, half = self.worker(runner), self.half(runner)
        worker._cuda = SimpleNamespace(Event=lambda: event)
        usual, = half._link.now.names
        runner.add(self.prompt(100), 3)
        self.until(runner, lambda: worker._behind)
        self.weights = "b"
        self.move(runner)
        done.set()
        runner.settle()
        other, = half._link.now.names
        self.assertEqual(len(self.mount.blocks(usual)), 6)
        self.assertEqual(len(self.mount.blocks(other)), 2)

    def test_what_a_load_found_damaged_leaves_its_own_space(self) -> None:
        self.weights = "a"
        runner = self.weighing()
        worker = self.worker(runner)
        self.one(runner, self.prompt(100))
        self.forget(runner)
        usual, = self.half(runner)._link.now.names
        for path in self.mount.blocks(usual).values():
            self.flip(path)
        with mock.patch.object(worker._ends, "take", return_value=[]):
            runner.add(self.prompt(100), 3)
            self.until(runner, lambda: worker._loads)
            self.weights = "b"
            self.move(runner)
        runner.epoch = 0  # of the one that is under way
        runner.settle()
        self.assertTrue(worker._chores.end())
        self.assertFalse(self.mount.blocks(usual))

    def test_many_resets(self) -> None:
        """A loader has room for 256 groups."""
        from ucmfs.vllm import worker

        runner = self.runner()
        loader = self.worker(runner)._loader
        with mock.patch.object(worker, "MOST_GROUPS", 2):
            for _ in range(5):
                self.assertTrue(runner.scheduler.reset_prefix_cache(
                    reset_connector=True))
                self.one(runner, self.prompt(100))
                self.forget(runner)
                self.one(runner, self.prompt(100))
        self.assertEqual(runner.stats["tokens loaded"], 5 * 96)
        self.assertIsNot(self.worker(runner)._loader, loader)

    def test_spaces_that_are_not_entered_take_no_room(self) -> None:
        """Of the 256 groups that a loader has room for."""
        runner = self.warm(self.runner(window=40))
        worker = self.worker(runner)
        spaces = {home.group: told for home, told in
                  self.half(runner)._told[1].items()}
        loader, layouts = worker._loader, worker._layouts
        worker._layouts = {0: layouts[0], 1: Layout(Geometry(
            num_layers=1, block_size=16, k_bytes=4096), 1)}  # not sealed
        for _ in range(300):
            with self.assertRaises(UcmfsError):
                worker._enter(spaces)
        worker._layouts = layouts
        for _ in range(300):
            found = worker._enter(spaces)
            self.assertIs(found[0], loader)
            worker._leave(*found)
        self.one(runner, self.prompt(100))

    def test_reset_without_a_daemon(self) -> None:
        from ucmfs.vllm import scheduler

        runner = self.runner()
        half = self.half(runner)
        self.one(runner, self.prompt(100))
        names = half._link.now.names
        self.mount.crash()
        with mock.patch.object(scheduler, "RESET_SECONDS", 0.1):
            self.assertTrue(half.reset_cache())
        # The workers are not led into the old spaces as if they were new.
        meta = half.build_connector_meta(SimpleNamespace(
            total_num_scheduled_tokens=0, num_scheduled_tokens={}))
        self.assertEqual(
            (meta.space, [name for name, _ in meta.spaces.values()]),
            (0, names))
        self.mount.start()
        self.until(runner, lambda: half._link.now is not None)
        self.forget(runner)
        self.one(runner, self.prompt(100))
        self.assertEqual(runner.stats["loads"], 0)

    def test_namespaces(self) -> None:
        """What the engines differ in keeps them apart."""
        self.one(self.runner(), self.prompt(100))
        for more in ({"extra": {"weights": "other"}},
                     {"extra": {"epoch": "2"}}, {"layout": "BLNHC"},
                     {"dtype": torch.bfloat16}, {"ranks": 2}):
            with self.subTest(**more):
                runner = self.runner(**more)
                self.one(runner, self.prompt(100))
                self.assertEqual(runner.stats["loads"], 0)

    def test_a_space_of_another(self) -> None:
        """A name that is given, of a space that is for something else."""
        extra = {"space": "mine"}
        self.one(self.runner(extra), self.prompt(100))
        second = self.runner(extra)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)
        with self.assertRaisesRegex(ValueError, "weights"):
            self.runner({**extra, "weights": "other"})


# ---- what is told ----

class Told(Case):

    def test_events(self) -> None:
        runner = self.runner(kind=WithEvents)
        prompt = self.prompt(50)
        self.one(runner, prompt)
        seen = runner.told
        self.assertEqual([e.medium for e in seen], ["STORAGE"] * 3)
        self.assertEqual(sum((e.token_ids for e in seen), []), prompt[:48])
        self.assertEqual(seen[1].parent_block_hash, seen[0].block_hashes[0])
        self.assertIsNone(seen[0].parent_block_hash)
        self.assertEqual(seen[0].block_size, BLOCK)

    def test_events_of_what_was_there(self) -> None:
        """A router hears of blocks that another engine has stored when this
        one comes to them, once."""
        prompt = self.prompt(100)
        self.one(self.runner(), prompt)
        for how in ({"load": True}, {"load": False}):
            runner = self.runner(kind=WithEvents)
            for _ in range(2):
                runner.add(prompt, 3, kv_transfer_params={"ucmfs": how})
                runner.settle()
                self.forget(runner)
            self.assertEqual(sum((e.token_ids for e in runner.told), []),
                             prompt[:96])

    def test_events_of_what_is_damaged(self) -> None:
        from vllm.distributed.kv_events import BlockRemoved

        prompt, before = self.prompt(100), set(self.paths())
        first = self.runner(kind=WithEvents)
        self.one(first, prompt)
        (path,) = [path for path in set(self.paths()) - before
                   if parents_of({path}).popitem()[1] is None]
        self.flip(path)
        runner = self.runner(kind=WithEvents)
        self.one(runner, prompt)
        removed = [e for e in runner.told if isinstance(e, BlockRemoved)]
        self.assertEqual(len(removed), 1)
        self.assertEqual(removed[0].block_hashes,
                         first.told[0].block_hashes)
        self.assertEqual(removed[0].medium, "STORAGE")

    def test_events_of_what_is_evicted(self) -> None:
        """A router's view is what is in the store, whatever has happened."""
        from vllm.distributed.kv_events import BlockStored

        def names() -> set:
            return {os.path.basename(path)[:-4]
                    for path in set(self.paths()) - before}

        def settled() -> bool:
            self.one(runner, self.prompt(10))  # a step
            return names() == {ids.hex() for ids in told()}

        def told() -> dict:
            return self.half(runner)._events._reported[0]

        random, before = Random(5), set(self.paths())
        runner = self.runner(kind=WithEvents)
        with mock.patch("ucmfs.vllm.events.TURN_SECONDS", 0), \
                mock.patch("ucmfs.vllm.events.CHECKED", 7):
            for i in range(120):
                if i == 60:
                    self.mount.crash()
                    self.mount.start()
                    self.until(runner, lambda: self.half(runner)._link.now)
                elif random.random() < 0.5 or not names():
                    self.one(runner, self.prompt(
                        random.randrange(20, 160), of=random.randrange(6)))
                    self.forget(runner)
                else:
                    self.unlink(random.choice(sorted(
                        set(self.paths()) - before)))
            self.until(runner, settled)
            view = set()
            for event in runner.told:
                change = view.update if isinstance(event, BlockStored) \
                    else view.difference_update
                change(event.block_hashes)
            self.assertEqual(view, set(told().values()))
            self.assertGreater(len(view), 10)
            # Of other weights nothing of it is of use.
            self.half(runner)._move()
            runner.told.clear()
            self.one(runner, self.prompt(10))
            self.assertEqual(view, {hash for event in runner.told
                                    for hash in event.block_hashes})

    def test_stats(self) -> None:
        from ucmfs.vllm.connector import UcmfsConnector
        from ucmfs.vllm.metrics import UcmfsStats

        rank0 = UcmfsStats(data={"loads": 1, "loaded_bytes": 10**9,
                                 "load_seconds": [0.5], "sparse_blocks": 40,
                                 "sparse_attended_blocks": 11})
        rank1 = UcmfsStats(data={"loads": 1, "loaded_bytes": 10**9,
                                 "load_seconds": [0.5], "pinned_blocks": 3,
                                 "sparse_blocks": 8,
                                 "sparse_attended_blocks": 5})
        both = UcmfsConnector.build_kv_connector_stats(
            rank0.aggregate(rank1).to_dict())
        self.assertEqual(both.data["loads"], 2)
        reduced = both.reduce()
        self.assertEqual(reduced["ucmfs load GB/s"], 2.0)
        self.assertEqual(reduced["ucmfs pinned blocks"], 3)
        self.assertEqual(reduced["ucmfs sparse ratio"], 0.3333)
        self.assertNotIn("ucmfs sparse ratio", UcmfsStats(
            data={"loads": 1}).reduce())
        self.assertTrue(UcmfsConnector.build_kv_connector_stats().is_empty())

    def test_prometheus(self) -> None:
        import prometheus_client as prom
        from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
            KVConnectorProm)

        from ucmfs.vllm.metrics import COUNTERS

        registry = prom.CollectorRegistry()
        with contextlib.ExitStack() as stack:
            for name in ("Gauge", "Counter", "Histogram"):
                kind = getattr(prom, name)
                stack.enter_context(mock.patch.object(
                    KVConnectorProm, f"_{name.lower()}_cls",
                    functools.partial(kind, registry=registry)))
            runner = self.runner()
            metrics = KVConnectorProm(
                runner.make_vllm_config(0), ["engine"], {0: ["0"]})
        self.assertEqual(len(list(registry.collect())), len(COUNTERS) + 3)
        metrics.observe({"loads": 3, "pinned_blocks": 7,
                         "load_seconds": [0.004, 0.2],
                         "save_seconds": [0.3]})
        metrics.observe({"loads": 2, "pinned_blocks": 1,
                         "load_failed_blocks absent": 4,
                         "of another version": 1})
        value = registry.get_sample_value
        self.assertEqual(value("vllm:ucmfs_loads_total", {"engine": "0"}), 5)
        self.assertEqual(value("vllm:ucmfs_load_failed_blocks_total",
                               {"engine": "0", "cause": "absent"}), 4)
        self.assertEqual(value("vllm:ucmfs_pinned_blocks",
                               {"engine": "0"}), 1)
        self.assertEqual(value("vllm:ucmfs_load_seconds_count",
                               {"engine": "0"}), 2)
        self.assertEqual(value("vllm:ucmfs_save_seconds_sum",
                               {"engine": "0"}), 0.3)

    def test_contract(self) -> None:
        """What vLLM asks of the class before there is an object."""
        from ucmfs.vllm import UcmfsConnector
        from vllm.distributed.kv_transfer.kv_connector.v1.base import (
            supports_hma)

        self.assertTrue(supports_hma(UcmfsConnector))
        ask = UcmfsConnector.requires_piecewise_for_cudagraph
        self.assertTrue(ask({"load": "layerwise"}))
        self.assertFalse(ask({"mount": "/m"}))
        runner = self.runner({"layout": "BLNHC"})
        self.assertEqual(UcmfsConnector.get_required_kvcache_layout(
            runner.make_vllm_config(0)), "BLNHC")
        connector = runner.scheduler.connector
        self.assertFalse(connector.requires_kv_delivery)
        self.assertIsNone(connector.get_finished_count())


if __name__ == "__main__":
    unittest.main()
