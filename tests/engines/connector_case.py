# SPDX-License-Identifier: Apache-2.0
"""What the tests of UcmfsConnector share: runners on a mount, with vLLM's
scheduler, both roles and CPU tensors. The model only keeps books
(fake_runner.py); it fails a test by itself where a slot holds what it should
not."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import time
import unittest
from types import SimpleNamespace
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]

try:
    import vllm  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"needs vLLM: {error}") from None

from mount import Mount
import fake_runner
from fake_ranks import Config
from rank_processes import RankDied, WithProcesses
from ucmfs.vllm import scheduler

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
                scheduler, "settle_blocks",
                lambda _, __, space, ids: wanted.append((space, len(ids)))):
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

    @staticmethod
    def flip(path: str) -> None:
        with open(path, "r+b") as file:
            file.seek(5000)  # in the payload; what is behind it is padding
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    def unlink(self, path: str) -> None:
        """A block by its path in a tier, through the mount."""
        os.unlink(os.path.join(self.mount.path, "spaces",
                               path.split("/spaces/")[1]))

    def paths(self) -> list:
        found = [path for tier in self.mount.tiers
                 for path in blocks_in(tier)]
        self.mount.wait_for_writers(found)
        return found


def blocks_in(tier: str) -> list:
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
                    if isinstance(value, list):
                        name, value = f"{name}_count", len(value)
                    self.data[name] = self.data.get(name, 0) + value
                return stats

            half.get_kv_connector_stats = get

    def __getitem__(self, name: str) -> float:
        """Of a counter with causes: all of them, or of "NAME CAUSE"."""
        return sum(value for key, value in self.data.items()
                   if f"{key} ".startswith(f"{name} "))


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
