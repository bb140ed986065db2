#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector: loads between steps, in the step, and layer by layer."""

import os
import pathlib
import time
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List

from connector_case import parents_of
from mount import Mount
from private_daemon import directory_of
from scenarios import (APART, LONG, Basics, Scenarios, Seeded, Socket,
                       States, Unfilled, Verified, Windows, empty_payload,
                       flipped, wait_until)
from suite import BLOCK, METRICS, SETTLE, TRAFFIC, Parallel
from suite import generate, num_blocks, pause, reset, samples
from ucmfs import namespace

COUNT = "vllm:ucmfs_%s_total"


class Options:
    """Mixed in: how vLLM is configured."""

    load = "async"

    @classmethod
    def transfer(cls, mount: Mount, policy: str = "recompute",
                 **more: Any) -> Dict[str, Any]:
        options = {**mount.where, "load": cls.load,
                   # computing is faster than anything for such a model
                   "min_benefit": {"enabled": False}}
        return {
            "kv_connector": "UcmfsConnector",
            "kv_connector_module_path": "ucmfs.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": dict(options, **more),
        }

    @staticmethod
    def stored(mount: Mount) -> List[str]:
        return [str(path) for tier in mount.tiers
                for path in pathlib.Path(tier, "spaces").glob("*/??/*.bin")]

    def failed_blocks(self, metrics: Dict[str, float]) -> float:
        return samples(metrics, COUNT % "load_failed_blocks", "damaged")


class Async(Options, Scenarios, Seeded, Verified, unittest.TestCase):
    saves_all = False  # only a part of the cache is pinned for saves

    def check_full(self, metrics: Dict[str, float]) -> None:
        self.assertGreater(
            samples(metrics, COUNT % "save_failed_blocks", "full"), 0)

    def test_damaged_blocks_may_fail_the_request(self) -> None:
        mount = self.damaged_mount()
        steps = [generate(one_by_one=True), SETTLE,
                 self.until_cached(APART)]
        failed, _, healed = self.run_engine(mount, steps, {"policy": "fail"})
        for name in APART:
            self.assertEqual(failed[name]["finish"], "error", name)
            self.assertEqual(failed[name]["tokens"], [], name)
            del failed[name]
        self.check_tokens(failed)
        self.check_all_cached(healed)

    def test_a_reset_may_leave_what_is_stored(self) -> None:
        mount = self.new_mount()
        some = APART[:-1]  # all at once, they can be saved at once
        steps = [generate(*some), reset(True), generate(*some), SETTLE,
                 reset(), generate(*some), reset(True), generate(*some)]
        before, _, after, _, _, again, _, last = self.run_engine(
            mount, steps, {"reset": "epoch"})
        self.check_all_cached(before)
        self.check_none_cached(after)
        self.check_all_cached(again)
        self.check_none_cached(last)
        # of those that nobody else can find none is left
        self.assertEqual(len(namespace.spaces(mount.path)), 1)

    def test_a_load_that_computing_beats_is_left_out(self) -> None:
        mount = self.new_mount()
        slow = {"enabled": True, "bytes_per_second": 1,
                "tokens_per_second": 1e9}
        result, metrics = self.run_engine(
            mount, [generate(), METRICS], {"min_benefit": slow})
        self.check_none_cached(result)
        self.assertGreater(metrics[COUNT % "skipped_loads"], 0)


class AsyncWindows(Options, Windows, Verified, unittest.TestCase):
    """Two groups of blocks."""


class AsyncStates(Options, States, unittest.TestCase):
    pass


class Parallels(Options, Basics):

    shards = 2

    @classmethod
    def transfer(cls, mount: Mount, **more: Any) -> Dict[str, Any]:
        # ranks that wait for each other take all of the processors
        return super().transfer(mount, deadline_ms=60_000, **more)


class TensorParallel(Parallels, Seeded, unittest.TestCase):
    """Two ranks in processes of their own, each with half of the heads."""

    parallel = Parallel(tensor=2)


class Pipeline(Parallels, unittest.TestCase):
    """Two stages in processes of their own, each with a layer."""

    parallel = Parallel(pipeline=2)


