# SPDX-License-Identifier: Apache-2.0
"""2000 random steps of vLLM's scheduler over a KV connector: no wrong slot.

The same for three kinds of connectors: a simple one in memory, which shows
that the runner asks for nothing that cannot be had; ones that are broken in
one way each, which the runner must notice; and UcmfsConnector on a mount whose
blocks are damaged, whose daemon dies and whose tiers fill up meanwhile.

    UCMFS_TEST_SEED=N      a run to repeat; else another one each time
    FAKE_RUNNER_STEPS=N    instead of 2000
    FAKE_RUNNER_ALL=1      every engine in every mode, which takes minutes
                           more; else those of CHOSEN

In memory a seed repeats a run exactly. With UcmfsConnector it repeats requests,
delays and faults; threads and the daemon take their own time, so that one of a
few repetitions may be needed.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
import unittest
from contextlib import ExitStack
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python"),
                os.path.join(HERE, "..", "lib")]

try:
    import torch
    import vllm  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"needs vLLM: {error}") from None

import broken_connectors
import memory_connector
from fake_ranks import Config, Violation
from fake_traffic import run
from mount import Mount
from mount_faults import BLOCKS, OUTAGES, MountFaults
from seed import SEED
from slow_loader import Slowness, slow_loaders

STEPS = int(os.environ.get("FAKE_RUNNER_STEPS", "2000"))
ALL = os.environ.get("FAKE_RUNNER_ALL", "0") != "0"

# Runs in which what is broken must be noticed: one is mostly enough, but what
# needs most luck passes unseen in a quarter of them.
TRIES = 10

# What of the engine and its KV cache is different; the connector sees it.
ENGINES = {
    "plain": {},
    "v2_runner": {"v2_runner": True},
    "async_scheduling": {"async_scheduling": True},
    "v2_async_two_ranks": {"v2_runner": True, "async_scheduling": True,
                           "ranks": 2},
    "two_ranks": {"ranks": 2},
    "replicated_ranks": {"ranks": 2, "replicated": True},
    "window": {"window": 40},
    "window_two_ranks": {"window": 40, "ranks": 2},
    "window_v2_async": {"window": 40, "v2_runner": True,
                        "async_scheduling": True},
    "policy_fail": {"policy": "fail"},
    "blocks_outermost": {"layout": "BLNHC", "dtype": torch.bfloat16},
    "heads_outermost": {"layout": "LHBNC", "window": 40},
    "window_of_larger_blocks": {"window": 40, "window_block": 32},
    "window_of_larger_blocks_outermost": {
        "window": 70, "window_block": 64, "layout": "BLNHC", "ranks": 2},
    "indexer": {"indexer": 5},
    "indexer_blocks_outermost": {"indexer": 5, "layout": "BLNHC"},
    "states": {"state": 60},
    "states_kept": {"state": 60, "retention": 16, "ranks": 2},
    "states_blocks_outermost": {"state": 40, "layout": "BLNHC",
                                "v2_runner": True, "async_scheduling": True},
    "few_blocks": {"num_blocks": 34},
    "pipeline": {"stages": 3, "layers": 4},
    "pipeline_two_ranks": {"stages": 2, "ranks": 2},
    "pipeline_window": {"stages": 2, "layers": 5, "window": 40},
    "pipeline_apart": {"stages": 2, "layers": 4, "window": 40, "ranks": 2,
                       "kinds": "wwff"},
    "pipeline_partly_apart": {"stages": 3, "layers": 6, "window": 40,
                              "kinds": "fffwww"},
    "pipeline_states_apart": {"stages": 2, "layers": 4, "state": 60,
                              "kinds": "ssfs", "ranks": 2},
    "pipeline_states_v2_async": {
        "stages": 2, "layers": 5, "state": 60, "ranks": 2, "v2_runner": True,
        "async_scheduling": True},
}

# One of each kind, where not all are asked for.
CHOSEN = {
    "async": ("plain", "async_scheduling", "pipeline_two_ranks",
              "pipeline_apart", "states_kept", "policy_fail", "few_blocks"),
    "sync": ("plain", "two_ranks"),
    "layerwise": ("plain", "replicated_ranks"),
}


def engines_of(mode: str):
    return ENGINES if ALL else CHOSEN[mode]


def tell(name: str, began: float, stats) -> None:
    print(f"{name}: seed {SEED}, {time.monotonic() - began:.1f} s, "
          f"{stats['tokens loaded']} of {stats['prompt tokens']} tokens of "
          f"{stats['requests']} prompts loaded; "
          + ", ".join(f"{stats[key]} {key}" for key in sorted(stats)
                      if key.startswith("fault:") or key in (
                          "preemptions", "aborts while loading",
                          "blocks failed", "requests failed", "new weights",
                          "steps on garbage, reported")), flush=True)


# Of each run. Some have none, by chance; many of them without one would mean
# that the runner does not come to it any more.
PREEMPTIONS = []


def tearDownModule() -> None:
    assert sum(PREEMPTIONS) > 0 or len(PREEMPTIONS) < 10, "no preemptions"


class Case(unittest.TestCase):

    def go(self, config: Config, faults=None, share: float = 0.1):
        """A run without a violation, and with so many tokens loaded."""
        began = time.monotonic()
        try:
            stats = run(config, SEED, STEPS, faults)
        except Violation as violation:
            self.fail(f"{violation}\nrepeat: UCMFS_TEST_SEED={SEED} "
                      f"FAKE_RUNNER_STEPS={STEPS} python3 -m unittest "
                      f"{self.id()}")
        tell(self.id(), began, stats)
        self.assertGreater(stats["cells checked"], 100 * STEPS)
        self.assertGreater(stats["tokens loaded"],
                           share * stats["prompt tokens"])
        PREEMPTIONS.append(stats["preemptions"])
        return stats


class TestMemoryConnector(Case):
    """The runner can be satisfied."""

    def check(self, mode: str, engine: str) -> None:
        changes = ENGINES[engine]
        # vLLM has no way to recover from a load that fails in its own step
        # with several groups, or with the next step already under way.
        sure = mode != "async" and (
            "window" in changes or "async_scheduling" in changes)
        extra = {"store": self.id(), "mode": mode, "delay": 6, "seed": SEED,
                 "load_errors": 0.0 if sure else 0.05, "save_errors": 0.05}
        stats = self.go(Config(self.id(), extra=extra, **changes))
        failed = stats["blocks failed"] + stats["requests failed"]
        self.assertEqual(failed > 0, not sure)


def _memory_case(mode: str, engine: str):
    return lambda self: self.check(mode, engine)


# It takes blocks as vLLM's tables have them, all of one size.
NOT_IN_MEMORY = frozenset(("state", "window_block"))
for _mode in CHOSEN:
    for _engine in engines_of(_mode):
        if not NOT_IN_MEMORY & set(ENGINES[_engine]):
            setattr(TestMemoryConnector, f"test_{_mode}_{_engine}",
                    _memory_case(_mode, _engine))


class TestBrokenConnectors(Case):
    """The runner notices."""

    def check(self, cls: type, wanted: str, settings: dict) -> None:
        settings = dict(settings)
        extra = {"mode": "async", "delay": 6}
        for key in ("mode", "delay", "load_errors", "save_errors"):
            if key in settings:
                extra[key] = settings.pop(key)
        for seed in range(SEED, SEED + TRIES):
            config = Config(
                cls.__name__, connector=cls.__name__,
                module="broken_connectors", **settings,
                extra={**extra, "store": f"{self.id()} {seed}", "seed": seed})
            try:
                run(config, seed, STEPS)
            except Violation as violation:
                self.assertIn(wanted, str(violation))
                return
        self.fail(f"{cls.__name__} was not noticed")

    def test_all_are_listed(self) -> None:
        self.assertEqual(
            {cls for cls in vars(broken_connectors).values()
             if isinstance(cls, type) and cls is not
             memory_connector.MemoryConnector},
            set(broken_connectors.HOW_CAUGHT))


def _broken_case(cls: type, wanted: str, settings: dict):
    return lambda self: self.check(cls, wanted, settings)


for _cls, _how in broken_connectors.HOW_CAUGHT.items():
    setattr(TestBrokenConnectors, f"test_{_cls.__name__}",
            _broken_case(_cls, *_how))


class QuietLibrary:
    """libucm warns of every injected fault: into a file, not the console."""

    def __enter__(self) -> None:
        self.stderr, self.kept = sys.stderr, os.dup(2)
        self.said = tempfile.TemporaryFile()
        os.dup2(self.said.fileno(), 2)
        sys.stderr = open(self.kept, "w", closefd=False)

    def __exit__(self, *_: object) -> None:
        os.dup2(self.kept, 2)
        sys.stderr = self.stderr
        os.close(self.kept)
        self.said.close()


class UcmfsCase(Case):
    """A mount, and UcmfsConnector's transfers late and in any order."""

    SETTINGS = {"save_decode": True, "weights": "none", "pinned_share": 0.5,
                "deadline_ms": 3000, "lookup_budget_us": 1000000,
                "min_benefit": {"enabled": False}}

    def setUp(self) -> None:
        stack = ExitStack()
        self.addCleanup(stack.close)
        log = logging.getLogger("vllm.ucmfs")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        self.mount = stack.enter_context(Mount(tmpfs=64 << 20))
        stack.enter_context(QuietLibrary())
        # Steps take a millisecond here: what is measured in seconds as well.
        for name, seconds in (("mount.PAUSE_SECONDS", 0.01),
                              ("mount.PAUSE_MOST", 0.01),
                              ("scheduler.RESET_SECONDS", 0.2),
                              ("mount.RETRY_SECONDS", 0.02)):
            stack.enter_context(mock.patch(f"ucmfs.vllm.{name}", seconds))

    def config(self, mode: str, **changes: object) -> Config:
        return Config(
            self.id(), connector="UcmfsConnector", module="ucmfs.vllm",
            extra={"mount": self.mount.path, "load": mode, **self.SETTINGS},
            **changes)


