#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's own `fs` tier with its directory in MOUNT/files: nothing of ucmfs
runs in the engine. vLLM checks none of the bytes, which proves here that the
store is used, and that comparing tokens can fail."""

import os
import pathlib
import unittest
from typing import Any, Dict, List

from mount import Mount
from scenarios import Scenarios, wait_until
from suite import SETTLE, generate


class Files(Scenarios, unittest.TestCase):

    @staticmethod
    def transfer(mount: Mount, **more: Any) -> Dict[str, Any]:
        tier = {"type": "fs", "n_read_threads": 2, "n_write_threads": 2,
                "root_dir": os.path.join(mount.path, "files", "vllm")}
        return {
            "kv_connector": "OffloadingConnector",
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
                for path in pathlib.Path(tier).rglob("*_g*/*.bin")]

    def test_past_a_quota(self) -> None:
        """Twice as much is stored: the tokens stay right, and of what was
        stored last all is found."""
        total = sum(os.stat(path).st_blocks * 512
                    for path in self.stored(self.filled))
        mount = self.new_mount(filled=False)
        folder = os.path.join(mount.path, "files", "vllm")
        mount.set_quota(folder, total // 2)
        last = "middle"
        steps = []
        for name in ["branch", "twig", "long", "short", "exact", last]:
            steps += [generate(name), SETTLE]
        *stored, _, again, _ = self.run_engine(
            mount, steps + [self.forget(), generate(last), SETTLE])
        for result in stored[::2]:
            self.check_tokens(result)
        self.check_all_cached(again)
        wait_until(lambda: mount.quota_of(folder)["used_bytes"] <= total // 2)
        seen = mount.quota_of(folder)
        self.assertGreater(seen["files_evicted"], 0)
        self.assertEqual(seen["files_refused"], 0)
        self.assertLessEqual(sum(os.stat(path).st_blocks * 512
                                 for path in self.stored(mount)), total // 2)

    def test_wrong_bytes_change_the_tokens(self) -> None:
        mount = self.new_mount()
        for path in pathlib.Path(mount.path, "files").rglob("*.bin"):
            path.write_bytes(bytes(path.stat().st_size))
        (result,) = self.run_engine(mount, [generate()])
        for name, got in result.items():
            self.assertGreater(got["cached"], 0)
            self.assertNotEqual(got["tokens"],
                                self.wanted[name][:len(got["tokens"])], name)


if __name__ == "__main__":
    unittest.main()
