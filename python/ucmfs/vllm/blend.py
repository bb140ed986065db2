# SPDX-License-Identifier: Apache-2.0
"""UcmfsBlendConnector's half in the scheduler: text that was cached elsewhere
in a prompt is used where it stands now (CacheBlend).

First comes what UcmfsConnector finds, an exact prefix. After it, chunks
(chunks.py) are looked for in a space of their own. From the prefix to the end
of the last chunk that is there, the engine is promised all tokens: the workers
load the chunks, move their keys, and compute what is missing, at the start of
the step that computes the rest (blend_worker.py).

What is computed so is not exact. Therefore a request that was blended is never
saved, neither its blocks nor its chunks; and vLLM's own prefix cache, which
would share its pages under exact names, must be off. Chunks are saved of
prompts that were computed as a whole.

A request is blended only if enough of it is there (blend_min_chunks), and not
before the engine's first step, in which the workers get to know the model.
"""

from __future__ import annotations

import errno
import time
from array import array
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Sequence

import numpy as np

from ..config import check_bool, check_count, one_of
from ..errors import ConfigError, Timeout, UcmfsError
from ..layout import Geometry
from ..namespace import check_name
from ..position import Chunk, ChunkConfig, Rope
from .chunks import Seen, absent, bounds, name_of, whole
from .groups import Group, Home, Plan
from .hits import all_shards, ids_of_shards
from .metadata import UcmfsMetadata
from .mount import LATE_SECONDS, Space
from .options import ConnectorOptions, _option, _share
from .scheduler import LATER, NONE, Known, UcmfsScheduler, _id, _ids_at
from .spaces import load_mode, plan_for

# Their layers take (positions, hidden_states, residual).
MODELS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
          "Qwen3ForCausalLM")
_SCALINGS = {"default": "none", "linear": "linear", "yarn": "yarn",
             "llama3": "llama3"}


# ---- options ----

def _whole(value: Any) -> int:
    if check_count(value) < 1:
        raise ValueError("a whole number, 1 or above, is needed")
    return value


def _true(value: Any) -> bool:
    if not check_bool(value):
        raise ValueError("keys would be rotated for other positions")
    return True


@dataclass(frozen=True)
class BlendOptions(ConnectorOptions):
    """Of UcmfsBlendConnector, beside those of UcmfsConnector, whose load is
    "sync". blend_chunk_size: tokens of a chunk. min_match_ratio: the share of
    a chunk that must be the same. recompute_boundary: tokens computed at both
    ends of a part of a chunk; blend_head: at the start of each chunk.
    blend_ratio: of the reused tokens, the share that is computed again: those
    whose keys differ most in layer blend_layer. blend_end_token: the token
    that documents end with. blend_min_chunks: fewer are not used. Upstream's
    position_correction is always on.
    """

    load: str = _option("sync", one_of("sync"))
    blend_chunk_size: int = _option(64, _whole)
    min_match_ratio: float = _option(0.8, _share)
    recompute_boundary: int = _option(2, check_count)
    blend_head: int = _option(0, check_count)
    blend_ratio: float = _option(0.15, _share)
    blend_layer: int = _option(1, check_count)
    blend_end_token: int = _option(-1, check_count)
    blend_min_chunks: int = _option(4, _whole)
    position_correction: bool = _option(True, _true)

    @property
    def chunks(self) -> ChunkConfig:
        return ChunkConfig(self.blend_chunk_size, self.min_match_ratio,
                           self.recompute_boundary, self.blend_head)


# ---- what is refused ----

def rope_of(config: Any, head_dim: int) -> Rope:
    """How a model rotates keys, by its configuration."""
    given = dict(getattr(config, "rope_parameters", None)
                 or getattr(config, "rope_scaling", None) or {})
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _SCALINGS:
        raise ConfigError("rope_parameters", f"positions of {kind!r} cannot "
                          "be moved")
    share = given.get("partial_rotary_factor",
                      getattr(config, "partial_rotary_factor", 1.0))
    names = {"factor": "factor", "beta_fast": "beta_fast",
             "original_length": "original_max_position_embeddings",
             "beta_slow": "beta_slow", "low_freq_factor": "low_freq_factor",
             "high_freq_factor": "high_freq_factor"}
    scaled = {} if kind == "default" else {
        ours: given[theirs] for ours, theirs in names.items()
        if given.get(theirs)}
    return Rope(head_dim, scaling=_SCALINGS[kind],
                base=given.get("rope_theta",
                               getattr(config, "rope_theta", 10000.0)),
                rotary_dim=int(head_dim * share), **scaled)


