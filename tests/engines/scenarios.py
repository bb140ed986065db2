# SPDX-License-Identifier: Apache-2.0
"""scenarios.py - what holds of every way to keep vLLM's blocks in ucmfs.

A way is a subclass of one of these and of unittest.TestCase that says how vLLM
is configured for it (transfer) and which files it left (stored). The tokens
must be those of the engine without a store, always; how many of them came from
the store is compared exactly where nothing is broken.

The first engine of a way runs in setUpClass and fills a tier; each test works
on a copy of that.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import time
import unittest
from typing import Any, Callable, Dict, List, Optional, Set

import adapter
import suite
from mount import Mount, Served
from suite import CROWD, METRICS, SETTLE, STRAY, STRAY_SHARES, TRAFFIC
from suite import generate, pause, reset

LONG = os.environ.get("UCMFS_TEST_LONG", "0") not in ("", "0")
# room for 5 prompts of 10 blocks, not for what 4 of them grow to
TIGHT = {"max_model_len": 512, "num_gpu_blocks_override": 51,
         "max_num_batched_tokens": 64}
TOKENS = 100  # so that they grow by 3 blocks
PREEMPTIONS = "vllm:num_preemptions_total"
ADAPTERS = {"enable_lora": True, "max_lora_rank": adapter.RANK,
            "max_loras": 2, "max_cpu_loras": 4}
PAYLOAD = 4096  # of a block's file: what is behind its header
# that share nothing with others, longest last
APART = ["short", "exact", "middle", "long"]


class Basics:
    """In the same process and in a new one."""

    # requests wait for their blocks
    waits = True
    # a prompt that ends with a block is loaded to its end
    whole_prompts = True
    # no save is ever left out for want of room
    saves_all = True
    # of the model, see tiny_model.py: all layers see all tokens
    kind = ""
    parallel = suite.ALONE
    shards = 1  # files of a block
    # of a prompt that begins as another one
    stray_shares = STRAY_SHARES
    wanted: Dict[str, List[int]]
    filled: Mount
    first: List[Any]
    warned: List[str]
    files_of: Dict[str, List[str]]

    # what a way says

    @staticmethod
    def transfer(mount: Mount, **more: Any) -> Dict[str, Any]:
        """Arguments of KVTransferConfig; more: of the way's own options."""
        raise NotImplementedError

    @staticmethod
    def stored(mount: Mount) -> List[str]:
        """The files in the tiers that hold blocks."""
        raise NotImplementedError

    # arranging

    @classmethod
    def setUpClass(cls) -> None:
        suite.require_engine()
        cls.wanted = suite.reference(cls.kind, cls.parallel)
        cls.filled = Mount()
        cls.addClassCleanup(cls.filled.close)
        steps = []
        for name in APART:
            steps += [generate(name), SETTLE, pause(name)]
        steps += [generate(), SETTLE, cls.forget(), generate(one_by_one=True),
                  SETTLE]
        with cls.start_engine(cls.filled, steps) as start:
            cls.files_of = cls.files_by_prompt(start)
            cls.first = start.results()
            cls.warned = [line for line in start.said.splitlines()
                          if "ucmfs" in line and "WARNING" in line]
        cls.filled.stop()

    @classmethod
    def files_by_prompt(cls, start: suite.Start) -> Dict[str, List[str]]:
        """Below the tier, in no order."""
        seen: Set[str] = set()
        files = {}
        for name in APART:
            start.wait_for(name)
            now = set(cls.stored(cls.filled))
            files[name] = sorted(os.path.relpath(path, cls.filled.tiers[0])
                                 for path in now - seen)
            seen = now
            start.go_on()
        return files

    @classmethod
    def forget(cls) -> Dict[str, Any]:
        return reset(True)

    @classmethod
    def until_cached(cls, names: List[str]) -> Dict[str, Any]:
        return {"do": "until_cached", "connector": True,
                "cached": {name: cls.cached(name) for name in names}}

    @classmethod
    def cached(cls, name: str) -> int:
        return suite.cached_tokens(name, cls.whole_prompts)

    def new_mount(self, filled: bool = True, **more: Any) -> Mount:
        """With a copy of the filled tier, or with nothing."""
        mount = Mount(start=False, **more)
        self.addCleanup(mount.close)
        if filled:
            shutil.copytree(self.filled.tiers[0], mount.tiers[0],
                            dirs_exist_ok=True)
        mount.start()
        return mount

    @classmethod
    def start_engine(cls, mount: Mount, steps: List[dict],
                     transfer: Optional[Dict[str, Any]] = None,
                     **more: Any) -> suite.Start:
        """transfer: what the way is told beside the mount."""
        return suite.Start(steps, kind=cls.kind, parallel=cls.parallel,
                           transfer=cls.transfer(mount, **(transfer or {})),
                           **more)

    def run_engine(self, *arguments: Any, **more: Any) -> List[Any]:
        with self.start_engine(*arguments, **more) as start:
            return start.results()

    # comparing

    def check_tokens(self, result: Dict[str, dict]) -> None:
        for name, got in result.items():
            if got["finish"] == "abort":
                continue
            with self.subTest(prompt=name):
                self.assertEqual(got["finish"], "length")
                self.assertEqual(got["tokens"],
                                 self.wanted[name][:len(got["tokens"])])
                self.assertGreater(len(got["tokens"]), 0)

    def check_all_cached(self, result: Dict[str, dict]) -> None:
        self.check_tokens(result)
        for name, got in result.items():
            if got["finish"] == "length":
                self.assertEqual(got["cached"], self.cached(name), name)

    def check_none_cached(self, result: Dict[str, dict]) -> None:
        """Nothing from the store; some have blocks of another prompt."""
        self.check_tokens(result)
        for name in set(APART) & set(result):
            self.assertEqual(result[name]["cached"], 0, name)

    # what holds

    def test_in_the_same_process(self) -> None:
        for i, name in enumerate(APART):
            self.check_none_cached(self.first[3 * i])
            self.assertTrue(self.first[3 * i + 1], "settled")
        together, _, forgotten, again, _ = self.first[3 * len(APART):]
        self.assertTrue(forgotten)
        self.check_tokens(together)
        self.check_all_cached(again)

    def test_all_blocks_are_stored(self) -> None:
        for name in APART:
            self.assertEqual(len(self.files_of[name]),
                             self.shards * suite.num_blocks([name]),
                             (name, self.warned))
        self.assertEqual(len(self.stored(self.filled)),
                         self.shards * suite.num_blocks(TRAFFIC), self.warned)

    def test_in_a_new_process_and_with_requests_taken_back(self) -> None:
        mount = self.new_mount()
        aborts = {"short": "added", "middle": "loading", "long": "loading",
                  "exact": "running"}
        if not self.waits:
            aborts = {"short": "added", "middle": "running"}
        steps = [generate(STRAY, *TRAFFIC), METRICS, self.forget(),
                 generate(abort=aborts), SETTLE, self.forget(), generate(),
                 SETTLE]
        new, metrics, _, aborted, settled, _, after, _ = self.run_engine(
            mount, steps)
        self.check_tokens(new)
        self.assertEqual(new.pop(STRAY)["cached"],
                         self.stray_shares)
        self.check_all_cached(new)
        self.assertGreater(self.loaded_tokens(metrics), 0)
        for name in aborts:
            self.assertEqual(aborted[name]["finish"], "abort", name)
        self.check_all_cached(aborted)
        self.assertTrue(settled)
        self.check_all_cached(after)

    @staticmethod
    def loaded_tokens(metrics: Dict[str, float]) -> float:
        return metrics.get("vllm:external_prefix_cache_hits_total", 0)


