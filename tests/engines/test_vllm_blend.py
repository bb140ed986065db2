#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""UcmfsBlendConnector: documents are reused in any order."""

import pathlib
import random
import shutil
import tempfile
import unittest
from typing import Any, Dict, List, Optional

import numpy as np

import suite
from mount import Mount
from scenarios import flipped
from suite import METRICS, SETTLE, Parallel, Start, pause, samples

COUNT = "vllm:ucmfs_%s_total"
CHUNK = 64
END_TOKEN = 7
TOKENS = 24


def make_prompts() -> Dict[str, List[int]]:
    """Of documents: four of several chunks. "warm" is the engine's first."""
    source = random.Random(11)

    def some(count: int) -> List[int]:
        return [source.randrange(10, 1000) for _ in range(count)]

    a, b, c = some(4 * CHUNK), some(3 * CHUNK), some(5 * CHUNK)
    odd = some(4 * CHUNK + 20) + [END_TOKEN]
    nearly = list(b)
    nearly[60] = 5  # of 64
    return {
        "warm": some(20), "ab": a + b + some(30), "ba": b + a + some(30),
        "c": c + some(10), "cab": c + a + b + some(40),
        "hole": some(CHUNK) + a + some(2 * CHUNK) + b + some(30),
        "near": some(CHUNK) + nearly + c + some(20),
        "prefix": a + b + c + a + some(20),
        "odd": odd + some(30), "moved": some(50) + [END_TOKEN] + odd + some(9),
        "new": some(300),
    }


PROMPTS = make_prompts()


