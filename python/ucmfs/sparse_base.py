# SPDX-License-Identifier: Apache-2.0
"""The hooks of UCM's sparse methods, under the names of ucm.sparse (base,
factory and state), and methods that choose blocks when they are called.

    method = UcmSparseFactory.create_sparse_method(
        Engine("GSA:topk_ratio=0.2", block_size=128, num_layers=32,
               model=methods.Model(8, 32, 128)), UcmSparseRole.BOTH)
    method.register_kv_caches(caches)            # layer name -> keys
    method.request_begin("a", prompt)
    method.bind_sparse_metadata(method.build_sparse_meta(
        scheduled, requests, input_batch, attn_metadata))
    method.execute_begin(scheduled)
    for name in caches:
        method.attention_begin(q, k, v, name, context)
        ...                # attend by attn_metadata's block_table and seq_lens
        method.attention_finished(q, k, v, out, name, context)
    method.execute_finished()
    method.request_finished_in_worker("a")

The engine's objects are vLLM's, or any that have the attributes which the
hooks here name. No engine is imported, and none is patched: its layers must
call the hooks. One thread at a time.
"""

from __future__ import annotations

import enum
import importlib
import logging
import re
from dataclasses import dataclass, field
from typing import Any, Mapping, NamedTuple, Sequence

from . import codes, methods, sparse
from .errors import ConfigError, InvalidArgument
from .retrieve import Step

INVALID_SLOT = -1  # of estimate_num_slots_sparsed()

UcmSparseRole = enum.Enum("UcmSparseRole", "SCHEDULER WORKER BOTH", start=0)


class UcmSparseMetadata:
    """What the scheduler's side says of a step to the worker's."""


