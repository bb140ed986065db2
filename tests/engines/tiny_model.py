#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tiny_model.py - a language model made on the spot: two layers, grouped-query
attention, random weights from a fixed seed, float32.

    tiny_model.py DIR [WINDOW]

WINDOW: the first layer sees only so many tokens back. The weights are the
same; an engine keeps the layers' blocks in two groups.

Two runs give the same weights. They are large enough (initializer_range) that
the next token depends on all those before it; with the usual small ones a
model of this size repeats a token whatever its KV cache holds, and nothing
that compares tokens would notice a wrong block.
"""

from __future__ import annotations

import os
import sys

VOCAB = 1000
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32  # the smallest that the CPU backend of vLLM has a kernel for
SEED = 20


def make(path: str, window: int = 0) -> None:
    """Write the model to the directory `path`, or leave it if it is whole."""
    if os.path.exists(os.path.join(path, "config.json")):
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HEADS * HEAD_DIM,
        intermediate_size=2 * HEADS * HEAD_DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=4096,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        dtype="float32",
    )
    if window:
        config.sliding_window = window
        config.layer_types = ["sliding_attention", "full_attention"]
    temporary = f"{path}.{os.getpid()}"
    LlamaForCausalLM(config).float().save_pretrained(temporary)
    os.rename(temporary, path)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    make(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 0)
