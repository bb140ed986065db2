# SPDX-License-Identifier: Apache-2.0
"""Engines that differ in anything that decides about KV bytes have different
manifests, and equal ones the same: in this process and in another.

    python3 -m unittest tests/engines/test_fingerprint.py    (vLLM is needed)
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import glob
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from types import SimpleNamespace
from typing import Any, Callable, Dict, List
from unittest import mock

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

try:
    import torch
    import vllm
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import (FullAttentionSpec,
                                            KVCacheGroupSpec,
                                            MLAAttentionSpec,
                                            SlidingWindowSpec,
                                            UniformTypeKVCacheSpecs)
except ImportError as error:
    raise unittest.SkipTest(f"needs vLLM: {error}") from None

from ucmfs.errors import ConfigError
from ucmfs.namespace import space_id
from ucmfs.vllm import fingerprint, settings
from ucmfs.vllm.fingerprint import (EngineConfigs, Overrides, engine_configs,
                                    engine_manifest, handed_down, hash_seed,
                                    plain, weights)

GEOMETRY = {"num_layers": 1, "block_size": 16, "dtype": "opaque",
            "k_bytes": 4096, "order": "opaque"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def attention(**changes: Any) -> FullAttentionSpec:
    values = dict(block_size=16, num_kv_heads=2, head_size=32,
                  dtype=torch.float32)
    return FullAttentionSpec(**{**values, **changes})


def group(spec: Any = None, names: Any = ("l.0", "l.1"),
          **more: Any) -> KVCacheGroupSpec:
    return KVCacheGroupSpec(layer_names=list(names),
                            kv_cache_spec=spec or attention(), **more)


class HfConfig:
    """As transformers has it: a bag with to_dict()."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def to_dict(self) -> Dict[str, Any]:
        return copy.deepcopy(self.__dict__)


def engine() -> EngineConfigs:
    """All of it by hand, so that one field can be changed at a time."""
    vllm = SimpleNamespace(
        model_config=SimpleNamespace(
            model="org/model", revision=COMMIT, code_revision=None,
            dtype=torch.float32, quantization=None, max_model_len=2048,
            disable_sliding_window=False, multimodal_config=None,
            hf_config=HfConfig(num_hidden_layers=2, rope_theta=10000.0,
                               rope_scaling=None, _name_or_path="/x",
                               transformers_version="5.1")),
        load_config=SimpleNamespace(load_format="auto"),
        cache_config=SimpleNamespace(
            block_size=16, cache_dtype="auto", kv_cache_layout="LBNHC",
            prefix_caching_hash_algo="sha256",
            kv_cache_dtype_skip_layers=[], swa_bounded_replay=True),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1,
            decode_context_parallel_size=1, prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1),
        attention_config=SimpleNamespace(
            backend=None, backend_per_kind={}, flash_attn_version=None),
        speculative_config=None, lora_config=None,
        use_v2_model_runner=False)
    return EngineConfigs(vllm, SimpleNamespace(kv_cache_groups=[group()]))


def manifest_of(configs: EngineConfigs, block: int = 16,
                **overrides: str) -> Dict[str, Any]:
    return {**engine_manifest(configs, hash_block_size=block,
                              overrides=Overrides(**overrides)),
            "geometry": GEOMETRY}


def put(path: str, value: Any) -> Callable[[EngineConfigs], None]:
    """Change one field, by its path from the VllmConfig."""
    def change(configs: EngineConfigs) -> None:
        *way, last = path.split(".")
        target = configs.vllm
        for name in way:
            target = getattr(target, name)
        setattr(target, last, value)
    return change


def groups(*new: KVCacheGroupSpec) -> Callable[[EngineConfigs], None]:
    def change(configs: EngineConfigs) -> None:
        configs.kv_cache.kv_cache_groups = list(new)
    return change


DRAFT = SimpleNamespace(
    method="eagle", num_speculative_tokens=3,
    draft_model_config=SimpleNamespace(model="org/draft", revision=COMMIT))

