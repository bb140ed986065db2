#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.save, torch.load and safetensors in MOUNT/files."""

import unittest

from files_suite import Client, OnFiles


class Tensors(OnFiles):

    def run_client(self, what: str) -> None:
        seen = Client("tensors_client.py", what, self.root).result()
        self.assertEqual([way for way, right in seen.items() if not right],
                         [])
        self.assertEqual(len(seen), 6)

    def test_saved_loaded_after_a_remount(self) -> None:
        self.run_client("save")
        self.assertEqual(len(self.behind("*.pt")), 3)
        self.assertEqual(len(self.behind("*.safetensors")), 1)
        self.remount()
        self.run_client("load")


class TensorsThroughTheDaemon(Tensors):
    """Every read and write comes by the daemon, mapped pages too."""

    OPTIONS = "passthrough=off"


if __name__ == "__main__":
    unittest.main()
