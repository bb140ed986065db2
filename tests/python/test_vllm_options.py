# SPDX-License-Identifier: Apache-2.0
"""The options of the two ways into vLLM: one spelling, default and check; and
what of upstream's configuration becomes of them."""

from __future__ import annotations

import json
import os
import pathlib
import re
import tempfile
import unittest
from dataclasses import fields

from tests.python.support import SRCDIR
from ucmfs.errors import ConfigError
from ucmfs.loader import Loader
from ucmfs.vllm.options import (LOADER, ConnectorOptions, Options,
                                TierOptions, connector_options, parse)

BOTH = (TierOptions, ConnectorOptions)


class Values(unittest.TestCase):

    def refused(self, kind: type, key: str, **given: object) -> str:
        with self.assertRaises(ConfigError) as caught:
            parse(kind, {"mount": "/m", **given})
        self.assertEqual(caught.exception.key, key)
        return str(caught.exception)

    def test_defaults(self) -> None:
        for kind in BOTH:
            self.assertEqual(parse(kind, {"mount": "/m"}), kind("/m"))
            self.assertEqual(parse(kind, {"mount": "/m", "space": None}),
                             kind("/m"))

    def test_each_default_is_right(self) -> None:
        for kind in BOTH:
            for f in fields(kind):
                if f.name != "mount":
                    value = getattr(kind(), f.name)
                    self.assertEqual(parse(
                        kind, {"mount": "/m", f.name: value}), kind("/m"))

    def test_bad_values_are_refused_alike(self) -> None:
        for key, value, text in (
                ("verify", "some", "one of always, once, header, none, full is "
                 "needed, not 'some'"),
                ("io", "aio", "one of auto, uring, threads is needed"),
                ("deadline_ms", -1, "a whole number, 0 or above"),
                ("deadline_ms", 1.5, "a whole number, 0 or above"),
                ("deadline_ms", True, "a whole number, 0 or above"),
                ("threads", "many", "a whole number, 0 or above"),
                ("space", 5, "a text is needed, not 5"),
                ("epoch", 1.5, "a text is needed, not 1.5"),
                ("mount", ["/x"], "a text is needed")):
            said = {self.refused(kind, key, **{key: value}) for kind in BOTH}
            self.assertEqual(len(said), 1)
            self.assertIn(text, said.pop())

    def test_bad_values_of_one(self) -> None:
        for kind, key, value in (
                (TierOptions, "direct", "yes"),
                (TierOptions, "direct", 1),
                (TierOptions, "enable_kv_events", 1),
                (TierOptions, "locality", "near"),
                (TierOptions, "tiers", [1]),
                (ConnectorOptions, "load", "later"),
                (ConnectorOptions, "lora", "yes"),
                (ConnectorOptions, "lookup_budget_us", "1"),
                (ConnectorOptions, "pinned_share", 1.5),
                (ConnectorOptions, "pinned_share", "all"),
                (ConnectorOptions, "pinned_share", True),
                (ConnectorOptions, "save_decode", 1),
                (ConnectorOptions, "debug_log", 3),
                (ConnectorOptions, "min_benefit", 1)):
            with self.subTest(key=key, value=value):
                self.refused(kind, key, **{key: value})
        self.refused(ConnectorOptions, "min_benefit.enabled",
                     min_benefit={"enabled": 1})
        self.refused(ConnectorOptions, "min_benefit.bytes_per_second",
                     min_benefit={"bytes_per_second": -1})

    def test_what_may_be_a_number_or_a_path(self) -> None:
        for kind in BOTH:
            got = parse(kind, {"mount": pathlib.Path("/m"), "epoch": 2})
            self.assertEqual((got.mount, got.epoch), ("/m", "2"))

    def test_a_wrong_name_gives_the_right_one(self) -> None:
        for kind in BOTH:
            for wrong, right in (
                    ("mounts", "mount"), ("stagingbytes", "staging_bytes"),
                    ("deadline", "deadline_ms"), ("timeout_ms", "deadline_ms"),
                    ("loader", "staging_bytes, open_files"),
                    ("window_bytes", "leave it out"),
                    ("save_budget_bytes", "give staging_bytes"),
                    ("inflight", "the setting inflight of the mount"),
                    ("save_budget", "pinned_share is a share"),
                    ("xyzzy", "there are budget, deadline_ms, ")):
                self.assertIn(right, self.refused(kind, wrong,
                                                  **{wrong: "x"}))
        self.assertIn("tiers", self.refused(TierOptions, "tier", tier="/x"))
        self.refused(ConnectorOptions, "copy", copy="host")
        self.assertIn("enabled", self.refused(
            ConnectorOptions, "min_benefit.on", min_benefit={"on": True}))

    def test_vllms_own_keys_are_left_to_it(self) -> None:
        for kind in BOTH:
            self.assertEqual(parse(kind, {
                "mount": "/m", **dict.fromkeys(kind.FOREIGN, {})}),
                kind("/m"))

    def test_one_of_them_says_where_blocks_are(self) -> None:
        for kind in (ConnectorOptions, TierOptions):
            got = parse(kind, {"socket": "/run/x.sock"})
            self.assertEqual(got, kind("/run/x.sock"))
            for given in ({"mount": "/m", "socket": "/s"},
                          {"mount": "/m", "tiers": "/a"},
                          {"socket": "/s", "tiers": ["/a", "/b"]},
                          {"mount": "/m", "socket": "/s", "tiers": "/a"}):
                with self.assertRaises(ConfigError) as caught:
                    parse(kind, given)
                self.assertEqual(caught.exception.key, list(given)[1])
                self.assertIn("one of mount, socket and tiers",
                              str(caught.exception))

    def test_no_mount(self) -> None:
        for kind in BOTH:
            for given in ({}, {"mount": ""}, {"mount": None}):
                with self.assertRaises(ConfigError) as caught:
                    parse(kind, given)
                self.assertEqual(caught.exception.key, "mount")
        self.assertEqual(connector_options({}, check_paths=False).mount, "")

    def test_those_of_the_loader(self) -> None:
        """As ucmfs.Loader has them, with its defaults."""
        defaults = Loader.__init__.__kwdefaults__
        self.assertEqual(Options().loader,
                         {name: defaults[name] for name in LOADER})


