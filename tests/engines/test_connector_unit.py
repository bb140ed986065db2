# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector, one behaviour at a time: vLLM's scheduler, both roles, CPU
tensors, and a mount. The model only keeps books (fake_runner.py); it fails a
test by itself where a slot holds what it should not."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import faulthandler
import functools
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest
from collections import Counter
from types import SimpleNamespace
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]

try:
    import torch
    import vllm  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"needs vLLM: {error}") from None

from mount import Mount, Served

import fake_runner
from fake_runner import Config
from private_daemon import directory_of
from rank_processes import RankDied, WithProcesses
from ucmfs.blocks import Blocks
from ucmfs.errors import ConfigError, UcmfsError
from ucmfs.layout import Geometry, Layout
from ucmfs.namespace import read_manifest, spaces
from ucmfs.vllm import scheduler
from ucmfs.vllm.groups import plan_of

BLOCK = 16
faulthandler.enable()


class FakeRunner(fake_runner.FakeRunner):
    """Its model is called the same each time, as that tells whose blocks are
    whose."""

    def write_model(self) -> None:
        outer = self.directory
        inner = os.path.join(outer.name, "model")
        os.mkdir(inner)
        self.directory = SimpleNamespace(name=inner, cleanup=outer.cleanup)
        super().write_model()


class WithFiles(FakeRunner):
    """Its model has files with weights."""

    def write_model(self) -> None:
        super().write_model()
        self.write_weights(b"some")

    def write_weights(self, content: bytes) -> None:
        path = os.path.join(self.directory.name, "model.bin")
        with open(path, "wb") as file:
            file.write(content)


class WithEvents(FakeRunner):
    """What its connector publishes, in .told."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        connector = self.scheduler.connector
        inner, self.told = connector.take_events, []

        def take():
            events = list(inner())
            self.told.extend(events)
            return events

        connector.take_events = take

    def make_vllm_config(self, rank):
        from vllm.config import KVEventsConfig

        config = super().make_vllm_config(rank)
        config.kv_events_config = KVEventsConfig(
            enable_kv_cache_events=True, publisher="null")
        return config


class Case(unittest.TestCase):
    """A mount for the class, and runners on it."""

    mount: Mount
    KIND: type = Mount
    MOUNT: dict = {}

    @classmethod
    def setUpClass(cls) -> None:
        cls.mount = cls.KIND(**cls.MOUNT)
        cls.addClassCleanup(cls.mount.close)

    def setUp(self) -> None:
        log = logging.getLogger("vllm.ucmfs")
        log.setLevel(logging.CRITICAL)
        self.addCleanup(log.setLevel, logging.NOTSET)

    def extra(self, **more: object) -> dict:
        # A tenant for each test: they find nothing of each other's.
        return {**self.mount.where, "weights": "none",
                "tenant": self.id(), "pinned_share": 0.5,
                "min_benefit": {"enabled": False},
                "staging_bytes": 16 << 20, **more}

    def config(self, extra: dict = {}, **more: object) -> Config:
        return Config(self.id(), connector="UcmfsConnector",
                      module="ucmfs.vllm", extra=self.extra(**extra),
                      patience=20, num_blocks=64, **more)

    def runner(self, extra: dict = {}, kind=FakeRunner,
               **more: object) -> FakeRunner:
        runner = kind(self.config(extra, **more))
        self.addCleanup(runner.shutdown)
        return runner

    @staticmethod
    def prompt(tokens: int, of: int = 1) -> list:
        return [(of * 7919 + i * i) % 900 for i in range(tokens)]

    @staticmethod
    def half(runner: FakeRunner):
        """The scheduler's half."""
        return runner.scheduler.connector._scheduler

    @staticmethod
    def worker(runner: FakeRunner, rank: int = 0):
        return runner.ranks[rank].connector._worker

    def one(self, runner: FakeRunner, prompt: list, tokens: int = 3) -> str:
        """A request, to its end and that of what it has left behind."""
        name = runner.add(prompt, tokens)
        runner.settle()
        self.assertEqual(runner.delivered[name], tokens)
        return name

    def warm(self, runner: FakeRunner) -> FakeRunner:
        """Its workers know their spaces: what hangs from now on is a
        transfer."""
        self.one(runner, self.prompt(10, of=9))
        for rank in runner.ranks:
            entry = rank.connector._worker._entry
            if entry is not None:
                self.assertTrue(entry._tried.wait(20))
        return runner

    def forget(self, runner: FakeRunner) -> None:
        """What the engine itself keeps."""
        self.assertTrue(runner.scheduler.reset_prefix_cache())

    def reset(self, runner: FakeRunner) -> None:
        """As before a sleep."""
        self.assertTrue(runner.scheduler.reset_prefix_cache(
            reset_connector=True))

    def until(self, runner: FakeRunner, what, seconds_of_step: float = 0,
              ) -> None:
        end = time.monotonic() + 20
        while not what():
            self.assertLess(time.monotonic(), end, "nothing happens")
            runner.step()
            time.sleep(seconds_of_step)

    def check_pinned(self, runner: FakeRunner, spaces: int) -> None:
        """A request that wants it has all its blocks pinned, in so many."""
        half, wanted = self.half(runner), []
        with mock.patch.object(
                scheduler, "pin_blocks",
                lambda _, space, ids: wanted.append((space, len(ids)))):
            runner.add(self.prompt(100), 3, kv_transfer_params={
                "ucmfs": {"pin": True}})
            runner.settle()
            self.until(runner, lambda: len(wanted) == spaces)
        self.assertEqual(sorted(wanted), sorted(
            (name, 12) for name in half._link.now.names))

    def check_second_hits(self, **more: object) -> None:
        """What one engine has saved another loads, and saves nothing again."""
        first = self.runner(**more)
        self.one(first, self.prompt(100))
        self.assertEqual(first.stats["loads"], 0)
        second = self.runner(**more)
        counted = Counted(second)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)
        self.assertEqual(counted["saved_blocks"], 0)
        self.assertEqual(counted["load_failed_blocks"], 0)

    def unlink(self, path: str) -> None:
        """A block by its path in a tier, through the mount."""
        os.unlink(os.path.join(self.mount.path, "spaces",
                               path.split("/spaces/")[1]))

    def paths(self) -> list:
        found = [path for tier in self.mount.tiers for path in _blocks(tier)]
        self.mount.wait_for_writers(found)
        return found


def _blocks(tier: str) -> list:
    return sorted(os.path.join(folder, name) for folder, _, names
                  in os.walk(os.path.join(tier, "spaces")) for name in names
                  if name.endswith(".bin"))


def parents_of(paths: set) -> dict:
    """From each block's id to that of its parent; None: it names none."""
    out = {}
    for path in paths:
        with open(path, "rb") as file:
            head = file.read(80)
        flags = int.from_bytes(head[52:56], "little")
        out[head[8:24]] = head[64:80] if flags & 2 else None
    return out


class Counted:
    """What a runner's connectors have counted, all told."""

    def __init__(self, runner: FakeRunner) -> None:
        self.data: dict = {}
        for half in [runner.scheduler.connector] + [
                rank.connector for rank in runner.ranks]:
            inner = half.get_kv_connector_stats

            def get(inner=inner):
                stats = inner()
                for name, value in (stats.data if stats else {}).items():
                    if not isinstance(value, list):
                        self.data[name] = self.data.get(name, 0) + value
                return stats

            half.get_kv_connector_stats = get

    def __getitem__(self, name: str) -> float:
        """Of a counter with causes: all of them, or of "NAME CAUSE"."""
        return sum(value for key, value in self.data.items()
                   if f"{key} ".startswith(f"{name} "))


# ---- loads and saves ----