CHANGES = {
    "model": put("model_config.model", "org/other"),
    "revision": put("model_config.revision", COMMIT[::-1]),
    "code": put("model_config.code_revision", "v2"),
    "dtype": put("model_config.dtype", torch.bfloat16),
    "quantization": put("model_config.quantization", "fp8"),
    "rope by an override": put("model_config.hf_config.rope_theta", 5e5),
    "rope scaling": put("model_config.hf_config.rope_scaling",
                        {"rope_type": "yarn", "factor": 4.0}),
    "layers": put("model_config.hf_config.num_hidden_layers", 3),
    "no sliding window": put("model_config.disable_sliding_window", True),
    "random weights": put("load_config.load_format", "dummy"),
    "images are pruned": put("model_config.multimodal_config",
                             SimpleNamespace(video_pruning_rate=0.5)),
    "images are pruned otherwise": put(
        "model_config.multimodal_config",
        SimpleNamespace(video_pruning_method="other")),
    "how images are prepared": put(
        "model_config.multimodal_config",
        SimpleNamespace(mm_processor_kwargs={"max_pixels": 4096})),
    "quantization's details": put("model_config.quantization_config",
                                  {"bits": 4}),
    "classes of the model": put("model_config.model_class_overrides",
                                {"a": "b"}),
    "code of the model": put("model_config.model_impl", "transformers"),
    "what a newer vLLM has": put("cache_config.never_seen_before", 1),
    "kv dtype": put("cache_config.cache_dtype", "fp8"),
    "layers that are not quantized": put(
        "cache_config.kv_cache_dtype_skip_layers", ["0"]),
    "block size": put("cache_config.block_size", 32),
    "mamba's type": put("cache_config.mamba_ssm_cache_dtype", "float32"),
    "prefill that leaves out": put("cache_config.swa_bounded_replay", False),
    "layout": put("cache_config.kv_cache_layout", "LBHNC"),
    "hash": put("cache_config.prefix_caching_hash_algo", "sha256_cbor"),
    "backend": put("attention_config.backend", "FLASHINFER"),
    "backend of a kind": put("attention_config.backend_per_kind",
                             {"mla_attention": "TRITON_MLA"}),
    "version of a backend": put("attention_config.flash_attn_version", 3),
    "runner": put("use_v2_model_runner", True),
    "tp": put("parallel_config.tensor_parallel_size", 2),
    "pp": put("parallel_config.pipeline_parallel_size", 2),
    "dcp": put("parallel_config.decode_context_parallel_size", 2),
    "pcp": put("parallel_config.prefill_context_parallel_size", 2),
    "interleaving": put("parallel_config.cp_kv_cache_interleave_size", 8),
    "draft model": put("speculative_config", DRAFT),
    "lora": put("lora_config", SimpleNamespace(lora_dtype="float16")),
    "group's block": groups(group(attention(block_size=32))),
    "group's heads": groups(group(attention(num_kv_heads=4))),
    "group's head size": groups(group(attention(head_size=64))),
    "group's type": groups(group(attention(dtype=torch.float16))),
    "group's padding": groups(group(attention(page_size_padded=16384))),
    "group's kind": groups(group(MLAAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=32, dtype=torch.float32))),
    "group's window": groups(group(SlidingWindowSpec(
        block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32,
        sliding_window=64))),
    "other layers": groups(group(names=("l.0", "l.2"))),
    "other order": groups(group(names=("l.1", "l.0"))),
    "more layers": groups(group(names=("l.0", "l.1", "l.2"))),
    "draft layers": groups(group(is_eagle_group=True)),
    "two groups": groups(group(names=("l.0",)), group(names=("l.1",))),
}

# What must not matter: where it lies, how it is called there, how much.
NO_CHANGES = {
    "where the configuration lies": put(
        "model_config.hf_config._name_or_path", "/y"),
    "version of transformers": put(
        "model_config.hf_config.transformers_version", "5.2"),
    "length": put("model_config.max_model_len", 4096),
    "load format": put("load_config.load_format", "safetensors"),
    "drafts out of the text": put("speculative_config", SimpleNamespace(
        method="ngram", num_speculative_tokens=3)),
    "memory": put("cache_config.gpu_memory_utilization", 0.5),
    "a port": put("parallel_config.master_port", 1234),
}


