# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as PyTorch and safetensors write and read them.

    tensors_client.py save|load ROOT

"save" writes each twice, so that the second replaces the first; "load" reads
them in all ways there are, mapped too, and prints a JSON object that says
which were right.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Dict

import safetensors
import safetensors.torch
import torch

SHAPES = {"weight": (1024, 1024), "bias": (1021,), "empty": (0,)}


def tensors(version: int) -> Dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=source)
            for name, shape in SHAPES.items()}


def same(found: Dict[str, torch.Tensor]) -> bool:
    wanted = tensors(2)
    return found.keys() == wanted.keys() and all(
        torch.equal(found[name], wanted[name]) for name in wanted)


def save(root: str) -> None:
    os.makedirs(root, exist_ok=True)
    for version in (1, 2):
        state = tensors(version)
        torch.save(state, f"{root}/state.pt")
        torch.save(state, f"{root}/old.pt",
                   _use_new_zipfile_serialization=False)
        safetensors.torch.save_file(state, f"{root}/state.safetensors")
        # as checkpoints are replaced
        torch.save(state, f"{root}/last.pt.tmp")
        os.replace(f"{root}/last.pt.tmp", f"{root}/last.pt")


def opened(path: str) -> Dict[str, torch.Tensor]:
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def load(root: str) -> Dict[str, bool]:
    plain = f"{root}/state.safetensors"
    return {
        "torch": same(torch.load(f"{root}/state.pt")),
        "torch, mapped": same(torch.load(f"{root}/state.pt", mmap=True)),
        "torch, old format": same(torch.load(f"{root}/old.pt")),
        "torch, replaced": same(torch.load(f"{root}/last.pt")),
        "safetensors": same(safetensors.torch.load_file(plain)),
        "safetensors, opened": same(opened(plain)),
    }


def main() -> None:
    what, root = sys.argv[1:]
    if what == "save":
        save(root)
    print(json.dumps(load(root)))


if __name__ == "__main__":
    main()
