#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tiny_model.py - a language model made on the spot: two layers, grouped-query
attention, random weights from a fixed seed, float32.

    tiny_model.py DIR [KIND]

KIND "window": the first layer sees only WINDOW tokens back. The weights are
the same; an engine keeps the layers' blocks in two groups. "states": two
layers are short convolutions, of which an engine keeps states.

Two runs give the same weights. They are large enough (initializer_range) that
the next token depends on all those before it; with the usual small ones a
model of this size repeats a token whatever its KV cache holds, and nothing
that compares tokens would notice a wrong block.
"""

from __future__ import annotations

import os
import sys
from typing import Any

VOCAB = 1000
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32  # the smallest that the CPU backend of vLLM has a kernel for
SEED = 20
WINDOW = 96

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HEADS * HEAD_DIM,
    "intermediate_size": 2 * HEADS * HEAD_DIM,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "dtype": "float32",
}


def attention(kind: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=LAYERS, head_dim=HEAD_DIM, **COMMON)
    if kind == "window":
        config.sliding_window = WINDOW
        config.layer_types = ["sliding_attention", "full_attention"]
    return LlamaForCausalLM(config)


def states() -> Any:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    types = ["conv", "full_attention", "conv"]
    return Lfm2ForCausalLM(Lfm2Config(
        num_hidden_layers=len(types), layer_types=types, conv_L_cache=3,
        block_auto_adjust_ff_dim=False, block_multiple_of=1, pad_token_id=0,
        # What vLLM looks for, and transformers does not.
        conv_dim=COMMON["hidden_size"], block_dim=COMMON["hidden_size"],
        **COMMON))


def make(path: str, kind: str = "") -> None:
    """Write the model to the directory `path`, or leave it if it is whole."""
    if os.path.exists(os.path.join(path, "config.json")):
        return
    import torch

    torch.manual_seed(SEED)
    model = states() if kind == "states" else attention(kind)
    temporary = f"{path}.{os.getpid()}"
    model.float().save_pretrained(temporary)
    os.rename(temporary, path)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    make(*sys.argv[1:])