class SingleFields(unittest.TestCase):
    # this machine may have no kernels for a change, such as FP8 without AVX-512
    @mock.patch.object(fingerprint, "_cpu_isas", lambda *_: ["vec"])
    def test_each_makes_another_space(self) -> None:
        seen = {space_id(manifest_of(engine())): "unchanged"}
        for what, change in CHANGES.items():
            configs = engine()
            change(configs)
            id = space_id(manifest_of(configs))
            self.assertNotIn(id, seen, f"{what} is as {seen.get(id)}")
            seen[id] = what

    def test_overrides_and_units_too(self) -> None:
        seen = {space_id(manifest_of(engine()))}
        for change in (dict(block=32), dict(weights="w"), dict(tenant="t"),
                       dict(epoch="t"), dict(era="x")):
            id = space_id(manifest_of(engine(), **change))
            self.assertNotIn(id, seen, change)
            seen.add(id)

    def test_sparse_attention_makes_another_space(self) -> None:
        for place in ("kv_transfer_config", "additional_config"):
            found = []
            for wanted in ({}, {"sparse_type": "ESA"},
                           {"sparse_type": "ESA", "ESA": {"min_blocks": 9}}):
                configs = engine()
                put(place, SimpleNamespace(kv_connector_extra_config=wanted)
                    if place == "kv_transfer_config" else {"ucmfs": wanted})(
                        configs)
                found.append(manifest_of(configs).get("sparse"))
            self.assertEqual(found, [None, {"sparse_type": "ESA"},
                                     {"sparse_type": "ESA",
                                      "ESA": {"min_blocks": 9}}])

    def test_the_same_is_the_same(self) -> None:
        want = space_id(manifest_of(engine()))
        self.assertEqual(space_id(manifest_of(engine())), want)
        for what, change in NO_CHANGES.items():
            configs = engine()
            change(configs)
            self.assertEqual(space_id(manifest_of(configs)), want, what)

    def test_length_matters_to_long_rope(self) -> None:
        ids = set()
        for length in (2048, 4096):
            configs = engine()
            configs.vllm.model_config.hf_config.rope_scaling = {
                "rope_type": "longrope"}
            configs.vllm.model_config.max_model_len = length
            ids.add(space_id(manifest_of(configs)))
        self.assertEqual(len(ids), 2)

    def test_environment_and_platform(self) -> None:
        want = space_id(manifest_of(engine()))
        for name in ("VLLM_KV_CACHE_LAYOUT",
                     "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"):
            with mock.patch.dict(os.environ, {name: "1"}):
                self.assertNotEqual(space_id(manifest_of(engine())), want)
        with mock.patch.object(fingerprint, "_platform", lambda: "cuda"):
            self.assertNotEqual(space_id(manifest_of(engine())), want)
        with mock.patch.object(fingerprint, "_cpu_isas", lambda *_: ["amx"]):
            self.assertNotEqual(space_id(manifest_of(engine())), want)

    def test_the_seed_of_the_hashes(self) -> None:
        want = space_id(manifest_of(engine()))
        with mock.patch.dict(os.environ, {"PYTHONHASHSEED": "0"}):
            self.assertNotEqual(space_id(manifest_of(engine())), want)

    def test_worker_and_scheduler_agree(self) -> None:
        """A worker's groups hold the layers' own specifications."""
        spec = attention()
        one, two = engine(), engine()
        two.kv_cache.kv_cache_groups = [group(UniformTypeKVCacheSpecs(
            block_size=16, kv_cache_specs={"l.0": spec, "l.1": spec}))]
        self.assertEqual(manifest_of(one), manifest_of(two))

    def test_it_can_be_stored(self) -> None:
        text = json.dumps(manifest_of(engine()))
        self.assertNotIn("null", text)
        self.assertNotIn("0x", text)
        self.assertLess(len(text), 4096)
        many = engine()
        many.kv_cache.kv_cache_groups = [
            group(names=[f"model.layers.{i}.self_attn.attn"
                         for i in range(500)])] * 20
        space_id(manifest_of(many))


