# SPDX-License-Identifier: Apache-2.0
"""What of an engine's groups becomes blocks: plans of the vLLM connector, which
need no vLLM."""

from __future__ import annotations

import random
import unittest
from types import SimpleNamespace

from ucmfs.errors import ConfigError
from ucmfs.layout import Geometry
from ucmfs.vllm.groups import (
    Group, Plan, homes_of, pack, plan_of, space_names, stages_of)


class FullAttentionSpec(SimpleNamespace):
    pass


class SlidingWindowSpec(SimpleNamespace):
    pass


class MambaSpec(SimpleNamespace):
    pass


class CrossAttentionSpec(SimpleNamespace):
    pass


class MLAAttentionSpec(SimpleNamespace):
    pass


def config_of(*specs: SimpleNamespace, **more: object) -> SimpleNamespace:
    groups = [SimpleNamespace(layer_names=[f"layer{g}.0", f"layer{g}.1"],
                              kv_cache_spec=spec)
              for g, spec in enumerate(specs)]
    return SimpleNamespace(kv_cache_groups=groups, kv_cache_tensors=[],
                           num_blocks=10, **more)


def vllm_of(**parallel: int) -> SimpleNamespace:
    return SimpleNamespace(parallel_config=SimpleNamespace(
        **{"tensor_parallel_size": 1, **parallel}), speculative_config=None)