class Basics(Case):

    def test_second_engine_hits(self) -> None:
        for layout in ("LBNHC", "LHBNC", "BLHNC", "BHLNC"):
            with self.subTest(layout=layout):
                first = self.runner(layout=layout)
                counted = Counted(first)
                self.one(first, self.prompt(100))
                self.assertEqual(first.stats["loads"], 0)
                self.assertEqual(counted["saved_blocks"], 6)
                second = self.runner(layout=layout)
                counted = Counted(second)
                self.one(second, self.prompt(100))
                self.assertEqual(second.stats["tokens loaded"], 96)
                self.assertEqual(counted["saved_blocks"], 0)
                self.assertEqual(counted["load_failed_blocks"], 0)

    def test_blocks_name_the_block_before(self) -> None:
        for options, chains, length in (({}, 1, 6), ({"ranks": 2}, 2, 6)):
            with self.subTest(**options):
                before = set(self.paths())
                runner = self.runner(**options)
                self.one(runner, self.prompt(100, of=40 + chains))
                parents = parents_of(set(self.paths()) - before)
                self.assertEqual(len(parents), chains * length)
                firsts = [id for id, above in parents.items() if not above]
                self.assertEqual(len(firsts), chains)
                after = {above: id for id, above in parents.items() if above}
                for id in firsts:
                    for _ in range(length - 1):
                        id = after.pop(id)
                self.assertEqual(after, {})

    def test_ranks(self) -> None:
        first = self.runner(ranks=2)
        counted = Counted(first)
        self.one(first, self.prompt(70))
        self.assertEqual(counted["saved_blocks"], 8)
        second = self.runner(ranks=2)
        self.one(second, self.prompt(70))
        self.assertEqual(second.stats["tokens loaded"], 64)

    def test_all_ranks_or_none(self) -> None:
        """A block that one rank lacks is absent."""
        first = self.runner(ranks=2)
        before = set(self.paths())
        self.one(first, self.prompt(70))
        lost = min(set(self.paths()) - before)
        self.unlink(lost)
        second = self.runner(ranks=2)
        counted = Counted(second)
        self.one(second, self.prompt(70))
        self.assertLess(second.stats["tokens loaded"], 64)
        self.assertEqual(counted["load_failed_blocks"], 0)
        # What was missing has been saved again.
        self.assertTrue(os.path.exists(lost))

    def test_prefix_partly_shared(self) -> None:
        first = self.runner()
        self.one(first, self.prompt(100))
        second = self.runner()
        counted = Counted(second)
        self.one(second, self.prompt(50) + self.prompt(60, of=2))
        self.assertEqual(second.stats["tokens loaded"], 48)
        self.assertEqual(counted["saved_blocks"], 3)

    def test_behind_what_the_engine_has(self) -> None:
        """num_computed_tokens: only what is beyond is loaded."""
        first = self.runner()
        self.one(first, self.prompt(100))
        second = self.runner()
        self.one(second, self.prompt(40))
        self.assertEqual(second.stats["tokens loaded"], 32)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 32 + 64)

    def test_whole_prompt(self) -> None:
        """Asynchronously all of it may be promised; in the step itself a
        token must be left to compute."""
        for load, tokens in (("async", 96), ("sync", 80),
                             ("layerwise", 80)):
            with self.subTest(load=load):
                self.one(self.runner({"tenant": load}), self.prompt(96))
                second = self.runner({"load": load, "tenant": load})
                self.one(second, self.prompt(96))
                self.assertEqual(second.stats["tokens promised"], tokens)
                self.assertEqual(second.stats["async loads"],
                                 load == "async")

    def test_chunked_prefill(self) -> None:
        first = self.runner(batch_tokens=40)
        self.one(first, self.prompt(300))
        second = self.runner(batch_tokens=40)
        self.one(second, self.prompt(310))
        self.assertEqual(second.stats["tokens loaded"], 288)

    def test_decode(self) -> None:
        for decode, blocks in ((False, 2), (True, 5)):
            with self.subTest(save_decode=decode):
                runner = self.runner({"save_decode": decode,
                                      "tenant": str(decode)})
                counted = Counted(runner)
                self.one(runner, self.prompt(40), 50)
                self.assertEqual(counted["saved_blocks"], blocks)

    def test_async_scheduling_and_second_runner(self) -> None:
        for more in ({"async_scheduling": True}, {"v2_runner": True}):
            with self.subTest(**more):
                tenant = {"tenant": str(more)}
                self.one(self.runner(tenant, **more), self.prompt(100))
                second = self.runner(tenant, **more)
                self.one(second, self.prompt(100))
                self.assertEqual(second.stats["tokens loaded"], 96)

    def test_roles(self) -> None:
        """A producer loads nothing, a consumer saves nothing."""
        class Role(FakeRunner):
            role = ""

            def make_vllm_config(self, rank):
                config = super().make_vllm_config(rank)
                config.kv_transfer_config.kv_role = self.role
                return config

        for role, saves, loaded in (("kv_consumer", 0, 0),
                                    ("kv_producer", 6, 0),
                                    ("kv_producer", 0, 0),
                                    ("kv_consumer", 0, 96)):
            with self.subTest(role=role):
                Role.role = role
                runner = self.runner(kind=Role)
                counted = Counted(runner)
                self.one(runner, self.prompt(100))
                self.assertEqual(counted["saved_blocks"], saves)
                self.assertEqual(runner.stats["tokens loaded"], loaded)

    def test_skip_reading(self) -> None:
        self.one(self.runner(), self.prompt(100))
        second = self.runner()
        request = self.request(second, self.prompt(100))
        self.assertEqual(self.ask(second, request), (96, True))
        request.skip_reading_prefix_cache = True
        self.assertEqual(self.ask(second, request), (0, False))

    def request(self, runner: FakeRunner, prompt: list):
        name = runner.add(prompt, 3)
        return runner.scheduler.requests[name]

    @staticmethod
    def ask(runner: FakeRunner, request, local: int = 0):
        return runner.scheduler.connector.get_num_new_matched_tokens(
            request, local)

    def test_asking_changes_nothing(self) -> None:
        self.one(self.runner(), self.prompt(100))
        second = self.runner()
        counted = Counted(second)
        request = self.request(second, self.prompt(100))
        for _ in range(50):
            self.assertEqual(self.ask(second, request), (96, True))
            self.assertEqual(self.ask(second, request, 32), (64, True))
            self.assertEqual(self.ask(second, request, 96), (0, False))
        self.assertEqual(self.half(second).stats.data, {})
        second.settle()
        self.assertEqual(counted["lookups"], 1)
        self.assertEqual(counted["promised_tokens"], 96)

    def test_lora(self) -> None:
        for policy, found in (("skip", 0), ("name", 96)):
            with self.subTest(lora=policy):
                extra = {"tenant": policy, "lora": policy}
                self.one(self.runner(extra), self.prompt(100))
                second = self.runner(extra)
                request = self.request(second, self.prompt(100))
                request.lora_request = SimpleNamespace(adapter_id=1,
                                                       name="a")
                self.assertEqual(self.ask(second, request)[0], found)
                request.lora_request = None

    def with_adapter(self, runner: FakeRunner, prompt: list) -> str:
        """A request of an adapter, whose block hashes are the same."""
        name = runner.add(prompt, 3)
        runner.scheduler.requests[name].lora_request = SimpleNamespace(
            adapter_id=1, lora_int_id=1, lora_name="a", lora_path="p",
            name="a")
        runner.settle()
        return name

    def test_adapters_of_one_name_and_path(self) -> None:
        for ranks in (1, 2):
            with self.subTest(ranks=ranks), mock.patch.multiple(
                    scheduler.Engine, weigh=lambda _, whole: "a",
                    adapter=lambda _, lora: self.adapter):
                prompt = self.prompt(100, of=50 + ranks)
                runner = self.runner(ranks=ranks)
                # plain, one, other; and all of them again
                for epoch, self.adapter in enumerate(
                        (None, "11" * 32, "22" * 32)):
                    runner.epoch = epoch  # of another's blocks all is wrong
                    ask = self.with_adapter if epoch else self.one
                    for found in (0, 96):
                        before = runner.stats["tokens loaded"]
                        ask(runner, prompt)
                        self.assertEqual(runner.stats["tokens loaded"]
                                         - before, found)
                        self.reset(runner)
                runner.epoch, self.adapter = 1, "11" * 32
                before = runner.stats["tokens loaded"]
                self.with_adapter(runner, prompt)
                self.assertEqual(runner.stats["tokens loaded"] - before, 96)

    def test_an_adapter_that_changes_is_left_out(self) -> None:
        """Until the engine's own cache is reset: it has blocks of both."""
        prompt = self.prompt(100, of=60)
        with mock.patch.object(scheduler.Engine, "adapter",
                               lambda _, lora: self.adapter):
            runner = self.runner(batch_tokens=48)
            counted = Counted(runner)
            self.adapter = "11" * 32
            name = runner.add(prompt, 3)
            runner.scheduler.requests[name].lora_request = SimpleNamespace(
                adapter_id=1, lora_int_id=1, lora_name="a", lora_path="p",
                name="a")
            self.until(runner, lambda: runner.scheduler.requests[
                name].num_computed_tokens >= 48)
            self.adapter = "22" * 32
            half = self.half(runner)
            self.until(runner, lambda: half._requests[name].left_out)
            self.assertNotIn(name, half._undecided)
            runner.settle()
            saved = counted["saved_blocks"]
            self.assertLess(saved, 6)
            self.with_adapter(runner, self.prompt(100, of=61))
            self.assertEqual(counted["saved_blocks"], saved)
            self.reset(runner)
            self.with_adapter(runner, self.prompt(100, of=62))
            self.assertEqual(counted["saved_blocks"], saved + 6)

    def test_workers_are_asked_once_for_an_adapter_and_step(self) -> None:
        asked = []

        def adapter(_: object, lora: object) -> str:
            asked.append(runner.step_no)
            return "11" * 32

        with mock.patch.object(scheduler.Engine, "adapter", adapter):
            runner = self.runner()
            for of in range(4):
                name = runner.add(self.prompt(20, of=70 + of), 3)
                runner.scheduler.requests[name].lora_request = SimpleNamespace(
                    adapter_id=1, lora_int_id=1, lora_name="a", lora_path="p",
                    name="a")
            runner.settle()
        self.assertGreater(len(asked), 0)
        self.assertEqual(len(asked), len(set(asked)))

    def ask_for(self, runner: FakeRunner, prompt: list, **wishes) -> str:
        """A request with wishes of its own, to its end."""
        name = runner.add(prompt, 3, kv_transfer_params={"ucmfs": wishes})
        runner.settle()
        return name

    def test_wishes(self) -> None:
        prompt = self.prompt(100)
        runner = self.runner()
        counted = Counted(runner)
        self.ask_for(runner, prompt, save=False)
        self.assertEqual(counted["saved_blocks"], 0)
        self.forget(runner)
        self.ask_for(runner, prompt, save=True)
        self.assertEqual(counted["saved_blocks"], 6)
        self.forget(runner)
        self.ask_for(runner, prompt, load=False)
        self.assertEqual(runner.stats["tokens loaded"], 0)
        self.forget(runner)
        self.ask_for(runner, prompt)
        self.assertEqual(runner.stats["tokens loaded"], 96)

    def test_wishes_that_nobody_understands(self) -> None:
        runner = self.runner()
        counted = Counted(runner)
        with self.assertLogs("vllm.ucmfs", "WARNING") as told:
            self.ask_for(runner, self.prompt(100), saev=False)
        self.assertIn("ucmfs.saev: not known; load, pin, save are",
                      told.output[0])
        self.assertEqual(counted["saved_blocks"], 6)
        self.half(runner)._teller._told.clear()
        with self.assertLogs("vllm.ucmfs", "WARNING") as told:
            self.ask_for(runner, self.prompt(60, of=2), save=0)
        self.assertIn("ucmfs.save is 0: true or false", told.output[0])

    def test_pinned_in_the_store(self) -> None:
        """Those that it saved and those that were there."""
        runner = self.runner()
        self.one(runner, self.prompt(40))
        self.ask_for(runner, self.prompt(100), pin=True)
        here = self.half(runner)._link.now
        with Blocks(self.mount.path) as blocks:
            def pinned() -> list:
                ids = [bytes.fromhex(os.path.basename(path)[:32])
                       for path in self.paths() if here.names[0] in path]
                return [place.pinned for place in blocks.locate(
                    ids, here.names[0])]

            self.until(runner, lambda: pinned() == 6 * [True])

    def test_publishable(self) -> None:
        """Blocks that vLLM does not want published are not saved."""
        runner = self.runner()
        counted = Counted(runner)
        request = self.request(runner, self.prompt(100))
        try:
            request.num_publishable_block_hashes = 2
        except AttributeError:
            kind = type("Held", (type(request),), {
                "num_publishable_block_hashes": 2})
            request.__class__ = kind
        runner.settle()
        self.assertEqual(counted["saved_blocks"], 2)

    def test_same_blocks_at_once(self) -> None:
        """Requests that compute the same blocks save them once."""
        runner = self.runner(batch_tokens=512)
        counted = Counted(runner)
        for i in range(4):
            runner.add(self.prompt(64) + self.prompt(20, of=i), 3)
        runner.settle()
        self.assertEqual(counted["saved_blocks"]
                         + counted["save_skipped_blocks"], 4 + 4)
        self.assertEqual(counted["save_skipped_blocks"], 0)

    def test_benefit(self) -> None:
        self.one(self.runner(), self.prompt(100))
        for rate, loaded in ((1e3, 0), (1e12, 96)):
            with self.subTest(bytes_per_second=rate):
                runner = self.runner({"min_benefit": {
                    "enabled": True, "bytes_per_second": rate,
                    "tokens_per_second": 1e4}})
                counted = Counted(runner)
                self.one(runner, self.prompt(100))
                self.assertEqual(runner.stats["tokens loaded"], loaded)
                self.assertEqual(counted["skipped_loads"], not loaded)

    def test_idle_steps_are_not_measured(self) -> None:
        """vLLM hands on nothing of an idle step that has nothing to tell."""
        runner = self.runner()
        half = self.half(runner)
        for _ in range(20):
            half.build_connector_meta(SimpleNamespace(
                total_num_scheduled_tokens=0, num_scheduled_tokens={}))
        with mock.patch.object(half.benefit.prefill, "add") as add:
            self.one(runner, self.prompt(90))
        self.assertEqual([call.args[0] for call in add.call_args_list], [90])

    def test_debug_log(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            extra = {"debug_log": path}
            self.one(self.runner(extra), self.prompt(100))
            second = self.runner(extra)
            name = self.one(second, self.prompt(100))
            with open(path, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        self.assertEqual(len(lines), 2)
        self.assertEqual(lines[0]["saved"], 6)
        self.assertEqual(lines[1]["request"], name)
        self.assertEqual(lines[1]["promised"], 96)
        self.assertEqual(lines[1]["loaded_blocks"], 6)
        self.assertGreater(lines[1]["load_ms"], 0)


# ---- stages of a pipeline ----

class Pipeline(Case):
    """A stage has other layers, and here other numbers of them."""

    MORE = {"layers": 3, "stages": 2}

    def stages(self, before: set) -> list:
        """Blocks that are new in the spaces of each stage."""
        names = [path.split("/spaces/")[1].split("/")[0]
                 for path in set(self.paths()) - before]
        return [sum(name.endswith(f"-p{stage}") for name in names)
                for stage in (0, 1)]

    def test_second_engine_hits(self) -> None:
        for more in ({"ranks": 2, "replicated": True}, {"indexer": 5},
                     {"ranks": 2, "layers": 5, "window": 40},
                     {"layers": 5, "state": 60, "layout": "BLNHC"}):
            with self.subTest(**more):
                self.check_second_hits(**{**self.MORE, **more})

    def test_blocks_of_each_rank(self) -> None:
        before = set(self.paths())
        runner = self.runner(ranks=2, **self.MORE)
        self.one(runner, self.prompt(100))
        self.assertEqual(self.stages(before), [12, 12])
        names = self.half(runner)._link.now.names
        first, second = (read_manifest(self.mount.path, name)
                         for name in names)
        self.assertEqual([first["geometry"]["num_layers"],
                          second["geometry"]["num_layers"]], [2, 1])
        self.assertEqual(first["connector"]["stages"],
                         second["connector"]["stages"])
        self.assertFalse(set(first["connector"]["layers"])
                         & set(second["connector"]["layers"]))

    def of_stage(self, before: set, stage: int) -> list:
        return sorted(path for path in set(self.paths()) - before
                      if f"-p{stage}/" in path)

    def test_all_stages_or_none(self) -> None:
        """A block that one stage lacks is absent, and is saved again."""
        for stage in (0, 1):
            with self.subTest(stage=stage):
                before, prompt = set(self.paths()), self.prompt(70, of=stage)
                self.one(self.runner(**self.MORE), prompt)
                lost = self.of_stage(before, stage)[0]
                self.unlink(lost)
                second = self.runner(**self.MORE)
                counted = Counted(second)
                self.one(second, prompt)
                self.assertLess(second.stats["tokens loaded"], 64)
                self.assertEqual(counted["load_failed_blocks"], 0)
                self.assertTrue(os.path.exists(lost))

    def test_damaged_in_a_stage(self) -> None:
        for stage in (0, 1):
            with self.subTest(stage=stage):
                before, prompt = set(self.paths()), self.prompt(100, of=stage)
                self.one(self.runner(**self.MORE), prompt)
                for path in self.of_stage(before, stage):
                    os.truncate(path, 100)
                second = self.runner(**self.MORE)
                self.one(second, prompt)
                self.assertGreater(second.stats["blocks failed"], 0)

    def test_other_stages_share_nothing(self) -> None:
        """The same layers in the first stage, and others in those behind:
        each has its own spaces, which are found again."""
        for turn, cut in enumerate(("1,2,1", "1,1,2", "1,2,1")):
            with self.subTest(cut=cut), mock.patch.dict(
                    os.environ, VLLM_PP_LAYER_PARTITION=cut):
                runner = self.runner(layers=4, stages=3)
                self.one(runner, self.prompt(100))
                self.assertEqual(runner.stats["tokens loaded"],
                                 96 if turn > 1 else 0)

    def test_in_the_step_is_not_done(self) -> None:
        for load in ("sync", "layerwise"):
            with self.subTest(load=load):
                runner = self.runner({"load": load}, **self.MORE)
                self.assertTrue(self.half(runner).asynchronous)

    def test_pinned(self) -> None:
        """A request that wants it has the blocks of all stages pinned."""
        self.check_pinned(self.runner(ranks=2, **self.MORE), 2)

    def test_stages_that_nobody_has_told_of(self) -> None:
        class Silent(FakeRunner):
            def tell_each_other(self) -> None:
                pass

        runner = self.runner(kind=Silent, **self.MORE)
        with self.assertRaisesRegex(ConfigError, "have not told"):
            runner.add(self.prompt(100), 3)

    def test_missing_mount(self) -> None:
        """It is there later: the stages' spaces are opened then."""
        mount = Mount(start=False)
        self.addCleanup(mount.close)
        runner = self.runner({"mount": mount.path}, **self.MORE)
        self.one(runner, self.prompt(100))
        mount.start()
        self.until_found(runner)

    def until_found(self, runner: FakeRunner) -> None:
        end, of = time.monotonic() + 20, 100
        while not runner.stats["tokens loaded"]:
            self.assertLess(time.monotonic(), end, "nothing is found")
            self.one(runner, self.prompt(100, of=of))
            self.forget(runner)
            self.one(runner, self.prompt(100, of=of))
            of += 1


# ---- stages of which some have no layers of a group ----

class Partial(Case):
    """What one stage has, and others lack: nothing of it is kept there."""

    # Stages with layers of the first group alone, of both, of the second.
    MORE = {"layers": 6, "stages": 3, "kinds": "fffwww", "window": 40}
    TWO = {"layers": 4, "stages": 2, "window": 40}

    def files(self, before: set) -> dict:
        """How many are new, by group and stage."""
        names = [path.split("/spaces/")[1].split("/")[0].split("-")
                 for path in set(self.paths()) - before]
        return Counter(f"{name[-2]}-{name[-1]}" for name in names)

    def test_second_engine_hits(self) -> None:
        """Also where the scheduler is told of a stage without layers that all
        tokens need, and of states that not all stages have."""
        for more in ({**self.MORE, "ranks": 2},
                     {**self.TWO, "kinds": "ffww"},
                     {**self.TWO, "kinds": "wwff", "window_block": 32},
                     {"layers": 4, "stages": 2, "kinds": "ssfs", "state": 60,
                      "layout": "BLNHC"}):
            with self.subTest(**more):
                self.check_second_hits(**more)

    def test_files_and_spaces(self) -> None:
        before = set(self.paths())
        runner = self.runner(**self.MORE)
        self.one(runner, self.prompt(100))
        self.assertEqual(self.files(before), {
            "g0-p0": 6, "g0-p1": 6, "g1-p1": 6, "g1-p2": 6})
        here = self.half(runner)._link.now
        told = [read_manifest(self.mount.path, name)["connector"]
                for name in here.names]
        self.assertEqual([len(one["layers"]) for one in told], [2, 1, 1, 2])
        self.assertEqual(len({one["stages"] for one in told}), 1)

    def test_other_stages_share_nothing(self) -> None:
        """Cut elsewhere, or into more or fewer: each has its own spaces, which
        are found again."""
        seen = set()
        for turn in range(2):
            for cut in ("2,2,2", "2,1,3", "4,2"):
                with self.subTest(cut=cut), mock.patch.dict(
                        os.environ, VLLM_PP_LAYER_PARTITION=cut):
                    before = set(self.paths())
                    runner = self.runner(**{
                        **self.MORE, "stages": len(cut.split(","))})
                    self.one(runner, self.prompt(100))
                    self.assertEqual(runner.stats["tokens loaded"],
                                     96 if turn else 0)
                    self.assertEqual(set(self.paths()) > before, not turn)
                    names = set(self.half(runner)._link.now.names)
                    self.assertEqual(bool(seen & names), bool(turn))
                    seen |= names

    def test_all_that_have_it_or_none(self) -> None:
        """A block that one of the stages lacks is no hit, and is saved
        again."""
        for turn, home in enumerate(("g0-p0", "g1-p1", "g1-p2")):
            with self.subTest(home=home):
                before, prompt = set(self.paths()), self.prompt(100, of=turn)
                self.one(self.runner(**self.MORE), prompt)
                lost = [path for path in set(self.paths()) - before
                        if f"-{home}/" in path]
                for path in lost:
                    self.unlink(path)
                second = self.runner(**self.MORE)
                counted = Counted(second)
                self.one(second, prompt)
                self.assertEqual(second.stats["tokens loaded"], 0)
                self.assertEqual(counted["load_failed_blocks"], 0)
                self.assertEqual(counted["saved_blocks"], 6)
                self.assertTrue(all(map(os.path.exists, lost)))

    def test_damaged_in_a_stage(self) -> None:
        for turn, home in enumerate(("g0-p0", "g1-p2")):
            with self.subTest(home=home):
                before, prompt = set(self.paths()), self.prompt(100, of=turn)
                self.one(self.runner(**self.MORE), prompt)
                for path in set(self.paths()) - before:
                    if f"-{home}/" in path:
                        os.truncate(path, 100)
                second = self.runner(**self.MORE)
                name = self.one(second, prompt)
                self.assertEqual(second.stats["requests failed"], 1)
                self.assertEqual(second.delivered[name], 3)

    def test_pinned(self) -> None:
        """In the spaces that there are, the blocks of their own stages."""
        self.check_pinned(self.runner(ranks=2, **self.MORE), 4)

    def test_a_rank_that_does_not_know_its_spaces(self) -> None:
        """It fails to load and to save what it has layers of, and nothing
        else."""
        more = {**self.TWO, "kinds": "fffw"}
        self.one(self.runner(**more), self.prompt(100))
        second = self.runner(**more)
        counted = Counted(second)
        with mock.patch.object(self.worker(second), "_ready",
                               lambda meta, wait: False):
            self.one(second, self.prompt(100))
        self.assertEqual(second.stats["requests failed"], 1)
        self.assertEqual(counted["load_failed_blocks"], 6)

    def test_a_rank_is_killed(self) -> None:
        """In a process of its own, before it has saved what it alone has: the
        group of the other stage is whole, and no hit."""
        more = {**self.TWO, "kinds": "wwff"}
        runner = self.runner(kind=InProcesses, **more)
        before = set(self.paths())
        runner.ranks[1].ask("hold_saves")
        runner.add(self.prompt(100), 3)
        self.until(runner, lambda: len(set(self.paths()) - before) == 6)
        runner.ranks[1].kill()
        with self.assertRaises(RankDied):
            self.until(runner, lambda: False)
        self.assertEqual(self.files(before), {"g1-p0": 6})
        for loaded, saved in ((0, 6), (96, 0)):
            second = self.runner(**more)
            counted = Counted(second)
            self.one(second, self.prompt(100))
            self.assertEqual(second.stats["tokens promised"], loaded)
            self.assertEqual(counted["saved_blocks"], saved)

    def test_a_stage_without_states_is_refused(self) -> None:
        with self.assertRaisesRegex(ConfigError, "VLLM_PP_LAYER_PARTITION"):
            self.runner(layers=4, state=60, stages=2, kinds="ffss")


# ---- ranks in processes of their own ----

class InProcesses(WithProcesses, FakeRunner):
    """Spaces are called as those of a runner without processes."""


class Killed(Case):

    def killed(self, runner: InProcesses, rank, prompt: list) -> None:
        """After all others have saved; what they have is no hit."""
        before = set(self.paths())
        rank.ask("hold_saves")
        runner.add(prompt, 3)
        self.until(runner, lambda: len(set(self.paths()) - before) == 18)
        rank.kill()
        with self.assertRaises(RankDied):
            self.until(runner, lambda: False)


class Processes(Killed):
    """Two stages of two ranks: four processes, ended as an engine's are."""

    MORE = {"layers": 3, "stages": 2, "ranks": 2}

    def again(self, runner: FakeRunner, prompt: list) -> int:
        """Tokens that a request loads once the engine has forgotten it."""
        self.forget(runner)
        before = runner.stats["tokens loaded"]
        self.one(runner, prompt)
        return runner.stats["tokens loaded"] - before

    def test_ranks_in_processes(self) -> None:
        """Saved and loaded by all; saved by all but one; damaged in one;
        killed before it has saved."""
        runner = self.runner(kind=InProcesses, **self.MORE)
        self.assertEqual(len({rank._process.pid for rank in runner.ranks}), 4)
        prompts = [self.prompt(100, of=i) for i in range(5)]
        self.one(runner, prompts[0])
        self.assertEqual(self.again(runner, prompts[0]), 96)
        for i, rank in enumerate(runner.ranks):
            self.fails_to_save(runner, rank, prompts[1 + i])
        self.damaged(runner, self.prompt(100, of=8))
        self.killed(runner, runner.ranks[2], self.prompt(100, of=9))
        # Another engine, with all ranks in its own process.
        second = self.runner(**self.MORE)
        counted = Counted(second)
        self.one(second, self.prompt(100, of=9))
        self.assertEqual(second.stats["tokens promised"], 0)
        self.assertEqual(counted["saved_blocks"], 6)
        self.assertEqual(self.again(second, self.prompt(100, of=9)), 96)
        self.assertEqual(self.again(second, prompts[0]), 96)
        self.assertEqual(counted["load_failed_blocks"], 0)

    def fails_to_save(self, runner: InProcesses, rank, prompt: list) -> None:
        """No hit as long as one rank lacks the blocks that others have."""
        rank.ask("fail_saves")
        self.one(runner, prompt)
        self.assertEqual(self.again(runner, prompt), 0)
        rank.ask("mend_saves")
        self.assertEqual(self.again(runner, prompt), 0)
        self.assertEqual(self.again(runner, prompt), 96)

    def damaged(self, runner: InProcesses, prompt: list) -> None:
        """A block of one rank: all compute what is behind it."""
        before = set(self.paths())
        self.one(runner, prompt)
        new = sorted(set(self.paths()) - before)
        self.assertEqual(len(new), 24)
        os.truncate(new[-1], 100)
        failed = runner.stats["blocks failed"]
        self.again(runner, prompt)
        self.assertGreater(runner.stats["blocks failed"], failed)

    def test_garbage_is_noticed(self) -> None:
        """By the process that has it."""
        runner = self.runner(kind=InProcesses, ranks=2)
        self.one(runner, self.prompt(100))
        runner.add(self.prompt(100, of=2), 30)
        self.until(runner, lambda: runner.stats["tokens generated"] > 5)
        runner.ranks[1].ask("spoil")
        with self.assertRaisesRegex(fake_runner.Violation, "rank 1: .* wrong"):
            runner.settle()


# ---- several groups, ranks that hold the same ----

class Replicas(FakeRunner):
    """Two ranks with the same pages, as of MLA."""

    def make_groups(self, vllm_config) -> None:
        super().make_groups(vllm_config)
        self.kv_cache_config.kv_tp_replicas = 2


class Groups(Case):

    def test_window(self) -> None:
        """A second group with a window: only the window's blocks are
        loaded, and a hit needs no others."""
        first = self.runner(window=40)
        counted = Counted(first)
        self.one(first, self.prompt(200))
        self.assertEqual(counted["saved_blocks"], 24)
        # Of 12 blocks of the window's group the first ones are not needed.
        second = self.runner(window=40)
        counted = Counted(second)
        self.one(second, self.prompt(200))
        self.assertEqual(second.stats["tokens loaded"], 192)
        self.assertEqual(self.loaded_blocks(counted, second), 12 + 3)

    @staticmethod
    def loaded_blocks(counted: Counted, runner: FakeRunner) -> int:
        """Pages of the two groups differ in size: layers 1 and 2."""
        page = 2 * runner.config.heads * runner.config.head_size * 4 * BLOCK
        return (counted["loaded_bytes"] - 12 * page) // (2 * page) + 12

    def test_blocks_of_two_sizes(self) -> None:
        """vLLM makes pages of one size by more tokens to a block."""
        more = {"window": 40, "window_block": 32}
        first = self.runner(**more)
        counted = Counted(first)
        self.one(first, self.prompt(200))
        self.assertEqual(counted["saved_blocks"], 12 + 6)
        second = self.runner(**more)
        counted = Counted(second)
        self.one(second, self.prompt(210))
        self.assertEqual(second.stats["tokens loaded"], 192)
        page = 2 * second.config.heads * second.config.head_size * 4 * BLOCK
        # a layer of 12 blocks, and two of those from token 153 on
        self.assertEqual(counted["loaded_bytes"], (12 + 2 * 2) * page)

    def test_window_at_the_end(self) -> None:
        """The last token is computed anew, and needs the one before its
        window: the whole prompt is never promised."""
        self.one(self.runner(window=33), self.prompt(96))
        second = self.runner(window=33)
        self.one(second, self.prompt(96))
        self.assertEqual(second.stats["tokens promised"], 80)

    def test_failure_recomputes(self) -> None:
        """vLLM dies of pages that are told to have failed; requests are."""
        self.one(self.runner(window=40), self.prompt(200))
        for path in self.paths()[::3]:
            os.truncate(path, 100)
        second = self.runner(window=40)
        name = self.one(second, self.prompt(200))
        self.assertGreater(second.stats["requests failed"], 0)
        self.assertEqual(second.stats["blocks failed"], 0)
        self.assertEqual(second.delivered[name], 3)

    def test_sync_is_not_done(self) -> None:
        self.one(self.runner(window=40), self.prompt(200))
        second = self.runner({"load": "sync"}, window=40)
        self.one(second, self.prompt(200))
        self.assertEqual(second.stats["async loads"], 1)

    def test_old_vllm(self) -> None:
        """Without requests that failed, several groups are refused."""
        from ucmfs.vllm import connector

        with mock.patch.object(connector, "_TELLS_REQUESTS", False):
            with self.assertRaisesRegex(ValueError, "failed_recving"):
                self.runner(window=40)
            self.runner()

    def test_replicas(self) -> None:
        first = self.runner(kind=Replicas, ranks=2)
        first.ranks[1].content = first.ranks[0].content
        counted = Counted(first)
        self.one(first, self.prompt(100))
        self.assertEqual(counted["saved_blocks"], 6)
        for rank in (0, 1):
            self.assertEqual(self.half(first).plan.shards, 1)
            writes = [self.worker(first, rank).plan.writes(rank, i)
                      for i in range(6)]
            self.assertEqual(writes.count(True), 3)
        second = self.runner(kind=Replicas, ranks=2)
        second.ranks[1].content = second.ranks[0].content
        counted = Counted(second)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)
        self.assertEqual(counted["loads"], 2)


class Indexer(Case):
    """Layers of two sizes in one group, as DeepSeek V3.2 has them."""

    def test_second_engine_hits(self) -> None:
        for layout in ("LBNHC", "BLNHC"):
            with self.subTest(layout):
                more = {"indexer": 5, "layout": layout}
                extra = {"tenant": f"{self.id()} {layout}"}
                self.one(self.runner(extra, **more), self.prompt(100))
                second = self.runner(extra, **more)
                self.one(second, self.prompt(100))
                self.assertEqual(second.stats["tokens loaded"], 96)

    def test_is_the_v_plane(self) -> None:
        """No byte of a file is padding."""
        runner = self.runner(indexer=5)
        geometry = self.half(runner).plan.groups[0].geometry
        cell = 4 * BLOCK
        self.assertEqual(
            (geometry.num_layers, geometry.k_bytes, geometry.v_bytes),
            (3, 16 * cell, 5 * cell))
        self.assertEqual(
            [(r.layer, r.run_bytes)
             for r in self.worker(runner)._layouts[0].regions()],
            [(n // 2, (5 if n % 2 else 16) * cell) for n in range(6)])

    def test_layer_by_layer(self) -> None:
        more = {"extra": {"load": "layerwise"}, "indexer": 5}
        self.one(self.runner(**more), self.prompt(100))
        second = self.runner(**more)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)

    def test_ranks_that_hold_the_same(self) -> None:
        more = {"indexer": 5, "ranks": 2, "replicated": True}
        self.one(self.runner(**more), self.prompt(100))
        second = self.runner(**more)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)

    def test_other_sizes_are_another_space(self) -> None:
        self.one(self.runner(indexer=5), self.prompt(100))
        (space,) = [name for name in spaces(self.mount.path)
                    if read_manifest(self.mount.path, name)["tenant"]
                    == self.id()]
        self.assertEqual(
            read_manifest(self.mount.path, space)["connector"]["sizes"],
            [16 * 4 * BLOCK, 5 * 4 * BLOCK] * 3)
        second = self.runner(indexer=6)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 0)


class States(Case):
    """Attention beside states (Mamba, GDN), of which vLLM keeps some."""

    def test_second_engine_hits(self) -> None:
        for layout in ("LBNHC", "BLNHC"):
            with self.subTest(layout):
                more = {"state": 60, "layout": layout}
                extra = {"tenant": f"{self.id()} {layout}"}
                first = self.runner(extra, **more)
                counted = Counted(first)
                self.one(first, self.prompt(200))
                # The one that the prompt may be gone on from.
                self.assertEqual(counted["saved_blocks"], 12 + 1)
                second = self.runner(extra, **more)
                counted = Counted(second)
                self.one(second, self.prompt(200))
                self.assertEqual(second.stats["tokens loaded"], 192)
                self.assertEqual(counted["loads"], 1)

    def test_a_state_that_is_there(self) -> None:
        """A hit ends where the engine has kept a state: at 96 tokens a step,
        after 96 and 192."""
        more = {"state": 60, "retention": BLOCK}
        first = self.runner(**more)
        counted = Counted(first)
        self.one(first, self.prompt(200))
        self.assertEqual(counted["saved_blocks"], 12 + 2)
        second = self.runner(**more)
        self.one(second, self.prompt(180) + [7] * 20)
        self.assertEqual(second.stats["tokens loaded"], 96)

    def test_decode(self) -> None:
        more = {"extra": {"save_decode": True}, "state": 60,
                "retention": BLOCK}
        first = self.runner(**more)
        name = self.one(first, self.prompt(40), 60)
        tokens = list(first.sequences[name].tokens)
        second = self.runner(**more)
        self.one(second, tokens + [1, 2])
        self.assertEqual(second.stats["tokens loaded"], 96)

    def test_whole_prompt(self) -> None:
        """The last token is computed in any case: from the state before its
        block."""
        self.one(self.runner(state=60), self.prompt(96) + [5])
        second = self.runner(state=60)
        self.one(second, self.prompt(96))
        self.assertEqual(second.stats["tokens loaded"], 0)
        self.one(second, self.prompt(96) + [9])

    def test_failure_recomputes(self) -> None:
        self.one(self.runner(state=60), self.prompt(200))
        for path in self.paths():
            os.truncate(path, 100)
        second = self.runner(state=60)
        name = self.one(second, self.prompt(200))
        self.assertGreater(second.stats["requests failed"], 0)
        self.assertEqual(second.delivered[name], 3)

    def test_modes_without_states_are_refused(self) -> None:
        from ucmfs.errors import ConfigError

        runner = self.runner(state=60)
        group = runner.kv_cache_config.kv_cache_groups[1]
        for change, text in ((dict(mamba_cache_mode="all"), "mode 'all'"),
                             (dict(num_speculative_blocks=2),
                              "speculative decoding")):
            spec = dataclasses.replace(group.kv_cache_spec, **change)
            config = dataclasses.replace(
                runner.kv_cache_config, kv_cache_groups=[
                    dataclasses.replace(group, kv_cache_spec=spec)])
            with self.assertRaisesRegex(ConfigError, text):
                plan_of(runner.ranks[0].vllm_config, config, BLOCK, BLOCK)


# ---- layouts ----

class Layouts(Case):

    def caches(self, runner: FakeRunner) -> dict:
        return dict(runner.ranks[0].caches)

    def refused(self, caches: dict, text: str) -> None:
        runner = self.runner()
        worker = self.worker(runner)
        with self.assertRaisesRegex(ValueError, text):
            worker.register_kv_caches(caches)

    def test_kernel_blocks(self) -> None:
        """Dimension 0 may count a kernel's blocks."""
        runner = self.runner()
        worker = self.worker(runner)
        caches = {}
        for name, cache in self.caches(runner).items():
            blocks, heads, slots, cell = cache.shape
            flat = cache.permute(0, 2, 1, 3)  # [B, N, H, C], contiguous
            flat = flat.reshape(blocks * 4, slots // 4, heads, cell)
            caches[name] = flat.permute(0, 2, 1, 3)
        worker._loader.close()
        worker.register_kv_caches(caches)
        self.assertEqual(
            [r.run_bytes for r in worker._layouts[0].regions()],
            [worker.plan.groups[0].geometry.k_bytes] * 3)

    def test_refused(self) -> None:
        runner = self.runner()
        caches = self.caches(runner)
        name = next(iter(caches))
        shape = tuple(caches[name].shape)
        for wrong in (caches[name][:5], caches[name][None],
                      caches[name].flatten()):
            self.refused({**caches, name: wrong},
                         rf"{name}: shape \({wrong.shape[0]}, ?.*strides")
        # half of the head's elements
        self.refused({**caches, name: caches[name][..., ::2]},
                     rf"{name}.*{shape[-1] // 2}.*stride")
        # two layers in the same memory
        other = list(caches)[1]
        self.refused({**caches, name: caches[other]}, "overlap|layer")
        del caches[name]
        self.refused(caches, name)


# ---- failures ----

class Failures(Case):

    def damaged(self, how, **more: object) -> tuple:
        """An engine that meets blocks that something was done to."""
        extra = more.pop("extra", {})
        self.one(self.runner(extra, **more), self.prompt(100))
        mine = [p for p in self.paths() if p not in self.before]
        self.assertTrue(mine)
        for path in mine:
            how(path)
        second = self.runner(extra, **more)
        return second, Counted(second)

    def setUp(self) -> None:
        super().setUp()
        self.before = set(self.paths())

    @staticmethod
    def flip(path: str) -> None:
        with open(path, "r+b") as file:
            file.seek(5000)  # in the payload; what is behind it is padding
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    @staticmethod
    def zero(path: str) -> None:
        size = os.path.getsize(path)
        with open(path, "r+b") as file:
            file.write(bytes(size))

    @staticmethod
    def truncate(path: str) -> None:
        os.truncate(path, os.path.getsize(path) // 2)

    def test_damaged(self) -> None:
        for load in ("async", "sync", "layerwise"):
            for how in (self.flip, self.zero, self.truncate):
                with self.subTest(load=load, how=how.__name__):
                    self.before = set(self.paths())
                    second, counted = self.damaged(how, extra={
                        "load": load, "tenant": f"{load} {how.__name__}"})
                    self.one(second, self.prompt(100))
                    self.assertEqual(counted["loaded_bytes"], 0)
                    # The daemon itself sees a file that is too short.
                    if how != self.truncate:
                        self.assertGreater(
                            counted["load_failed_blocks damaged"], 0)

    def test_damaged_blocks_are_replaced(self) -> None:
        second, counted = self.damaged(self.flip)
        self.one(second, self.prompt(100))
        # A thread takes them away.
        self.assertTrue(self.worker(second)._chores.end())
        self.forget(second)
        self.one(second, self.prompt(100))
        third = self.runner()
        self.one(third, self.prompt(100))
        self.assertEqual(third.stats["tokens loaded"], 96)

    def test_policy_fail(self) -> None:
        for load in ("async", "sync"):
            with self.subTest(load=load):
                self.before = set(self.paths())
                second, _ = self.damaged(
                    self.flip, policy="fail",
                    extra={"load": load, "tenant": load})
                name = second.add(self.prompt(100), 3)
                second.settle()
                self.assertEqual(second.delivered[name], 0)
                self.assertEqual(second.stats["finished: error"], 1)

    def test_gone_after_the_promise(self) -> None:
        """A block that vanishes between lookup and load."""
        second, counted = self.damaged(lambda path: None)
        inner = self.half(second).update_state_after_alloc

        def vanish(*args) -> None:
            for path in self.paths():
                if path not in self.before:
                    self.unlink(path)
            inner(*args)

        with mock.patch.object(self.half(second), "update_state_after_alloc",
                               vanish):
            self.one(second, self.prompt(100))
        self.assertEqual(counted["load_failed_blocks absent"], 6)

    def test_no_endless_retry(self) -> None:
        """The first block failed: the request is not promised it again."""
        second, counted = self.damaged(self.flip)
        drop = mock.patch.object(self.worker(second), "_drop_damaged")
        with drop:
            self.one(second, self.prompt(100))
        self.assertEqual(counted["loads"], 1)

    def test_distrust(self) -> None:
        """One rank's load fails in the step that uses it: what both have
        computed from it must not be saved."""
        extra = {"load": "sync"}
        self.one(self.runner(extra, ranks=2), self.prompt(100))
        second = self.runner(extra, ranks=2)
        counted = Counted(second)
        worker = self.worker(second, 0)
        inner = worker._start_load

        def fail(job, ready):
            return inner(job, False)

        with mock.patch.object(worker, "_start_load", fail):
            self.one(second, self.prompt(100) + self.prompt(60, of=3))
        self.assertGreater(counted["save_distrusted_blocks"], 0)
        # What was saved afterwards is right: fake_runner looks at it.
        third = self.runner(extra, ranks=2)
        self.one(third, self.prompt(100) + self.prompt(60, of=3))

    def test_layers_that_nobody_waited_for(self) -> None:
        """Under a full CUDA graph the hooks are not called: the load counts
        as failed."""
        self.one(self.runner(), self.prompt(100))
        second = self.runner({"load": "layerwise"})
        counted = Counted(second)
        connector = second.ranks[0].connector
        with mock.patch.object(connector, "wait_for_layer_load",
                               lambda name: None):
            self.one(second, self.prompt(100))
        self.assertEqual(counted["load_failed_blocks"], 6)

    def test_abort_while_loading(self) -> None:
        self.one(self.runner(), self.prompt(300))
        second = self.warm(self.runner())
        self.mount.freeze()
        try:
            name = second.add(self.prompt(300), 3)
            self.until(second, lambda: second.loading() == [name])
            second.abort(name)
            for _ in range(3):
                second.step()
        finally:
            self.mount.thaw()
        # fake_runner: told once by the rank, all blocks free in the end
        second.settle()

    def told(self, half) -> list:
        """What the mount will have been told is expected: (ids, space)."""
        told: list = []
        inner = half._expected.add

        def add(ids: bytes, space: str) -> None:
            told.append((ids, space))
            inner(ids, space)

        patch = mock.patch.object(half._expected, "add", add)
        patch.start()
        self.addCleanup(patch.stop)
        return told

    def ids_in(self, space: str) -> set:
        return {bytes.fromhex(os.path.basename(path)[:-4])
                for path in self.paths() if f"/{space}/" in path}

    def test_what_was_promised_is_expected(self) -> None:
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.expected({"epoch": str(ranks)}, ranks)

    def expected(self, extra: dict, ranks: int) -> None:
        self.one(self.runner(extra, ranks=ranks), self.prompt(64 * BLOCK // 4))
        runner = self.runner(extra, ranks=ranks)
        half = self.half(runner)
        told = self.told(half)
        inner, asked = half.get_num_new_matched_tokens, []

        def ask(*args):
            answer = inner(*args)
            if answer[0]:
                asked.append(answer)
                # asked again, nothing more is told
                num = len(told)
                self.assertEqual(inner(*args), answer)
                self.assertEqual(len(told), num)
            return answer

        with mock.patch.object(half, "get_num_new_matched_tokens", ask):
            self.one(runner, self.prompt(64 * BLOCK // 4))
        self.assertTrue(asked)
        self.assertGreater(runner.stats["tokens loaded"], 0)
        (ids, space), = told
        found = [ids[at:at + 16] for at in range(0, len(ids), 16)]
        self.assertEqual(len(found), 16 * ranks)
        self.assertLessEqual(set(found), self.ids_in(space))

    def test_a_request_that_waits_is_told_of_again(self) -> None:
        self.one(self.runner(), self.prompt(100))
        runner = self.runner()
        half = self.half(runner)
        told, now = self.told(half), time.monotonic()
        request = runner.scheduler.requests[runner.add(self.prompt(100), 3)]
        for seconds, num in ((0, 1), (9, 1), (11, 2), (20, 2), (22, 3)):
            with mock.patch.object(half, "_clock", lambda: now + seconds):
                self.assertEqual(
                    half.get_num_new_matched_tokens(request, 0)[0], 96)
            self.assertEqual(len(told), num, seconds)
        self.assertEqual(told[0], told[2])
        runner.abort(request.request_id)
        runner.settle()

    def test_pinned_share(self) -> None:
        """Over the bound saves are dropped; nothing waits."""
        runner = self.warm(self.runner({"pinned_share": 0.05}))
        counted = Counted(runner)
        half = self.half(runner)
        self.assertEqual(half.pins.limit, 16)
        most = 0
        self.mount.freeze()
        try:
            names = [runner.add(self.prompt(200, of=i), 3) for i in range(4)]
            while any(n in runner.scheduler.requests for n in names):
                runner.step()
                most = max(most, half.pins.blocks)
        finally:
            self.mount.thaw()
        self.assertEqual(most, 16)
        runner.settle()
        self.assertEqual(counted["save_dropped_blocks"], 4 * 12 - 16)

    def stored(self, prompt: list) -> int:
        """Tokens of a prompt, from the first on, that a new engine finds."""
        second = self.runner({"pinned_share": 0.05}, max_len=900)
        request = second.scheduler.requests[second.add(prompt, 1)]
        found = second.scheduler.connector.get_num_new_matched_tokens(
            request, 0)[0]
        second.settle()
        return found

    def test_prompt_longer_than_the_pins(self) -> None:
        """What there is no room for is saved when there is: the request has
        its pages as long as it runs."""
        runner = self.warm(self.runner({"pinned_share": 0.05}, max_len=900))
        counted, half = Counted(runner), self.half(runner)
        self.assertEqual(half.pins.limit, 16)
        prompt = self.prompt(16 * 40)
        name = runner.add(prompt, 200)
        self.until(runner, lambda: counted["saved_blocks"] == 40,
                   seconds_of_step=0.02)
        self.assertIn(name, runner.scheduler.requests)
        self.assertFalse(half._undecided)
        runner.settle()
        self.assertEqual(counted["save_dropped_blocks"], 0)

    def test_nothing_behind_a_hole(self) -> None:
        """With room for some blocks alone those are saved that can be used:
        the first ones."""
        runner = self.warm(self.runner({"pinned_share": 0.05}, max_len=900))
        counted, half = Counted(runner), self.half(runner)
        self.mount.freeze()
        try:
            name = runner.add(self.prompt(16 * 40), 2)
            while name in runner.scheduler.requests:
                runner.step()
        finally:
            self.mount.thaw()
        runner.settle()
        self.assertEqual(counted["saved_blocks"], 16)
        self.assertEqual(counted["save_dropped_blocks"], 24)
        self.assertEqual(half.pins.blocks, 0)
        self.assertEqual(self.stored(self.prompt(16 * 20)), 16 * 16)

    def test_what_the_engine_has_is_not_in_the_store(self) -> None:
        """Blocks before those that are loaded are not taken for stored."""
        prompt, before = self.prompt(100), set(self.paths())
        self.one(self.runner(), prompt)
        chain = parents_of(set(self.paths()) - before)
        path = {p[-36:-4]: p for p in set(self.paths()) - before}
        first = next(id for id, above in chain.items() if above is None)
        self.unlink(path[first.hex()])
        runner = self.runner()
        runner.add(prompt[:20], 3, kv_transfer_params={
            "ucmfs": {"save": False}})
        runner.settle()
        self.one(runner, prompt)
        self.assertEqual(runner.stats["tokens loaded"], 80)
        third = self.runner()
        self.one(third, prompt)
        self.assertEqual(third.stats["tokens loaded"], 96)

    def fail_saves(self, runner: FakeRunner, times: int):
        """The first so many are not even started."""
        from ucmfs.loader import Group

        save, left = Group.save, [times]

        def failing(group, *args, **kwargs):
            if left[0]:
                left[0] -= 1
                raise OSError(errno.ENOMEM, "no")
            return save(group, *args, **kwargs)

        return mock.patch("ucmfs.loader.Group.save", failing)

    def test_a_failed_save_is_tried_again(self) -> None:
        from ucmfs.vllm import scheduler

        runner = self.warm(self.runner(batch_tokens=48))
        counted = Counted(runner)
        with self.fail_saves(runner, 2), mock.patch.object(
                scheduler, "RETRY_SECONDS", 0.001):
            runner.add(self.prompt(200), 200)
            self.until(runner, lambda: counted["saved_blocks"] == 12)
        self.assertGreater(counted["save_failed_blocks"], 0)
        runner.settle()

    def test_a_save_that_always_fails(self) -> None:
        """It is not tried for ever, and others that compute the same blocks
        do not count on it."""
        from ucmfs.vllm import scheduler

        runner = self.warm(self.runner())
        counted = Counted(runner)
        with mock.patch.object(scheduler, "RETRY_SECONDS", 0.0), \
                self.fail_saves(runner, 1000):
            for _ in range(2):
                runner.add(self.prompt(90), 100)
            runner.settle()
        tries = counted["save_failed_blocks"] / 5
        self.assertLessEqual(tries, 2 * scheduler.TRIES)
        self.assertGreaterEqual(tries, scheduler.TRIES)
        self.assertEqual(counted["saved_blocks"], 0)
        self.forget(runner)
        self.one(runner, self.prompt(90))
        self.assertEqual(counted["saved_blocks"], 5)

    def test_a_step_looks_at_whose_blocks_are_complete(self) -> None:
        runner = self.warm(self.runner({"save_decode": True,
                                        "pinned_share": 0.9}))
        counted, half = Counted(runner), self.half(runner)
        looks, steps, due = [], [], half._undecided.due

        def watched(step, scheduled, total):
            found = due(step, scheduled, total)
            looks.extend(found)
            steps.extend(scheduled)
            return found

        with mock.patch.object(half._undecided, "due", watched):
            for of in range(4):
                runner.add(self.prompt(20 + 3 * of, of), 100)
            runner.settle()
        blocks = sum((20 + 3 * of + 99) // 16 for of in range(4))
        self.assertEqual(counted["saved_blocks"], blocks)
        self.assertGreaterEqual(len(looks), blocks - 4)
        self.assertLess(len(looks), blocks + 4 + 4)
        self.assertGreater(len(steps), 4 * 99)

    def test_a_step_asks_nothing_of_what_goes_on(self) -> None:
        """Saves that hang cost a step one call, not one each."""
        from ucmfs.loader import LoaderTask

        runner = self.warm(self.runner({"deadline_ms": 0}))
        self.mount.freeze()
        try:
            for of in range(3):
                runner.add(self.prompt(20, of), 60)
            self.until(runner, lambda: len(self.worker(runner)._saves) == 3)
            with mock.patch.object(LoaderTask, "_c_poll") as poll, \
                    mock.patch.object(LoaderTask, "_c_wait_copied") as copied:
                for _ in range(20):
                    runner.step()
            poll.assert_not_called()
            copied.assert_not_called()
            self.assertEqual(len(self.worker(runner)._saves), 3)
            self.assertEqual(self.half(runner).pins.blocks, 3)
        finally:
            self.mount.thaw()
        runner.settle()
        self.assertFalse(self.worker(runner)._transfers)

    def test_pins_outlive_requests(self) -> None:
        """A request ends; its blocks are not given away before they are
        saved, and the engine goes on stepping until then."""
        runner = self.warm(self.runner())
        half = self.half(runner)
        self.mount.freeze()
        try:
            name = runner.add(self.prompt(100), 1)
            while name in runner.scheduler.requests:
                runner.step()
            self.assertEqual(half.pins.blocks, 6)
            self.assertTrue(runner.scheduler.has_requests())
            free = runner.scheduler.kv_cache_manager.block_pool \
                .get_num_free_blocks()
            self.assertEqual(free, 63 - 6)
        finally:
            self.mount.thaw()
        runner.settle()
        self.assertFalse(half.has_pending_push_work())


    def test_a_save_that_is_not_even_started(self) -> None:
        runner = self.warm(self.runner(kind=WithEvents))
        counted, before = Counted(runner), len(runner.told)
        with mock.patch("ucmfs.loader.Group.save",
                        side_effect=OSError(errno.ENOMEM, "no")):
            self.one(runner, self.prompt(100))
        self.assertEqual(counted["save_failed_blocks"], 6)
        self.assertEqual(counted["saved_blocks"], 0)
        self.assertEqual(len(runner.told), before)


UCM_CONFIG = """
ucm_connectors:
  - ucm_connector_name: UcmPipelineStore
    ucm_connector_config:
      store_pipeline: Cache|Posix
      storage_backends: {}
      cache_buffer_capacity_gb: 8
"""


class WithoutADaemon(Killed):
    """Directories instead of a mount: a private daemon is started."""

    @classmethod
    def setUpClass(cls) -> None:
        """No mount."""

    def setUp(self) -> None:
        super().setUp()
        self.tier = directory_of(self)

    def extra(self, **more: object) -> dict:
        self.mount = SimpleNamespace(where={})
        return {**super().extra(), "tiers": self.tier, **more}

    def paths(self) -> list:
        return _blocks(self.tier)

    def saved(self, prompt: list) -> None:
        runner = self.runner()
        self.one(runner, prompt)
        self.assertEqual(runner.stats["tokens loaded"], 0)
        runner.shutdown()

    def test_the_next_one_loads(self) -> None:
        prompt = self.prompt(100)
        self.saved(prompt)
        self.assertEqual(len(_blocks(self.tier)), 6)
        for load in "async", "sync", "layerwise":
            second = self.runner({"load": load})
            self.one(second, prompt)
            self.assertEqual(second.stats["tokens loaded"], 96, load)
            second.shutdown()

    def test_damaged_blocks_are_a_miss_and_replaced(self) -> None:
        prompt = self.prompt(100)
        self.saved(prompt)
        for path in _blocks(self.tier):
            Failures.flip(path)
        second = self.runner()
        counted = Counted(second)
        self.one(second, prompt)
        self.assertEqual(counted["loaded_bytes"], 0)
        self.assertEqual(counted["load_failed_blocks damaged"], 6)
        # A thread takes them away.
        self.assertTrue(self.worker(second)._chores.end())
        self.forget(second)
        self.one(second, prompt)
        self.assertEqual(counted["loads"], 1)
        self.assertEqual(counted["saved_blocks"], 6)
        second.shutdown()
        third = self.runner()
        self.one(third, prompt)
        self.assertEqual(third.stats["tokens loaded"], 96)

    def test_two_save_beside_each_other(self) -> None:
        first, second = self.runner(), self.runner()
        self.one(first, self.prompt(100))
        counted = Counted(second)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)
        self.one(second, self.prompt(50, of=2))
        self.assertEqual(counted["saved_blocks"], 3)
        self.one(first, self.prompt(50, of=2))
        self.assertEqual(first.stats["tokens loaded"], 48)

    def test_new_weights_have_blocks_of_their_own(self) -> None:
        prompt = self.prompt(100)
        runner = self.runner()
        self.one(runner, prompt)
        self.assertTrue(runner.scheduler.reset_prefix_cache(
            reset_connector=True))
        self.one(runner, prompt)
        self.assertEqual(runner.stats["tokens loaded"], 0)

    def test_a_configuration_of_ucms(self) -> None:
        """As its documents show it; all that is missing is a mount."""
        path = os.path.join(self.tier, "ucm_config.yaml")
        tier = os.path.join(self.tier, "kv_cache")
        os.mkdir(tier)
        with open(path, "w", encoding="utf-8") as file:
            file.write(UCM_CONFIG.format(tier))
        prompt = self.prompt(100)
        extra = {"ucm_config_path": path, "tiers": None}
        first = self.runner(extra)
        self.one(first, prompt)
        self.assertEqual(first.stats["tokens loaded"], 0)
        self.assertEqual(len(_blocks(tier)), 6)
        first.shutdown()
        second = self.runner(extra)
        self.one(second, prompt)
        self.assertEqual(second.stats["tokens loaded"], 96)
        with open(path, "w", encoding="utf-8") as file:
            file.write(UCM_CONFIG.format(self.tier))
        with self.assertRaisesRegex(ConfigError, "is no tier of ucmfs"):
            self.runner(extra)

    def test_ranks_in_processes(self) -> None:
        """Each saves its own parts; with one that is killed the others' are no
        hit, and whole: the next engine adds what is missing."""
        more = {"layers": 3, "stages": 2, "ranks": 2}
        prompts = [self.prompt(100, of=i) for i in range(3)]
        runner = self.runner(kind=InProcesses, **more)
        self.assertEqual(len({rank._process.pid for rank in runner.ranks}), 4)
        self.one(runner, prompts[0])
        self.forget(runner)
        self.one(runner, prompts[0])
        self.assertEqual(runner.stats["tokens loaded"], 96)
        self.killed(runner, runner.ranks[2], prompts[1])
        second = self.runner(kind=InProcesses, **more)
        for prompt in prompts:
            self.one(second, prompt)
        self.assertEqual(second.stats["tokens loaded"], 96)
        self.forget(second)
        for prompt in prompts:
            self.one(second, prompt)
        self.assertEqual(second.stats["tokens loaded"], 96 + 3 * 96)
        self.assertEqual(len(_blocks(self.tier)), 3 * 6 * 4)


class DaemonFails(Case):

    def test_killed(self) -> None:
        self.one(self.runner(), self.prompt(100))
        runner = self.runner()
        counted = Counted(runner)
        self.mount.crash()
        self.one(runner, self.prompt(100))
        self.one(runner, self.prompt(60, of=2))
        self.assertEqual(runner.stats["tokens loaded"], 0)
        self.assertEqual(counted["mount_losses"], 1)
        self.mount.start()
        self.forget(runner)
        half = self.half(runner)
        self.until(runner, lambda: half._link.now is not None)
        self.one(runner, self.prompt(100))
        self.assertEqual(runner.stats["tokens loaded"], 96)

    def test_hung_from_the_start(self) -> None:
        """Before a worker has seen the spaces: it does not wait for them."""
        self.one(self.runner(), self.prompt(100))
        runner = self.runner()
        self.mount.freeze()
        try:
            name = runner.add(self.prompt(100), 3)
            while name in runner.scheduler.requests:
                runner.step()
        finally:
            self.mount.thaw()
        runner.settle()

    def test_hung(self) -> None:
        """A load past its deadline is computed, and the next ones are not
        tried for a while."""
        extra = {"deadline_ms": 100}
        self.one(self.runner(), self.prompt(100))  # a save may take longer
        runner = self.warm(self.runner(extra))
        counted = Counted(runner)
        self.mount.freeze()
        try:
            for of in (1, 1):
                loads = counted["loads"]
                name = runner.add(self.prompt(100, of), 3)
                while name in runner.scheduler.requests:
                    runner.step()
                runner.scheduler.reset_prefix_cache()
            self.assertGreater(counted["load_failed_blocks deadline"], 0)
            self.assertEqual(counted["loads"], loads)
        finally:
            self.mount.thaw()
        runner.settle()

    def test_no_mount(self) -> None:
        with self.assertRaisesRegex(OSError, "nowhere"):
            self.runner({**dict.fromkeys(self.mount.where, "/nowhere"),
                         "on_missing": "fail"})

    def test_mounted_later(self) -> None:
        """An engine that starts before the mount is there runs, and uses it
        when it is."""
        self.mount.stop()
        try:
            with self.assertLogs("vllm.ucmfs", "ERROR") as told:
                runner = self.runner()
            self.assertIn(self.mount.path, told.output[0])
            self.assertIn("starts without it", told.output[0])
            counted = Counted(runner)
            self.one(runner, self.prompt(100))
            self.assertEqual(counted["saved_blocks"], 0)
        finally:
            self.mount.start()
        half = self.half(runner)
        self.until(runner, lambda: half._link.now is not None)
        self.forget(runner)
        self.one(self.warm(runner), self.prompt(100))
        self.assertEqual(counted["saved_blocks"], 6)
        self.forget(runner)
        self.one(runner, self.prompt(100))
        self.assertEqual(runner.stats["tokens loaded"], 96)

    def test_not_mapped(self) -> None:
        """Where the index is not in memory the daemon is asked, and a request
        that waits too long for it is computed."""
        from ucmfs import index

        self.one(self.runner(), self.prompt(100))
        told = index.Index.info

        def info(this):
            return {**told(this), "backend": "socket"}

        with mock.patch.object(index.Index, "info", info):
            runner = self.runner()
            self.one(runner, self.prompt(100))
            self.assertEqual(runner.stats["tokens loaded"], 96)
            slow = self.runner()
            asker = self.half(slow)._link.now._asker
            asker.add(lambda: time.sleep(1.0))
            self.one(slow, self.prompt(100))
            self.assertEqual(slow.stats["tokens loaded"], 0)
            self.until(slow, lambda: not self.half(slow)._pause)
            self.forget(slow)
            self.one(slow, self.prompt(100))
            self.assertEqual(slow.stats["tokens loaded"], 96)


class ServedFails(DaemonFails):
    """By a socket alone."""

    KIND = Served

    def test_ranks(self) -> None:
        self.check_second_hits(ranks=2)

    def test_private_spaces_are_removed(self) -> None:
        runner = self.runner({"reset": "epoch"})
        usual = set(spaces(self.mount.path))
        self.one(runner, self.prompt(70))
        self.reset(runner)
        self.one(runner, self.prompt(70))
        self.until(runner, lambda: len(self.half(runner)._private) == 1)
        name, = self.half(runner)._private
        self.assertEqual(set(spaces(self.mount.path)) - usual, {name})
        runner.shutdown()
        self.assertEqual(set(spaces(self.mount.path)), usual)


class Full(Case):
    MOUNT = {"tmpfs": 2 << 20, "options": "policy=none"}

    def test_no_room(self) -> None:
        """Saves fail, and nobody is told otherwise; the engine goes on."""
        runner = self.runner(kind=WithEvents)
        counted = Counted(runner)
        for i in range(24):
            self.one(runner, self.prompt(300, of=i), 2)
        self.assertEqual(counted["save_failed_blocks full"],
                         counted["save_failed_blocks"])
        self.assertLess(counted["saved_blocks"], 24 * (300 // BLOCK))
        self.assertEqual(counted["saved_blocks"], len(self.paths()))
        # A job tells of all its blocks, or of none.
        self.assertGreater(len(runner.told), 0)
        self.assertLessEqual(len(runner.told), len(self.paths()))


# ---- the cache as a whole ----

class Refused(Case):
    """The first blocks use up what may be written for hours."""

    MOUNT = {"settings": "endurance=tier0:24K"}

    def test_what_the_mount_does_not_want_is_computed_again(self) -> None:
        runner = self.runner(kind=WithEvents)
        counted = Counted(runner)
        first, other = self.prompt(100), self.prompt(100, of=2)
        self.one(runner, first)
        self.assertEqual(counted["saved_blocks"], 6)
        told = len(runner.told)
        self.one(runner, other)
        self.assertEqual(counted["saved_blocks"], 6)
        self.assertEqual(counted["save_refused_blocks"], 6)
        self.assertFalse([name for name in counted.data
                          if name.startswith("save_failed")])
        # what is not there is not announced
        self.assertEqual(len(runner.told), told)
        second = self.runner()
        self.one(second, first)
        self.assertEqual(second.stats["tokens loaded"], 96)
        self.one(second, other)
        self.assertEqual(second.stats["tokens loaded"], 96)


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
            Failures.flip(path)
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
        Failures.flip(path)
        runner = self.runner(kind=WithEvents)
        self.one(runner, prompt)
        removed = [e for e in runner.told if isinstance(e, BlockRemoved)]
        self.assertEqual(len(removed), 1)
        self.assertEqual(removed[0].block_hashes,
                         first.told[0].block_hashes)
        self.assertEqual(removed[0].medium, "STORAGE")

    def test_stats(self) -> None:
        from ucmfs.vllm.connector import UcmfsConnector
        from ucmfs.vllm.metrics import UcmfsStats

        rank0 = UcmfsStats(data={"loads": 1, "loaded_bytes": 10**9,
                                 "load_seconds": [0.5]})
        rank1 = UcmfsStats(data={"loads": 1, "loaded_bytes": 10**9,
                                 "load_seconds": [0.5], "pinned_blocks": 3})
        both = UcmfsConnector.build_kv_connector_stats(
            rank0.aggregate(rank1).to_dict())
        self.assertEqual(both.data["loads"], 2)
        reduced = both.reduce()
        self.assertEqual(reduced["ucmfs load GB/s"], 2.0)
        self.assertEqual(reduced["ucmfs pinned blocks"], 3)
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
        self.assertEqual(len(list(registry.collect())), len(COUNTERS) + 2)
        metrics.observe({"loads": 3, "pinned_blocks": 7,
                         "load_seconds": [0.004, 0.2]})
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
