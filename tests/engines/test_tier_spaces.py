# SPDX-License-Identifier: Apache-2.0
"""UcmfsTier: other versions of vLLM, configurations, and what makes a space."""

from __future__ import annotations

import ast
import dataclasses
import multiprocessing
import os
import subprocess
import sys
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List
from unittest import mock

from tier_case import SLOT, MountCase, Slots, engine_stub, keys_of, spec_stub

import numpy as np
import vllm
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig, OffloadingGroupConfig, OffloadingModelConfig,
    OffloadingParallelConfig)

from ucmfs.errors import ConfigError, NamespaceMismatch, UcmfsError
from ucmfs.namespace import space_id
from ucmfs.vllm import UcmfsTier
from ucmfs.vllm.fingerprint import EngineConfigs, engine_configs, handed_down
from ucmfs.vllm.mount import log
from ucmfs.vllm.options import TierOptions, parse
from ucmfs.vllm.slots import PAGE, geometry_of, pieces_of
from ucmfs.vllm import tier
from ucmfs.vllm.tier import tier_manifest

BASES = {
    "0.31": """
class Base(base.SecondaryTierManager):
    def __init_subclass__(cls, **kwargs): pass  # knows no cache_hit_source
""",
    "0.33": """
class Base(base.SecondaryTierManager):
    tolerates_off_thread_polling = False
    @classmethod
    def config_info_keys(cls, tier_config): return ()
    def config_info(self): return {}
""",
}
WITH_A_BASE = """
import vllm.v1.kv_offload.tiering.base as base
%s
base.SecondaryTierManager = Base
import tier_case as t
mount = t.Mount()
slots = t.Slots(mount)
data = slots.fill(0)
assert slots.store(t.keys_of(0), [0]).success
assert slots.hits(t.keys_of(0, 1)) == [True, False]
assert slots.load(t.keys_of(0), [1]).success
assert slots.bytes[1].tobytes() == data[0]
assert issubclass(t.UcmfsTier, Base)
assert not getattr(t.UcmfsTier, "tolerates_off_thread_polling", False)
slots.close()
mount.close()
"""


class Versions(unittest.TestCase):
    """Bases of other versions, as far as they differ from this one's."""

    def test_nothing_is_imported_before_a_class_is_asked_for(self) -> None:
        code = ("import sys, ucmfs.vllm\n"
                "assert 'UcmfsTier' in dir(ucmfs.vllm)\n"
                "assert not {'vllm', 'numpy', 'torch'} & set(sys.modules)\n"
                "sys.modules['vllm'] = None\n"
                "ucmfs.vllm.UcmfsTier\n")
        out = subprocess.run([sys.executable, "-c", code], text=True,
                             capture_output=True)
        self.assertIn("ModuleNotFoundError", out.stderr.split("\n")[-2])

    def test_bases(self) -> None:
        """In forks of a process that has imported vLLM, and nothing of ours."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["preload"])
        for version, base in BASES.items():
            with self.subTest(version=version):
                process = context.Process(target=exec,
                                          args=(WITH_A_BASE % base, {}))
                process.start()
                process.join()
                self.assertEqual(process.exitcode, 0)


def method_of(tree: str, path: str, name: str) -> ast.FunctionDef:
    """A method of the class "NAME.METHOD" in vLLM's sources, unread by
    Python: other versions need other packages."""
    with open(os.path.join(tree, "vllm", path), encoding="utf-8") as file:
        module = ast.parse(file.read())
    for part in name.split("."):
        module = next(each for each in module.body
                      if getattr(each, "name", None) == part)
    return module


def calls_of(method: ast.FunctionDef) -> List[str]:
    return [getattr(each.func, "attr", getattr(each.func, "id", ""))
            for each in ast.walk(method) if isinstance(each, ast.Call)]


class Connector(unittest.TestCase):
    """What UcmfsOffloadingConnector takes for granted of vLLM's."""

    V1 = "distributed/kv_transfer/kv_connector/v1/offloading"

    def check(self, tree: str) -> None:
        built = method_of(tree, f"{self.V1}_connector.py",
                          "OffloadingConnector.__init__")
        self.assertEqual([arg.arg for arg in built.args.args],
                         ["self", "vllm_config", "role", "kv_cache_config"])
        self.assertIn("create_spec", calls_of(built))
        self.assertIn("OffloadingConnectorScheduler", calls_of(built))
        # so tiers are made while the connector is, in the same thread
        self.assertIn("get_manager", calls_of(method_of(
            tree, f"{self.V1}/scheduler.py",
            "OffloadingConnectorScheduler.__init__")))

    def test_of_the_vllm_that_is_installed(self) -> None:
        self.check(os.path.dirname(os.path.dirname(vllm.__file__)))

    def test_of_other_versions(self) -> None:
        """UCMFS_VLLM_SOURCES: directories of unpacked sources, by colons."""
        trees = os.environ.get("UCMFS_VLLM_SOURCES", "")
        if not trees:
            self.skipTest("UCMFS_VLLM_SOURCES names no sources of vLLM")
        for tree in trees.split(":"):
            with self.subTest(tree=tree):
                self.check(tree)

    def test_tells_the_tiers_which_engine_is_built(self) -> None:
        from vllm.distributed.kv_transfer.kv_connector.factory import (
            KVConnectorFactory)

        cls = KVConnectorFactory.get_connector_class(SimpleNamespace(
            kv_connector="UcmfsOffloadingConnector",
            kv_connector_module_path="ucmfs.vllm"))
        self.assertTrue(KVConnectorFactory.supports_hma_config(
            SimpleNamespace(kv_connector="UcmfsOffloadingConnector",
                            kv_connector_module_path="ucmfs.vllm")))
        seen = []

        def built(connector, *args: Any) -> None:
            seen.append((args, engine_configs()))

        with mock.patch.object(cls.__mro__[1], "__init__", built):
            cls("vllm", "role", "cache")
        self.assertEqual(cls.__mro__[1].__name__, "OffloadingConnector")
        self.assertEqual(seen, [(("vllm", "role", "cache"),
                                 EngineConfigs("vllm", "cache"))])


