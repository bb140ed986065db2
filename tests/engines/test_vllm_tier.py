#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""UcmfsTier below vLLM's own offloading: its blocks are checked when they are
loaded, so that whatever happens to them the tokens are right."""

import pathlib
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List

from mount import Mount
from private_daemon import directory_of
from scenarios import (APART, LONG, Basics, Scenarios, Seeded, Socket,
                       States, Unfilled, Verified, Windows)
from suite import METRICS, SETTLE, Parallel
from suite import generate, samples


class Options:
    """Mixed in: how vLLM is configured."""

    @staticmethod
    def transfer(mount: Mount, **more: Any) -> Dict[str, Any]:
        tier = {"type": "UcmfsTier", "module_path": "ucmfs.vllm",
                **mount.where}
        return {
            "kv_connector": "UcmfsOffloadingConnector",
            "kv_connector_module_path": "ucmfs.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "CpuTieringSpec",
                "spec_module_path": "cpu_offload",
                "cpu_bytes_to_use": 16 << 20,
                "secondary_tiers": [dict(tier, **more)],
            },
        }

    @staticmethod
    def stored(mount: Mount) -> List[str]:
        return [str(path) for tier in mount.tiers
                for path in pathlib.Path(tier, "spaces").glob("*/??/*.bin")]

    def failed_blocks(self, metrics: Dict[str, float]) -> float:
        return samples(metrics, "vllm:ucmfs_tier_load_failed_blocks_total",
                       "damaged")


class Tier(Options, Scenarios, Seeded, Verified, unittest.TestCase):

    def check_full(self, metrics: Dict[str, float]) -> None:
        self.assertGreater(
            samples(metrics, "vllm:ucmfs_tier_save_failed_blocks_total",
                    "full"), 0)


class TierBySocket(Options, Socket, unittest.TestCase):
    pass


class TierWindows(Options, Windows, Verified, unittest.TestCase):
    """Two groups of blocks; of a window vLLM stores only the last ones."""
    stray_shares = 0


class Parallels(Options, Basics):

    @classmethod
    def transfer(cls, mount: Mount, **more: Any) -> Dict[str, Any]:
        # ranks that wait for each other take all of the processors
        return super().transfer(mount, deadline_ms=60_000, **more)


class TierTensorParallel(Parallels, unittest.TestCase):
    """Two ranks in processes of their own: a block is one file of both."""

    parallel = Parallel(tensor=2)


class TierPipeline(Parallels, unittest.TestCase):
    """Two stages in processes of their own."""

    parallel = Parallel(pipeline=2)


class TierPipelineWindows(Parallels, Windows, Unfilled, unittest.TestCase):
    """A stage with a window alone, and one without."""

    parallel = Parallel(pipeline=2)

    def test_in_a_new_process(self) -> None:
        mount = self.new_mount(filled=False)
        steps = [generate(*APART, one_by_one=True), SETTLE]
        cold, settled = self.run_engine(mount, steps)
        self.check_none_cached(cold)
        self.assertTrue(settled)
        self.check_all_cached(self.run_engine(mount, steps)[0])


class TierStates(Options, States, unittest.TestCase):
    pass


class TierPipelineStates(Options, States, unittest.TestCase):
    """A stage that has states and no attention, and one with both."""

    parallel = Parallel(pipeline=2)
    partition = "1,2"
    transfer = Parallels.transfer


@unittest.skipUnless(LONG, "UCMFS_TEST_LONG=1: test_tier.py has the short form")
class WithoutADaemon(Options, Unfilled, unittest.TestCase):
    """Directories alone: a private daemon has them."""

    more: Dict[str, Any] = {}

    def test_the_next_process_reads_what_one_saves(self) -> None:
        steps = [generate(*APART), SETTLE]
        nowhere = SimpleNamespace(where={})
        options = {"tiers": directory_of(self), **self.more}
        self.check_tokens(self.run_engine(nowhere, steps, options)[0])
        result, metrics = self.run_engine(
            nowhere, [generate(*APART), METRICS], options)
        self.check_all_cached(result)
        self.assertGreater(samples(
            metrics, "vllm:ucmfs_tier_loaded_blocks_total"), 0)


class TensorParallelWithoutADaemon(WithoutADaemon):
    """A block is one file of both ranks, which their engine saves."""

    parallel = Parallel(tensor=2)
    more = {"deadline_ms": 60_000}


if __name__ == "__main__":
    unittest.main()
