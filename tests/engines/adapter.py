# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter for tiny_model.py's model: random, from a seed."""

from __future__ import annotations

import json
import os

import tiny_model

RANK = 8
MODULES = {"q_proj": tiny_model.HEADS, "v_proj": tiny_model.KV_HEADS}


def make(path: str, seed: int) -> None:
    """Write the adapter to the directory `path`, over what is there."""
    import torch
    from safetensors.torch import save_file

    source = torch.Generator().manual_seed(seed)
    hidden = tiny_model.HEADS * tiny_model.HEAD_DIM
    tensors = {}
    for layer in range(tiny_model.LAYERS):
        for module, heads in MODULES.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("A", (RANK, hidden)),
                                ("B", (heads * tiny_model.HEAD_DIM, RANK))):
                tensors[f"{name}.lora_{part}.weight"] = torch.randn(
                    shape, generator=source) / 8
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "adapter_config.json"), "w",
              encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK,
                   "target_modules": list(MODULES), "bias": "none",
                   "task_type": "CAUSAL_LM"}, file)
    save_file(tensors, os.path.join(path, "adapter_model.safetensors"))
