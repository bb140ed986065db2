#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sparse attention in vLLM: what it attends to, and what it leaves as it is.

The engine finds the plug-in by an entry point, as in an environment where the
package is installed.
"""

import itertools
import json
import math
import os
import pathlib
import re
import unittest
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

import suite
from mount import Mount
from private_daemon import directory_of
from scenarios import PREEMPTIONS, TIGHT
from suite import (BLOCK, CROWD, METRICS, PROMPTS, SETTLE, TRAFFIC, Start,
                   generate, reset, samples)

TOKENS = 40
CHUNKS = {"max_num_batched_tokens": 64}
WINDOWS = {"ESA": ("init_window_sz", "local_window_sz"),
           "GSA": ("init_window_size", "local_window_size"),
           "KVStarMultiStep": ("init_window_sz", "local_window_sz")}
PYPROJECT = pathlib.Path(__file__).resolve().parents[2] / "python" / \
    "pyproject.toml"


class Row(NamedTuple):
    """What a row of a step attended to in a layer."""

    layer: str
    tokens: int
    absent: int
    attended: int
    attended_tokens: int


def entry_points() -> str:
    """Those of pyproject.toml, as an installed package has them."""
    text = PYPROJECT.read_text(encoding="utf-8")
    group, lines = re.search(
        r'\[project\.entry-points\."([^"]+)"\]\n((?:.+\n)+)', text).groups()
    return f"[{group}]\n" + lines.replace('"', "")


def method(name: str, ratio: float, first: int = 1, last: int = 1,
           **more: Any) -> Dict[str, Any]:
    begin, end = WINDOWS[name]
    return {"sparse_type": name, name: {
        "sparse_ratio": ratio, begin: first, end: last, **more}}


def codes(tokens: int, **more: Any) -> Dict[str, Any]:
    return {"sparse_type": "GSAOnDevice", "GSAOnDevice": {
        "hash_topk_tokens": tokens, "sink_token": BLOCK,
        "recent_token": BLOCK, **more}}


METHODS = [method("ESA", 1, pooling="mean"), method("GSA", 1, pooling="max"),
           method("ESA", 1, pooling="l2"), method("GSA", 1, pooling="minmax"),
           codes(1 << 20), method("KVStarMultiStep", 1)]


class Case(unittest.TestCase):
    kind = ""
    parallel = suite.ALONE

    @classmethod
    def setUpClass(cls) -> None:
        suite.require_engine()
        cls.wanted = suite.reference(cls.kind, cls.parallel)

    def setUp(self) -> None:
        self.work = directory_of(self)
        info = os.path.join(self.work, "path", "ucmfs-0.dist-info")
        os.makedirs(info)
        for name, text in (("METADATA", "Metadata-Version: 2.1\nName: ucmfs\n"
                            "Version: 0\n"),
                           ("entry_points.txt", entry_points())):
            pathlib.Path(info, name).write_text(text, encoding="utf-8")
        self.rows: List[Row] = []
        self.said = ""

    def run_engine(self, steps: List[dict], sparse: Optional[dict] = None, *,
                   invert: bool = False, transfer: Optional[dict] = None,
                   paused: Optional[Callable[[], None]] = None,
                   at_once: bool = False, **engine: Any) -> List[Any]:
        """paused: called at the steps' pause "now"."""
        out = os.path.join(self.work, "rows")
        environment = {"UCMFS_TEST_SPARSE": out}
        if invert:
            environment["UCMFS_TEST_INVERT"] = "1"
        if at_once:
            environment["UCMFS_TEST_AT_ONCE"] = "1"
        if sparse is not None:
            engine["worker_cls"] = "sparse_probe.ProbeWorker"
            if transfer is None:
                engine["additional_config"] = {"ucmfs": sparse}
        pathlib.Path(out).write_text("")
        with Start(steps, engine=engine, kind=self.kind, transfer=transfer,
                   parallel=self.parallel,
                   path=[os.path.join(self.work, "path")],
                   environment=environment) as start:
            if paused:
                start.wait_for("now")
                paused()
                start.go_on()
            results = start.results()
            self.said = start.said
        self.rows = [Row(layer, *row) for layer, rows in
                     map(json.loads, open(out, encoding="utf-8"))
                     for row in rows]
        return results

    def check_tokens(self, result: Dict[str, dict]) -> None:
        for name, got in result.items():
            self.assertEqual(got["tokens"],
                             self.wanted[name][:len(got["tokens"])], name)
            self.assertGreaterEqual(len(got["tokens"]), 16, name)

    def warnings(self) -> List[str]:
        return [line for line in self.said.splitlines()
                if "sparse_type" in line and "WARNING" in line]


