# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector, one behaviour at a time: loads and saves."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

from connector_case import Case, Counted, FakeRunner, parents_of
from ucmfs.blocks import Blocks
from ucmfs.vllm import scheduler
from ucmfs.vllm.wishes import USUAL, wishes_of


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
        self.assertIn("ucmfs.saev: not known; end, load, pin, prefetch, "
                      "priority, report, save, session, ttl, wait are",
                      "\n".join(told.output))
        self.assertEqual(counted["saved_blocks"], 6)
        self.half(runner)._teller._told.clear()
        with self.assertLogs("vllm.ucmfs", "WARNING") as told:
            self.ask_for(runner, self.prompt(60, of=2), save=0)
        self.assertIn("ucmfs.save is 0: true or false", told.output[0])
        for name, value, what in (("ttl", 3601, "0 to 3600 seconds"),
                                  ("ttl", True, "0 to 3600 seconds"),
                                  ("session", 7, "a string"),
                                  ("priority", True, "a whole number"),
                                  ("end", "yes", "true or false")):
            self.half(runner)._teller._told.clear()
            with self.assertLogs("vllm.ucmfs", "WARNING") as told:
                wanted = wishes_of({"ucmfs": {name: value}},
                                   self.half(runner)._teller)
            self.assertIn(f"ucmfs.{name} is {value!r}: {what} is needed",
                          told.output[0])
            self.assertEqual(wanted, USUAL)
        self.assertEqual(
            wishes_of({"ucmfs": {"ttl": 0.5, "session": "a"}}, None),
            replace(USUAL, ttl=0.5, session="a"))
        for given, more in (({"priority": 3}, {"ttl": 3600.0}),
                            ({"priority": 1, "ttl": 9}, {}),
                            ({"priority": -1}, {"end": True}),
                            ({"priority": -1, "end": False}, {}),
                            ({"priority": 0}, {})):
            self.assertEqual(wishes_of({"ucmfs": given}, None),
                             replace(USUAL, **given, **more))

    def test_a_session_that_pauses_and_ends(self) -> None:
        """What was saved and what was there is kept, then given up."""
        runner = self.runner()
        self.one(runner, self.prompt(40))
        results: list = []

        def noted(call):
            def run(*args, **named):
                results.append((call.__name__, named, call(*args, **named)))
                return results[-1][2]
            return run

        with mock.patch.object(Blocks, "keep", noted(Blocks.keep)), \
                mock.patch.object(Blocks, "end", noted(Blocks.end)):
            self.ask_for(runner, self.prompt(100), ttl=60, session="a")
            self.until(runner, lambda: len(results) == 1)
            self.ask_for(runner, self.prompt(100), ttl=60, end=True)
            self.until(runner, lambda: len(results) == 2)
        self.assertEqual(results, [("keep", {"seconds": 60}, 6 * [0]),
                                   ("end", {}, 6 * [0])])

    def test_prefetched_when_it_is_queued(self) -> None:
        runner = self.runner()
        self.one(runner, self.prompt(60))
        here = self.half(runner)._link.now
        warmed: list = []
        with mock.patch.object(
                scheduler, "warm_blocks",
                lambda _, space, ids: warmed.append((space, len(ids)))):
            runner.add(self.prompt(100), 3, kv_transfer_params={
                "ucmfs": {"prefetch": True}})
            self.half(runner)._chores.ask(lambda: None)  # without a step
        self.assertEqual(warmed, [(here.names[0], 3 * 16)])
        runner.settle()
        scheduler.warm_blocks(self.mount.path, here.names[0], bytes(16))

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

    def test_short_prompts_are_left_out(self) -> None:
        """UCM's persist_token_threshold."""
        short = {"persist_token_threshold": 101}
        for extra, saved in ((short, 0), ({}, 6)):
            runner = self.runner(extra)
            counted = Counted(runner)
            self.one(runner, self.prompt(100))
            self.assertEqual(counted["saved_blocks"], saved)
        for threshold, loaded in ((101, 0), (100, 96)):
            runner = self.runner({"persist_token_threshold": threshold})
            self.one(runner, self.prompt(100))
            self.assertEqual(runner.stats["tokens loaded"], loaded)

    def test_short_hits_are_computed(self) -> None:
        """UCM's load_tokens_threshold."""
        self.one(self.runner(), self.prompt(100))
        for threshold, loaded in ((96, 0), (95, 96)):
            runner = self.runner({"load_tokens_threshold": threshold})
            self.one(runner, self.prompt(100))
            self.assertEqual(runner.stats["tokens loaded"], loaded)

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


if __name__ == "__main__":
    unittest.main()