class Configurations(unittest.TestCase):
    def refused(self, key: str, what: str, **config: Any) -> None:
        with self.assertRaises(ConfigError) as caught:
            UcmfsTier(spec_stub(), memoryview(np.zeros((2, SLOT), np.int8)),
                      "UcmfsTier", **config)
        self.assertEqual(caught.exception.key, key)
        self.assertIn(what, str(caught.exception))

    def test_what_is_wrong_is_named(self) -> None:
        self.refused("mount", "needed")
        self.refused("locality", "REMOTE", mount="/x", locality="near")
        self.refused("staging_byte", "staging_bytes?", mount="/x",
                     staging_byte=1)

    def test_without_the_connector_that_tells_the_engine(self) -> None:
        for config in ({}, {"namespace": "x"}):
            self.refused("kv_connector", '"UcmfsOffloadingConnector"',
                         mount="/x", **config)

    def test_random_hashes_are_refused_with_advice(self) -> None:
        seed = os.environ.pop("PYTHONHASHSEED", None)
        try:
            with handed_down(engine_stub("xxhash")):
                self.refused("PYTHONHASHSEED", "PYTHONHASHSEED=0", mount="/x",
                             namespace="x")
        finally:
            if seed is not None:
                os.environ["PYTHONHASHSEED"] = seed

    def test_no_mount(self) -> None:
        for path in ("/nowhere/at/all", "/tmp"):
            with self.assertRaises(UcmfsError), handed_down(engine_stub()):
                UcmfsTier(spec_stub(),
                          memoryview(np.zeros((2, SLOT), np.int8)),
                          "UcmfsTier", mount=path, namespace="x",
                          on_missing="fail")

    def test_pieces(self) -> None:
        for slot, pieces in ((4096, 1), (1 << 20, 1), (2 << 20, 2),
                             (3 << 20, 3), (64 << 20, 64), (509 * PAGE, 1),
                             (509 * 2 * PAGE, 2)):
            self.assertEqual(pieces_of(slot), pieces, slot)
        for slot in range(PAGE, 600 * PAGE, PAGE):
            geometry = geometry_of(slot, 16)
            self.assertEqual(geometry.payload_bytes, slot)
            self.assertEqual(geometry.k_bytes % PAGE, 0)


