# SPDX-License-Identifier: Apache-2.0
"""Sparse attention in vLLM on a CPU: decode rows attend to the pages that a
method of ucm_retrieve(3) chooses.

vLLM's own backend runs below. Ours builds representations where keys are
written (sparse_pages.py), and hands each layer's kernel another block table
and other lengths, in which the rows that decode name the chosen pages alone.
Rows of more than one token, and the last token of a prompt, are dense. Their
keys and values are exact all the same only if all tokens before them were
prompts: generated ones may be part of the next prompt. So a store keeps such
an engine's blocks apart (fingerprint.py).

Pages that have grown or were loaded are read in the kernel's own order
(cpu_cache.py).

A choice is made at each step in each layer. What a layer or an engine cannot
do (refusal()) is said once, by name, and it stays dense.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Sequence

import numpy as np
import torch
from vllm import _custom_ops as ops
from vllm import envs
from vllm.config import get_current_vllm_config
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend, CPUAttentionBackendImpl, CPUAttentionMetadata,
    CPUAttentionMetadataBuilder)

from .. import methods
from ..errors import UcmfsError
from . import sparse_pages, sparse_storage
from .cpu_cache import order_of
from .mount import Teller, log
from .plugin import asked, split
from .sparse_pages import Pages, Step

OURS = "UcmfsConnector"  # it says which pages it loads

_refused: set[str] = set()


class CpuBackend(CPUAttentionBackend):

    @staticmethod
    def get_impl_cls() -> type[CpuImpl]:
        return CpuImpl

    @staticmethod
    def get_builder_cls() -> type[CpuBuilder]:
        return CpuBuilder


# ---- a step ----

@dataclasses.dataclass
class Metadata(CPUAttentionMetadata):
    """decode: the rows that may be sparse. step: made by the first layer that
    chooses. chosen: what the last one has chosen, and its number."""

    decode: Sequence[int] = ()
    step: Step | None = None
    chosen: tuple[int, CPUAttentionMetadata | None] = (-1, None)


class CpuBuilder(CPUAttentionMetadataBuilder):

    def build(self, common_prefix_len: int, common_attn_metadata: Any,
              *args: Any, **kwargs: Any) -> Metadata:
        built = super().build(common_prefix_len, common_attn_metadata, *args,
                              **kwargs)
        return Metadata(**vars(built),
                        decode=decode_rows(built, common_attn_metadata))


def decode_rows(built: CPUAttentionMetadata, common: Any) -> Sequence[int]:
    """Rows of one token that the request has generated."""
    prefilling = getattr(common, "is_prefilling", None)
    if prefilling is None or built.causal is not True:
        return ()
    num = common.num_reqs
    lengths = np.diff(built.query_start_loc.numpy()[:num + 1])
    return np.flatnonzero((lengths == 1) & ~prefilling.numpy()[:num]).tolist()


# ---- a layer ----

class Plan:
    """What is to be done in a layer: by its configuration, and the size of
    pages."""

    def __init__(self, wanted: dict[str, Any], vllm_config: Any,
                 page_tokens: int) -> None:
        method, self.retrieves = split(wanted)
        self.config = methods.parse(
            method, block_size=page_tokens,
            num_layers=vllm_config.model_config.get_total_num_hidden_layers())
        self.min_blocks = self.config.values["min_blocks"]
        self.page_tokens = page_tokens

    def is_long(self, tokens: int) -> bool:
        """Whether a request of so many tokens may be sparse."""
        return -(-tokens // self.page_tokens) >= self.min_blocks


def refusal(impl: CPUAttentionBackendImpl, vllm_config: Any,
            method: methods.Method) -> str:
    """Why a layer stays dense; "": it need not."""
    connector = getattr(vllm_config.kv_transfer_config, "kv_connector", None)
    parallel = vllm_config.parallel_config
    reasons = {
        f"{method.name} chooses no blocks": method.keeps == "nothing",
        f"{connector} does not say which pages it loads":
            connector not in (None, OURS),
        "context parallelism": max(
            getattr(parallel, f"{kind}_context_parallel_size", 1)
            for kind in ("decode", "prefill")) > 1,
        f"{impl.attn_type} attention": impl.attn_type != AttentionType.DECODER,
        "sliding window layers": impl.sliding_window != -1,
        "layers that share the KV cache of others":
            impl.kv_sharing_target_layer_name is not None,
        f"a KV cache of {impl.kv_cache_dtype}": impl.is_fp8_kv_cache,
        "layers with ALiBi": impl.alibi_slopes is not None,
    }
    return next((text for text, holds in reasons.items() if holds), "")


class CpuImpl(CPUAttentionBackendImpl):
    """Dense, if there is no plan."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pages: Pages | None = None
        self._plan: Plan | None = None
        self._cache: tuple[int, Any] = (0, None)  # that the pages are of
        self._storage: sparse_storage.Storage | None = None
        self._config = get_current_vllm_config()
        self._wanted = asked(self._config)
        self._teller = Teller("sparse attention")
        if not self._wanted:  # vLLM caches the class
            return
        # wrong keys end the start of the engine
        self._plan = Plan(self._wanted, self._config,
                          self._config.cache_config.block_size)
        why = refusal(self, self._config, self._plan.config.method)
        if why:
            self._stay_dense(why)

    def _stay_dense(self, why: str) -> None:
        self._plan = self._pages = None
        if why not in _refused:
            _refused.add(why)
            log.warning("ucmfs: sparse_type %s: dense: %s",
                        self._wanted["sparse_type"], why)

    def do_kv_cache_update(self, layer: Any, key: torch.Tensor,
                           value: torch.Tensor, kv_cache: torch.Tensor,
                           slot_mapping: torch.Tensor) -> None:
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        if not self._plan:
            return
        cache = (kv_cache.data_ptr(), kv_cache.shape)
        if self._cache != cache:
            self._cache = cache
            self._open(layer, key, kv_cache)
        if self._storage:
            self._storage.written(self._row, slot_mapping.numpy())
        if self._pages is not None and len(slot_mapping):
            self._pages.written(key[:len(slot_mapping)], slot_mapping)

    def _open(self, layer: Any, key: torch.Tensor, kv_cache: torch.Tensor,
              ) -> None:
        """Nothing is known of a new cache's pages."""
        num_pages, heads, page_tokens, width = kv_cache.shape
        blocks = self._config.cache_config.block_size
        if page_tokens != blocks:
            self._stay_dense(f"pages of {page_tokens} tokens, and blocks of "
                             f"{blocks}")
            return
        self._plan = plan = Plan(self._wanted, self._config, page_tokens)
        self._number = extract_layer_index(layer.layer_name)
        self._layer = plan.config.layer(self._number)
        if self._layer.role == "dense":
            self._plan = None
            return
        write = functools.partial(super().do_kv_cache_update, layer)
        order = order_of(write, heads, page_tokens, width // 2, key.dtype)
        if order is None:
            self._stay_dense("the kernel's order of keys could not be learnt")
            return

        def keys_of(pages: Sequence[int]) -> torch.Tensor:
            head = kv_cache[list(pages)].flatten(2)[:, :, order]
            return head.unflatten(2, (page_tokens, -1)).transpose(1, 2)

        by, method = plan.config.by(methods.Model(
            self.num_kv_heads, self.num_heads, self.head_size))
        self._pages = Pages(layer.layer_name, by, num_pages,
                            plan.config.budget, keys_of, method=method)
        self._storage = sparse_storage.of_cache(kv_cache.data_ptr())
        if self._storage:
            self._row = self._storage.open(kv_cache.data_ptr(), self._pages,
                                           plan.min_blocks)

    def forward(self, layer: Any, query: torch.Tensor, key: torch.Tensor,
                value: torch.Tensor, kv_cache: torch.Tensor,
                attn_metadata: Any, output: torch.Tensor, *args: Any,
                **kwargs: Any) -> torch.Tensor:
        storage = self._storage
        if self._pages and self._pages.rows and (
                getattr(attn_metadata, "decode", ())
                or (storage and storage.begins)):
            try:
                attn_metadata = self._sparse(layer, query, attn_metadata)
            except UcmfsError as error:  # a query that is not finite
                self._teller.warn("selection", "%s", error)
        if storage and attn_metadata is not None:
            storage.need(self._row, attn_metadata.block_table.numpy(),
                         attn_metadata.seq_lens.numpy())
        return super().forward(layer, query, key, value, kv_cache,
                               attn_metadata, output, *args, **kwargs)

    def _sparse(self, layer: Any, query: torch.Tensor,
                dense: Metadata) -> Metadata:
        """What the layers share is left as it is."""
        source, chosen = dense.chosen
        step = dense.step
        if self._layer.role == "reuses" and self._layer.source == source:
            sparse_pages.count(step)
            return chosen
        if not step:
            decode = self._rows(dense)
            step = dense.step = Step(
                [row for row in decode
                 if self._plan.is_long(int(dense.seq_lens[row]))],
                dense.block_table, dense.seq_lens, self._plan.page_tokens,
                decode)
        lengths = step.tokens
        queries = self._queries(query, dense, step)
        sparse_pages.select_rows(self._pages, step, queries)
        if self._storage:
            self._storage.ahead(self._row, step, queries)
        chosen = dataclasses.replace(
            dense, block_table=step.attended, seq_lens=lengths,
            scheduler_metadata=ops.cpu_attn_get_scheduler_metadata(
                num_reqs=len(lengths), num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads, head_dim=self.head_size,
                seq_lens=lengths, dtype=query.dtype,
                query_start_loc=dense.query_start_loc, causal=dense.causal,
                sliding_window_size=self.sliding_window, isa=layer.isa,
                enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
                dynamic_causal=dense.dynamic_causal,
                kv_cache_dtype=self.kv_cache_dtype))
        dense.chosen = self._number, chosen
        return chosen

    def _rows(self, dense: Metadata) -> Sequence[int]:
        """Those that decode, and tails of prompts in the store."""
        if not (self._storage and self._storage.begins
                and dense.causal is True):
            return dense.decode
        return sorted({*dense.decode, *self._storage.tails(
            dense.block_table.numpy(), dense.seq_lens.numpy())})

    @staticmethod
    def _queries(query: torch.Tensor, dense: Metadata,
                 step: Step) -> torch.Tensor:
        """One for each row: of several tokens, their mean."""
        starts = dense.query_start_loc[:len(step.tokens) + 1]
        queries = query[starts[:-1].clamp(max=len(query) - 1)]
        for row in set(step.rows).difference(dense.decode):
            queries[row] = query[starts[row]:starts[row + 1]].mean(0)
        return queries