class TestUcmfsConnector(UcmfsCase):
    """No wrong slot, whatever happens."""

    # What breaks, the share of blocks that fail beside it, and the share of
    # tokens to be loaded at least; outages last longer on a busy machine.
    KINDS = {
        "well": ((), 0.0, 0.1),
        "failing": ((), 0.04, 0.1),
        "damaged": (BLOCKS, 0.02, 0.1),
        "outages": (BLOCKS + OUTAGES, 0.02, 0.005),
    }

    def check(self, mode: str, engine: str, kind: str) -> None:
        kinds, errors, share = self.KINDS[kind]
        config = self.config(mode, patience=20, fault=0.03, **ENGINES[engine])
        faults = MountFaults(self.mount, kinds) if kinds else None
        slow = Slowness(SEED, load_errors=errors, save_errors=errors)
        with slow_loaders(slow):
            stats = self.go(config, faults, share)
        self.assertGreater(slow.loads, 0)
        if errors:
            self.assertGreater(
                stats["blocks failed"] + stats["requests failed"], 0)


def _ucmfs_case(mode: str, engine: str, kind: str):
    return lambda self: self.check(mode, engine, kind)


# With the plain engine each by itself, with the others all at once.
MOST = ("outages",)
NOT_ASYNC = ("plain", "v2_runner", "two_ranks", "replicated_ranks",
             "policy_fail", "blocks_outermost", "indexer",
             "indexer_blocks_outermost", "few_blocks")