# What changes bytes, or may: in the manifest where it has not its default.
names = str.split
COUNTS: Dict[str, Any] = {
    # quant_config is made of the model's configuration and these settings
    "VllmConfig": names("engram_config diffusion_config additional_config"),
    "ModelConfig": names(
        "trust_remote_code quantization_config hf_overrides "
        "model_class_overrides model_impl io_processor_plugin "
        "word_embeddings_untied_by_checkpoint"),
    "MultiModalConfig": names(
        "media_io_kwargs mm_processor_kwargs mm_device_do_normalize "
        "mm_encoder_only mm_encoder_attn_backend mm_encoder_attn_dtype "
        "mm_encoder_fp8_scale_path video_pruning_method"),
    "LoadConfig": names("model_loader_extra_config ignore_patterns"),
    "CacheConfig": names(
        "enable_mamba_shared_prefix_checkpoint replayssm_buffer_len "
        "use_kda_recoverssm user_specified_mamba_block_size"),
    "ParallelConfig": names(
        "dcp_kv_cache_interleave_size worker_extension_cls"),
    "AttentionConfig": names(
        "minimax_m3_msa_decode_backend minimax_m3_indexer_cp "
        "use_trtllm_attention trtllm_ragged_backend "
        "disable_flashinfer_q_quantization mla_prefill_backend "
        "use_prefill_query_quantization indexer_kv_dtype "
        "indexer_sparse_logits hisparse_config use_non_causal "
        "sparse_mla_force_mqa"),
    "MambaConfig": names(
        "backend enable_stochastic_rounding stochastic_rounding_philox_rounds "
        "ssu_algorithm"),
    # some of them quantise what goes through them
    "KernelConfig": names(
        "moe_backend sparse_indexer_topk_backend linear_backend "
        "linear_backend_per_quant monokernel"),
    "LoRAConfig": names("default_mm_loras enable_tower_connector_lora"),
}


def fields_of(tree: str) -> Dict[str, List[str]]:
    """Of vLLM's configuration classes in a source tree."""
    out: Dict[str, List[str]] = {}
    for path in glob.glob(os.path.join(tree, "vllm", "config", "*.py")):
        with open(path, encoding="utf-8") as file:
            nodes = list(ast.walk(ast.parse(file.read())))
        for node in nodes:
            if isinstance(node, ast.ClassDef) and node.name in \
                    settings.HARMLESS:
                out[node.name] = [
                    part.target.id for part in node.body
                    if isinstance(part, ast.AnnAssign) and not re.search(
                        "ClassVar|InitVar", ast.unparse(part.annotation))]
    return out


class EveryField(unittest.TestCase):
    """Somebody has thought about each: what a new version of vLLM brings has
    to be put into one of the lists of settings.py."""

    def check(self, fields: Dict[str, List[str]]) -> None:
        self.assertEqual(set(fields), set(settings.HARMLESS))
        for kind, names in fields.items():
            self.assertGreater(len(names), 3, kind)
            for name in names:
                lists = [where[kind] for where in (
                    settings.ELSEWHERE, COUNTS, settings.HARMLESS)]
                self.assertEqual(sum(name in each for each in lists), 1,
                                 f"{kind}.{name}")

    def test_of_the_vllm_that_is_installed(self) -> None:
        self.check(fields_of(os.path.dirname(os.path.dirname(vllm.__file__))))

    def test_of_other_versions(self) -> None:
        """UCMFS_VLLM_SOURCES: directories of unpacked sources, by colons."""
        trees = os.environ.get("UCMFS_VLLM_SOURCES", "")
        if not trees:
            self.skipTest("UCMFS_VLLM_SOURCES names no sources of vLLM")
        for tree in trees.split(":"):
            with self.subTest(tree=tree):
                self.check(fields_of(tree))

    def test_default_values_say_nothing(self) -> None:
        config = VllmConfig()
        self.assertEqual(settings.changed(config, plain), {})