class Unfilled(Basics):
    """Without the tier that all of that works on: for tests of their own."""

    test_in_the_same_process = test_all_blocks_are_stored = \
        test_in_a_new_process_and_with_requests_taken_back = None

    @classmethod
    def setUpClass(cls) -> None:
        suite.require_engine()
        cls.wanted = suite.reference(cls.kind, cls.parallel)


class Socket(Unfilled):
    """With nothing but the folder of the daemon's socket: neither a mount nor
    the store's directories, and no network."""

    def test_a_socket_is_enough(self) -> None:
        served = Served()
        self.addCleanup(served.close)
        # one by one: only a part of the cache is pinned for saves
        steps = [step for name in APART for step in (generate(name), SETTLE)]
        for cold in self.run_engine(served, steps, hidden=[served.work])[::2]:
            self.check_none_cached(cold)
        self.assertEqual(len(self.stored(served)), suite.num_blocks(APART))
        warm, metrics = self.run_engine(
            served, [generate(*APART), METRICS], hidden=[served.work])
        self.check_all_cached(warm)
        self.assertGreater(self.loaded_tokens(metrics), 0)
        self.assertEqual(len(self.stored(served)), suite.num_blocks(APART))


class Windows(Basics):
    """A layer that sees a window, and one that sees all: two groups."""

    kind = "window"
    whole_prompts = False
    # how many are kept of the layer with the window is vLLM's choice
    test_all_blocks_are_stored = None

    def damage(self, tier: str) -> None:
        """All blocks, as not all are loaded."""
        paths = {name: [os.path.join(tier, file) for file in files]
                 for name, files in self.files_of.items()}
        for name, harm in (("short", zeroed), ("exact", truncated),
                           ("middle", flipped)):
            for path in paths[name]:
                harm(path)
        for one, other in zip(paths["long"][::2], paths["long"][1::2]):
            swapped(one, other)


