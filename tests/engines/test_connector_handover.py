# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector: one engine reports what it saves of a prompt, another waits
for that and loads it."""

from __future__ import annotations

import time
import unittest
from typing import Any

from connector_case import Case, FakeRunner

LONG = 60  # seconds of a wait that a test does not sit out


class Handing(FakeRunner):
    """What its answers say, in .reports."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reports: list = []

    def deliver(self, out: Any) -> None:
        super().deliver(out)
        if out.finish_reason is not None:
            self.reports.append(out.kv_transfer_params)


class Handover(Case):

    def produce(self, prompt: list, extra: dict = {}, **more: Any) -> dict:
        """The report of an engine that has ended its saves."""
        runner = self.runner(extra, kind=Handing, **more)
        runner.add(prompt, 1, kv_transfer_params={"ucmfs": {"report": True}})
        runner.settle()
        (report,) = runner.reports
        return report

    def wait(self, runner: FakeRunner, seconds: float = LONG,
             tokens: int = 96) -> dict:
        return {"ucmfs": {"wait": {
            "tokens": tokens, "seconds": seconds,
            "space": self.half(runner)._link.now.names[0]}}}

    def consume(self, runner: FakeRunner, prompt: list, params: Any) -> float:
        """To its end; the seconds that took."""
        began = time.monotonic()
        name = runner.add(prompt, 3, kv_transfer_params=params)
        runner.settle()
        self.assertEqual(runner.delivered[name], 3)
        return time.monotonic() - began

    def waiting(self, runner: FakeRunner, params: Any) -> str:
        name = runner.add(self.prompt(100), 3, kv_transfer_params=params)
        for _ in range(20):
            runner.step()
        self.assertEqual(runner.delivered[name], 0)
        return name

    # ---- the report ----

    def test_a_report_is_what_a_consumer_takes(self) -> None:
        for more in ({}, {"window": 40}, {"state": 60}, {"ranks": 2},
                     {"batch_tokens": 40}):
            with self.subTest(**more):
                extra = {"tenant": str(more)}
                report = self.produce(self.prompt(100), extra, **more)
                wait = report["ucmfs"]["wait"]
                second = self.runner(extra, **more)
                self.assertEqual(wait, {
                    "tokens": 96,
                    "space": self.half(second)._link.now.names[0]})
                self.assertLess(self.consume(second, self.prompt(100), report),
                                2)
                self.assertEqual(second.stats["tokens loaded"], 96)

    def test_blocks_of_before_are_reported_as_well(self) -> None:
        self.one(self.runner(), self.prompt(100))
        report = self.produce(self.prompt(120))
        self.assertEqual(report["ucmfs"]["wait"]["tokens"], 112)

    def test_no_report(self) -> None:
        runner = self.runner(kind=Handing)
        for length, asks in ((100, {}), (10, {"report": True}),
                             (100, {"report": False}),
                             (60, {"report": True, "save": False})):
            runner.add(self.prompt(length, of=length), 1,
                       kv_transfer_params={"ucmfs": asks})
        runner.add(self.prompt(100, of=2), 1)
        runner.settle()
        self.assertEqual(runner.reports, 5 * [None])

    def test_no_report_without_a_mount(self) -> None:
        runner = self.runner(kind=Handing)
        self.mount.crash()
        try:
            runner.add(self.prompt(100), 1,
                       kv_transfer_params={"ucmfs": {"report": True}})
            runner.settle()
            self.assertEqual(runner.reports, [None])
        finally:
            self.mount.start()

    # ---- the wait ----

    def test_it_asks_again_until_the_blocks_are_there(self) -> None:
        for load in ("async", "sync"):
            with self.subTest(load=load):
                tenant = {"tenant": load}
                runner = self.runner({**tenant, "load": load})
                name = self.waiting(runner, self.wait(runner))
                self.one(self.runner(tenant), self.prompt(100))
                runner.settle()
                self.assertEqual(runner.delivered[name], 3)
                self.assertEqual(runner.stats["tokens loaded"], 96)

    def test_others_do_not_wait_with_it(self) -> None:
        runner = self.runner()
        name = self.waiting(runner, self.wait(runner))
        other = runner.add(self.prompt(60, of=2), 3)
        self.until(runner, lambda: runner.delivered[other] == 3)
        self.assertEqual(runner.delivered[name], 0)
        self.abort(runner, name)

    @staticmethod
    def abort(runner: FakeRunner, name: str) -> None:
        runner.abort(name)
        runner.settle()

    def test_a_wait_has_an_end(self) -> None:
        """Of a producer that died: what is there is loaded, the rest is
        computed, and saved."""
        self.one(self.runner(), self.prompt(50))
        runner = self.runner()
        with self.assertLogs("vllm.ucmfs", "WARNING") as told:
            took = self.consume(runner, self.prompt(100),
                                self.wait(runner, 0.3))
        self.assertGreater(took, 0.3)
        self.assertLess(took, 5)
        self.assertIn("48 of 96 tokens are there after 0.3 s", told.output[0])
        self.assertEqual(runner.stats["tokens loaded"], 48)
        third = self.runner()
        self.one(third, self.prompt(100))
        self.assertEqual(third.stats["tokens loaded"], 96)

    def test_nothing_to_wait_for(self) -> None:
        """Another space; tokens that the engine has, or would not load."""
        runner = self.runner()
        params = self.wait(runner)
        params["ucmfs"]["wait"]["space"] = "other"
        with self.assertLogs("vllm.ucmfs", "WARNING") as told:
            took = self.consume(runner, self.prompt(100), params)
        self.assertLess(took, LONG / 2)
        self.assertIn("the blocks are in space other", told.output[0])
        for prompt, tokens in ((self.prompt(100), 96), (self.prompt(10), 96),
                               (self.prompt(90, of=2), 15)):
            took = self.consume(runner, prompt,
                                self.wait(runner, tokens=tokens))
            self.assertLess(took, LONG / 2)
        for extra in ({"load_tokens_threshold": 96},
                      {"min_benefit": {"enabled": True, "bytes_per_second": 1,
                                       "tokens_per_second": 1e9}}):
            runner = self.runner({"tenant": str(extra), **extra})
            took = self.consume(runner, self.prompt(100), self.wait(runner))
            self.assertLess(took, LONG / 2)

    def test_a_prompt_that_ends_with_a_state(self) -> None:
        """Its own hit would have to be shorter, where no state is."""
        self.one(self.runner(state=60), self.prompt(96))
        runner = self.runner(state=60)
        took = self.consume(runner, self.prompt(96), self.wait(runner))
        self.assertLess(took, LONG / 2)

    def test_a_daemon_that_ends_ends_the_wait(self) -> None:
        runner = self.runner()
        name = self.waiting(runner, self.wait(runner))
        self.mount.crash()
        try:
            began = time.monotonic()
            runner.settle()
            self.assertLess(time.monotonic() - began, LONG / 2)
            self.assertEqual(runner.delivered[name], 3)
        finally:
            self.mount.start()

    def test_waits_that_are_wrong(self) -> None:
        runner = self.runner()
        for wrong in (5, {"tokens": 96}, {"tokens": "96", "space": "a"},
                      {"tokens": True, "space": "a"},
                      {"tokens": 96, "space": "a", "seconds": 61},
                      {"tokens": 96, "space": "a", "until": 1}):
            self.half(runner)._teller._told.clear()
            with self.assertLogs("vllm.ucmfs", "WARNING") as told:
                took = self.consume(runner, self.prompt(100),
                                    {"ucmfs": {"wait": wrong}})
            self.assertLess(took, 5)
            self.assertIn(f"ucmfs.wait is {wrong!r}: ", told.output[0])


if __name__ == "__main__":
    unittest.main()
