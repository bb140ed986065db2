#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a vLLM knows of ucmfs by its entry point."""

import json
import tempfile
import threading
import time
import unittest
from types import SimpleNamespace
from typing import Any, Dict
from unittest import mock

import suite

LIMIT = 20.0


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

    def test_connectors_have_names(self) -> None:
        import ucmfs.vllm
        from ucmfs.vllm import plugin
        from vllm.config import KVTransferConfig
        from vllm.distributed.kv_transfer.kv_connector.factory import (
            KVConnectorFactory)

        for _ in range(2):
            self.assertEqual(plugin.register(), {})
        for name in plugin.CONNECTORS:
            for more in ({}, {"kv_connector_module_path": "ucmfs.vllm"}):
                self.assertIs(KVConnectorFactory.get_connector_class(
                    KVTransferConfig(kv_connector=name, kv_role="kv_both",
                                     **more)), getattr(ucmfs.vllm, name))

    def test_a_missing_hook_is_a_line(self) -> None:
        import vllm.platforms  # noqa: F401: what is left is a few modules
        from ucmfs.vllm import UcmfsTier, plugin  # noqa: F401

        plugin.register()
        lacking = dict.fromkeys(("vllm.v1.kv_offload.tiering.factory",
                                 "vllm.distributed.kv_transfer.kv_connector."
                                 "factory",
                                 "vllm.v1.attention.backends.registry"))
        with mock.patch.dict("sys.modules", lacking), \
                self.assertLogs("vllm.ucmfs", "INFO") as said:
            lacks = plugin.register()
        names = ["the tier \"ucmfs\"", "connectors by name",
                 "sparse attention"]
        self.assertEqual(list(lacks), names)
        self.assertEqual(len(said.output), 3)
        for line, what in zip(said.output, names):
            self.assertRegex(line, rf"vLLM \S+ lacks a hook, so .*{what}")


class Asked(unittest.TestCase):
    """What a configuration says of sparse attention."""

    def asked(self, extra: Any, more: Any = None) -> Any:
        from ucmfs.vllm.plugin import asked

        return asked(SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
            additional_config=more))

    def test_ours(self) -> None:
        ours: Dict[str, Any] = {"sparse_type": "GSA", "GSA": {"topk_ratio": 1}}
        self.assertEqual(self.asked({"mount": "/kv", **ours}), ours)
        self.assertEqual(self.asked(None, {"ucmfs": ours, "x": 1}), ours)
        self.assertEqual(self.asked({**ours, "ucm_sparse_method": "ESA"}), ours)
        for nothing in (None, {}, {"mount": "/kv"}, {"sparse_type": ""}):
            self.assertIsNone(self.asked(nothing, nothing))

    def test_ucms(self) -> None:
        part = {"sparse_ratio": 0.2}
        for given in (
                {"ucm_sparse_config": {"ESA": part}},
                {"ucm_sparse_config": {"sparse_type": "ESA", "ESA": part}},
                {"ucm_sparse_method": "ESA",
                 "ucm_sparse_config": {"ESA": part, "GSA": {}}},
                {"sparse": {"enabled": True, "type": "ESA", "config": part}},
                {"sparse_type": "ESA", "ESA": part}):
            wanted = {"sparse_type": "ESA", "ESA": part}
            self.assertEqual(self.asked(given), wanted, given)
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                json.dump(given, file)
                file.flush()
                self.assertEqual(self.asked({"UCM_CONFIG_FILE": file.name}),
                                 wanted)
        self.assertEqual(self.asked({"ucm_sparse_method": "GSA"}),
                         {"sparse_type": "GSA"})
        self.assertIsNone(self.asked({"sparse": {"enabled": False,
                                                 "type": "GSA"}}))

    def test_several_are_none(self) -> None:
        from ucmfs import methods
        from ucmfs.errors import ConfigError, NotFound

        wanted = self.asked({"ucm_sparse_config": {"ESA": {}, "GSA": {}}})
        with self.assertRaisesRegex(NotFound, "ESA/GSA"):
            methods.parse(wanted, block_size=16, num_layers=2)
        with self.assertRaisesRegex(ConfigError, "/none"):
            self.asked({"UCM_CONFIG_FILE": "/none"})
        with self.assertRaisesRegex(ConfigError, "sparse_config: a mapping"):
            self.asked({"ucm_sparse_config": "GSA"})


class Ending(unittest.TestCase):
    """The thread that plug-ins share."""

    def test_what_comes_as_the_worker_ends_has_an_answer(self) -> None:
        from ucmfs.plugins import work

        worker, go = work.Worker("/none"), threading.Event()
        self.addCleanup(worker.close)
        answers: list = []

        def fail() -> None:
            self.assertTrue(go.wait(LIMIT))
            raise ZeroDivisionError

        with mock.patch.object(work.log, "exception"):
            worker.post(fail)
            want = work.Want(work.Space("a", {}), b"key")
            asking = threading.Thread(daemon=True, target=lambda:
                                      answers.append(worker.ask("find",
                                                                [want])))
            asking.start()
            self.until(lambda: len(worker._todo) == 2)
            closing = threading.Thread(target=worker.close)
            closing.start()
            self.until(lambda: worker._ending)
            go.set()
            closing.join(LIMIT)
            asking.join(LIMIT)
        self.assertEqual(answers, [[False]])

    def until(self, is_so: Any) -> None:
        end = time.monotonic() + LIMIT
        while not is_so():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)


if __name__ == "__main__":
    unittest.main()