class Scenarios(Basics):
    """The rest: under pressure, and with things that break."""

    def test_chunked_prefill_and_preemption(self) -> None:
        mount = self.new_mount(filled=False)
        crowd = generate(*CROWD, max_tokens=TOKENS)
        steps = [crowd, METRICS, SETTLE, self.forget(), crowd, METRICS, SETTLE]
        cold, before, _, _, warm, after, settled = self.run_engine(
            mount, steps, engine=TIGHT)
        self.check_tokens(cold)
        self.check_tokens(warm)
        self.assertTrue(settled)
        self.assertGreater(before[PREEMPTIONS], 0)
        self.assertGreater(after[PREEMPTIONS], before[PREEMPTIONS])
        loaded = self.loaded_tokens(after) - self.loaded_tokens(before)
        self.assertGreater(loaded, 0)
        if self.saves_all:
            self.assertGreaterEqual(loaded, len(CROWD) * self.cached(CROWD[0]))

    def test_another_hash_seed_finds_nothing(self) -> None:
        mount = self.new_mount()
        (result,) = self.run_engine(mount, [generate()], hash_seed="1")
        self.check_none_cached(result)

    def test_the_daemon_is_killed_and_comes_back(self) -> None:
        """It dies in mid-load: first it hangs, so that the load cannot end."""
        mount = self.new_mount()
        steps = [generate(*APART), self.forget(), pause("freeze"),
                 generate(pause="kill"), SETTLE, self.forget(),
                 generate(), pause("mount"), self.until_cached(APART), SETTLE]
        with self.start_engine(mount, steps) as start:
            start.wait_for("freeze")
            mount.freeze()
            start.go_on()
            start.wait_for("kill")
            mount.crash()
            start.go_on()
            start.wait_for("mount")
            mount.start()
            start.go_on()
            (before, _, _, dying, settled, _, dead, _, after,
             settled_after) = start.results()
        self.check_all_cached(before)
        self.check_tokens(dying)
        self.check_none_cached(dead)
        self.check_all_cached(after)
        self.assertTrue(settled and settled_after)

    def test_a_full_tier(self) -> None:
        mount = self.new_mount(filled=False, tmpfs=1 << 20,
                               options="policy=none")
        steps = [generate(), SETTLE, METRICS, self.forget(), generate(),
                 SETTLE]
        cold, settled, metrics, _, again, _ = self.run_engine(mount, steps)
        self.check_none_cached(cold)
        self.assertTrue(settled)
        self.check_tokens(again)
        self.assertGreater(len(self.stored(mount)), 0)
        self.assertLess(len(self.stored(mount)), suite.num_blocks(TRAFFIC))
        self.check_full(metrics)

    def check_full(self, metrics: Dict[str, float]) -> None:
        """What the way says of a tier that is full."""