class Plans(unittest.TestCase):

    def test_one_group(self) -> None:
        plan = plan_of(vllm_of(tensor_parallel_size=4), config_of(
            FullAttentionSpec(block_size=16, unpadded_page_size_bytes=96,
                              page_size_bytes=128)), 16, 16)
        self.assertEqual(plan.groups[0].geometry, Geometry(
            2, 16, "opaque", 96, 0, order="opaque"))
        self.assertEqual((plan.shards, plan.replicas), (4, 1))
        self.assertEqual(space_names([plan], "a"), ["a"])

    def test_mixed(self) -> None:
        plan = plan_of(vllm_of(), config_of(
            FullAttentionSpec(block_size=32, page_size_bytes=64),
            SlidingWindowSpec(block_size=16, page_size_bytes=64,
                              sliding_window=40)), 16, 32)
        self.assertEqual([g.window for g in plan.groups], [0, 40])
        self.assertEqual(plan.alignment, 32)
        self.assertEqual(space_names([plan], "a"), ["a-g0", "a-g1"])

    def test_first_needed(self) -> None:
        group = Group(0, (), 16, Geometry(1, 16, k_bytes=1), window=40)
        for tokens in range(300):
            want = max(0, tokens - 40 + 1) // 16
            self.assertEqual(group.first_needed(tokens), want)
        chunk = Group(0, (), 16, Geometry(1, 16, k_bytes=1), chunk=64)
        self.assertEqual([chunk.first_needed(t) for t in (0, 63, 64, 130)],
                         [0, 0, 4, 8])

    def test_states(self) -> None:
        """The one that a hit ends with, and no other."""
        plan = plan_of(vllm_of(), config_of(
            FullAttentionSpec(block_size=16, page_size_bytes=64),
            MambaSpec(block_size=32, page_size_bytes=64,
                      real_page_size_bytes=60, mamba_cache_mode="align")),
            16, 32)
        self.assertEqual(plan.groups[1].geometry.payload_bytes, 2 * 60)
        self.assertFalse(plan.groups[1].whole)
        self.assertEqual([plan.groups[1].first_needed(t)
                          for t in (0, 32, 64, 96)], [0, 0, 1, 2])

    def test_replicas(self) -> None:
        mla = MLAAttentionSpec(block_size=16, page_size_bytes=64)
        plan = plan_of(vllm_of(tensor_parallel_size=4), config_of(mla), 16,
                       16)
        self.assertEqual((plan.shards, plan.replicas), (1, 4))
        told = plan_of(vllm_of(tensor_parallel_size=4),
                       config_of(mla, kv_tp_replicas=2), 16, 16)
        self.assertEqual([told.shard_of(r) for r in range(4)], [0, 0, 1, 1])
        for block in range(9):
            for shard in (0, 1):
                writers = [r for r in range(4) if told.shard_of(r) == shard
                           and told.writes(r, block)]
                self.assertEqual(len(writers), 1)

    def stage(self, *layers: str, size: int = 64, **more: int) -> Plan:
        """What a worker with these layers makes of them."""
        config = config_of(FullAttentionSpec(
            block_size=16, page_size_bytes=size), kv_tp_replicas=more.pop(
                "replicas", 1))
        config.kv_cache_groups[0].layer_names = list(layers)
        return plan_of(vllm_of(tensor_parallel_size=2,
                               pipeline_parallel_size=2, **more), config, 16,
                       16)

    def test_stages(self) -> None:
        first, second = self.stage("a", "b"), self.stage("c")
        self.assertEqual((first.ranks, first.shards, first.stage_shards),
                         (4, 4, 2))
        self.assertEqual([first.stage_of(rank) for rank in range(4)],
                         [0, 0, 1, 1])
        self.assertEqual(space_names([first, second], "a"),
                         ["a-p0", "a-p1"])
        told = {(s, r): (first, second)[s] for s in (0, 1) for r in (0, 1)}
        self.assertEqual(stages_of(first, told), (first, second))
        same = self.stage("a", replicas=2)
        self.assertEqual((same.shards, same.stage_shards), (2, 1))
        self.assertEqual([same.stage_of(rank) for rank in range(4)],
                         [0, 0, 1, 1])

    def test_stages_that_do_not_fit(self) -> None:
        first, second = self.stage("a", "b"), self.stage("c")
        told = {(s, r): (first, second)[s] for s in (0, 1) for r in (0, 1)}
        for place, other, text in (
                ((1, 1), None, "rank 1 of stage 1 has not told"),
                ((1, 1), self.stage("d"), "rank 1 of stage 1"),
                ((1, 1), self.stage("c", size=32), "rank 1 of stage 1"),
                ((0, 0), self.stage("a", "b", replicas=2),
                 "rank 0 of stage 0")):
            with self.subTest(text=text), self.assertRaisesRegex(
                    ConfigError, text):
                stages_of(first, {**told, place: other})

    def stage_of(self, *layers: str, second: object = None,
                 stages: int = 3) -> Plan:
        """A stage with so many layers of two groups: names, "" for none."""
        config = config_of(
            FullAttentionSpec(block_size=16, page_size_bytes=64),
            second or SlidingWindowSpec(block_size=32, page_size_bytes=64,
                                        sliding_window=40), kv_tp_replicas=1)
        for group, names in zip(config.kv_cache_groups, layers):
            group.layer_names = names.split()
        return plan_of(vllm_of(pipeline_parallel_size=stages), config, 16, 32)

    def test_a_stage_without_layers_of_a_group(self) -> None:
        stages = (self.stage_of("a b", ""), self.stage_of("c", "d"),
                  self.stage_of("", "e f g"))
        first = stages[0].groups[1]
        self.assertEqual((first.geometry, first.payload_bytes, first.window),
                         (None, 0, 40))
        self.assertEqual(stages[0].bytes_of(64), 4 * 128)
        self.assertEqual(stages[2].bytes_of(64), 2 * 192)
        self.assertEqual(homes_of(stages), ((0, 0), (1, 0), (1, 1), (2, 1)))
        self.assertEqual(space_names(stages, "a"), [
            "a-g0-p0", "a-g0-p1", "a-g1-p1", "a-g1-p2"])
        told = {(s, 0): stage for s, stage in enumerate(stages)}
        self.assertEqual(stages_of(stages[0], told), stages)
        with self.assertRaisesRegex(ConfigError, "no stage .* of group 1"):
            stages_of(stages[0], {**told, (1, 0): self.stage_of("c", ""),
                                  (2, 0): self.stage_of("e", "")})
        other = SlidingWindowSpec(block_size=32, page_size_bytes=64,
                                  sliding_window=41)
        with self.assertRaisesRegex(ConfigError, "rank 0 of stage 2"):
            stages_of(stages[0], {**told, (2, 0): self.stage_of(
                "c", "d", second=other)})

    def test_a_stage_that_vllm_cannot_run(self) -> None:
        """It says which partition it takes."""
        state = MambaSpec(block_size=16, page_size_bytes=64,
                          mamba_cache_mode="align")
        sizes = SimpleNamespace(block_size=16, kv_cache_specs={
            name: FullAttentionSpec(block_size=16, page_size_bytes=size)
            for name, size in (("d", 64), ("e", 32))})
        for layers, more, text in (
                (("", ""), {}, "pipeline_parallel_size: .* can be stored"),
                (("a", ""), {"stages": 1}, "kv_cache_groups: .* no layers"),
                (("a", ""), {"second": state},
                 "VLLM_PP_LAYER_PARTITION .* each needs one with a state"),
                (("a", ""), {"second": sizes},
                 "VLLM_PP_LAYER_PARTITION .* some of that group")):
            with self.subTest(text=text), \
                    self.assertRaisesRegex(ConfigError, text):
                self.stage_of(*layers, **more)
        plan = self.stage_of("", "d", second=state)
        self.assertEqual(plan.groups[0].layers, ())

    def test_not_for_a_hash(self) -> None:
        """Groups that no hash finds are none of ours."""
        plan = plan_of(vllm_of(), config_of(
            FullAttentionSpec(block_size=16, page_size_bytes=64),
            MambaSpec(block_size=16, page_size_bytes=64),
            prefix_cacheable_group_ids=(0,)), 16, 16)
        self.assertEqual([g.index for g in plan.groups], [0])

    def refused(self, text: str, vllm: SimpleNamespace,
                config: SimpleNamespace) -> None:
        with self.assertRaisesRegex(ConfigError, text):
            plan_of(vllm, config, 16, 16)

    def test_refused(self) -> None:
        full = FullAttentionSpec(block_size=16, page_size_bytes=64)
        self.refused("CrossAttentionSpec", vllm_of(), config_of(
            full, CrossAttentionSpec(block_size=16, page_size_bytes=64)))
        for mode, blocks in (("none", 0), ("all", 0), ("align", 2)):
            self.refused(
                "'align' is needed" if mode != "align" else "speculative",
                vllm_of(), config_of(full, MambaSpec(
                    block_size=16, page_size_bytes=64, mamba_cache_mode=mode,
                    num_speculative_blocks=blocks)))
        self.refused("decode_context", vllm_of(
            decode_context_parallel_size=2), config_of(full))
        self.refused("prefill_context", vllm_of(
            prefill_context_parallel_size=2), config_of(full))
        self.refused("none of them", vllm_of(), config_of(
            full, prefix_cacheable_group_ids=()))
        self.refused("hashes are over 16", vllm_of(), config_of(
            FullAttentionSpec(block_size=24, page_size_bytes=64)))

    def test_pages_of_two_sizes(self) -> None:
        """As a worker is told, and as the scheduler is: the same."""
        a = MLAAttentionSpec(block_size=16, page_size_bytes=96)
        b = MLAAttentionSpec(block_size=16, page_size_bytes=64)
        both = SimpleNamespace(
            block_size=16, kv_cache_specs={"layer0.0": a, "layer0.1": b})
        self.refused("different sizes", vllm_of(), config_of(both))
        for spec in (both, a):
            config = config_of(spec)
            config.kv_cache_tensors = [
                SimpleNamespace(layers=["layer0.0"], layer_stride=960,
                                block_stride=96),
                SimpleNamespace(layers=["layer0.1"], layer_stride=640,
                                block_stride=64)]
            group, = plan_of(vllm_of(), config, 16, 16).groups
            self.assertEqual(group.geometry, Geometry(
                1, 16, "opaque", 96, 64, order="opaque"))
            self.assertEqual(group.places, ((0, "k"), (0, "v")))
            self.assertEqual(group.sizes, (96, 64))
        # a head's part of a page, where heads are outermost
        config.kv_cache_tensors[0].block_stride = 48
        self.refused("different sizes", vllm_of(), config)

    def test_packed(self) -> None:
        """Each layer has a place that holds it, and no other has it."""
        rng = random.Random(7)
        for _ in range(300):
            sizes = [rng.choice((8, 8, 16, 24, 40, 96))
                     for _ in range(rng.randint(1, 9))]
            k, v, places = pack(sizes)
            rows = 1 + max(row for row, _ in places)
            self.assertEqual(len(set(places)), len(sizes))
            self.assertEqual({row for row, plane in places if plane == "k"},
                             set(range(rows)))
            for size, (_, plane) in zip(sizes, places):
                self.assertLessEqual(size, k if plane == "k" else v)
            self.assertLessEqual(rows * (k + v), len(sizes) * max(sizes))
        # MLA and its indexers, in any order: no padding, neighbours together
        self.assertEqual(pack([96, 8, 96, 8]), (
            96, 8, ((0, "k"), (0, "v"), (1, "k"), (1, "v"))))
        self.assertEqual(pack([96, 96, 8, 8]), (
            96, 8, ((0, "k"), (1, "k"), (0, "v"), (1, "v"))))
        # fewer indexers than layers; and the other way round
        self.assertEqual(pack([96, 96, 8])[:2], (96, 8))
        self.assertEqual(pack([96, 8, 8, 8]), (
            96, 8, ((0, "k"), (0, "v"), (1, "v"), (1, "k"))))


if __name__ == "__main__":
    unittest.main()