class PipelineWindows(Parallels, Windows, Unfilled, unittest.TestCase):
    """A stage with a window alone, and one without: each lacks the layers of a
    group that the other has."""

    parallel = Parallel(pipeline=2)

    def test_in_a_new_process(self) -> None:
        mount = self.new_mount(filled=False)
        steps = [generate(*APART, one_by_one=True), SETTLE, self.forget(),
                 generate(*APART), METRICS]
        cold, settled, _, warm, _ = self.run_engine(mount, steps)
        self.check_none_cached(cold)
        self.assertTrue(settled)
        self.check_all_cached(warm)
        self.assertEqual(
            sorted(name[-5:] for name in namespace.spaces(mount.path)),
            ["g0-p0", "g1-p1"])
        again, _, _, _, metrics = self.run_engine(mount, steps)
        self.check_all_cached(again)
        self.assertEqual(self.failed_blocks(metrics), 0)
        for path in self.stored(mount):
            if "-p1/" in path:
                flipped(path)
        damaged, _, _, _, metrics = self.run_engine(mount, steps)
        self.check_tokens(damaged)
        self.assertGreater(self.failed_blocks(metrics), 0)


class PipelineStates(Options, States, unittest.TestCase):
    """A stage that has states and no attention, and one with both."""

    parallel = Parallel(pipeline=2)
    partition = "1,2"
    transfer = Parallels.transfer


class Sync(Options, Verified, unittest.TestCase):
    load = "sync"
    waits = False
    whole_prompts = False


class Layerwise(Options, Verified, unittest.TestCase):
    load = "layerwise"
    waits = False
    whole_prompts = False


class BySocket(Options, Socket, unittest.TestCase):
    pass


class Handover(Options, Unfilled, unittest.TestCase):
    """One engine computes prompts, another goes on from what it saves."""

    ASKS = {name: {"ucmfs": {"report": True}} for name in TRAFFIC}

    @classmethod
    def wait(cls, reports: Dict[str, dict], *names: str, seconds: float = 60,
             ) -> Dict[str, dict]:
        """For prompts, by the space that reports name."""
        (space,) = {each["handed"]["ucmfs"]["wait"]["space"]
                    for each in reports.values()}
        return {name: {"ucmfs": {"wait": {
            "tokens": cls.cached(name), "space": space,
            "seconds": seconds}}} for name in names}

    def prefill(self, mount: Mount, *names: str) -> Dict[str, dict]:
        """One by one: only a part of the cache is pinned for saves."""
        steps = [step for name in names for step in (
            generate(name, max_tokens=1, handed=self.ASKS), SETTLE)]
        out: Dict[str, dict] = {}
        for result in self.run_engine(mount, steps)[::2]:
            out.update(result)
        return out

    def test_tokens_are_those_of_one_engine(self) -> None:
        mount = self.new_mount(filled=False)
        reports = self.prefill(mount, *APART)
        self.check_tokens(reports)
        self.assertEqual({name: each["handed"]
                          for name, each in reports.items()},
                         self.wait_as_reported(reports))
        (result,) = self.run_engine(mount, [generate(*APART, handed={
            name: each["handed"] for name, each in reports.items()})])
        self.check_all_cached(result)

    def wait_as_reported(self, reports: Dict[str, dict]) -> Dict[str, dict]:
        waits = self.wait(reports, *APART)
        for each in waits.values():
            del each["ucmfs"]["wait"]["seconds"]
        return waits

    def test_one_that_asks_first_waits(self) -> None:
        mount = self.new_mount(filled=False)
        waits = self.wait(self.prefill(mount, "short"), "long")
        late = [pause("ready"),
                generate("long", max_tokens=1, handed=self.ASKS), SETTLE]
        with self.start_engine(mount, late) as producer, \
                self.start_engine(mount, [generate(
                    "long", handed=waits, pause="waits")]) as consumer:
            producer.wait_for("ready")
            consumer.wait_for("waits")
            consumer.go_on()
            producer.go_on()
            producer.results()
            (result,) = consumer.results()
        self.check_all_cached(result)

    def test_one_whose_other_is_killed_while_it_saves(self) -> None:
        """What was committed is loaded, and the rest computed."""
        mount = self.new_mount(filled=False)
        waits = self.wait(self.prefill(mount, "short"), "long", seconds=3)
        before = set(self.stored(mount))
        slow = [pause("ready"),
                generate("long", max_tokens=1, handed=self.ASKS), SETTLE]
        with self.start_engine(mount, slow, {"budget": 1 << 17}) as producer, \
                self.start_engine(mount, [generate(
                    "long", handed=waits, pause="waits")]) as consumer:
            producer.wait_for("ready")
            consumer.wait_for("waits")
            producer.go_on()
            wait_until(lambda: len(self.stored(mount)) > len(before) + 3)
            producer.close()
            stored = parents_of(set(self.stored(mount)) - before)
            began = time.monotonic()
            consumer.go_on()
            (result,) = consumer.results()
        self.assertLess(time.monotonic() - began, 30)
        self.assertLess(len(stored), num_blocks(["long"]))
        self.check_tokens(result)
        chain = [None]
        while children := [block for block, parent in stored.items()
                           if parent == chain[-1]]:
            chain += children
        self.assertEqual(result["long"]["cached"], BLOCK * (len(chain) - 1))

    def test_a_full_tier_ends_in_computing(self) -> None:
        mount = self.new_mount(filled=False, tmpfs=1 << 20,
                               options="policy=none")
        reports = self.prefill(mount, *APART)
        self.assertLess(len(self.stored(mount)), num_blocks(APART))
        (result,) = self.run_engine(mount, [generate(
            *APART, handed=self.wait(reports, *APART, seconds=1))])
        self.check_tokens(result)


