#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step costs the connector while many requests are being decoded.

The real scheduler runs DECODING requests at once, of so many different lengths
that their blocks fill up evenly. Then come STEPS steps in which nothing is
new, and STEPS in which one request arrives, of ARRIVING tokens. All calls of
the connector, on the scheduler's side and on a worker's, are timed for each
step, in CPU time of the thread. With --save-decode a sixteenth of the requests
fills a block in each step, which is saved; without nobody has anything to save
once the prompts are.

    step_calls.py [--decoding 1024] [--steps 64] [--arriving 64]
                  [--save-decode]
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import time
from typing import Dict, List

from scheduler_calls import CALLS, Mount, Runner, fake_runner

WORKER_CALLS = ("start_load_kv", "wait_for_layer_load", "wait_for_save",
                "get_transfer_results", "get_block_ids_with_load_errors",
                "build_connector_worker_meta", "get_kv_connector_stats")
BLOCK = 16


class Calls:
    """Seconds in some methods of an object."""

    def __init__(self, connector, names) -> None:
        self.each: Dict[str, float] = dict.fromkeys(names, 0.0)
        for name in names:
            self.wrap(connector, name)

    def wrap(self, connector, name: str) -> None:
        inner, each = getattr(connector, name), self.each

        def call(*args, **kwargs):
            began = time.thread_time()
            result = inner(*args, **kwargs)
            each[name] += time.thread_time() - began
            return result

        setattr(connector, name, call)

    def take(self) -> Dict[str, float]:
        taken = dict(self.each)
        for name in self.each:
            self.each[name] = 0.0
        return taken


def show(what: str, side: str, steps: List[Dict[str, float]]) -> None:
    sums = sorted(sum(step.values()) for step in steps)
    print(f"  {what:22} {side:9} median {statistics.median(sums) * 1e6:8.1f} "
          f"us, p90 {sums[len(sums) * 9 // 10] * 1e6:8.1f} us")
    for name in steps[0]:
        median = statistics.median(step[name] for step in steps)
        if median >= 1e-6:
            print(f"    {name:30} {median * 1e6:8.1f} us")


def measure(runner, sides: Dict[str, Calls], steps: int, arrive) -> dict:
    taken: dict = {side: [] for side in sides}
    for _ in range(steps):
        arrive()
        if not runner.step():
            raise SystemExit("step_calls.py: nothing is left to decode")
        for side, calls in sides.items():
            taken[side].append(calls.take())
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--decoding", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--arriving", type=int, default=64)
    parser.add_argument("--save-decode", action="store_true")
    args = parser.parse_args()
    logging.getLogger("vllm.ucmfs").setLevel(logging.ERROR)
    rng = random.Random(1)

    def prompt(tokens: int) -> list:
        return [rng.randrange(900) for _ in range(tokens)]

    longest = 2 * BLOCK + 4 * args.steps + args.arriving
    with Mount() as mount:
        runner = Runner(fake_runner.Config(
            "bench", connector="UcmfsConnector", module="ucmfs.vllm",
            extra={"mount": mount.path, "weights": "none",
                   "pinned_share": 0.9, "min_benefit": {"enabled": False},
                   "save_decode": args.save_decode},
            layers=1, heads=1, max_running=args.decoding + 2,
            num_blocks=(args.decoding + 2) * (longest // BLOCK + 1),
            max_len=longest, batch_tokens=4 * args.decoding, patience=60))
        for i in range(args.decoding):
            runner.add(prompt(BLOCK + i % BLOCK), longest - 2 * BLOCK)
        while runner.scheduler.waiting or \
                runner.scheduler.connector.has_pending_push_work():
            runner.step()
            if args.save_decode and not runner.scheduler.waiting:
                break
        sides = {
            "scheduler": Calls(runner.scheduler.connector, CALLS),
            "worker": Calls(runner.ranks[0].connector, WORKER_CALLS)}
        print(f"{len(runner.scheduler.running)} requests are decoded, "
              f"save_decode {str(args.save_decode).lower()}:")
        for what, arrive in (
                ("nothing is new", lambda: None),
                ("one arrives",
                 lambda: runner.add(prompt(args.arriving), 1))):
            for side, steps in measure(runner, sides, args.steps,
                                       arrive).items():
                show(what, side, steps)
        for request in list(runner.scheduler.requests):
            runner.abort(request)
        runner.settle()
        runner.shutdown()


if __name__ == "__main__":
    main()