for _mode in CHOSEN:
    for _engine in engines_of(_mode):
        if _mode != "async" and _engine not in NOT_ASYNC:
            continue
        for _kind in TestUcmfsConnector.KINDS if _engine == "plain" else MOST:
            setattr(TestUcmfsConnector, f"test_{_mode}_{_engine}_{_kind}",
                    _ucmfs_case(_mode, _engine, _kind))


class TestBrokenUcmfsConnector(UcmfsCase):
    """The runner notices what is broken in UcmfsConnector itself, too."""

    def check(self, where: str, broken, mode: str = "async",
              delay: int = 6, **changes: object) -> None:
        for seed in range(SEED, SEED + TRIES):
            slow = Slowness(seed, delay, load_errors=0.1)
            with mock.patch(f"ucmfs.vllm.{where}", broken), \
                    slow_loaders(slow):
                try:
                    run(self.config(mode, patience=3, **changes), seed, STEPS)
                except Violation as violation:
                    self.assertIn(broken_connectors.WRONG, str(violation))
                    return
        self.fail("not noticed")

    def test_pins_nothing(self) -> None:
        def add(pins, job, pages):
            pins._jobs[job] = []
            pins._left[job] = pins.ranks

        self.check("pins.Pins.add", add, num_blocks=34)

    def test_forgets_what_failed(self) -> None:
        self.check("worker.UcmfsWorker._fail", lambda *_: None)

    def test_keeps_what_failed_in_the_prefix_cache(self) -> None:
        self.check("scheduler.UcmfsScheduler._evict", lambda *_: None, "sync",
                   arrive=0.8, max_running=12, batch_tokens=48)

    def test_saves_at_once(self) -> None:
        from ucmfs.vllm.scheduler import UcmfsScheduler
        start_save = UcmfsScheduler._start_save

        def at_once(scheduler, known, parts):
            start_save(scheduler, known, parts)
            scheduler._ready += [held.job for held in scheduler._held]
            scheduler._held.clear()

        self.check("scheduler.UcmfsScheduler._start_save", at_once, "sync",
                   delay=0)

    def test_resets_nothing(self) -> None:
        self.check("scheduler.UcmfsScheduler.reset_cache", lambda _: True,
                   new_weights=0.02)


if __name__ == "__main__":
    unittest.main()
