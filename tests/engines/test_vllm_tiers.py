#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM on a stack of three tiers that holds a tenth of what it asks for: blocks
move and go all the time, and yet the tokens are right and no load fails."""

import json
import os
import random
import unittest
from typing import Any, Dict, List

import suite
import test_vllm_connector
import test_vllm_tier
from mount import Mount
from scenarios import stats_of
from suite import BLOCK, METRICS, SETTLE, generate, reset, samples

LENGTHS = (5 * BLOCK + 10, 8 * BLOCK + 10)  # tokens of a prompt
PROMPTS = 40
FAMILIES = 8    # prompts that begin alike
SHARED = 2 * BLOCK
ROUNDS = 5
HOT = 3         # prompts that are asked for in each round
BLOCK_FILE = 36 << 10  # a block of the model, with its header
SHARE = {"fast": 0.2, "mid": 0.3, "slow": 0.5}  # of the stack


def make_prompts() -> Dict[str, List[int]]:
    source = random.Random(11)

    def some(count: int) -> List[int]:
        return [source.randrange(3, 1000) for _ in range(count)]

    heads = [some(SHARED) for _ in range(FAMILIES)]
    return {f"many{i}": heads[i % FAMILIES] +
            some(source.randrange(*LENGTHS) - SHARED) for i in range(PROMPTS)}


def rounds(names: List[str]) -> List[List[str]]:
    """The hot ones each time, and a fifth of the others."""
    others = names[HOT:]
    return [names[:HOT] + others[i::ROUNDS] + names[:HOT]
            for i in range(ROUNDS)]


class Tiers:
    """Mixed in before a way's options."""

    prefix: str  # of its metrics
    mount: Mount

    @classmethod
    def setUpClass(cls) -> None:
        suite.require_engine()
        cls.prompts = make_prompts()
        steps = [generate(*cls.prompts, one_by_one=True)]
        with suite.Start(steps, prompts=cls.prompts,
                         engine={"enable_prefix_caching": False}) as start:
            (cls.wanted,) = start.results()

    def setUp(self) -> None:
        blocks = suite.num_blocks(list(self.prompts), self.prompts)
        self.assertGreater(blocks, 150)
        self.mount = Mount(tiers=0, start=False)
        self.addCleanup(self.mount.close)
        limits = []
        for name, share in SHARE.items():
            # the first one is memory
            self.mount.make_tier(os.path.join(self.mount.work, name),
                                 64 << 20 if name == "fast" else 0)
            size = int(blocks / 10 * share + 0.5) * BLOCK_FILE
            limits.append(f"limit={name}:{size}")
        self.mount.tiers = [f"{os.path.basename(path)}={path}"
                            for path in self.mount.tiers]
        self.mount.options = ",".join(limits)
        self.mount.start()

    def steps_of_all_rounds(self) -> List[dict]:
        steps: List[dict] = []
        for names in rounds(list(self.prompts)) * 2:
            for each in (names[:HOT], names[HOT:-HOT], names[-HOT:]):
                steps += [generate(*each), SETTLE, reset(True)]
        return steps + [METRICS]

    def test_on_a_tenth_of_what_is_asked_for(self) -> None:
        steps = self.steps_of_all_rounds()
        # files that the loader keeps open cannot go
        transfer = self.transfer(self.mount, open_files=2)
        with suite.Start(steps, prompts=self.prompts,
                         transfer=transfer) as start:
            results = start.results()
        for step, result in zip(steps, results):
            if step["do"] == "generate":
                self.check(result)
        self.check_metrics(results[-1])
        self.check_moves(json.loads(stats_of(self.mount)))

    def check(self, result: Dict[str, Any]) -> None:
        for name, got in result.items():
            self.assertEqual(got["finish"], "length", name)
            self.assertEqual(got["tokens"], self.wanted[name]["tokens"], name)

    def check_metrics(self, metrics: Dict[str, float]) -> None:
        def total(name: str) -> float:
            return samples(metrics, f"vllm:{self.prefix}_{name}_total")

        self.assertGreater(total("saved_blocks"), 0)
        self.assertGreater(total("loaded_blocks"), 0)
        self.assertEqual(total("load_failed_blocks"), 0,
                         {name: value for name, value in metrics.items()
                          if self.prefix in name})
        self.assertGreater(
            samples(metrics, "vllm:external_prefix_cache_hits_total"), 0)

    def check_moves(self, stats: Dict[str, Any]) -> None:
        counters = {tier["name"]: tier["counters"] for tier in stats["tiers"]}
        for name in ("fast", "mid"):
            self.assertGreater(counters[name]["demoted"], 0, name)
        self.assertGreater(counters["slow"]["evicted"], 0)
        for tier in stats["tiers"]:
            self.assertLessEqual(tier["used_bytes"], tier["total_bytes"])


class Connector(Tiers, test_vllm_connector.Options, unittest.TestCase):
    prefix = "ucmfs"


class Tier(Tiers, test_vllm_tier.Options, unittest.TestCase):
    prefix = "ucmfs_tier"


if __name__ == "__main__":
    unittest.main()