def stats_of(mount: Mount) -> str:
    path = os.path.join(mount.path, ".ucmfs", "stats.json")
    return pathlib.Path(path).read_text(encoding="utf-8")


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it does not come to that in 30 s")
        time.sleep(0.01)


def zeroed(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(bytes(os.path.getsize(path)))


def truncated(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def flipped(path: str) -> None:
    """One bit in the middle: of the content, not of the header."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def empty_payload(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(PAYLOAD)
        file.write(bytes(os.path.getsize(path) - PAYLOAD))


def swapped(one: str, other: str) -> None:
    for source, to in ((one, one + ".1"), (other, one), (one + ".1", other)):
        os.rename(source, to)


class Seeded(Basics):
    """Ways whose names of blocks are vLLM's own hashes."""

    def test_a_random_hash_seed_is_refused(self) -> None:
        mount = self.new_mount(filled=False)
        with self.start_engine(
                mount, [generate()], hash_seed=None,
                engine={"prefix_caching_hash_algo": "xxhash"}) as start:
            self.assertRaises(AssertionError, start.results)
            self.assertIn("ConfigError", start.said)
            self.assertIn("set PYTHONHASHSEED=0", start.said)

    def check_like(self, result: Dict[str, dict], cold: Dict[str, dict],
                   cached: bool = True) -> None:
        """The tokens of a run that had nothing of a store."""
        for name, got in result.items():
            self.assertEqual(got["cached"], self.cached(name) * cached, name)
            self.assertEqual(got["tokens"], cold[name]["tokens"], name)

    def test_other_weights_have_other_blocks(self) -> None:
        """Changed in place, as trainers do: before the first request, with no
        reset; back to those of the files; and once more."""
        mount = self.new_mount()
        some = generate(*APART[:-1])  # all at once, they can be saved at once
        twice, half = ({"do": "scale", "part": "input_layernorm",
                        "factor": factor} for factor in (2.0, 0.5))
        steps = [twice, some, SETTLE, self.forget(), some,
                 half, self.forget(), some, twice, self.forget(), some]
        (_, cold, _, _, warm, _, _, usual, _, _,
         again) = self.run_engine(mount, steps)
        self.check_like(cold, cold, cached=False)
        self.check_like(warm, cold)
        self.check_all_cached(usual)
        self.check_like(again, cold)
        for name, got in cold.items():
            self.assertNotEqual(got["tokens"], usual[name]["tokens"], name)

    def test_adapters_of_one_name_and_path(self) -> None:
        """Trained anew while an engine has it: each has its own blocks, by
        what is in memory and not by what is in the file."""
        mount = self.new_mount(filled=False)
        path = os.path.join(mount.work, "adapter")

        def ask(number: int) -> List[dict]:
            return [generate(*APART[:-1], lora=["a", number, path]), SETTLE,
                    self.forget()]

        adapter.make(path, 1)
        steps = [*ask(1), *ask(1), pause("trained"), *ask(2), *ask(2),
                 *ask(1)]
        with self.start_engine(mount, steps, engine=ADAPTERS) as start:
            start.wait_for("trained")
            adapter.make(path, 2)
            start.go_on()
            results = start.results()
        first, warm, second = results[0], results[3], results[7]
        self.check_like(first, first, cached=False)
        self.check_like(warm, first)
        self.check_like(second, second, cached=False)
        self.check_like(results[10], second)
        self.check_like(results[13], first)
        for name, got in first.items():
            self.assertNotEqual(got["tokens"], second[name]["tokens"], name)


class Verified(Basics):
    """Ways that check what they load."""

    def damage(self, tier: str) -> None:
        """A block of each prompt; of the longest two."""
        paths = {name: [os.path.join(tier, file) for file in files]
                 for name, files in self.files_of.items()}
        zeroed(paths["short"][0])
        truncated(paths["exact"][0])
        flipped(paths["middle"][0])
        swapped(paths["long"][0], paths["long"][1])

    def damaged_mount(self) -> Mount:
        """Damaged behind the back of the daemon, which has seen them whole
        and thinks that they are there. (Of those that it knows from a
        snapshot only it would find the header wrong when they are opened.)"""
        mount = self.new_mount()
        wait_until(lambda: '"complete": true' in stats_of(mount))
        for files in self.files_of.values():
            for file in files:
                with open(os.path.join(mount.path, file), "rb") as block:
                    block.read(1)
        self.damage(mount.tiers[0])
        return mount

    def failed_blocks(self, metrics: Dict[str, float]) -> float:
        """How many blocks the way says could not be loaded."""
        raise NotImplementedError

    def test_damaged_blocks(self) -> None:
        mount = self.damaged_mount()
        steps = [generate(), METRICS, SETTLE, self.until_cached(TRAFFIC),
                 SETTLE, METRICS, self.forget(), generate(), METRICS]
        (damaged, metrics, settled, _, _, before, _, mended,
         after) = self.run_engine(mount, steps)
        self.check_tokens(damaged)
        self.assertGreaterEqual(self.failed_blocks(metrics), len(APART))
        self.assertTrue(settled)
        # what was computed anew has taken their place
        self.check_all_cached(mended)
        self.assertEqual(self.failed_blocks(after),
                         self.failed_blocks(before))
        self.assertGreater(self.loaded_tokens(after),
                           self.loaded_tokens(before))

    def test_without_checks_wrong_bytes_change_the_tokens(self) -> None:
        """What the store holds is what is used, and the comparison can fail:
        the headers are right, and checksums are not looked at."""
        mount = self.new_mount()
        for path in self.stored(mount):
            empty_payload(path)
        (result,) = self.run_engine(mount, [generate(*APART)],
                                    {"verify": "header"})
        for name, got in result.items():
            self.assertGreater(got["cached"], 0, name)
            self.assertNotEqual(got["tokens"],
                                self.wanted[name][:len(got["tokens"])], name)


class States:
    """Attention beside states, in three starts of the engine. One request at a
    time, with nothing in common: vLLM's own tokens for this model depend on
    the batch, and on where a prompt is cut."""

    parallel = suite.ALONE
    partition = ""

    def ask(self, mount: Mount, **more: Any) -> Dict[str, Any]:
        steps = [generate(*APART, one_by_one=True), SETTLE]
        with suite.Start(
                steps, kind="states", transfer=self.transfer(mount, **more),
                parallel=self.parallel, environment={
                    "VLLM_PP_LAYER_PARTITION": self.partition}
                if self.partition else None) as start:
            result, settled = start.results()
        self.assertTrue(settled)
        return result

    @unittest.skipUnless(LONG, "UCMFS_TEST_LONG=1: a model with states")
    def test_tokens_are_those_without_a_store(self) -> None:
        suite.require_engine()
        wanted = suite.reference("states")
        mount = Mount()
        self.addCleanup(mount.close)
        for stored in (False, True):
            result = self.ask(mount)
            for name in APART:
                self.assertEqual(result[name]["tokens"], wanted[name][:16])
                self.assertEqual(result[name]["cached"], suite.cached_tokens(
                    name, False) if stored else 0, name)
        for path in self.stored(mount):
            empty_payload(path)
        result = self.ask(mount, verify="header")
        for name in APART:
            self.assertNotEqual(result[name]["tokens"], wanted[name][:16])
