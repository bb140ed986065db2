#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""blend.py - time to the first token of documents in a new order: computed,
and blended by UcmfsBlendConnector, in turns, each by a separate engine.

    bench/blend.py [--tokens N] [--layers N] [--hidden N] [--rounds N] DIR

DIR: a directory for the tier. Needs vLLM on a CPU (tools/engines-venv), and
ucmfs as the tests of engines do ($UCMFS_LIBRARY, $UCMFS_PROGRAM). The model has
random weights; documents have 256 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                  VLLM_LOGGING_LEVEL="ERROR", VLLM_CPU_KVCACHE_SPACE="4",
                  VLLM_NO_USAGE_STATS="1", PYTHONHASHSEED="0",
                  OMP_WAIT_POLICY="PASSIVE")  # engines wait for each other
DOCUMENT = 256
RATIOS = (0.0, 0.15, 0.3)


def model(path: str, layers: int, hidden: int) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = hidden // 128
    LlamaForCausalLM(LlamaConfig(
        vocab_size=2000, hidden_size=hidden, intermediate_size=3 * hidden,
        num_hidden_layers=layers, num_attention_heads=heads, head_dim=128,
        num_key_value_heads=max(1, heads // 4), dtype="float32",
        max_position_embeddings=1 << 17)).float().save_pretrained(path)
    return path


def serve(path: str, tokens: int, transfer: dict[str, Any] | None,
          pipe: Any) -> None:
    """For each prompt: seconds, and how many tokens were cached."""
    from vllm import LLM

    more = {"kv_transfer_config": transfer} if transfer else {}
    llm = LLM(path, skip_tokenizer_init=True, dtype="float32",
              enforce_eager=True, max_model_len=tokens + 256,
              enable_prefix_caching=False, max_num_batched_tokens=2048,
              block_size=128, **more)
    while True:
        pipe.send(seconds(llm, pipe.recv()))


class Engine:
    def __init__(self, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve,
                                        args=(*arguments, theirs))
        self._process.start()

    def seconds(self, prompt: list[int]) -> tuple[float, int]:
        self._pipe.send(prompt)
        return self._pipe.recv()

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def blending(tier: str, ratio: float) -> dict[str, Any]:
    return {"kv_connector": "UcmfsBlendConnector", "kv_role": "kv_both",
            "kv_connector_module_path": "ucmfs.vllm",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"tiers": tier,
                                          "blend_ratio": ratio}}


def seconds(llm: Any, prompt: list[int]) -> tuple[float, int]:
    from vllm import SamplingParams

    began = time.perf_counter()
    (out,) = llm.generate({"prompt_token_ids": prompt}, SamplingParams(
        temperature=0, max_tokens=1, detokenize=False), use_tqdm=False)
    return time.perf_counter() - began, out.num_cached_tokens or 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 4096), ("layers", 8), ("hidden", 1024),
                          ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("tier", metavar="DIR")
    given = parser.parse_args()
    source = random.Random(1)
    documents = [[source.randrange(10, 2000) for _ in range(DOCUMENT)]
                 for _ in range(given.tokens // DOCUMENT)]

    def prompt() -> list[int]:
        source.shuffle(documents)
        return [token for each in documents for token in each] + [
            source.randrange(10, 2000) for _ in range(40)]

    with tempfile.TemporaryDirectory() as path, \
            contextlib.ExitStack() as stack:
        model(path, given.layers, given.hidden)

        def start(transfer: dict[str, Any] | None) -> Engine:
            engine = Engine(path, given.tokens, transfer)
            stack.callback(engine.close)
            return engine

        plain = start(None)
        blends = {ratio: start(blending(given.tier, ratio))
                  for ratio in RATIOS}
        for engine in [plain, *blends.values()]:
            engine.seconds(prompt())
            engine.seconds(prompt())
        taken: dict[float, list[float]] = {ratio: [] for ratio in RATIOS}
        for _ in range(given.rounds):
            full, _ = plain.seconds(prompt())
            for ratio, engine in blends.items():
                mine, cached = engine.seconds(prompt())
                assert cached, "nothing was reused"
                taken[ratio].append(full / mine)
        print(f"{given.tokens} tokens, {given.layers} layers of "
              f"{given.hidden}; computed: {full:.2f} s")
        for ratio, gains in taken.items():
            low, middle, high = statistics.quantiles(gains, n=4) \
                if len(gains) > 1 else gains * 3
            print(f"blend_ratio {ratio}: {middle:.2f} times as fast "
                  f"({low:.2f} to {high:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
