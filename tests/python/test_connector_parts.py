# SPDX-License-Identifier: Apache-2.0
"""The parts of the vLLM connector that need no vLLM: requests that are looked
at, hits over several groups, pins, and the rule of minimum benefit."""

from __future__ import annotations

import random
import subprocess
import sys
import unittest
from types import SimpleNamespace

from tests.lib.seed import SEED
from ucmfs.layout import Geometry
from ucmfs.vllm import benefit, hits
from ucmfs.vllm.groups import Group, Home, Plan
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