def _architectures(vllm_config: Any) -> Sequence[str]:
    config = vllm_config.model_config.hf_config
    return list(getattr(config, "architectures", None) or ())


def check(vllm_config: Any, kv_cache_config: Any, plan: Plan,
          options: BlendOptions) -> None:
    """ConfigError names what blending cannot be had with."""
    from vllm.platforms import current_platform

    names = _architectures(vllm_config)
    kinds = {group.kind for group in plan.groups}
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    mode, why = load_mode(vllm_config, plan, options)
    for key, holds, reason in (
            ("device", not current_platform.is_cpu(),
             "its pass over the model runs on a CPU only, so far"),
            ("enable_prefix_caching", cache.enable_prefix_caching,
             "vLLM's own cache would share blended pages as exact ones "
             "(--no-enable-prefix-caching)"),
            ("load", mode != "sync", why or f"{options.load!r}; it is \"sync\""
             ),
            ("pipeline_parallel_size", plan.stages > 1,
             "a stage has not all layers"),
            ("kv_cache_groups", len(plan.groups) > 1
             or kinds != {"FullAttentionSpec"},
             f"{' and '.join(sorted(kinds))}: full attention alone is blended"
             " (no windows, no states, no MLA)"),
            ("kv_cache_dtype", "8" in cache.cache_dtype or
             "fp4" in cache.cache_dtype, f"{cache.cache_dtype}: quantised "
             "keys cannot be rotated"),
            ("enable_lora", vllm_config.lora_config is not None,
             "adapters have other keys for the same text"),
            ("context_parallel_size", max(
                getattr(parallel, f"{kind}_context_parallel_size", 1)
                for kind in ("decode", "prefill")) > 1, "ranks have not all "
             "tokens"),
            ("model", not set(names) & set(MODELS),
             f"{', '.join(names) or 'unknown'} is not one of "
             f"{', '.join(MODELS)}, whose layers are known")):
        if holds:
            raise ConfigError(key, f"UcmfsBlendConnector: {reason}")
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    rope_of(vllm_config.model_config.hf_config, spec.head_size)
    if options.blend_layer >= len(plan.groups[0].layers):
        raise ConfigError("blend_layer", f"{options.blend_layer}, of "
                          f"{len(plan.groups[0].layers)} layers")


# ---- the space of chunks ----

def chunk_group(kv_cache_config: Any, plan: Plan,
                options: BlendOptions) -> Group:
    """Chunks are blocks of one more group, in an order of elements that
    depends on no kernel."""
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    layers, size = plan.groups[0].layers, options.blend_chunk_size
    plane = size * spec.num_kv_heads * spec.head_size * spec.dtype.itemsize
    return Group(len(plan.groups), layers, size, Geometry(
        len(layers), size, str(spec.dtype).rpartition(".")[2], plane, plane,
        spec.num_kv_heads, spec.head_size, "NHD"))


def _space_of_chunks(main: Space, group: Group) -> Space:
    assert group.geometry is not None
    connector = {**main.manifest["connector"], "format": 1, "group":
                 group.index, "chunks": "sha256 of tokens, at position 0"}
    return Space(check_name(f"{main.name}-chunks{group.block_tokens}"),
                 {**main.manifest, "geometry": group.geometry.to_json(),
                  "connector": connector})


# ---- what is sent to the workers ----

@dataclass
class Blend:
    """A request's tokens from begin to before end: what becomes of each, the
    ids of the chunks that are reused, and all of the request's pages."""

    request: str
    begin: int
    end: int
    tokens: bytes  # array("q"), from begin on
    chunks: list[Chunk]
    ids: bytes
    pages: bytes  # array("I")


@dataclass
class Keep:
    """Chunks to be saved when the step is done: where each begins."""

    job: int
    request: str
    begins: list[int]
    ids: bytes
    pages: bytes


@dataclass
class BlendMetadata(UcmfsMetadata):
    blends: list[Blend] = field(default_factory=list)
    keeps: list[Keep] = field(default_factory=list)


# ---- requests ----