class CountedMedia(unittest.TestCase):
    """vLLM names images by a count: another image would have the same name."""

    def refused(self, cache_gb: float, prefix: bool, **more: Any) -> bool:
        configs = engine()
        configs.vllm.model_config.multimodal_config = SimpleNamespace(
            mm_processor_cache_gb=cache_gb, **more)
        configs.vllm.cache_config.enable_prefix_caching = prefix
        try:
            manifest_of(configs)
        except ConfigError as error:
            self.assertEqual(error.key, "mm_processor_cache_gb")
            return True
        return False

    def test_is_refused(self) -> None:
        self.assertTrue(self.refused(0, False))
        self.assertFalse(self.refused(0, True))
        self.assertFalse(self.refused(4, False))
        self.assertFalse(self.refused(0, False, language_model_only=True))

    def test_text_models_are_not(self) -> None:
        configs = engine()
        configs.vllm.cache_config.enable_prefix_caching = False
        manifest_of(configs)


class Seeds(unittest.TestCase):
    def test_steady_ones(self) -> None:
        self.assertEqual(hash_seed("sha256"), hash_seed("sha256"))
        with mock.patch.dict(os.environ, {"PYTHONHASHSEED": "12"}):
            self.assertEqual(hash_seed("sha256"), "12")
            self.assertEqual(hash_seed("xxhash_cbor"), "12")

    def test_random_ones_are_refused_with_advice(self) -> None:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
        with mock.patch.dict(os.environ, env, clear=True):
            for name in ("xxhash", "xxhash_cbor"):
                with self.assertRaises(ConfigError) as caught:
                    hash_seed(name)
                self.assertIn("PYTHONHASHSEED=0", str(caught.exception))

    def test_before_vllm_had_a_seed_of_its_own(self) -> None:
        env = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
        gone = {"vllm.v1.core.kv_cache_utils": None}
        with mock.patch.dict(sys.modules, gone), \
                mock.patch.dict(os.environ, env, clear=True):
            with self.assertRaises(ConfigError):
                hash_seed("sha256")
            os.environ["PYTHONHASHSEED"] = "3"
            self.assertEqual(hash_seed("sha256"), "3")


def safetensors(path: pathlib.Path, tensors: Dict[str, bytes]) -> None:
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)],
                        "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(tensors.values()))


