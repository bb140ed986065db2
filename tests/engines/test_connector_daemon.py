# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector: ranks in processes of their own, private daemons, and daemons
that fail, are full or refuse."""

from __future__ import annotations

import os
import time
import unittest
from types import SimpleNamespace
from unittest import mock

from connector_case import (
    BLOCK, Case, Counted, FakeRunner, InProcesses, Killed, WithEvents,
    blocks_in)
from fake_ranks import Violation
from mount import Served
from private_daemon import directory_of
from ucmfs.errors import ConfigError
from ucmfs.namespace import spaces


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
        self.assertGreater(counted["save_seconds_count"], 0)
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
        with self.assertRaisesRegex(Violation, "rank 1: .* wrong"):
            runner.settle()


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
        return blocks_in(self.tier)

    def saved(self, prompt: list) -> None:
        runner = self.runner()
        self.one(runner, prompt)
        self.assertEqual(runner.stats["tokens loaded"], 0)
        runner.shutdown()

    def test_the_next_one_loads(self) -> None:
        prompt = self.prompt(100)
        self.saved(prompt)
        self.assertEqual(len(blocks_in(self.tier)), 6)
        for load in "async", "sync", "layerwise":
            second = self.runner({"load": load})
            self.one(second, prompt)
            self.assertEqual(second.stats["tokens loaded"], 96, load)
            second.shutdown()

    def test_damaged_blocks_are_a_miss_and_replaced(self) -> None:
        prompt = self.prompt(100)
        self.saved(prompt)
        for path in blocks_in(self.tier):
            self.flip(path)
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
        self.assertEqual(len(blocks_in(tier)), 6)
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
        self.assertEqual(len(blocks_in(self.tier)), 3 * 6 * 4)


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
        self.until(runner, lambda: self.knows_all(runner))
        self.one(runner, self.prompt(100))
        self.assertEqual(runner.stats["tokens loaded"], 96)

    def knows_all(self, runner: FakeRunner) -> bool:
        """Blocks that were new when the daemon was killed are read first."""
        here = self.half(runner)._link.now
        return here is not None and all(
            all(index.lookup(bytes.fromhex("".join(self.mount.blocks(name))))
                [0]) for index, name in zip(here.indexes, here.names))

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


if __name__ == "__main__":
    unittest.main()
