# SPDX-License-Identifier: Apache-2.0
"""The parts of the vLLM connector that need no vLLM: what of an engine's
groups becomes blocks, hits over several groups, pins, and the rule of minimum
benefit."""

from __future__ import annotations

import random
import subprocess
import sys
import unittest
from types import SimpleNamespace

from tests.lib.seed import SEED
from ucmfs.errors import ConfigError
from ucmfs.layout import Geometry
from ucmfs.vllm import benefit, hits
from ucmfs.vllm.groups import (Group, Home, Plan, homes_of, pack, plan_of,
                               space_names, stages_of)
from ucmfs.vllm.options import ConnectorOptions
from ucmfs.vllm.pins import Pins
from ucmfs.vllm.spaces import load_mode
from ucmfs.vllm.undecided import Undecided


class Imports(unittest.TestCase):

    def test_cheap(self) -> None:
        """Neither packages nor threads nor libucm by an import."""
        code = ("import sys, threading\nimport ucmfs.vllm\n"
                "from ucmfs.vllm import groups, hits, mount, options, pins\n"
                "print(sorted({'vllm', 'torch', 'numpy'} & set(sys.modules)),"
                " threading.active_count())\n"
                "from ucmfs import _lib\nprint(_lib._library is None"
                " if hasattr(_lib, '_library') else True)")
        out = subprocess.run([sys.executable, "-c", code], check=True,
                             capture_output=True, text=True).stdout
        self.assertEqual(out.split("\n")[:2], ["[] 1", "True"])


