#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What UcmfsConnector costs vLLM's scheduler thread, for each request.

The real scheduler runs requests of TOKENS tokens (16 to a block), one at a
time: first such as are computed and saved, then, in a second engine, the same
ones, which are found and loaded. All calls of the connector on the side of the
scheduler are timed, in CPU time of the thread, so that others on the machine
count for little. A request's sum is all of them from its arrival until its
blocks are saved, without those of steps that only wait for a transfer: how many
there are is the disk's business.

    scheduler_calls.py [--tokens 8192] [--requests 50] [--ranks 1]
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..")
sys.path[:0] = [os.path.join(TOP, "tests", "engines"),
                os.path.join(TOP, "python")]

import fake_runner
from mount import Mount

CALLS = ("on_new_request", "get_num_new_matched_tokens",
         "update_state_after_alloc", "build_connector_meta",
         "update_connector_output", "request_finished_all_groups",
         "take_events", "get_kv_connector_stats", "has_pending_push_work")
# Made once a step.
STEP_CALLS = ("build_connector_meta", "update_connector_output",
              "take_events", "get_kv_connector_stats",
              "has_pending_push_work")


class Runner(fake_runner.FakeRunner):

    def write_model(self) -> None:
        outer = self.directory
        inner = os.path.join(outer.name, "model")
        os.mkdir(inner)
        self.directory = SimpleNamespace(name=inner, cleanup=outer.cleanup)
        super().write_model()

    def forward(self, *_: object) -> dict:
        """No books are kept: this is about time."""
        return {}


class Clock:
    """Seconds in the connector's calls."""

    def __init__(self, connector) -> None:
        self.calls: dict = defaultdict(list)
        self.idle = False
        for name in CALLS:
            self.wrap(connector, name)

    def wrap(self, connector, name: str) -> None:
        inner, calls = getattr(connector, name), self.calls

        def call(*args):
            began = time.thread_time()
            result = inner(*args)
            took = time.thread_time() - began
            if name == "build_connector_meta":
                self.idle = not args[0].total_num_scheduled_tokens
            waiting = self.idle and name in STEP_CALLS
            if not waiting:
                calls[name].append(took)
            return result

        setattr(connector, name, call)

    def total(self) -> float:
        return sum(sum(times) for times in self.calls.values())


def run(config, prompts: list) -> tuple:
    runner = Runner(config)
    clock = Clock(runner.scheduler.connector)
    sums = []
    for prompt in prompts:
        before = clock.total()
        runner.add(prompt, 2)
        runner.settle()
        sums.append(clock.total() - before)
    loaded = runner.stats["tokens promised"]
    runner.shutdown()
    return sums, clock.calls, loaded


def microseconds(times: list) -> str:
    times = sorted(times)
    return (f"median {statistics.median(times) * 1e6:7.1f} us, "
            f"p90 {times[len(times) * 9 // 10] * 1e6:7.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    logging.getLogger("vllm.ucmfs").setLevel(logging.ERROR)
    rng = random.Random(1)
    prompts = [[rng.randrange(900) for _ in range(args.tokens)]
               for _ in range(args.requests)]
    with Mount() as mount:
        config = fake_runner.Config(
            "bench", connector="UcmfsConnector", module="ucmfs.vllm",
            extra={"mount": mount.path, "weights": "none",
                   "pinned_share": 0.9, "min_benefit": {"enabled": False},
                   "staging_bytes": 64 << 20},
            ranks=args.ranks, layers=1, heads=1,
            num_blocks=args.tokens // 16 * 2, max_len=args.tokens + 64,
            batch_tokens=args.tokens + 64, patience=60)
        for what in ("computed and saved", "found and loaded"):
            sums, calls, promised = run(config, prompts)
            print(f"{args.requests} requests of {args.tokens} tokens, "
                  f"{args.ranks} ranks, {what} (promised {promised}):")
            print(f"  {'a request, all calls':30} {microseconds(sums)}")
            for name in CALLS:
                if calls[name]:
                    print(f"  {name:30} {microseconds(calls[name])}, "
                          f"{len(calls[name])} calls")


if __name__ == "__main__":
    main()
