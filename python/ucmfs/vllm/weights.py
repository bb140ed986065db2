# SPDX-License-Identifier: Apache-2.0
"""Digests of what a worker computes with: its model's weights, an adapter's.

These run in the workers' processes, called by their names (see engine.py).
They are made of bytes and whole numbers alone, so two engines of the same kind
with the same weights have the same digest.

Of each parameter SAMPLES elements are looked at, spread over all of it: a step
of training, a merged adapter and another checkpoint change nearly all of them.
Whoever changes a few elements by hand may be missed; whole=True sums all of
them where they are, at the speed of their memory. Adapters are small and are
read as a whole.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from typing import Any, Iterator

log = logging.getLogger("vllm.ucmfs")

SAMPLES = 256
PIECE = 2 << 20  # elements of four bytes that are summed at once
_STRIDE = 0x9E3779B1  # a golden part of 2**32: no row or column is in step


def digest_of_model(worker: Any, whole: bool) -> str:
    """Of the worker's model and its drafter's; "": they cannot be found."""
    try:
        models = _models(worker)
        if not models:
            return ""
        total = hashlib.sha256()
        for number, model in enumerate(models):
            for name, tensor in _parameters(model):
                _add(total, f"{number} {name}", tensor, whole)
        return total.hexdigest()
    except Exception:  # whatever a version has changed: it is told as such
        log.exception("ucmfs: the weights cannot be looked at")
        return ""


def _models(worker: Any) -> list[Any]:
    runner = worker.model_runner
    found = [runner.get_model()]
    ask = getattr(runner, "get_draft_model", None)
    draft = ask() if callable(ask) else getattr(
        getattr(runner, "drafter", None), "model", None)
    if hasattr(draft, "named_parameters"):
        found.append(draft)
    return found


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in model.named_parameters():
        yield from _inner(name, parameter)


def _inner(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that hold a parameter's bytes: of some kinds inner ones."""
    partitions = getattr(tensor, "partitions", None)
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if isinstance(partitions, dict):
        for key, one in partitions.items():
            yield from _inner(f"{name}.{key}", one)
    elif callable(flatten):
        for key in flatten()[0]:
            yield from _inner(f"{name}.{key}", getattr(tensor, key))
    else:
        yield name, tensor


def _add(total: Any, name: str, tensor: Any, whole: bool) -> None:
    total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
    if not tensor.numel():
        return
    rows = _rows(tensor)
    found = _sums(rows) if whole else rows[_places(rows)]
    total.update(found.cpu().numpy().tobytes())


def _rows(tensor: Any) -> Any:
    """The bytes of each element, in the order of memory."""
    import torch

    tensor = tensor.detach()
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    flat = tensor.permute(order).contiguous().reshape(-1)
    return flat.view(torch.uint8).view(flat.numel(), -1)


def _places(rows: Any) -> Any:
    import torch

    num = rows.shape[0]
    if num <= SAMPLES:
        return torch.arange(num, device=rows.device)
    step = torch.arange(SAMPLES, dtype=torch.int64, device=rows.device)
    # 32 bits at once: of a longer tensor no place is left out for good
    return ((step * _STRIDE & 0xFFFFFFFF).double() / 2**32 * num).long()


def _sums(rows: Any) -> Any:
    """Of each piece the sum, and the sum of elements times their places."""
    import torch

    flat = rows.reshape(-1)
    even = flat.numel() // 4 * 4
    words = flat[:even].view(torch.int32)
    weights = 2 * torch.arange(PIECE, dtype=torch.int64,
                               device=flat.device) + 1
    out = [flat[even:].long()]
    for at in range(0, words.numel(), PIECE):
        piece = words[at:at + PIECE].long()
        out.append(torch.stack(
            [piece.sum(), (piece * weights[:piece.numel()]).sum()]))
    return torch.cat(out)


# ---- adapters ----

# A reload makes another object, so what is known of one stays true.
_adapters: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def digest_of_adapter(worker: Any, lora: Any) -> str:
    """Of a LoRARequest's adapter as the worker has it in memory, where it is
    brought as the request's first step would; "": it cannot be had."""
    try:
        manager = worker.model_runner.lora_manager
        if lora.lora_int_id not in manager.list_adapters():
            worker.add_lora(lora)
        adapter = manager._adapter_manager.get_adapter(lora.lora_int_id)
        if adapter is None:
            return ""
        if adapter not in _adapters:
            _adapters[adapter] = _of_adapter(adapter)
        return _adapters[adapter]
    except Exception as error:  # vLLM says so itself, when it comes to it
        log.warning("ucmfs: adapter %s cannot be looked at: %s",
                    getattr(lora, "lora_name", "?"), error)
        return ""


def _of_adapter(adapter: Any) -> str:
    total = hashlib.sha256(f"{adapter.rank}\n".encode())
    for name, part in sorted(adapter.loras.items()):
        total.update(f"{name} {_text(getattr(part, 'scaling', 1))}\n".encode())
        _add_tensors(total, "a", part.lora_a)
        _add_tensors(total, "b", part.lora_b)
    saved = getattr(adapter, "modules_to_save", None) or {}
    for name, part in sorted(saved.items()):
        total.update(f"{name}\n".encode())
        for key, one in sorted(vars(part).items()):
            _add_tensors(total, key, one)
    return total.hexdigest()


def _text(value: Any) -> str:
    return str([_text(each) for each in value]) \
        if isinstance(value, (list, tuple)) else repr(value)


def _add_tensors(total: Any, name: str, value: Any) -> None:
    """A tensor, several, or what stands for none."""
    if isinstance(value, (list, tuple)):
        for each in value:
            _add_tensors(total, name, each)
    elif hasattr(value, "detach"):
        total.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        total.update(_rows(value).cpu().numpy().tobytes())
    else:
        total.update(f"{name} {value!r}\n".encode())