class Directories(Options, Unfilled):
    """Directories alone: a private daemon has them."""

    # one by one: only a part of the cache is pinned for saves
    SAVE = [step for name in APART for step in (generate(name), SETTLE)]

    @classmethod
    def transfer(cls, tiers: str, **more: Any) -> Dict[str, Any]:
        options = super().transfer(SimpleNamespace(where={}), **more)
        options["kv_connector_extra_config"]["tiers"] = tiers
        return options

    def setUp(self) -> None:
        work = directory_of(self)
        self.paths = [os.path.join(work, n) for n in ("fast", "slow")]
        for path in self.paths:
            os.mkdir(path)
        self.tiers = "fast={}:{}".format(*self.paths)


@unittest.skipUnless(LONG, "UCMFS_TEST_LONG=1: test_connector_unit.py has the "
                     "short form")
class TensorParallelWithoutADaemon(Directories, unittest.TestCase):
    """Two ranks in processes of their own, each of which saves its half."""

    parallel = Parallel(tensor=2)

    @classmethod
    def transfer(cls, tiers: str, **more: Any) -> Dict[str, Any]:
        return super().transfer(tiers, deadline_ms=60_000, **more)

    def test_all_ranks_save(self) -> None:
        for result in self.run_engine(self.tiers, self.SAVE)[::2]:
            self.check_none_cached(result)
        stored = self.stored(SimpleNamespace(tiers=self.paths))
        self.assertEqual(len(stored), 2 * num_blocks(APART))
        result, metrics = self.run_engine(
            self.tiers, [generate(*APART), METRICS])
        self.check_all_cached(result)
        self.assertEqual(self.failed_blocks(metrics), 0)


class WithoutADaemon(Directories, unittest.TestCase):

    def test_the_next_processes_read_what_one_saves(self) -> None:
        tiers = self.tiers
        self.check_tokens(self.run_engine(tiers, self.SAVE)[0])
        steps = [pause("ready"), generate(*APART), SETTLE]
        with self.start_engine(tiers, steps) as one, \
                self.start_engine(tiers, steps) as other:
            for start in one, other:
                start.wait_for("ready")
            for start in one, other:
                start.go_on()
            for start in one, other:
                self.check_all_cached(start.results()[1])
        blocks = pathlib.Path(self.paths[0]).glob("spaces/*/??/*.bin")
        for path in blocks:
            empty_payload(str(path))
        damaged, metrics = self.run_engine(tiers, [generate(*APART), METRICS])
        self.check_none_cached(damaged)
        self.assertGreater(self.failed_blocks(metrics), 0)


if __name__ == "__main__":
    unittest.main()
