#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parts of UcmfsBlendConnector that need no engine: chunks and their names,
what is refused, batches of a pass, and the cache that it writes into."""

import dataclasses
import os
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]

try:
    import vllm  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"needs vLLM: {error}") from None

import numpy as np
import torch
from vllm import _custom_ops as ops

from ucmfs.errors import ConfigError
from ucmfs.position import ChunkConfig
from ucmfs.vllm import blend, chunks
from ucmfs.vllm.blend_pass import batches
from ucmfs.vllm.cpu_cache import CpuCache
from ucmfs.vllm.groups import Group, Plan
from ucmfs.vllm.options import connector_options


class Chunks(unittest.TestCase):

    def test_where_they_begin_and_end(self) -> None:
        tokens = np.array([1, 1, 9, 1, 1, 1, 1, 1, 9, 9, 1])
        for end, wanted in (
                (-1, [(0, 4), (4, 8), (8, 11)]),
                (9, [(0, 3), (3, 7), (7, 9), (9, 10), (10, 11)]),
                (5, [(0, 4), (4, 8), (8, 11)])):
            self.assertEqual(chunks.bounds(tokens, 4, end), wanted)
        self.assertEqual(chunks.bounds(tokens[:0], 4, 9), [])

    def test_names(self) -> None:
        one, other = np.arange(64), np.arange(1, 65)
        names = {chunks.name_of(tokens, salt)
                 for tokens in (one, other) for salt in ("", "a")}
        self.assertEqual(len(names), 4)
        self.assertEqual(chunks.name_of(one, "a"),
                         chunks.name_of(one.copy(), "a"))

    def test_those_that_are_alike(self) -> None:
        seen = chunks.Seen(ChunkConfig(64, 0.8, 2, 0))
        known = np.arange(64)
        seen.add(known, "")
        for same, matched in ((64, 64), (60, 60), (52, 52), (51, 0), (0, 0)):
            tokens = known.copy()
            tokens[same:] += 1000
            found = seen.like(tokens, 640, "")
            if not matched:
                self.assertIsNone(found)
                continue
            source, chunk = found
            np.testing.assert_array_equal(source, known)
            self.assertEqual(chunk.kind, "full" if same == 64 else "partial")
            self.assertEqual((chunk.begin, chunk.end, chunk.matched,
                              chunk.delta), (640, 704, matched, 640))
        self.assertIsNone(seen.like(known, 0, "another's"))

    def test_few_are_remembered(self) -> None:
        with mock.patch.object(chunks, "SEEN_MOST", 3):
            seen = chunks.Seen(ChunkConfig(4, 0.8, 2, 0))
            for at in range(5):
                seen.add(np.arange(at, at + 4), "")
        self.assertEqual([seen.like(np.arange(at, at + 4), 0, "") is not None
                          for at in range(5)], [False] * 2 + [True] * 3)


class Batches(unittest.TestCase):

    def test_all_tokens_once_and_no_more_than_fit(self) -> None:
        for ranges in ([], [(0, 1)], [(3, 40)], [(0, 5), (7, 8), (9, 30)],
                       [(0, 8), (8, 16)], [(4, 4), (6, 7)]):
            for most in (1, 3, 8, 100):
                with self.subTest(ranges=ranges, most=most):
                    found = list(batches(ranges, most))
                    tokens = [t for batch in found for each in batch
                              for t in range(*each)]
                    self.assertEqual(tokens, [
                        t for each in ranges for t in range(*each)])
                    for batch in found:
                        self.assertLessEqual(sum(
                            end - begin for begin, end in batch), most)
                        self.assertTrue(all(b < e for b, e in batch))


class Options(unittest.TestCase):

    def parse(self, **given: object) -> blend.BlendOptions:
        return connector_options({"mount": "/mnt/kv", **given},
                                 check_paths=False, kind=blend.BlendOptions)

    def test_what_holds_without_any(self) -> None:
        options = self.parse()
        self.assertEqual(options.chunks, ChunkConfig(64, 0.8, 2, 0))
        self.assertEqual((options.load, options.blend_ratio,
                          options.blend_layer), ("sync", 0.15, 1))

    def test_upstreams_names(self) -> None:
        options = self.parse(blend_chunk_size=128, min_match_ratio=0.9,
                             recompute_boundary=4, position_correction=True)
        self.assertEqual(options.chunks, ChunkConfig(128, 0.9, 4, 0))

    def test_wrong_ones(self) -> None:
        for key, value in (("blend_chunk_size", 0), ("min_match_ratio", 2),
                           ("blend_ratio", -0.1), ("load", "async"),
                           ("position_correction", False),
                           ("blend_layer", "one"), ("blend_min_chunks", 0),
                           ("xyzzy", 1)):
            with self.subTest(key=key), self.assertRaises(ConfigError) as caught:
                self.parse(**{key: value})
            self.assertEqual(caught.exception.key, key)


class Rotation(unittest.TestCase):

    def test_by_configuration(self) -> None:
        for given, wanted in (
                ({"rope_theta": 5e5}, {"base": 5e5, "scaling": "none"}),
                ({"rope_parameters": {"rope_type": "default",
                                      "rope_theta": 1e6}}, {"base": 1e6}),
                ({"rope_theta": 1e4, "rope_scaling": {
                    "type": "linear", "factor": 4.0}},
                 {"scaling": "linear", "factor": 4.0}),
                ({"rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192}},
                 {"scaling": "llama3", "original_length": 8192,
                  "high_freq_factor": 4.0}),
                ({"rope_parameters": {"rope_type": "default",
                                      "partial_rotary_factor": 0.5}},
                 {"rotary_dim": 64})):
            rope = blend.rope_of(SimpleNamespace(**given), 128)
            found = {key: getattr(rope, key) for key in wanted}
            self.assertEqual(found, wanted)
            rope.frequencies()
        with self.assertRaisesRegex(ConfigError, "'dynamic' cannot be moved"):
            blend.rope_of(SimpleNamespace(rope_scaling={"type": "dynamic"}), 8)


class Refused(unittest.TestCase):

    def why(self, *, architectures: object = ("LlamaForCausalLM",),
            plan: object = None, **more: object) -> str:
        config = SimpleNamespace(
            model_config=SimpleNamespace(hf_config=SimpleNamespace(
                architectures=architectures)),
            cache_config=SimpleNamespace(
                enable_prefix_caching=more.pop("prefix", False),
                cache_dtype=more.pop("dtype", "auto")),
            parallel_config=SimpleNamespace(
                decode_context_parallel_size=more.pop("context", 1)),
            lora_config=more.pop("lora", None),
            speculative_config=more.pop("drafts", None),
            max_concurrent_batches=more.pop("batches", 1))
        group = Group(0, ("a", "b"), 32, None, **more)
        caches = SimpleNamespace(kv_cache_groups=[SimpleNamespace(
            kv_cache_spec=SimpleNamespace(head_size=64))])
        found = Plan((group,), 8, 32, 32)
        options = connector_options({"mount": "/mnt/kv"}, check_paths=False,
                                    kind=blend.BlendOptions)
        try:
            blend.check(config, caches, dataclasses.replace(
                found, **(plan or {})), options)
        except ConfigError as error:
            return str(error)
        return ""

    def test_a_plain_engine_is_not(self) -> None:
        self.assertEqual(self.why(), "")

    def test_each_by_name(self) -> None:
        for given, said in (
                ({"prefix": True}, "enable_prefix_caching"),
                ({"dtype": "fp8"}, "kv_cache_dtype"),
                ({"lora": object()}, "enable_lora"),
                ({"context": 2}, "context_parallel_size"),
                ({"architectures": ["DeepseekV3ForCausalLM"]},
                 "DeepseekV3ForCausalLM is not one of"),
                ({"kind": "MLAAttentionSpec"}, "MLAAttentionSpec"),
                ({"kind": "SlidingWindowSpec", "window": 64},
                 "SlidingWindowSpec"),
                ({"plan": {"stages": 2}}, "pipeline parallelism"),
                ({"drafts": object()}, "speculative decoding"),
                ({"batches": 2}, "--no-async-scheduling")):
            with self.subTest(given=given):
                self.assertIn(said, self.why(**given))


class Cache(unittest.TestCase):

    def test_what_is_written_is_read(self) -> None:
        for dtype, tokens, channels in ((torch.float32, 32, 32),
                                        (torch.bfloat16, 32, 128),
                                        (torch.bfloat16, 128, 64),
                                        (torch.float16, 64, 128)):
            with self.subTest(dtype=dtype, tokens=tokens):
                self.check(dtype, tokens, channels)

    def check(self, dtype: torch.dtype, tokens: int, channels: int) -> None:
        heads, pages = 2, 5
        isa = "vec"

        class Impl:
            @staticmethod
            def do_kv_cache_update(layer: object, key: torch.Tensor,
                                   value: torch.Tensor, cache: torch.Tensor,
                                   slots: torch.Tensor) -> None:
                split = cache.view(len(cache), heads, 2 * tokens, -1)
                keys, values = split.chunk(2, dim=2)
                ops.cpu_attn_reshape_and_cache(key, value, keys, values,
                                               slots, isa)

        layer = SimpleNamespace(
            impl=Impl(), layer_name="layer", isa=isa,
            kv_cache=torch.zeros(pages, heads, tokens, 2 * channels,
                                 dtype=dtype))
        cache = CpuCache(layer, tokens)
        slots = torch.arange(tokens // 2, 3 * tokens)[torch.randperm(
            5 * tokens // 2)]
        key, value = torch.randn(2, len(slots), heads, channels).to(dtype)
        cache.write(key, value, slots)
        self.assertTrue(torch.equal(cache.keys(slots), key))
        self.assertTrue(torch.equal(cache.values(slots), value))
        self.assertEqual(cache.keys(torch.tensor([0])).abs().sum(), 0)

    def test_pages_of_another_size(self) -> None:
        layer = SimpleNamespace(layer_name="layer",
                                kv_cache=torch.zeros(1, 1, 32, 64))
        with self.assertRaisesRegex(ConfigError, "pages of 32 tokens"):
            CpuCache(layer, 64)


if __name__ == "__main__":
    unittest.main()
