# SPDX-License-Identifier: Apache-2.0
"""A pass over the model's layers that computes some tokens of a request again,
in the pages that they are in.

Nothing hands a connector the model. So the first module that vLLM calls and
that computes logits is taken, by a hook that is then removed.

Each range of tokens is a row of a batch, as if a request of that length had
these tokens left to compute. A layer writes the keys and values of all rows
before it attends; so a row sees what was computed of the rows before it, and
what is cached of the rest.

What the model's layers are called with, and that its keys are rotated as its
configuration says, is checked when the model is first seen.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Iterator, Sequence

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from vllm.distributed import get_tp_group
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from .. import position
from ..errors import ConfigError
from .cpu_cache import CpuCache

PARAMETERS = ["positions", "hidden_states", "residual"]
FAR = 37          # positions that a key is moved by as a test
TOLERANCE = 0.03  # of bfloat16, whose cosines are rounded, too

Ranges = Sequence[tuple[int, int]]


def over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    """Summed over the ranks of a tensor parallel group, in place."""
    group = get_tp_group()
    if group.world_size > 1:
        torch.distributed.all_reduce(numbers, group=group.cpu_group)
    return numbers


def batches(ranges: Ranges, most: int) -> Iterator[list[tuple[int, int]]]:
    """Ascending ranges, cut and put together so that a batch has at most so
    many tokens."""
    batch: list[tuple[int, int]] = []
    room = most
    for begin, end in ranges:
        while begin < end:
            cut = min(end, begin + room)
            batch.append((begin, cut))
            room -= cut - begin
            begin = cut
            if not room:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


class Pass:
    """caches: of each layer, in the model's order."""

    def __init__(self, vllm_config: Any, rope: position.Rope,
                 layers: Sequence[str]) -> None:
        self._config = vllm_config
        self._rope = rope
        self._names = layers
        self._most = vllm_config.scheduler_config.max_num_batched_tokens
        self._model: Any = None
        self._builder: Any = None
        self.caches: list[CpuCache] = []
        self._hook = register_module_forward_pre_hook(self._see)

    def _see(self, module: torch.nn.Module, _: Any) -> None:
        if hasattr(module, "compute_logits"):
            self._hook.remove()
            self._model = module

    def forget(self) -> None:
        self._hook.remove()

    @functools.cached_property
    def _layers(self) -> Sequence[Any]:
        """Of the model, once it is known. ConfigError: they are others than
        this pass can call."""
        if not self._model:
            raise ConfigError("model", "it has not been called yet")
        layers = list(getattr(getattr(self._model, "model", None), "layers",
                              ()))
        for layer in layers:
            found = list(inspect.signature(layer.forward).parameters)
            if found[:3] != PARAMETERS:
                raise ConfigError("model", f"{type(layer).__name__} takes "
                                  f"{', '.join(found)}, not "
                                  f"{', '.join(PARAMETERS)}")
        if len(layers) != len(self._names):
            raise ConfigError("model", f"{len(layers)} layers, and "
                              f"{len(self._names)} with a KV cache")
        self._check_rope(layers[0].self_attn.rotary_emb)
        return layers

    def _check_rope(self, rotary: Any) -> None:
        dim = self._rope.head_dim
        dtype = self._config.model_config.dtype
        key = torch.linspace(-1, 1, dim).to(dtype).view(1, dim)
        here, there = (rotary(torch.tensor([at]), key.clone(), key.clone())[1]
                       for at in (1, 1 + FAR))
        moved = here.reshape(1, 1, 1, dim).contiguous()
        self._rope.shift(moved, [FAR])
        off = (moved.flatten() - there.flatten()).abs().max().item()
        if not off <= TOLERANCE:
            raise ConfigError("rope_parameters", "the model rotates keys "
                              f"otherwise: one is off by {off:g}")

    def check(self) -> None:
        """ConfigError: nothing can be computed with this model."""
        self._layers  # pylint: disable=pointless-statement

    def bind(self, pages: int) -> None:
        """The KV cache is there; pages: tokens in one."""
        found = self._config.compilation_config.static_forward_context
        self.caches = [CpuCache(found[name], pages) for name in self._names]

    def slots(self, pages: torch.Tensor, positions: torch.Tensor,
              ) -> torch.Tensor:
        size = self.caches[0].page_tokens
        return pages[positions // size] * size + positions % size

    # ---- the pass ----

    @torch.inference_mode()
    def run(self, tokens: torch.Tensor, first: int, ranges: Ranges,
            pages: torch.Tensor, layers: int | None = None) -> None:
        """Compute the tokens of ascending ranges of a request, up to a layer.
        tokens: from position first on; pages: of the request."""
        for batch in batches(ranges, self._most):
            self._compute(tokens, first, batch, pages, layers)

    def _compute(self, tokens: torch.Tensor, first: int,
                 batch: list[tuple[int, int]], pages: torch.Tensor,
                 layers: int | None) -> None:
        positions = torch.cat([torch.arange(*each) for each in batch])
        slots = self.slots(pages, positions)
        built = self._metadata(batch, pages, slots)
        with set_forward_context(
                dict.fromkeys(self._names, built), self._config,
                num_tokens=len(positions),
                slot_mapping=dict.fromkeys(self._names, slots)):
            hidden = self._model.embed_input_ids(tokens[positions - first])
            residual = None
            for layer in self._layers[:layers]:
                hidden, residual = layer(positions, hidden, residual)

    def _metadata(self, batch: list[tuple[int, int]], pages: torch.Tensor,
                  slots: torch.Tensor) -> Any:
        if not self._builder:
            attention = self.caches[0].layer
            self._builder = attention.attn_backend.get_builder_cls()(
                attention.get_kv_cache_spec(self._config), list(self._names),
                self._config, torch.device("cpu"))
        lengths = torch.tensor([end - begin for begin, end in batch])
        starts = torch.zeros(len(batch) + 1, dtype=torch.int32)
        starts[1:] = lengths.cumsum(0)
        ends = torch.tensor([end for _, end in batch], dtype=torch.int32)
        return self._builder.build(0, CommonAttentionMetadata(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=ends,
            num_reqs=len(batch), num_actual_tokens=len(slots),
            max_query_len=int(lengths.max()), max_seq_len=int(ends.max()),
            block_table_tensor=pages.to(torch.int32).repeat(len(batch), 1),
            slot_mapping=slots))