class UcmSparseBase:
    """All hooks; here each does nothing. A method has those that it needs."""

    def __init__(self, vllm_config: Any, role: UcmSparseRole) -> None:
        self._vllm_config = vllm_config
        self.role = self._role = role
        self._sparse_metadata: Any = None

    def _nothing(self, *arguments: Any, **named: Any) -> Any:
        """A hook that has no effect."""

    def _same(self, *tensors: Any) -> Any:
        """A hook that may change tensors."""
        return tensors

    # ---- the scheduler's side ----

    request_begin = _nothing  # (request_id, prompt_token_ids)

    def estimate_num_slots_sparsed(self, request: Any) -> int:
        """For how many tokens it needs slots. INVALID_SLOT: for all."""
        return INVALID_SLOT

    allocate_slots = _nothing  # (kv_cache_manager, request, num_slots)
    update_state_after_alloc = _nothing  # (request, num_blocks)
    # (scheduler_output, requests, input_batch, attn_metadata)
    build_sparse_meta = _nothing
    request_finished_in_scheduler = _nothing  # (request_id)

    # ---- the worker's side ----

    register_kv_caches = _nothing  # (layers' caches by name)

    def bind_sparse_metadata(self, metadata: UcmSparseMetadata | None) -> None:
        self._sparse_metadata = metadata

    def clear_sparse_metadata(self) -> None:
        self._sparse_metadata = None

    update_states = execute_begin = _nothing  # (scheduler_output)
    # ([positions of a layer,] hidden_states, residual)
    layer_begin = layer_finished = ffn_begin = ffn_finished = _same

    def attention_begin(self, query: Any, key: Any, value: Any,
                        layer_name: str, forward_context: Any,
                        output: Any = None, phase: str | None = None,
                        **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        return query, key, value, output

    # (query, key, value, attn_output, layer_name, forward_context, phase)
    attention_finished = _nothing

    def execute_finished(self, logits_indices: Any = None) -> Any:
        return logits_indices

    request_finished_in_worker = _nothing  # (request_id)


# ---- what a method knows of an engine ----

class Engine(NamedTuple):
    """What the methods below must know of an engine. ucm_sparse_config: as
    methods.parse() reads it."""

    ucm_sparse_config: Any
    block_size: int
    num_layers: int
    model: methods.Model


class ReqMeta(NamedTuple):
    """A row of a step's batch. block_ids: the pages of its blocks."""

    request_id: Any
    index_in_batch: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: Sequence[int]


@dataclass
class SparseMetadata(UcmSparseMetadata):
    """Of the methods below. The last three are fields of UCM's for a plug-in
    to fill: here all blocks have slots, each layer chooses for itself, and
    representations are kept by page."""

    requests: list[ReqMeta]
    req_sparsed_slots: dict[Any, int] = field(default_factory=dict)
    selected_block_indices: dict[Any, list[int]] = field(default_factory=dict)
    block_representations: Any = None


# ---- a step, and a layer ----

class _Step:
    """requests: of the rows that may be sparse. pages: those that get tokens,
    and whether they are full then."""

    table: Any = None  # the engine's
    chosen = -1  # the layer whose choice is in batch

    def __init__(self) -> None:
        self.requests: dict[int, methods.Request] = {}
        self.pages: dict[int, bool] = {}

    def take(self, meta: Any) -> None:
        """Make a batch of an engine's table, with outputs of the same kind."""
        self.table, lengths, self.chosen = meta.block_table, meta.seq_lens, -1
        dense = bytearray(row not in self.requests
                          for row in range(len(lengths)))
        self._first = [int(at) for at in meta.query_start_loc[:len(dense)]]
        copies = [getattr(each, "clone", getattr(each, "copy", None))
                  for each in (self.table, lengths)]
        self.batch = sparse.Batch(
            self.table, lengths, dense=dense,
            out=(copies[0](), copies[1]()) if all(copies) else None)

    def queries(self, query: Any) -> Any:
        """Each row's first. Rows that an engine has padded are dense."""
        if self._first == list(range(len(self._first))):
            return query[:len(self._first)]
        return query[[min(at, query.shape[0] - 1) for at in self._first]]


class _Layer(methods.Pages):
    """What is kept of a layer's pages that are full."""

    def __init__(self, plan: Step, keys: Any, num_pages: int,
                 budget: sparse.BudgetConfig, by: Any,
                 method: codes.Method | None) -> None:
        super().__init__(by, budget, bytearray(num_pages), method)
        self.plan, self.keys = plan, keys

    def update(self, pages: dict[int, bool]) -> None:
        """Pages have got tokens, and are full or not."""
        for page in pages:
            self.built[page] = 0
        full = [page for page in pages if pages[page]]
        if full:
            self.build(self.keys, full, full)


# ---- methods ----

class Sparse(UcmSparseBase):
    """ESA, GSA, GSAOnDevice and KVStarMultiStep, by their names.

    A row that decodes one token attends to the blocks which sparse.Rows
    chooses by its query: from attention_begin() to attention_finished() the
    layer's block_table and seq_lens name these alone. All else of the metadata
    stays what it was, also what an engine has planned by the lengths. Rows of
    a prompt, a request's first step here, requests that methods.Request says
    are dense, and layers without a registered cache attend to all blocks.

    A page is built from the layer's cache at the attention_finished() of the
    step that fills it, and attended to until then.

    Schedules and prefetch are not followed: each step makes its choice, and
    the log names the keys that have no effect. All pages stay where they are,
    so that slots are not saved. KVStar scores by one query, without its vote,
    and keeps the same channels for all requests: those of a layer's first
    pages. Blend and ReRoPE are refused, as they choose no blocks.
    """

    def __init__(self, vllm_config: Any, role: UcmSparseRole) -> None:
        super().__init__(vllm_config, role)
        if not isinstance(vllm_config, Engine):
            raise InvalidArgument("sparse: this method takes an Engine")
        wanted, self._block_size, num_layers, model = vllm_config
        self.config = methods.parse(
            wanted, block_size=self._block_size, num_layers=num_layers)
        self._kept = self.config.by(model)
        for key in re.findall(r"retr\w+|pref\w+|\w+_weight", str(wanted)):
            logging.getLogger("ucmfs").warning(
                "ucmfs: %s has no effect in sparse_base", key)
        self._layers: dict[str, _Layer] = {}
        self._begun: dict[Any, methods.Request] = {}
        self._step: _Step | None = None
        self._dense: Any = None  # what a layer's metadata was

    def request_begin(self, request_id: Any, prompt_token_ids: Any) -> None:
        self._begun[request_id] = methods.Request(
            self.config, len(prompt_token_ids))

    def request_finished_in_worker(self, request_id: Any) -> None:
        self._begun.pop(request_id, None)

    request_finished_in_scheduler = request_finished_in_worker

    def build_sparse_meta(self, scheduler_output: Any, requests: Any,
                          input_batch: Any, attn_metadata: Any = None) -> Any:
        """Of scheduler_output.num_scheduled_tokens {id: tokens}; of
        requests[id] its prompt_token_ids, num_computed_tokens and block_ids
        (lists, of which the first is taken); and of
        input_batch.req_id_to_index[id]."""
        return SparseMetadata([
            ReqMeta(name, input_batch.req_id_to_index[name],
                    len(requests[name].prompt_token_ids),
                    requests[name].num_computed_tokens, tokens,
                    requests[name].block_ids[0])
            for name, tokens in scheduler_output.num_scheduled_tokens.items()])

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """Nothing is known of what is in them. Each is keys [page, token,
        head, channel] in the host's memory, or (keys, values). A layer's
        number is that in its name, or else its place."""
        self._layers = {}
        for place, (name, cache) in enumerate(kv_caches.items()):
            keys = cache[0] if isinstance(cache, (tuple, list)) else cache
            found = methods.spec_of(self._kept[0]).keys_of(
                keys, None, page=None, token=self._block_size)[1]
            numbers = [int(part) for part in name.split(".") if part.isdigit()]
            self._layers[name] = _Layer(self.config.layer(
                (numbers or [place])[0]), keys, found.shape[0],
                self.config.budget, *self._kept)

    def execute_begin(self, scheduler_output: Any = None) -> None:
        """Takes what was bound. Requests in scheduler_output.finished_req_ids
        have ended."""
        for name in getattr(scheduler_output, "finished_req_ids", None) or ():
            self.request_finished_in_worker(name)
        if not (self._sparse_metadata and self._layers):
            raise InvalidArgument("execute_begin: no metadata, or no caches")
        self._step = _Step()
        for row in self._sparse_metadata.requests:
            self._advance(self._step, row)

    def _advance(self, step: _Step, row: ReqMeta) -> None:
        name, index, prompt, known, new, blocks = row
        request, total = self._begun.get(name), known + new
        if not request or request.tokens != known:
            known = 0  # it begins, or has lost tokens
            request = self._begun[name] = methods.Request(self.config, prompt)
        more = min(total, prompt) - known
        if more > 0:
            request.prefill(more)
        if total > request.tokens:
            request.step(total - request.tokens)
        if more <= 0 and new == 1 and not request.dense:
            step.requests[index] = request
        size = self._block_size
        for at in range(known // size, -(-total // size)):
            step.pages[blocks[at]] = at < total // size

    def attention_begin(self, query: Any, key: Any, value: Any,
                        layer_name: str, forward_context: Any,
                        output: Any = None, phase: str | None = None,
                        **kwargs: Any) -> tuple[Any, Any, Any, Any]:
        """forward_context.attn_metadata, or that of the layer in it, has int32
        block_table [row, block] and seq_lens [row], and query_start_loc. query
        is [token, head, channel]; a list of rows is taken from it where rows
        have several tokens."""
        step, layer = self._step, self._layers.get(layer_name)
        if not step:
            raise InvalidArgument("attention_begin: before execute_begin()")
        if layer and step.requests:
            meta = forward_context.attn_metadata
            meta = meta[layer_name] if isinstance(meta, Mapping) else meta
            if step.table is not meta.block_table:
                step.take(meta)
            if layer.rows:  # it chooses
                layer.rows.select(step.queries(query), step.batch)
                step.chosen = layer.plan.source
            if step.chosen == layer.plan.source:  # of a dense one, itself
                self._dense = meta, meta.block_table, meta.seq_lens
                meta.block_table = step.batch.tables
                meta.seq_lens = step.batch.lengths
        return query, key, value, output

    def attention_finished(self, query: Any, key: Any, value: Any,
                           attn_output: Any, layer_name: str,
                           forward_context: Any, phase: Any = None) -> None:
        if self._dense:
            meta, meta.block_table, meta.seq_lens = self._dense
            self._dense = None
        layer = self._layers.get(layer_name)
        if layer and layer.plan.role == "chooses" and self._step:
            layer.update(self._step.pages)

    def execute_finished(self, logits_indices: Any = None) -> Any:
        self._step = None
        self.clear_sparse_metadata()
        return logits_indices


# ---- by name ----

class UcmSparseFactory:
    """Methods by the name that a configuration gives: those that are
    registered, and ours."""

    _registry: dict[str, tuple[str, str]] = {}

    @classmethod
    def register_sparse_method(cls, name: str, module_path: str,
                               class_name: str) -> None:
        """Add a name, for a class that is imported when it is asked for."""
        cls._registry[name] = module_path, class_name

    @classmethod
    def create_sparse_method(cls, config: Any, role: UcmSparseRole) -> Any:
        """Of an Engine; or of vLLM's configuration, if its method is
        registered. NotFound: no such method or key. InvalidArgument: one that
        chooses no blocks."""
        wanted = _wanted(config)
        names = [wanted] if isinstance(wanted, str) else \
            [wanted.get("sparse_type"), *wanted]
        module, kind = next(filter(None, map(cls._registry.get, names)),
                            (__name__, "Sparse"))
        return getattr(importlib.import_module(module), kind)(config, role)


def _wanted(config: Any) -> Any:
    """The part of a configuration that names a method; {}: none does."""
    if isinstance(config, Engine):
        return config.ucm_sparse_config
    extra = getattr(getattr(config, "kv_transfer_config", None),
                    "kv_connector_extra_config", None) or {}
    return extra.get("ucm_sparse_config") or {}


_agent: UcmSparseBase | None = None


def ensure_ucm_sparse_initialized(
        vllm_config: Any, role: UcmSparseRole = UcmSparseRole.WORKER) -> None:
    """Make the method of this process, if there is none yet and its
    configuration names one."""
    global _agent
    if not _agent and _wanted(vllm_config):
        _agent = UcmSparseFactory.create_sparse_method(vllm_config, role)


def has_ucm_sparse() -> bool:
    return _agent is not None


def get_ucm_sparse() -> UcmSparseBase:
    if not _agent:
        raise ConfigError("ucm_sparse_config", "no method has been made")
    return _agent