class Weights(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.path = pathlib.Path(temporary.name, "model")
        self.path.mkdir()
        (self.path / "config.json").write_text('{"a": 1}')
        self.tensors = {f"t{i}": bytes([i]) * 5000 for i in range(40)}
        safetensors(self.path / "model.safetensors", self.tensors)

    def fingerprint(self, whole: bool = False) -> str:
        return weights(SimpleNamespace(model=str(self.path), revision=None),
                       whole=whole)

    def write(self, **tensors: bytes) -> None:
        """Without a trace in the time of change."""
        path = self.path / "model.safetensors"
        safetensors(path, {**self.tensors, **tensors})
        os.utime(path, (1, 1))

    def test_any_tensor_that_differs(self) -> None:
        self.write()
        want = self.fingerprint()
        self.assertEqual(self.fingerprint(), want)
        for name in ("t0", "t17", "t39"):
            self.write(**{name: b"\xff" * 5000})
            self.assertNotEqual(self.fingerprint(), want, name)
        self.write()
        self.assertEqual(self.fingerprint(), want)

    def test_one_byte_where_nobody_looks(self) -> None:
        """The time of change tells, or a look at all of it."""
        self.write()
        seen, whole = self.fingerprint(), self.fingerprint(True)
        other = bytes([17]) * 4999 + b"x"
        self.write(t17=other)
        self.assertEqual(self.fingerprint(), seen)
        self.assertNotEqual(self.fingerprint(True), whole)
        os.utime(self.path / "model.safetensors", (2, 2))
        self.assertNotEqual(self.fingerprint(), seen)
        self.write()
        os.utime(self.path / "model.safetensors", (2, 2))
        self.assertEqual(self.fingerprint(True), whole)

    def test_files_of_the_hubs_cache(self) -> None:
        """Their content has its hash for a name; nothing else matters."""
        weights_file = self.path / "model.safetensors"
        blobs = self.path.parent / "blobs"
        blobs.mkdir()
        seen = set()
        for name in ("a" * 64, "b" * 64):
            weights_file.rename(blobs / name)
            weights_file.symlink_to(blobs / name)
            seen.add(self.fingerprint())
            os.utime(weights_file, (3, 3))
            self.assertIn(self.fingerprint(), seen)
            self.assertIn(self.fingerprint(True), seen)
            weights_file.unlink()
            (blobs / name).rename(weights_file)
        self.assertEqual(len(seen), 2)
        # a link to anywhere else is followed
        weights_file.rename(blobs / "model")
        weights_file.symlink_to(blobs / "model")
        self.assertNotIn(self.fingerprint(), seen)

    def test_configuration_code_and_other_formats(self) -> None:
        seen = {self.fingerprint()}
        for name, content in (
                ("config.json", b'{"a": 2}'), ("modeling.py", b"x = 1"),
                ("model.safetensors.index.json", b"{}"),
                ("more.bin", b"1" * 9000), ("more.bin", b"1" * 8999 + b"2"),
                ("broken.safetensors", b"\xff" * 100),
                ("no.safetensors", b"{"),
                ("quantize_config.json", b"{}")):
            (self.path / name).write_bytes(content)
            self.assertNotIn(self.fingerprint(), seen, name)
            seen.add(self.fingerprint())

    def test_what_decides_nothing(self) -> None:
        want = self.fingerprint()
        (self.path / "README.md").write_text("x")
        (self.path / "tokenizer.json").write_text("{}")
        moved = self.path.rename(self.path.with_name("elsewhere"))
        self.path = moved
        self.assertEqual(self.fingerprint(), want)

    def test_an_engine_asks_for_all_of_them(self) -> None:
        configs = engine()
        configs.vllm.model_config.model = str(self.path)
        self.write()
        found = {manifest_of(configs, weights=name)["model"]["weights"]
                 for name in ("", "full", "mine")}
        self.assertEqual(found, {self.fingerprint(), self.fingerprint(True),
                                 "mine"})

    def test_nothing_to_look_at_is_refused(self) -> None:
        with self.assertRaises(ConfigError) as caught:
            weights(SimpleNamespace(model="s3://bucket/model", revision=None))
        self.assertEqual(caught.exception.key, "weights")
        (self.path / "model.safetensors").unlink()
        with self.assertRaises(ConfigError):
            self.fingerprint()

    def test_commits(self) -> None:
        config = SimpleNamespace(model="org/model", revision=COMMIT)
        self.assertEqual(weights(config), f"hub:{COMMIT}")
        config.revision = "main"
        with mock.patch("huggingface_hub.try_to_load_from_cache",
                        lambda *_, **__: "/c/models--org--model/snapshots/"
                        f"{COMMIT}/config.json"):
            self.assertEqual(weights(config), f"hub:{COMMIT}")


class Values(unittest.TestCase):
    def test_plain(self) -> None:
        @dataclasses.dataclass
        class Point:
            x: int
            y: float

        for value, want in (
                (None, ""), (1.5, "1.5"), (True, True), ((1, [2]), [1, [2]]),
                ({1: None}, {"1": ""}), ({3, 1, 2}, [1, 2, 3]),
                (torch.float16, "torch.float16"),
                (Point(1, 2.0), {"": "Point", "x": 1, "y": "2.0"}),
                (object(), "object"), (lambda: 0, "function")):
            self.assertEqual(plain(value), want)

    def test_the_configuration_is_handed_down(self) -> None:
        one, other = engine(), engine()
        with handed_down(one):
            self.assertIs(engine_configs(), one)
            with handed_down(other):
                self.assertIs(engine_configs(), other)
            self.assertIs(engine_configs(), one)
        with self.assertRaisesRegex(ConfigError, "UcmfsOffloadingConnector"):
            engine_configs()


class Processes(unittest.TestCase):
    def test_another_process_comes_to_the_same(self) -> None:
        code = ("import sys; sys.path.insert(0, sys.argv[1])\n"
                "import test_fingerprint as t\n"
                "print(t.space_id(t.manifest_of(t.engine())).hex())")
        here = space_id(manifest_of(engine())).hex()
        out = subprocess.run(
            [sys.executable, "-c", code, os.path.dirname(
                os.path.abspath(__file__))],
            capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout.split()[-1], here)


if __name__ == "__main__":
    unittest.main()
