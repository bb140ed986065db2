#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's ExampleConnector with its directory in MOUNT/files: a folder for each
prompt, a safetensors file for each layer."""

import os
import unittest
from typing import Any, Dict

from mount import Mount
from suite import BLOCK, PROMPTS, Start, generate, reference

# it matches whole prompts; none of these is the beginning of another
NAMES = ["short", "middle", "long"]
# it keeps whole blocks of all tokens but the last two
KEPT = {name: (len(PROMPTS[name]) - 2) // BLOCK * BLOCK for name in NAMES}


def run_engine(mount: Mount) -> Dict[str, Any]:
    transfer = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "shared_storage_path": os.path.join(mount.path, "files/example"),
        },
    }
    with Start([generate(*NAMES, one_by_one=True)],
               transfer=transfer) as start:
        return start.results()[0]


class Example(unittest.TestCase):

    def check(self, results: Dict[str, Any], cached: Dict[str, int]) -> None:
        wanted = reference()
        for name, got in results.items():
            self.assertEqual(got["tokens"],
                             wanted[name][:len(got["tokens"])], name)
            self.assertEqual(got["cached"], cached[name], name)

    def test_an_engine_takes_what_another_has_left(self) -> None:
        reference()
        with Mount(tiers=2, settings="placement=round_robin") as mount:
            self.check(run_engine(mount), dict.fromkeys(NAMES, 0))
            mount.stop()
            mount.start()
            self.check(run_engine(mount), KEPT)


if __name__ == "__main__":
    unittest.main()