class Documentation(unittest.TestCase):

    def test_the_table_has_all_options_and_defaults(self) -> None:
        with open(os.path.join(SRCDIR, "doc", "engines.md"),
                  encoding="utf-8") as file:
            rows = re.findall(r"^\| `(\w+)` \| (2, 3|2|3) \| ([^| ]*) ?\|",
                              file.read(), re.M)
        common = {f.name for f in fields(Options)}
        want = []
        for kind in BOTH:
            for f in fields(kind):
                way = "2, 3" if f.name in common else \
                    "2" if kind is TierOptions else "3"
                default = getattr(kind(), f.name)
                want.append((f.name, way, "" if default in ("", {}) else
                             f"`{default}`".lower()))
        self.assertEqual(sorted(rows), sorted(set(want)))


class Upstream(unittest.TestCase):

    def upstream(self, **more: object) -> dict:
        return {"ucm_connectors": [{
            "ucm_connector_name": "UcmPosixStore",
            "ucm_connector_config": {"mount": "/m", **more}}]}

    def test_upstream(self) -> None:
        got = connector_options({
            **self.upstream(timeout_ms=500, threads=3),
            "use_layerwise": True}, check_paths=False)
        self.assertEqual(got, ConnectorOptions(
            "/m", load="layerwise", deadline_ms=500, threads=3))

    def test_upstream_ours_win(self) -> None:
        got = connector_options({
            **self.upstream(), "mount": "/n", "use_layerwise": False},
            check_paths=False)
        self.assertEqual((got.mount, got.load), ("/n", "async"))
        got = connector_options({**self.upstream(), "socket": "/s"},
                                check_paths=False)
        self.assertEqual((got.mount, got.socket), ("/s", ""))

    def test_upstream_layerwise_alone(self) -> None:
        got = connector_options({"mount": "/m", "use_layerwise": True},
                         check_paths=False)
        self.assertEqual(got, ConnectorOptions("/m", load="layerwise"))
        got = connector_options({"socket": "/s", "use_layerwise": True})
        self.assertEqual(got, ConnectorOptions("/s", load="layerwise"))
        got = connector_options({"tiers": "/a:/b", "use_layerwise": True})
        self.assertEqual(got, ConnectorOptions("tiers=/a:/b",
                                               load="layerwise"))
        got = connector_options({"mount": "/m", "use_layerwise": False})
        self.assertEqual(got, ConnectorOptions("/m"))
        with self.assertRaises(ConfigError) as caught:
            connector_options({"mount": "/m", "use_layerwise": 1})
        self.assertEqual(caught.exception.key, "use_layerwise")

    def test_upstream_loader(self) -> None:
        """Ours win key by key."""
        got = connector_options({
            **self.upstream(threads=3, staging_bytes=1 << 20), "threads": 2},
            check_paths=False)
        self.assertEqual((got.threads, got.staging_bytes), (2, 1 << 20))

    def test_upstream_told(self) -> None:
        """What is read and has no effect is said by name."""
        seeds = self.upstream(copy="cuda", device=3, num_layers=4,
                              tensor_size=4096)
        with self.assertLogs("vllm.ucmfs", "INFO") as logs:
            connector_options(seeds, check_paths=False)
        told = "\n".join(logs.output)
        for name in ("copy", "device", "num_layers", "tensor_size"):
            self.assertIn(f"ucmfs: {name}: no effect", told)
        del seeds["ucm_connectors"][0]["ucm_connector_config"]["mount"]
        seeds["ucm_connectors"][0]["ucm_connector_config"][
            "storage_backends"] = "/a:/b"
        with self.assertLogs("vllm.ucmfs", "INFO") as logs:
            connector_options({**seeds, "mount": "/m"}, check_paths=False)
        self.assertIn("storage_backends /a:/b: no effect",
                      "\n".join(logs.output))

    def test_upstream_thresholds(self) -> None:
        """Of UCM's file, and beside ours, which win."""
        names = ("persist_token_threshold", "load_tokens_threshold")
        for source, want in (({}, (2048, 512)),
                             ({"load_tokens_threshold": 1}, (2048, 1))):
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump({**self.upstream(), names[0]: 2048, names[1]: 512},
                          file)
                file.flush()
                got = connector_options({"UCM_CONFIG_FILE": file.name,
                                         **source}, check_paths=False)
            self.assertEqual(tuple(getattr(got, name) for name in names),
                             want)
        got = connector_options({"mount": "/m", names[0]: 7})
        self.assertEqual(got.persist_token_threshold, 7)
        with self.assertRaisesRegex(ConfigError, "use_lite: .*ucm replay"):
            connector_options({"mount": "/m", "use_lite": True})

    def test_upstream_refused(self) -> None:
        with self.assertRaises(ConfigError) as caught:
            connector_options({**self.upstream(), "hit_ratio": 0.5},
                              check_paths=False)
        self.assertEqual(caught.exception.key, "hit_ratio")
        with self.assertRaises(ConfigError) as caught:
            connector_options({
                **self.upstream(), "use_layerwise": True,
                "enable_prefix_cache": False}, check_paths=False)
        self.assertEqual(caught.exception.key, "enable_prefix_cache")
        with self.assertRaises(ConfigError):
            connector_options({"ucm_connectors": [{
                "ucm_connector_name": "Other",
                "ucm_connector_module_path": "other",
                "ucm_connector_config": {}}]}, check_paths=False)


if __name__ == "__main__":
    unittest.main()