@dataclass
class Prompt:
    """What is known of a request's prompt. ids of its chunks: shard 0's, and
    those of all; a place for each chunk, whole or not."""

    request: Any
    tokens: np.ndarray
    salt: str
    bounds: list[tuple[int, int]]
    ids: bytes = b""
    all_ids: bytes = b""
    space: int = -1
    exact: int = 0  # tokens of the last answer
    chunks: list[Chunk] = field(default_factory=list)
    reused_ids: bytes = b""
    blended: bool = False


class BlendScheduler(UcmfsScheduler):
    """See UcmfsScheduler."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any,
                 options: BlendOptions,
                 clock: Callable[[], float] = time.monotonic) -> None:
        plan = plan_for(vllm_config, kv_cache_config)
        check(vllm_config, kv_cache_config, plan, options)
        self._group = chunk_group(kv_cache_config, plan, options)
        self._seen = Seen(options.chunks)
        self._prompts: dict[str, Prompt] = {}
        self._unkept: set[str] = set()  # prompts that are not yet computed
        self._blends: list[Blend] = []
        self._warm = False  # the workers have seen the model
        self._chunk_space: tuple[str, bytes] | tuple[()] = ()
        self._blend_options = options
        super().__init__(vllm_config, kv_cache_config, options, clock)

    def _spaces(self) -> list[Any]:
        main = super()._spaces()
        return [*main, _space_of_chunks(main[0], self._group)]

    def _prompt(self, known: Known) -> Prompt | None:
        """None: its tokens do not say all of it."""
        request = known.request
        if not request.prompt_token_ids or request.mm_features or \
                request.lora_request:
            return None
        prompt = self._prompts.get(request.request_id)
        if not prompt or prompt.request is not request:
            tokens = np.array(request.prompt_token_ids, np.int64)
            self._prompts[request.request_id] = Prompt(
                request, tokens, getattr(request, "cache_salt", None) or "",
                bounds(tokens, self._group.block_tokens,
                       self._blend_options.blend_end_token))
            self._unkept.add(request.request_id)
        return self._prompts[request.request_id]

    def _name(self, hasher: Any,
              names: Sequence[bytes]) -> tuple[bytes, bytes]:
        return ids_of_shards(hasher, names, self._group.index,
                             self.plan.shards)

    def _there(self, prompt: Prompt, here: Any,
               ask: bool = True) -> Sequence[int]:
        """Which of its chunks are; its names are made in any case."""
        if prompt.space != self._space:
            prompt.ids, prompt.all_ids = self._name(here.hashers[-1], [
                name_of(prompt.tokens[begin:end], prompt.salt)
                for begin, end in prompt.bounds])
            prompt.space = self._space
        return all_shards(here.indexes[-1].lookup(prompt.all_ids)[0],
                          self.plan.shards) \
            if ask else bytes(len(prompt.bounds))

    # ---- loads ----

    def get_num_new_matched_tokens(self, request: Any, num_computed: int,
                                   ) -> tuple[int | None, bool]:
        answer = super().get_num_new_matched_tokens(request, num_computed)
        more, asynchronous = answer
        known = self._known(request)
        prompt = self._prompt(known)
        if answer is LATER or not prompt:
            return answer
        prompt.exact, prompt.chunks = num_computed + more, []
        if self._warm and not self._pause and self._may_hit(known):
            try:
                self._find(prompt, min(request.num_tokens - 1,
                                       len(prompt.tokens)))
            except Timeout:
                known.cut = True
                self._pause.ended(errno.ETIMEDOUT, LATE_SECONDS)
            except UcmfsError as error:
                self._link.lost(error)
        if not prompt.chunks:
            return more, asynchronous
        return prompt.chunks[-1].end - num_computed, False

    def _find(self, prompt: Prompt, limit: int) -> None:
        """Which chunks from the exact prefix on are there: those up to the
        last one that is, if they are enough."""
        here = self._link.now
        if not here:
            return
        present = self._there(prompt, here)
        found: list[Chunk] = []
        ids: list[bytes] = []
        for place, (begin, end) in enumerate(prompt.bounds):
            if not prompt.exact <= begin < end <= limit \
                    or end - begin < self._group.block_tokens:
                begin, end = max(begin, prompt.exact), min(end, limit)
                found += [absent(begin, end)] if begin < end else []
            elif present[place]:
                found.append(whole(begin, end))
                ids.append(_id(prompt.ids, place))
            else:
                chunk, name = self._like(prompt, begin, end, here)
                found.append(chunk)
                ids += [name] if chunk.matched else []
        while found and not found[-1].matched:
            found.pop()
        if sum(c.matched for c in found) >= self._group.block_tokens * \
                self._blend_options.blend_min_chunks:
            prompt.chunks, prompt.reused_ids = found, b"".join(ids)

    def _like(self, prompt: Prompt, begin: int, end: int,
              here: Any) -> tuple[Chunk, bytes]:
        """The part of a chunk that is there under another name."""
        found = self._seen.like(prompt.tokens[begin:end], begin, prompt.salt)
        if found is not None:
            name, names = self._name(here.hashers[-1], [
                name_of(found[0], prompt.salt)])
            if all(here.indexes[-1].lookup(names)[0]):
                return found[1], name
        return absent(begin, end), b""

    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external: int) -> None:
        prompt = self._prompts.get(request.request_id)
        chunks = prompt.chunks if prompt else []
        if not prompt or not chunks or num_external <= 0:
            super().update_state_after_alloc(request, blocks, num_external)
            return
        blended = chunks[-1].end - prompt.exact
        super().update_state_after_alloc(request, blocks,
                                         num_external - blended)
        prompt.blended, prompt.chunks = True, []
        self._undecided.drop(request.request_id)
        end = chunks[-1].end
        self._blends.append(Blend(
            request.request_id, prompt.exact, end,
            prompt.tokens[prompt.exact:end].tobytes(), chunks,
            prompt.reused_ids, array("I", blocks.get_block_ids()[
                self.plan.groups[0].index]).tobytes()))

    # ---- saves ----

    def _saves_of(self, known: Known) -> bool:
        prompt = self._prompts.get(known.request.request_id)
        return super()._saves_of(known) and not (prompt and prompt.blended)

    def build_connector_meta(self, output: Any) -> UcmfsMetadata:
        here = self._link.now
        if here is not None:
            self._chunk_space = here.told[-1]
        meta = super().build_connector_meta(output)
        if meta.spaces and self._chunk_space:
            meta.spaces = {**meta.spaces, Home(0, self._group.index):
                           self._chunk_space}
        keeps: list[Keep] = []
        try:
            if here is not None:
                keeps = self._find_keeps(output, here)
        except UcmfsError as error:
            self._link.lost(error)
        blends, self._blends = self._blends, []
        self._warm = self._warm or output.total_num_scheduled_tokens > 0
        return BlendMetadata(**{f.name: getattr(meta, f.name)
                                for f in fields(meta)},
                             blends=blends, keeps=keeps)

    def _find_keeps(self, output: Any, here: Any) -> list[Keep]:
        """Of the prompts that this step completes."""
        keeps = []
        _, table_of = self._tables(output)
        for request_id in list(self._unkept):
            tokens = output.num_scheduled_tokens.get(request_id, 0)
            known, prompt = (self._requests[request_id],
                             self._prompts[request_id])
            if not tokens or not table_of or known.request \
                    .num_computed_tokens + tokens < len(prompt.tokens):
                continue
            self._unkept.discard(request_id)
            if known.stale or not self._saves_of(known):
                continue
            keep = self._keep(prompt, request_id, table_of(request_id), here)
            keeps += [keep] if keep.begins else []
        return keeps

    def _keep(self, prompt: Prompt, request_id: str,
              tables: Sequence[Sequence[int]], here: Any) -> Keep:
        # Without a map the daemon finds out when they are saved.
        present = self._there(prompt, here, ask=here.mapped)
        places = []
        for place, (begin, end) in enumerate(prompt.bounds):
            if end - begin == self._group.block_tokens:
                self._seen.add(prompt.tokens[begin:end], prompt.salt)
                places += [] if present[place] else [place]
        return Keep(self._next_job(), request_id,
                    [prompt.bounds[place][0] for place in places],
                    _ids_at(prompt.ids, places) if places else b"",
                    array("I", tables[self.plan.groups[0].index]).tobytes())

    def request_finished(self, request: Any,
                         ) -> tuple[bool, dict[str, Any] | None]:
        ended = super().request_finished(request)
        self._prompts.pop(request.request_id, None)
        self._unkept.discard(request.request_id)
        return ended
