#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sparse attention in vLLM whose blocks stay in the store until they are
chosen."""

import unittest
from typing import Any, Callable, Dict, List

import suite
import test_vllm_sparse as sparse
from mount import Mount
from scenarios import PREEMPTIONS, TIGHT, empty_payload
from suite import BLOCK, CROWD, METRICS, PROMPTS, SETTLE, generate, pause, \
    reset, samples
from test_vllm_sparse import codes, method

TOKENS = 40
ALL = method("GSA", 1, pooling="minmax")
FEW = method("ESA", 0.1)
AGAIN = [SETTLE, reset(True)]
RETRIEVED = "vllm:ucmfs_sparse_retrieved_blocks_total"


class Case(sparse.Case):

    def setUp(self) -> None:
        super().setUp()
        self.mount = Mount()
        self.addCleanup(self.mount.close)

    def run_with(self, steps: List[dict], wanted: Dict[str, Any],
                 load: str = "sync", **more: Any) -> List[Any]:
        transfer = {
            "kv_connector": "UcmfsConnector",
            "kv_connector_module_path": "ucmfs.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                **self.mount.where, "min_benefit": {"enabled": False},
                "load": load, "retrieval": "storage", **wanted}}
        *results, metrics = self.run_engine(
            [*steps, METRICS], wanted, transfer=transfer,
            async_scheduling=False, **more)
        self.left, self.retrieved, self.failed = (
            samples(metrics, f"vllm:ucmfs_{name}_total") for name in (
                "sparse_left_blocks", "sparse_retrieved_blocks",
                "load_failed_blocks"))
        self.metrics = metrics
        return results

    def damage(self, of: Callable[[str], bool]) -> None:
        spaces = {path.split("/spaces/")[1].split("/")[0] for path in map(
            str, self.mount_files())}
        damaged = 0
        for space in filter(of, spaces):
            for path in self.mount.blocks(space).values():
                empty_payload(path)
                damaged += 1
        self.assertGreater(damaged, 0, spaces)

    def mount_files(self) -> List[str]:
        import pathlib
        return [str(path) for path in pathlib.Path(
            self.mount.tiers[0], "spaces").glob("*/??/*.bin")]


class Retrieval(Case):

    def test_all_pages_give_the_tokens_of_the_dense_engine(self) -> None:
        names = "long", "middle"
        steps = [generate(*names, max_tokens=TOKENS), *AGAIN,
                 generate(*names, max_tokens=TOKENS)]
        blocks = sum(len(PROMPTS[name]) // BLOCK for name in names)
        for wanted in ALL, codes(1 << 20):
            with self.subTest(wanted=wanted):
                *_, loaded = self.run_with(steps, wanted)
                self.check_tokens(loaded)
                # all but those of the windows, in two layers
                self.assertGreater(self.left, 2 * (blocks - 6))
                self.assertEqual(self.retrieved, self.left)
                self.assertEqual(self.failed, 0)

    def test_what_is_not_chosen_is_not_loaded(self) -> None:
        """And the tokens are those of pages that are all there."""
        steps = [generate("long"), *AGAIN,
                 generate("long", max_tokens=4), METRICS,
                 generate("long", max_tokens=TOKENS)]
        *_, few, metrics, many = self.run_with(steps, FEW)
        retrieved = samples(metrics, RETRIEVED)
        self.assertTrue(0 < retrieved < self.left / 2, retrieved)
        *_, few_there, metrics, many_there = self.run_with(
            steps, FEW, at_once=True)
        self.assertEqual(samples(metrics, RETRIEVED), self.left)
        self.assertEqual((few, many), (few_there, many_there))
        self.assertNotEqual(many["long"]["tokens"],
                            self.wanted["long"][:TOKENS])

    def test_dense_prompts_that_share_pages(self) -> None:
        """In the same step, and after the request has ended."""
        stray = generate("stray", max_tokens=TOKENS)
        wanted, = self.run_engine([stray], FEW)
        for steps in [[generate("long", "stray", max_tokens=TOKENS)],
                      [generate("long"), stray]]:
            self.mount.close()
            self.mount = Mount()
            self.addCleanup(self.mount.close)
            *_, last = self.run_with([generate("long"), *AGAIN, *steps], FEW)
            self.assertGreater(self.left, 0)
            self.assertEqual(last["stray"]["tokens"],
                             wanted["stray"]["tokens"])
            self.assertGreater(last["stray"]["cached"], 0)

    def test_where_requests_are_preempted(self) -> None:
        crowd = generate(*CROWD, max_tokens=suite.MAX_TOKENS)
        *_, loaded = self.run_with([crowd, *AGAIN, crowd], ALL, **TIGHT)
        self.assertGreater(samples(self.metrics, PREEMPTIONS), 0)
        self.assertGreater(self.left, 0)
        self.check_tokens(loaded)


class Failures(Case):

    def test_damaged_blocks_are_computed_again(self) -> None:
        """What stands for them is well, so they are left in the store."""
        for few, again in ((ALL, [pause("now"), generate("long")]),
                           (FEW, [generate("long", pause="now",
                                           max_tokens=TOKENS)])):
            *_, loaded = self.run_with(
                [generate("long"), *AGAIN, *again], few,
                paused=lambda: self.damage(
                    lambda space: not space.endswith(".repr")))
            self.assertGreater(self.left, 0)
            self.assertGreater(self.failed, 0)
            self.assertEqual(loaded["long"]["finish"], "length")
            if few is ALL:
                self.check_tokens(loaded)

    def test_a_daemon_that_is_killed(self) -> None:
        *_, loaded = self.run_with(
            [generate("long"), *AGAIN,
             generate("long", pause="now", max_tokens=TOKENS)], FEW,
            paused=self.mount.crash)
        self.assertEqual(len(loaded["long"]["tokens"]), TOKENS)

    def test_damaged_representations(self) -> None:
        """Their blocks are loaded, and they are made again."""
        *_, loaded = self.run_with(
            [generate("long"), *AGAIN, pause("now"), generate("long")], ALL,
            paused=lambda: self.damage(
                lambda space: space.endswith(".repr")))
        self.check_tokens(loaded)
        self.assertEqual(self.left, 0)
        *_, loaded = self.run_with([generate("short"), generate("long")], ALL)
        self.check_tokens(loaded)
        self.assertGreater(self.left, 0)

    def test_what_cannot_be_had_is_refused_by_name(self) -> None:
        for wanted, load, why in (
                (FEW, "async", "load is async, and must be sync"),
                (method("KVStarMultiStep", 1), "sync", "channels of KVStar"),
                (codes(1 << 20, hash_rollback_layers=[0]), "sync",
                 "layers that stay dense")):
            with self.subTest(why=why):
                self.run_with([], wanted, load)
                self.assertIn("retrieval storage: no effect: ", self.said)
                self.assertIn(why, self.said)


class TensorParallel(Case):
    """Ranks load what they lack of their shards."""

    parallel = suite.Parallel(tensor=2)

    def test_all_pages_give_the_tokens_of_the_dense_engine(self) -> None:
        steps = [generate("long", "middle"), *AGAIN,
                 generate("long", "middle")]
        *_, loaded = self.run_with(steps, ALL)
        self.check_tokens(loaded)
        self.assertGreater(self.left, 0)
        self.assertEqual(self.retrieved, self.left)


if __name__ == "__main__":
    unittest.main()
