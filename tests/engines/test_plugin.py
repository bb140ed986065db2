#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a vLLM knows of ucmfs by its entry point."""

import unittest
from unittest import mock

import suite


class Plugin(unittest.TestCase):

    @classmethod
    def setUpClass(cls) -> None:
        suite.require_engine()

    def test_the_tier_has_a_name(self) -> None:
        from ucmfs.vllm import UcmfsTier, plugin
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

        for _ in range(2):  # vLLM may call it any number of times
            self.assertEqual(plugin.register(), {})
        self.assertIs(SecondaryTierFactory.get_tier_class({"type": "ucmfs"}),
                      UcmfsTier)

    def test_a_missing_hook_is_a_line(self) -> None:
        import vllm.platforms  # noqa: F401: what is left is a few modules
        from ucmfs.vllm import UcmfsTier, plugin  # noqa: F401

        plugin.register()
        lacking = dict.fromkeys(("vllm.v1.kv_offload.tiering.factory",
                                 "vllm.v1.attention.backends.registry"))
        with mock.patch.dict("sys.modules", lacking), \
                self.assertLogs("vllm.ucmfs", "INFO") as said:
            lacks = plugin.register()
        self.assertEqual(list(lacks), ['the tier "ucmfs"', "sparse attention"])
        self.assertEqual(len(said.output), 2)
        for line, what in zip(said.output, ("tier", "sparse attention")):
            self.assertRegex(line, rf"vLLM \S+ lacks a hook, so .*{what}")


if __name__ == "__main__":
    unittest.main()