class Case(unittest.TestCase):
    parallel = suite.ALONE
    dtype = "float32"

    @classmethod
    def setUpClass(cls) -> None:
        suite.require_engine()
        cls.wanted = cls.start([cls.generate(*PROMPTS)],
                               {"enable_prefix_caching": False})[0]

    @classmethod
    def start(cls, steps: List[dict], engine: dict, **more: Any) -> List[Any]:
        with Start(steps, engine={"dtype": cls.dtype, **engine},
                   parallel=cls.parallel, prompts=PROMPTS, **more) as start:
            results = start.results()
            cls.said = start.said
        return results

    @staticmethod
    def generate(*names: str, **more: Any) -> Dict[str, Any]:
        return suite.generate(*names, **{
            "max_tokens": TOKENS, "one_by_one": True, **more})

    def mount(self) -> Mount:
        mount = Mount()
        self.addCleanup(mount.close)
        return mount

    @staticmethod
    def transfer(mount: Mount, **more: Any) -> Dict[str, Any]:
        return {
            "kv_connector": "UcmfsBlendConnector",
            "kv_connector_module_path": "ucmfs.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                **mount.where, "min_benefit": {"enabled": False}, **more}}

    def blend(self, mount: Mount, steps: List[dict],
              engine: Optional[dict] = None, **more: Any) -> List[Any]:
        return self.start(
            steps, {"enable_prefix_caching": False, **(engine or {})},
            transfer=self.transfer(mount, **more))

    def fill(self, mount: Mount, *names: str, **more: Any) -> None:
        result, *_ = self.blend(mount, [self.generate(*names), SETTLE],
                                blend_min_chunks=100, **more)
        self.check(result)

    def check(self, result: Dict[str, dict]) -> None:
        for name, got in result.items():
            self.assertEqual(got["tokens"], self.wanted[name]["tokens"], name)

    def differing(self, result: Dict[str, dict]) -> int:
        """Tokens that are others than without reuse."""
        return sum(mine != theirs for name, got in result.items()
                   for mine, theirs in zip(got["tokens"],
                                           self.wanted[name]["tokens"]))


class Blending(Case):

    def test_computing_all_again_gives_the_tokens_of_a_full_prefill(
            self) -> None:
        """Documents in another order, with others between them, behind an
        exact prefix, of an odd length."""
        mount = self.mount()
        end = {"blend_end_token": END_TOKEN}
        self.fill(mount, "ab", "c", "odd", **end)
        for engine in {}, {"max_num_batched_tokens": 96,
                           "max_model_len": 2048}:
            with self.subTest(engine=engine):
                result, metrics = self.blend(
                    mount, [self.generate("warm", "ba", "cab", "hole",
                                          "prefix", "moved"), METRICS],
                    engine, blend_ratio=1, **end)
                self.check(result)
                self.assertEqual(
                    {name: got["cached"] for name, got in result.items()},
                    {"warm": 0, "ba": 7 * CHUNK, "cab": 12 * CHUNK,
                     "hole": 10 * CHUNK, "prefix": 16 * CHUNK,
                     "moved": 51 + 4 * CHUNK})
                both = [samples(metrics, COUNT % name) for name in
                        ("blended_tokens", "blend_computed_tokens")]
                # ab is an exact prefix, up to a page
                self.assertEqual(both[0], 7 * CHUNK + 7 * CHUNK + 10 * CHUNK
                                 + 9 * CHUNK + 51 + 4 * CHUNK)
                self.assertEqual(*both)

    def test_what_is_reused_decides_the_tokens(self) -> None:
        """Less is off the more is computed; and nothing that was blended is
        saved as if it were exact."""
        mount = self.mount()
        self.fill(mount, "ab", "c")
        stored = self.stored(mount)
        names = "ba", "cab", "hole"
        off, computed = [], []
        for ratio in (0, 0.3, 1):
            result, metrics = self.blend(
                mount, [self.generate("warm", *names), METRICS],
                blend_ratio=ratio)
            off.append(self.differing(result))
            computed.append(samples(metrics, COUNT % "blend_computed_tokens"))
            self.assertEqual(result["ba"]["cached"], 7 * CHUNK)
        self.assertEqual(off[-1], 0)
        self.assertGreater(off[0], 0)
        self.assertGreaterEqual(off[0], off[1])
        # what is in no chunk is computed in any case
        least, spans = 3 * CHUNK, (7 + 7 + 10) * CHUNK
        self.assertEqual(computed, [
            least, least + sum(int(0.3 * n * CHUNK) for n in (7, 7, 7)),
            spans])
        self.assertEqual(self.stored(mount), stored)

    def stored(self, mount: Mount) -> set:
        return {path for tier in mount.tiers
                for path in pathlib.Path(tier, "spaces").glob("*/??/*.bin")}

    def test_keys_are_nearer_the_more_is_computed(self) -> None:
        """Compared with those of a full prefill in the same pages: a first
        layer's are right to rounding, as they depend on the position alone."""
        mount = self.mount()
        self.fill(mount, "ab")
        path = str(pathlib.Path(tempfile.mkdtemp(dir=suite.cache_dir())))
        self.addCleanup(shutil.rmtree, path)
        steps = [self.generate("warm", "ba", max_tokens=1),
                 {"do": "save_cache", "path": f"{path}/full"}]
        self.start(steps, {"enable_prefix_caching": False})
        off = []
        for ratio in (0, 0.1, 0.5, 1):
            steps[1] = {"do": "save_cache", "path": f"{path}/{ratio}"}
            self.blend(mount, steps, blend_ratio=ratio)
            off.append([np.abs(mine - full).sum() for mine, full in zip(
                np.load(f"{path}/{ratio}.npy"), np.load(f"{path}/full.npy"))])
        first, last = zip(*off)
        whole = np.abs(np.load(f"{path}/full.npy")).sum()
        self.assertLess(max(first), 1e-5 * whole)
        self.assertLess(last[-1], 1e-5 * whole)
        self.assertGreater(last[0], 1e-3 * whole)
        self.assertEqual(sorted(last, reverse=True), list(last))

    def test_a_part_of_a_chunk(self) -> None:
        mount = self.mount()
        steps = [self.generate("warm", "ab", "c"), SETTLE,
                 self.generate("near"), METRICS]
        *_, near, metrics = self.blend(mount, steps, blend_ratio=0)
        self.assertEqual(near["near"]["cached"], 9 * CHUNK)
        # the first chunk, what differs of the second, and boundaries
        self.assertEqual(samples(metrics, COUNT % "blend_computed_tokens"),
                         CHUNK + 4 + 2 + 2)

    def test_chunks_that_are_damaged_or_gone(self) -> None:
        mount = self.mount()
        self.fill(mount, "ab", "c")
        for path in sorted(self.stored(mount)):
            if "-chunks" in str(path):
                flipped(str(path))
        result, metrics = self.blend(
            mount, [self.generate("warm", "ba", "hole"), METRICS],
            blend_ratio=0)
        self.check(result)
        self.assertGreater(samples(metrics, COUNT % "load_failed_blocks"), 0)

    def test_what_follows_a_damaged_block_is_not_kept(self) -> None:
        """It is computed from garbage at first, in the step that completes
        the prompt."""
        mount = self.mount()
        self.fill(mount, "ab")
        before = self.stored(mount)
        for path in before:
            if "-chunks" not in str(path):
                flipped(str(path))
        result, _ = self.blend(mount, [self.generate("prefix"), SETTLE],
                               blend_min_chunks=100)
        self.check(result)
        self.assertEqual([path for path in self.stored(mount) - before
                          if "-chunks" in str(path)], [])

    def test_the_daemon_is_killed_between_look_up_and_load(self) -> None:
        mount = self.mount()
        self.fill(mount, "ab", "c")
        with Start([self.generate("warm"), pause("now"),
                    self.generate("ba", "cab")],
                   engine={"enable_prefix_caching": False},
                   prompts=PROMPTS, transfer=self.transfer(
                       mount, blend_ratio=0, deadline_ms=2000)) as start:
            start.wait_for("now")
            mount.crash()
            start.go_on()
            *_, result = start.results()
        self.check(result)

    def test_requests_together_and_requests_without_reuse(self) -> None:
        mount = self.mount()
        self.fill(mount, "ab", "c")
        warm, result = self.blend(
            mount, [self.generate("warm"),
                    self.generate("ba", "new", "cab", "ab", "hole",
                                  one_by_one=False)], blend_ratio=1)
        self.check({**warm, **result})
        self.assertEqual(result["new"]["cached"], 0)


class BFloat16(Case):
    dtype = "bfloat16"

    def test_computing_all_again(self) -> None:
        mount = self.mount()
        self.fill(mount, "ab", "c")
        result, = self.blend(mount, [self.generate("warm", "ba", "hole")],
                             blend_ratio=1)
        self.check(result)
        self.assertGreater(result["ba"]["cached"], 0)


class Ranks(Case):
    """Two ranks with half of the heads each."""

    parallel = Parallel(tensor=2)

    def test_they_compute_the_same_tokens(self) -> None:
        mount = self.mount()
        self.fill(mount, "ab", "c")
        for ratio in 1, 0.3:
            result, metrics = self.blend(
                mount, [self.generate("warm", "ba", "hole"), METRICS],
                blend_ratio=ratio)
            self.assertEqual(samples(metrics, COUNT % "blended_tokens"),
                             17 * CHUNK)
            if ratio == 1:
                self.check(result)


class Refusals(unittest.TestCase):

    def setUp(self) -> None:
        suite.require_engine()

    def refused(self, engine: dict, said: str, **more: Any) -> None:
        mount = Mount()
        self.addCleanup(mount.close)
        with Start([], engine=engine, transfer=Case.transfer(mount, **more),
                   kind=more.pop("kind", "")) as start:
            with self.assertRaisesRegex(AssertionError, said):
                start.results()

    def test_by_name(self) -> None:
        self.refused({}, "enable_prefix_caching: UcmfsBlendConnector")
        off = {"enable_prefix_caching": False}
        self.refused(off, "blend_layer: 2, of 2 layers", blend_layer=2)
        self.refused(off, "position_correction", position_correction=False)


if __name__ == "__main__":
    unittest.main()