class WhoIsLookedAt(unittest.TestCase):

    def setUp(self) -> None:
        self.some = Undecided()
        self.step = 0

    def due(self, **scheduled: int) -> list:
        self.step += 1
        return self.some.due(self.step, scheduled, sum(scheduled.values()))

    def test_only_the_scheduled(self) -> None:
        self.some.wake("a")
        self.some.wake("b")
        self.assertEqual(self.due(), [])
        self.assertEqual(self.due(b=1, c=5), ["b"])
        self.assertEqual(self.due(a=1, b=1), ["a", "b"])

    def test_after_as_many_steps_as_tokens(self) -> None:
        self.some.wake("a")
        self.due(a=1)
        self.some.sleep("a", 3, 1)
        self.assertIn("a", self.some)
        self.assertEqual([self.due(a=1) for _ in range(4)],
                         [[], [], ["a"], ["a"]])

    def test_at_their_pace(self) -> None:
        self.some.wake("a")
        self.due(a=4)
        self.some.sleep("a", 9, 4)
        self.assertEqual([self.due(a=4, b=4) for _ in range(3)],
                         [[], [], ["a"]])

    def test_at_once_where_they_get_more(self) -> None:
        for name in "abc":
            self.some.wake(name)
        self.due(a=1, b=1, c=1)
        for name in "abc":
            self.some.sleep(name, 16, 1)
        self.assertEqual(self.due(a=1, b=1, c=1, d=300), [])
        self.assertEqual(self.due(a=1, b=3, c=1, d=300), ["b"])
        self.assertEqual(self.due(a=2, c=2), ["a", "c"])

    def test_steps_that_nobody_asked_about(self) -> None:
        self.some.wake("a")
        self.due(a=1)
        self.some.sleep("a", 2, 1)
        self.step = 90
        self.assertEqual(self.due(a=1), ["a"])

    def test_who_was_woken_and_sleeps_again(self) -> None:
        self.some.wake("a")
        self.due(a=1)
        self.some.sleep("a", 3, 1)
        self.some.wake("a")
        self.some.sleep("a", 6, 1)
        self.assertEqual([self.due(a=1) for _ in range(6)],
                         5 * [[]] + [["a"]])

    def test_what_has_ended(self) -> None:
        self.some.wake("a")
        self.due(a=1)
        self.some.sleep("a", 2, 1)
        self.some.drop("a")
        self.assertEqual(len(self.some), 0)
        self.assertEqual([self.due(a=2) for _ in range(3)], [[]] * 3)

    def test_against_all_looked_at(self) -> None:
        """Whatever is scheduled, nobody sleeps over a block."""
        rng = random.Random(SEED)
        computed = dict.fromkeys("abcde", 0)
        wanted = dict.fromkeys("abcde", 16)
        for name in computed:
            self.some.wake(name)
        looks = 0
        for _ in range(3000):
            scheduled = {
                name: rng.choice((1, 1, 1, 1, 2, 5, 40))
                for name in computed if rng.random() < 0.8}
            due = self.due(**scheduled)
            looks += len(due)
            for name, tokens in scheduled.items():
                computed[name] += tokens
                if computed[name] >= wanted[name]:
                    self.assertIn(name, due)
            for name in due:
                if computed[name] >= wanted[name]:
                    wanted[name] = computed[name] // 16 * 16 + 16
                self.some.sleep(name, wanted[name] - computed[name],
                                scheduled[name])
        self.assertLess(looks, sum(computed.values()) // 2)


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


class FakeIndex:
    """Ids that are there."""

    def __init__(self, there: set) -> None:
        self.there = there
        self.calls = 0

    def lookup(self, ids: bytes):
        self.calls += 1
        found = bytes(ids[i:i + 16] in self.there
                      for i in range(0, len(ids), 16))
        return found, bytes(len(found))

    def prefix(self, ids: bytes):
        found, _ = self.lookup(ids)
        end = found.find(b"\0")
        return (len(found) if end < 0 else end), False


class FakeHasher:
    """Ids that tell what they were made of."""

    def __init__(self, group: int) -> None:
        self.group = group

    def external(self, hashes: bytes, size: int, group: int) -> bytes:
        assert group == self.group
        return b"".join(hashes[i:i + 14] + bytes([group, 0])
                        for i in range(0, len(hashes), size))

    def rank_ids(self, rank: int, ids: bytes) -> bytes:
        return b"".join(ids[i:i + 15] + bytes([rank])
                        for i in range(0, len(ids), 16))


def hashes_of(num: int) -> list:
    return [b"%014d" % i + bytes(18) for i in range(num)]


def plan_with(shards: int, *groups: Group, hash_tokens: int = 16,
              alignment: int = 16, stages: int = 1) -> Plan:
    return Plan(tuple(groups), 100, hash_tokens, alignment, shards,
                stages=stages)


def group_with(index: int, tokens: int, **more: int) -> Group:
    return Group(index, ("a",), tokens, Geometry(1, tokens, k_bytes=1),
                 **more)


class Hits(unittest.TestCase):

    def test_ids(self) -> None:
        """Grown bit by bit they are what they are at once; a block is called
        after its last hash; shards lie next to each other."""
        for shards in (1, 3):
            plan = plan_with(shards, group_with(0, 16), group_with(1, 48))
            hashers = [FakeHasher(0), FakeHasher(1)]
            grown = hits.Ids(plan, hashers)
            for num in (0, 1, 2, 5, 6, 6, 20):
                grown.update(hashes_of(num))
                once = hits.Ids(plan, hashers)
                once.update(hashes_of(num))
                self.assertEqual((grown.base, grown.all),
                                 (once.base, once.all))
                self.assertEqual(grown.blocks(1), num // 3)
            self.assertEqual(
                grown.all[1][:16 * shards],
                b"".join(hashes_of(3)[2][:14] + bytes([1, s])
                         for s in range(shards)))
            # another request under the same name
            other = [b"x" * 32] * 20
            grown.update(other)
            fresh = hits.Ids(plan, hashers)
            fresh.update(other)
            self.assertEqual(grown.all, fresh.all)

    @staticmethod
    def some_homes(rng: random.Random, stages: int, groups: int) -> list:
        """Of each group one stage at least."""
        every = [Home(stage, g) for stage in range(stages)
                 for g in range(groups)]
        kept = {Home(rng.randrange(stages), g) for g in range(groups)}
        return [home for home in every if home in kept or rng.random() < 0.6]

    def slow_hit(self, plan: Plan, homes: list, there: list, ids: hits.Ids,
                 local: int, limit: int) -> int:
        """By trying each length."""
        each = plan.stage_shards
        for tokens in range(limit // plan.alignment * plan.alignment, local,
                            -plan.alignment):
            for g, group in enumerate(plan.groups):
                step = 16 * plan.shards
                first = max(group.first_needed(tokens),
                            local // group.block_tokens)
                wanted = ids.all[g][first * step:
                                    tokens // group.block_tokens * step]
                if any(wanted[i:i + 16] not in there[g]
                       for i in range(0, len(wanted), 16)
                       if (wanted[i + 15] // each, g) in homes):
                    break
            else:
                return tokens
        return local

    def test_longest(self) -> None:
        rng = random.Random(SEED)
        for turn in range(400):
            stages = rng.choice((1, 1, 2, 3))
            each = rng.choice((1, 2))  # shards of a stage
            groups = [group_with(0, 32)]
            for g in range(1, rng.randint(1, 3)):
                groups.append(group_with(
                    g, rng.choice((16, 32)), **rng.choice((
                        {}, {"window": rng.randint(1, 200)}, {"chunk": 64}))))
            plan = plan_with(each * stages, *groups, alignment=32,
                             stages=stages)
            ids = hits.Ids(plan, [FakeHasher(g) for g in range(len(groups))])
            ids.update(hashes_of(40))
            homes = self.some_homes(rng, stages, len(groups))
            there = []
            for g in range(len(groups)):
                all_ids = [ids.all[g][i:i + 16]
                           for i in range(0, len(ids.all[g]), 16)
                           if (ids.all[g][i + 15] // each, g) in homes]
                lost = rng.sample(range(len(all_ids)), rng.randint(0, 3))
                there.append({one for i, one in enumerate(all_ids)
                              if i not in lost})
            # Ids tell their shard. Each stage has none of the others.
            indexes = [FakeIndex({one for one in there[home.group]
                                  if one[15] // each == home.stage})
                       for home in homes]
            local = rng.choice((0, 0, 32, 96, 320))
            limit = rng.randint(0, 640)
            got = hits.longest_hit(
                plan, hits.of_groups(plan, homes, indexes), ids, local, limit)
            self.assertEqual(
                max(got, local), max(self.slow_hit(
                    plan, homes, there, ids, local, limit), local),
                (turn, plan, local, limit))
            for index in indexes:
                self.assertLessEqual(index.calls, 1)

    def test_drop_last(self) -> None:
        """As vLLM does where a drafter's cache is in a block."""
        plan = Plan((group_with(0, 16),), 100, 16, 16, drop_last=True)
        ids = hits.Ids(plan, [FakeHasher(0)])
        ids.update(hashes_of(4))
        index = FakeIndex({ids.all[0][i:i + 16] for i in range(0, 64, 16)})
        self.assertEqual(hits.longest_hit(plan, [index], ids, 0, 64), 48)
        self.assertEqual(hits.longest_hit(plan, [index], ids, 48, 64), 48)

    def test_drop_last_of_a_window(self) -> None:
        """What is left of the hit has its window in the store, too."""
        plan = Plan((group_with(0, 16), group_with(1, 16, window=17)), 100,
                    16, 16, drop_last=True)
        ids = hits.Ids(plan, [FakeHasher(0), FakeHasher(1)])
        ids.update(hashes_of(6))
        whole, window = ([a[i:i + 16] for i in range(0, 96, 16)]
                         for a in ids.all)
        for there, tokens in (((5,), 0), ((4, 5), 80), ((2, 5), 48),
                              ((0, 1, 2, 3, 4, 5), 80)):
            with self.subTest(there=there):
                indexes = [FakeIndex(set(whole)),
                           FakeIndex({window[i] for i in there})]
                self.assertEqual(hits.longest_hit(plan, indexes, ids, 0, 96),
                                 tokens)

    def test_budget(self) -> None:
        num = 3 * hits.PIECE
        ids = b"".join(b"%016d" % i for i in range(num))
        there = FakeIndex({ids[i:i + 16] for i in range(0, 16 * num, 16)})
        now = [0.0]

        def clock() -> float:
            now[0] += 1.0
            return now[0]

        slow = hits.Budget(there, 1.5, clock)
        self.assertEqual(slow.prefix(ids)[0], 2 * hits.PIECE)
        self.assertTrue(slow.cut)
        quick = hits.Budget(there, 1e9, clock)
        self.assertEqual(quick.prefix(ids), (num, False))
        self.assertEqual(quick.lookup(ids)[0], b"\1" * num)
        self.assertFalse(quick.cut)
        late = hits.Budget(there, 0.0, clock)
        present, unknown = late.lookup(ids)
        self.assertEqual(present, b"\1" * hits.PIECE + bytes(2 * hits.PIECE))
        self.assertEqual(unknown, bytes(hits.PIECE) + b"\1" * 2 * hits.PIECE)


class Pool:
    """vLLM's, as far as pins use it."""

    def __init__(self, num: int) -> None:
        self.blocks = [SimpleNamespace(ref=0) for _ in range(num)]

    def touch(self, blocks: list) -> None:
        for block in blocks:
            block.ref += 1

    def free_blocks(self, blocks: list) -> None:
        for block in blocks:
            block.ref -= 1
            assert block.ref >= 0


class PinsTest(unittest.TestCase):

    def test_ranks(self) -> None:
        pool, pins = Pool(8), Pins(2, 5)
        self.assertEqual(pins.room, 0)
        pins.bind(pool)
        pins.add(1, [2, 3])
        pins.add(2, [3])
        self.assertEqual((pins.room, len(pins), pool.blocks[3].ref),
                         (2, 2, 2))
        self.assertFalse(pins.done(1, 1))
        self.assertTrue(pins.done(1, 1))
        self.assertFalse(pins.done(1, 1))
        self.assertFalse(pins.done(9, 2))
        self.assertTrue(pins.holds(2))
        self.assertTrue(pins.done(2, 2))
        self.assertFalse(pins.holds(2))
        self.assertEqual([b.ref for b in pool.blocks], [0] * 8)
        self.assertEqual((pins.room, len(pins)), (5, 0))


class LoadMode(unittest.TestCase):

    def test_in_the_step(self) -> None:
        """Only where vLLM hears of a failed load before it hands out the
        tokens of the step."""
        one = Plan((group_with(0, 16),), 100, 16, 16)
        two = Plan((group_with(0, 16), group_with(1, 16)), 100, 16, 16)
        stages = plan_with(2, group_with(0, 16), stages=2)
        quiet = SimpleNamespace(max_concurrent_batches=1,
                                speculative_config=None)
        for load in ("sync", "layerwise"):
            options = ConnectorOptions("/m", load=load)
            for config, plan, why in (
                    (quiet, one, ""), (quiet, two, "groups"),
                    (quiet, stages, "pipeline"),
                    (SimpleNamespace(max_concurrent_batches=2), one,
                     "asynchronous scheduling"),
                    (SimpleNamespace(max_concurrent_batches=1,
                                     speculative_config=object()), one,
                     "speculative")):
                with self.subTest(load=load, why=why):
                    mode, told = load_mode(config, plan, options)
                    self.assertEqual(mode, "async" if why else load)
                    self.assertIn(why, told)


class BenefitTest(unittest.TestCase):

    def rule(self, **more: object) -> benefit.Benefit:
        self.now = 0.0
        return benefit.Benefit(**{"enabled": True, **more},
                               clock=lambda: self.now)

    def test_given(self) -> None:
        rule = self.rule(bytes_per_second=100.0, tokens_per_second=10.0)
        self.assertTrue(rule.worth(100, 10))
        self.assertFalse(rule.worth(101, 10))
        off = self.rule(enabled=False, bytes_per_second=1.0,
                        tokens_per_second=1e9)
        self.assertTrue(off.worth(10**9, 1))

    def test_measured(self) -> None:
        """Not before there are samples; with two steps' time; and not on old
        ones."""
        rule = self.rule()
        for i in range(benefit.SAMPLES):
            self.assertTrue(rule.worth(10**9, 1))
            rule.begin_step(i, 100)
            self.now += 0.1
            rule.end_step(i)
            rule.loaded(1000, 0.5)
        self.assertAlmostEqual(rule.prefill.value, 1000.0)
        self.assertAlmostEqual(rule.bandwidth.value, 2000.0)
        # 1000 tokens take 1 s; two steps 0.2 s; what is left is 0.8 s
        self.assertTrue(rule.worth(1599, 1000))
        self.assertFalse(rule.worth(1601, 1000))
        self.now += benefit.FRESH + 1
        self.assertTrue(rule.worth(1601, 1000))

    def test_steps_that_overlap(self) -> None:
        rule = self.rule()
        rule.begin_step(1, 100)
        self.now = 1.0
        rule.begin_step(2, 100)
        self.now = 2.0
        rule.end_step(1)
        self.now = 3.0
        rule.end_step(2)
        self.assertAlmostEqual(rule.step.value, 0.5 + 0.2 * (1.0 - 0.5))

    def test_steps_without_an_end(self) -> None:
        """Of idle steps, and of lost ones, nothing is learnt."""
        rule = self.rule()
        for step in range(40):
            rule.begin_step(step, 0)
        rule.begin_step(40, 1)
        self.now = 5.0
        rule.begin_step(41, 100)
        self.now = 6.0
        rule.end_step(41)
        self.assertAlmostEqual(rule.prefill.value, 100.0)
        rule.end_step(41)
        rule.end_step(40)
        self.assertEqual(rule.step.samples, 1)


if __name__ == "__main__":
    unittest.main()