class Selection(Case):

    def test_all_pages_give_the_tokens_of_the_dense_engine(self) -> None:
        """Alone, in a batch with prompts in chunks, and with pages that
        requests share."""
        steps = [generate(max_tokens=TOKENS), reset(),
                 generate(max_tokens=TOKENS, one_by_one=True),
                 generate(max_tokens=TOKENS)]
        for wanted in METHODS:
            with self.subTest(wanted=wanted):
                together, _, alone, again = self.run_engine(
                    steps, wanted, **CHUNKS)
                for result in together, alone, again:
                    self.check_tokens(result)
                for each in TRAFFIC:
                    self.assertGreater(again[each]["cached"], 0, each)
                self.assertGreater(len(self.rows), 3 * TOKENS * len(TRAFFIC))
                for row in self.rows:
                    self.assertEqual(row.attended, -(-row.tokens // BLOCK))
                    self.assertEqual(row.attended_tokens, row.tokens)

    def test_all_pages_in_bfloat16(self) -> None:
        steps = [generate(max_tokens=TOKENS)]
        more = {"dtype": "bfloat16", **CHUNKS}
        dense, = self.run_engine(steps, **more)
        result, = self.run_engine(steps, method("GSA", 1), **more)
        self.assertEqual(result, dense)
        self.assertGreater(len(self.rows), TOKENS * len(TRAFFIC))

    def test_all_pages_where_requests_are_preempted(self) -> None:
        result, metrics = self.run_engine(
            [generate(*CROWD, max_tokens=suite.MAX_TOKENS), METRICS],
            method("GSA", 1), **TIGHT)
        self.assertGreater(samples(metrics, PREEMPTIONS), 0)
        self.check_tokens(result)

    def test_the_budget_says_how_many_are_attended_to(self) -> None:
        first, last, ratio = 2, 3, 0.25
        self.run_engine([generate(max_tokens=TOKENS)],
                        method("GSA", ratio, first, last), **CHUNKS)
        layers = {row.layer for row in self.rows}
        self.assertEqual(len(layers), 2)
        for row in self.rows:
            num = -(-row.tokens // BLOCK)
            between = num - first - last
            # all but the page that grows are full, and were written here
            self.assertEqual(row.absent, row.tokens % BLOCK != 0, row)
            self.assertEqual(row.attended, first + last
                             + math.floor(between * ratio), row)
            self.assertEqual(row.attended_tokens, row.attended * BLOCK
                             - -row.tokens % BLOCK, row)
        per_layer = [sorted(row[1:] for row in self.rows
                            if row.layer == layer) for layer in layers]
        self.assertEqual(*per_layer)

    def test_scores_decide(self) -> None:
        steps = [generate("long", max_tokens=TOKENS)]
        for few in (method("ESA", 0.1), codes(8 * BLOCK),
                    method("KVStarMultiStep", 0.1)):
            with self.subTest(few=few):
                best, worst = (self.run_engine(steps, few, invert=invert)[0]
                               for invert in (False, True))
                self.assertNotEqual(best["long"]["tokens"],
                                    worst["long"]["tokens"])
        dense, = self.run_engine(steps, method("ESA", 1), invert=True)
        self.check_tokens(dense)

    def test_layers_of_codes(self) -> None:
        """One that stays dense, and one that takes another's choice."""
        steps = [generate("long", max_tokens=TOKENS)]
        told = {}
        for key, layer in (("hash_rollback_layers", 0),
                           ("hash_skip_layers", 1)):
            result, = self.run_engine(steps, codes(8 * BLOCK, **{key: [layer]}))
            self.assertEqual({row.layer.split(".")[2] for row in self.rows},
                             {str(1 - layer)})
            self.assertEqual({row.attended for row in self.rows}, {8})
            told[key] = result["long"]["tokens"]
        both, = self.run_engine(steps, codes(8 * BLOCK))
        for tokens in told.values():
            self.assertNotEqual(tokens, self.wanted["long"][:TOKENS])
            self.assertNotEqual(tokens, both["long"]["tokens"])

    def test_a_short_request_stays_dense(self) -> None:
        steps = [generate("short", "exact", "middle", "long",
                          max_tokens=TOKENS)]
        limit = len(PROMPTS["middle"]) // BLOCK + 4
        result, = self.run_engine(steps, method(
            "ESA", 0.1, min_blocks=limit), **CHUNKS)
        self.assertNotEqual(result.pop("long")["tokens"],
                            self.wanted["long"][:TOKENS])
        self.check_tokens(result)


class Windows(Case):
    kind = "window"

    def test_a_layer_with_a_window_stays_dense(self) -> None:
        result, = self.run_engine([generate(max_tokens=TOKENS)],
                                  method("GSA", 1), **CHUNKS)
        self.check_tokens(result)
        self.assertEqual(len(self.warnings()), 1, self.said)
        self.assertIn("dense: sliding window layers", self.warnings()[0])
        self.assertEqual(len({row.layer for row in self.rows}), 1)


class TensorParallel(Case):
    """Two ranks, each with half of the heads and choices for these."""

    parallel = suite.Parallel(tensor=2)

    def test_all_pages_give_the_tokens_of_the_dense_engine(self) -> None:
        result, = self.run_engine([generate("long", "short", "middle")],
                                  method("GSA", 1), **CHUNKS)
        self.check_tokens(result)
        self.assertEqual(len(self.rows), 2 * 2 * 3 * 15)


class Pipeline(Case):
    """Two stages of a layer each. The second layer's choice would be the
    first's, which another process has made."""

    parallel = suite.Parallel(pipeline=2)

    def test_all_pages_give_the_tokens_of_the_dense_engine(self) -> None:
        result, = self.run_engine([generate("long", "short", "middle")],
                                  codes(1 << 20, hash_skip_layers=[1]))
        self.check_tokens(result)
        self.assertEqual(len({row.layer for row in self.rows}), 2)


class Without(Case):

    def test_nothing_is_changed_where_it_is_not_asked_for(self) -> None:
        result, modules = self.run_engine([generate(max_tokens=TOKENS),
                                           {"do": "modules"}])
        self.check_tokens(result)
        self.assertIn("ucmfs.vllm.plugin", modules)
        self.assertEqual([name for name in modules if "sparse" in name], [])

    def test_what_cannot_be_had_is_refused_by_name(self) -> None:
        result, = self.run_engine([generate("short")],
                                  {"sparse_type": "ReRoPE"})
        self.check_tokens(result)
        self.assertEqual(self.rows, [])
        self.assertEqual(len(self.warnings()), 1, self.said)
        self.assertIn("ReRoPE chooses no blocks", self.warnings()[0])

    def test_a_wrong_key_ends_the_start(self) -> None:
        with self.assertRaisesRegex(AssertionError, "'xyzzy': GSA has none"):
            self.run_engine([], {"sparse_type": "GSA", "GSA": {"xyzzy": 1}})


class Connector(Case):
    """Pages that come from a store are chosen like those that are
    computed."""

    def transfer(self, mount: Mount, **more: Any) -> Dict[str, Any]:
        return {
            "kv_connector": "UcmfsConnector", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                **mount.where, "min_benefit": {"enabled": False}, **more}}

    def test_loaded_pages(self) -> None:
        for mode in "async", "layerwise":
            with self.subTest(mode=mode):
                self.loaded_pages(mode)

    def loaded_pages(self, mode: str) -> None:
        mount = Mount()
        self.addCleanup(mount.close)
        few = {**method("ESA", 0.1), "load": mode}
        transfer = self.transfer(mount, **few)
        # the others' pages are taken again for the loaded ones
        steps = [generate("long", max_tokens=TOKENS), SETTLE, reset(True),
                 generate("middle", "short"), SETTLE, reset(True),
                 generate("long", max_tokens=TOKENS)]
        room = {"max_model_len": 1536, "num_gpu_blocks_override": 49}
        computed, *_, loaded = self.run_engine(steps, few, transfer=transfer,
                                               **room)
        self.assertNotEqual(computed["long"]["tokens"],
                            self.wanted["long"][:TOKENS])
        self.assertGreaterEqual(loaded["long"]["cached"],
                                suite.cached_tokens("long", False))
        self.assertEqual(loaded["long"]["tokens"], computed["long"]["tokens"])
        rows = [row for row in self.rows
                if row.tokens > len(PROMPTS["long"])]
        self.assertEqual(rows[:len(rows) // 2], rows[len(rows) // 2:])
        self.assertEqual({row.absent for row in rows}, {0, 1})

    def test_blocks_are_no_dense_engines(self) -> None:
        """Generated tokens come to be part of a prompt."""
        mount = Mount()
        self.addCleanup(mount.close)
        few, steps = method("ESA", 0.1), [generate("middle"), SETTLE]
        known: Set[str] = set()
        for wanted in (None, few, None, few, method("ESA", 0.2)):
            result, _ = self.run_engine(
                steps, wanted, transfer=self.transfer(mount, **(wanted or {})))
            with self.subTest(wanted=wanted):
                self.assertEqual(result["middle"]["cached"] > 0,
                                 str(wanted) in known)
                known.add(str(wanted))

    def test_the_last_token_of_a_prompt_is_dense(self) -> None:
        """Of a prompt that is loaded to its end it is the only one that is
        computed, and its key may be stored."""
        mount = Mount()
        self.addCleanup(mount.close)
        steps = [generate("exact"), SETTLE, reset(True), generate("exact")]
        few = method("ESA", 0.1)
        computed, *_, loaded = self.run_engine(
            steps, few, transfer=self.transfer(mount, ucm_sparse_config={
                few["sparse_type"]: few[few["sparse_type"]]}))
        self.assertEqual(loaded["exact"]["cached"], len(PROMPTS["exact"]))
        self.assertEqual(loaded["exact"]["tokens"],
                         computed["exact"]["tokens"])
        self.assertEqual(loaded["exact"]["tokens"][0],
                         self.wanted["exact"][0])
        self.assertEqual(min(row.tokens for row in self.rows),
                         len(PROMPTS["exact"]) + 1)

    def test_the_metrics_have_the_ratio(self) -> None:
        """A prompt's rows, which are in a batch with those that decode, are
        left out. A layer that takes the choice of the one before it counts,
        though it is not watched."""
        for few, layers in ((method("GSA", 0.25, 2, 3), 1),
                            (codes(8 * BLOCK, hash_skip_layers=[1]), 2)):
            mount = Mount()
            self.addCleanup(mount.close)
            _, metrics = self.run_engine(
                [generate(max_tokens=TOKENS), METRICS], few,
                transfer=self.transfer(mount, **few), **CHUNKS)
            attended, blocks = (samples(metrics, f"vllm:ucmfs_{name}_total")
                                for name in ("sparse_attended_blocks",
                                             "sparse_blocks"))
            self.assertEqual(attended, layers * sum(
                row.attended for row in self.rows))
            self.assertEqual(blocks, layers * sum(
                -(-row.tokens // BLOCK) for row in self.rows))
            self.assertGreater(blocks, 2 * attended)


class Refusals(unittest.TestCase):

    @classmethod
    def setUpClass(cls) -> None:
        suite.require_engine()

    def why(self, name: str = "GSA", transfer: Any = None, context: int = 1,
            **impl: Any) -> str:
        from ucmfs import methods
        from ucmfs.vllm.sparse import refusal

        layer = {"attn_type": "decoder", "sliding_window": -1,
                 "kv_sharing_target_layer_name": None,
                 "kv_cache_dtype": "auto", "is_fp8_kv_cache": False,
                 "alibi_slopes": None, **impl}
        parallel = SimpleNamespace(decode_context_parallel_size=context)
        return refusal(SimpleNamespace(**layer), SimpleNamespace(
            kv_transfer_config=transfer, parallel_config=parallel),
            methods.find(name))

    def test_a_plain_layer_is_not_refused(self) -> None:
        for connector in None, self.connector("UcmfsConnector"):
            self.assertEqual(self.why(transfer=connector), "")

    @staticmethod
    def connector(name: str) -> SimpleNamespace:
        return SimpleNamespace(kv_connector=name)

    def test_each_by_name(self) -> None:
        for given, why in (
                ({"name": "Blend"}, "Blend chooses no blocks"),
                ({"context": 2}, "context parallelism"),
                ({"attn_type": "encoder_decoder"},
                 "encoder_decoder attention"),
                ({"attn_type": "encoder_only"}, "encoder_only attention"),
                ({"sliding_window": 4096}, "sliding window"),
                ({"kv_sharing_target_layer_name": "model.layers.0"},
                 "share the KV cache"),
                ({"is_fp8_kv_cache": True, "kv_cache_dtype": "fp8"},
                 "a KV cache of fp8"),
                ({"alibi_slopes": [1.0]}, "ALiBi"),
                ({"transfer": self.connector("OffloadingConnector")},
                 "OffloadingConnector does not say which pages it loads")):
            with self.subTest(given=given):
                self.assertIn(why, self.why(**given))


if __name__ == "__main__":
    unittest.main()