class Manifests(unittest.TestCase):
    """A namespace that is named by hand says nothing of what follows: that is
    taken from the engine, and makes another space."""

    MODEL = dict(name="tiny/model", dtype="float32")
    CACHE = dict(tokens_per_hash=16, blocks_per_chunk=1)
    GROUP = dict(tokens_per_block=16, layer_names=("layers.0", "layers.1"),
                 group_id=0)
    PARALLEL = dict(
        rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1,
        data_parallel_index=0, data_parallel_size=1,
        data_parallel_rank_local=None, is_parallelism_agnostic=False)

    def space(self, *, slot: int = SLOT, algorithm: str = "sha256",
              replicated: bool = False, canonical: bool = False,
              layout: str = "", config: Dict[str, Any] = {},
              groups: int = 1, **changes: Any) -> bytes:
        def of(kind: type, values: Dict[str, Any]) -> Any:
            return kind(**{k: changes.pop(k, v) for k, v in values.items()})

        one = of(OffloadingGroupConfig, self.GROUP)
        spec = spec_stub(
            slot=changes.pop("worker_bytes", SLOT), groups=(one,) * groups,
            model=of(OffloadingModelConfig, self.MODEL),
            cache=of(OffloadingCacheConfig, self.CACHE),
            parallel=of(OffloadingParallelConfig, self.PARALLEL))
        self.assertFalse(changes)
        spec.replicated_layout = replicated
        # not of every version of vLLM
        spec.config = SimpleNamespace(**{
            **vars(spec.config), "canonical_layout": canonical,
            "kv_cache_layout": layout})
        return space_id(tier_manifest(
            spec, slot, parse(TierOptions, {
                "mount": "/x", "namespace": "n", **config}),
            engine_stub(algorithm)))

    def test_each_field_makes_another(self) -> None:
        seen = {self.space(): "unchanged"}
        for change in (
                dict(slot=2 * SLOT), dict(worker_bytes=2 * SLOT),
                dict(name="other"), dict(dtype="float16"),
                dict(tokens_per_hash=32), dict(blocks_per_chunk=2),
                dict(tokens_per_block=32), dict(group_id=1), dict(groups=2),
                dict(world_size=2), dict(tp_size=2), dict(pp_size=2),
                dict(dcp_size=2), dict(pcp_size=2), dict(replicated=True),
                dict(canonical=True), dict(layout="BLNHC"),
                dict(algorithm="sha256_cbor"),
                dict(config={"namespace": "m"}),
                dict(config={"tenant": "t"}), dict(config={"epoch": "1"})):
            space = self.space(**change)
            self.assertNotIn(space, seen,
                             f"{change} is as {seen.get(space)}")
            seen[space] = change

    def test_pages_that_are_the_same_for_all_numbers_of_ranks(self) -> None:
        """One copy for them, where vLLM says so, and only there."""
        portable = dict(canonical=True, is_parallelism_agnostic=True)
        two = dict(tp_size=2, world_size=2, worker_bytes=SLOT // 2)
        want = self.space(**portable)
        self.assertEqual(self.space(**portable, **two), want)
        for other in (dict(canonical=True), dict(two, canonical=True),
                      dict(two, is_parallelism_agnostic=True),
                      dict(portable, pp_size=2), dict(portable, slot=2 * SLOT),
                      dict(portable, layout="BLNHC"),
                      dict(portable, dtype="float16")):
            self.assertNotEqual(self.space(**other), want, other)

    def test_stages_of_a_pipeline(self) -> None:
        """Cut elsewhere they have other blocks, whatever the first holds."""
        def space(*stages: Any) -> bytes:
            return space_id(tier_manifest(
                spec_stub(), SLOT, parse(TierOptions, {
                    "mount": "/x", "namespace": "n"}), engine_stub(), stages))

        a, b, c = (("a",), ()), (("b",), ("c",)), ((), ("c",))
        cuts = [(), (a, b), (a, c), (a, c, b), (a, b, c)]
        self.assertEqual(len({space(*cut) for cut in cuts}), len(cuts))
        self.assertEqual(space(a, b), space(a, b))

    def test_ranks_leave_the_engines_manifest(self) -> None:
        engine = {"model": {"name": "m"}, "parallel": {"tp": 2}, "groups": [
            {"kind": "FullAttentionSpec", "page_bytes": 4, "spec": "ab",
             "layer_names": "cd"}]}
        self.assertEqual(tier._without_ranks(engine), {
            "model": {"name": "m"}, "groups": [
                {"kind": "FullAttentionSpec", "layer_names": "cd"}]})

    def test_the_same_is_the_same(self) -> None:
        self.assertEqual(self.space(), self.space())
        self.assertEqual(self.space(rank=1), self.space())


class Pipelines(MountCase):
    """vLLM tells a tier of the first stage; the workers are asked."""

    def tier(self, *workers: Any, ranks: int = 2, **config: Any) -> UcmfsTier:
        """Of an engine with these workers, as vLLM's executor asks them."""
        def collective_rpc(function: Any, args: tuple) -> list:
            return [function(worker, *args) for worker in workers]

        executor = SimpleNamespace(collective_rpc=collective_rpc)
        spec = spec_stub()
        spec.config = dataclasses.replace(
            spec.config, parallel=dataclasses.replace(
                spec.config.parallel, world_size=ranks, pp_size=ranks))
        with handed_down(engine_stub()), mock.patch(
                "ucmfs.vllm.engine._found",
                lambda kinds, config: [lambda: executor, None]), mock.patch(
                "ucmfs.vllm.engine.digest_of_model", lambda *_: "weights"):
            made = UcmfsTier(
                spec, memoryview(np.zeros((2, SLOT), np.int8)), "UcmfsTier",
                mount=self.mount.path, namespace="x", **config)
        self.addCleanup(made.shutdown)
        return made

    @staticmethod
    def worker(*layers: str, block_bytes: int = SLOT, blocks: int = 7) -> Any:
        """With the layers of two groups."""
        return SimpleNamespace(model_runner=SimpleNamespace(
            kv_cache_config=SimpleNamespace(
                num_blocks=blocks, kv_cache_tensors=[
                    SimpleNamespace(size=blocks * block_bytes)],
                kv_cache_groups=[SimpleNamespace(layer_names=names.split())
                                 for names in layers])))

    def test_each_cut_has_a_space(self) -> None:
        """Also where a stage has no layers of a group."""
        cuts = [("a", ""), ("", "b")], [("a", ""), ("b", "")], \
            [("a", ""), ("", "b"), ("", "c")]
        names = [self.tier(*(self.worker(*one) for one in cut),
                           ranks=len(cut)).space for cut in cuts]
        self.assertEqual(len(set(names)), 3)
        again = self.tier(*(self.worker(*one) for one in cuts[0]))
        self.assertEqual(again.space, names[0])

    def test_stages_that_lie_over_each_other(self) -> None:
        for size in (SLOT // 2, 2 * SLOT):
            with self.assertRaisesRegex(
                    ConfigError, "over each other; VLLM_PP_LAYER_PARTITION"):
                self.tier(self.worker("a"),
                          self.worker("b", block_bytes=size))

    def test_workers_that_do_not_say(self) -> None:
        for workers in ((), (self.worker("a"),),
                        (self.worker("a"), SimpleNamespace())):
            with self.assertLogs("vllm.ucmfs") as said, \
                    self.assertRaisesRegex(ConfigError,
                                           "of 2 workers say which layers"):
                log.info("so that there is a line")
                self.tier(*workers)
            self.assertEqual(len(said.output) > 1, len(workers) == 2)


class Spaces(MountCase):
    def test_another_namespace_in_a_named_space_is_refused(self) -> None:
        self.slots(space="mine", namespace="one").close()
        self.slots(space="mine", namespace="one").close()
        with self.assertRaises(NamespaceMismatch) as caught:
            Slots(self.mount, space="mine", namespace="two")
        self.assertIn("one", str(caught.exception))

    def test_what_one_has_another_does_not_see(self) -> None:
        one = self.slots(namespace="one")
        one.fill(0)
        one.store(keys_of(0), [0])
        for config in (dict(namespace="two"),
                       dict(namespace="one", tenant="t"),
                       dict(namespace="one", epoch=1)):
            other = self.slots(**config)
            self.assertNotEqual(other.tier.space, one.tier.space)
            self.assertEqual(other.hits(keys_of(0)), [False])
            other.close()
        same = self.slots(namespace="one")
        self.assertEqual(same.hits(keys_of(0)), [True])


if __name__ == "__main__":
    unittest.main()
