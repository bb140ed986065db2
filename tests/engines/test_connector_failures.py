# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector: blocks that are damaged or gone, saves that fail or hang."""

from __future__ import annotations

import errno
import os
import time
import unittest
from unittest import mock

from connector_case import (
    BLOCK, Case, Counted, FakeRunner, WithEvents, parents_of)


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


if __name__ == "__main__":
    unittest.main()
