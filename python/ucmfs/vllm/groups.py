# SPDX-License-Identifier: Apache-2.0
"""What of vLLM's KV cache groups becomes blocks, and which blocks a hit needs.

Reads vLLM's configuration objects by their attributes alone and imports
nothing of it, so that scheduler and worker derive the same from it and tests
need no engine. What cannot be kept right is refused here, by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Mapping, NamedTuple, Sequence

from ..errors import ConfigError
from ..layout import Geometry

# By their exact names: a subclass may lay blocks out, or need tokens, in ways
# that nobody has thought of here.
_WHOLE = ("FullAttentionSpec", "MLAAttentionSpec")
_WINDOW = ("SlidingWindowSpec", "SlidingWindowMLASpec")
_CHUNKED = ("ChunkedLocalAttentionSpec",)
_STATE = ("MambaSpec",)  # also of GDN, KDA, short convolutions

_PARTITION = "VLLM_PP_LAYER_PARTITION says how many layers each stage has"


@dataclass(frozen=True)
class Group:
    """A KV cache group: layers that share a block table.

    index: in KVCacheConfig.kv_cache_groups. block_tokens: of a block.
    window, chunk (0: none): a token attends to no more than the last window
    tokens, or to its chunk; retained: tokens kept below the window. state: a
    block is the state after its last token, and needs none before it; the
    engine keeps some of them, and says which.
    geometry: of its blocks in the store, one rank's part. places: of each of
    the group's layers, the layer and the plane of a block that holds it;
    sizes: its bytes there. A stage of a pipeline may have no layers of a group
    that others have: it keeps nothing of it, and there is no geometry.
    """

    index: int
    layers: tuple[str, ...]
    block_tokens: int
    geometry: Geometry | None
    kind: str = "FullAttentionSpec"
    window: int = 0
    chunk: int = 0
    retained: int = 0
    state: bool = False
    places: tuple[tuple[int, str], ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def payload_bytes(self) -> int:
        """Of a block, one rank's part."""
        return self.geometry.payload_bytes if self.geometry else 0

    @property
    def whole(self) -> bool:
        """All tokens before it are needed to go on from a hit."""
        return not (self.window or self.chunk or self.state)

    def first_needed(self, tokens: int) -> int:
        """The first block that the token behind a hit of so many attends
        to; those before it may be absent."""
        skipped = 0
        if self.state:
            return max(0, tokens // self.block_tokens - 1)
        if self.window:
            skipped = tokens - self.window + 1 - self.retained
        elif self.chunk:
            skipped = tokens // self.chunk * self.chunk
        return max(0, skipped) // self.block_tokens

    def needed(self, local: int, tokens: int) -> tuple[int, int]:
        """The first block of a hit of so many tokens that is needed and that
        the engine, which has the first local ones, has not; and the end."""
        return (max(local // self.block_tokens, self.first_needed(tokens)),
                tokens // self.block_tokens)


@dataclass(frozen=True)
class Plan:
    """All that is kept of an engine's KV cache.

    stages: of the pipeline; the groups have the layers of one of them, the
    worker's own or, as vLLM tells no others, the scheduler's first. ranks: of
    all stages, those of a stage in a row. shards: ranks that hold different
    pages, each with ids of its own; replicas: ranks in a row that hold the
    same ones. alignment: tokens that hits are multiples of; hash_tokens: to a
    hash of the engine's.
    """

    groups: tuple[Group, ...]
    num_blocks: int
    hash_tokens: int
    alignment: int
    ranks: int = 1
    replicas: int = 1
    drop_last: bool = False
    stages: int = 1

    @property
    def shards(self) -> int:
        return self.ranks // self.replicas

    @property
    def stage_shards(self) -> int:
        """Shards of a stage, which are in a row."""
        return self.shards // self.stages

    def stage_of(self, rank: int) -> int:
        return self.shard_of(rank) // self.stage_shards

    def shard_of(self, rank: int) -> int:
        return rank // self.replicas

    def writes(self, rank: int, block: int) -> bool:
        """Whether a rank writes the block with this index in its request: the
        ranks that hold the same pages take turns."""
        return block % self.replicas == rank % self.replicas

    def bytes_of(self, tokens: int) -> int:
        """What a rank reads to load so many tokens, at most."""
        return sum(-(-tokens // group.block_tokens) * group.payload_bytes
                   for group in self.groups)


class Home(NamedTuple):
    """Where there are blocks, and a space for them: a stage that has layers of
    a group (plan.groups[group])."""

    stage: int
    group: int


def homes_of(stages: Sequence[Plan]) -> tuple[Home, ...]:
    """Stage by stage. stages: a plan of each."""
    return tuple(Home(stage, g) for stage, plan in enumerate(stages)
                 for g, group in enumerate(plan.groups) if group.layers)


def plan_of(vllm_config: Any, kv_cache_config: Any, hash_tokens: int,
            alignment: int) -> Plan:
    """The plan, or ConfigError for what cannot be kept."""
    ranks, stages = _ranks_of(vllm_config)
    indexes = getattr(kv_cache_config, "prefix_cacheable_group_ids", None)
    if indexes is None:
        indexes = range(len(kv_cache_config.kv_cache_groups))
    groups = tuple(_group_of(kv_cache_config, i) for i in indexes)
    if not groups:
        raise ConfigError("kv_cache_groups", "none of them holds blocks that "
                          "can be found by a hash")
    for group in groups:
        if group.block_tokens % hash_tokens:
            raise ConfigError(
                "kv_cache_groups", f"group {group.index} has blocks of "
                f"{group.block_tokens} tokens, and hashes are over "
                f"{hash_tokens}")
    _check_layers(groups, stages)
    alignment = math.lcm(alignment, *(g.block_tokens for g in groups))
    return Plan(groups, kv_cache_config.num_blocks, hash_tokens, alignment,
                ranks * stages, _replicas_of(kv_cache_config, groups, ranks),
                _drops_last(vllm_config), stages)


def stages_of(plan: Plan, told: Mapping[tuple[int, int], Plan],
              ) -> tuple[Plan, ...]:
    """The plan of each stage. told: by pipeline rank and tensor rank, what
    its worker has made of its own layers; plan: the scheduler's. ConfigError
    if a worker is missing, or its blocks are not as those of the others."""
    each = plan.ranks // plan.stages
    found: list[Plan] = []
    for stage in range(plan.stages):
        theirs = [told.get((stage, rank)) for rank in range(each)]
        for rank, one in enumerate(theirs):
            who = f"rank {rank} of stage {stage}"
            if one is None:
                raise ConfigError("pipeline_parallel_size", f"{who} has not "
                                  "told which layers it has")
            if one != theirs[0] or _without_layers(one) != _without_layers(
                    plan):
                raise ConfigError("kv_cache_groups", f"those of {who} are not "
                                  "as other ranks'")
            found += [one] if not rank else []
    nobodys = set(range(len(plan.groups))) - {
        home.group for home in homes_of(found)}
    if nobodys:
        raise ConfigError("kv_cache_groups", "no stage has layers of group "
                          f"{plan.groups[min(nobodys)].index}")
    return tuple(found)


def _without_layers(plan: Plan) -> Plan:
    """What all stages have in common."""
    return replace(plan, groups=tuple(
        replace(group, layers=(), places=(), sizes=(), geometry=None)
        for group in plan.groups))


def _check_layers(groups: Sequence[Group], stages: int) -> None:
    """Only a stage of a pipeline may lack layers of a group. One without any
    state, where other stages have some, fails in vLLM itself: at the first
    step, by an assertion."""
    if stages == 1 and not all(group.layers for group in groups):
        raise ConfigError("kv_cache_groups", "one of them has no layers")
    if not any(group.layers for group in groups):
        raise ConfigError("pipeline_parallel_size", "a stage has no layers "
                          f"whose blocks can be stored; {_PARTITION}")
    states = [group for group in groups if group.state]
    if states and not any(group.layers for group in states):
        raise ConfigError(
            "pipeline_parallel_size", "a stage has no layers with states, as "
            f"other stages have, and vLLM fails there; {_PARTITION}: each "
            "needs one with a state, of whatever group")


def _ranks_of(vllm_config: Any) -> tuple[int, int]:
    """Ranks of a stage, and stages."""
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size",
                 "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size != 1:
            raise ConfigError(name, f"{size} is not supported: 1 is needed")
    return (parallel.tensor_parallel_size,
            getattr(parallel, "pipeline_parallel_size", 1))


def _replicas_of(kv_cache_config: Any, groups: Sequence[Group],
                 ranks: int) -> int:
    """ranks: of a stage."""
    told = getattr(kv_cache_config, "kv_tp_replicas", None)
    if told is None:
        # Before vLLM told: the latent of MLA is the same on all ranks.
        told = ranks if all("MLA" in g.kind for g in groups) else 1
    if told < 1 or ranks % told:
        raise ConfigError("kv_tp_replicas", f"{told} of {ranks} ranks")
    return told


def _drops_last(vllm_config: Any) -> bool:
    """A drafter's KV cache depends on the token behind a block: as vLLM does
    with its own hits, the last block is computed anew."""
    spec = getattr(vllm_config, "speculative_config", None)
    for name in ("use_eagle_block_drop", "use_eagle"):
        ask = getattr(spec, name, None)
        if callable(ask):
            return bool(ask())
    return False


def _group_of(kv_cache_config: Any, index: int) -> Group:
    group = kv_cache_config.kv_cache_groups[index]
    layers = tuple(group.layer_names)
    where = f"KV cache group {index} ({_some(layers)})"
    spec = group.kv_cache_spec
    parts = getattr(spec, "kv_cache_specs", None)
    if parts and not layers:
        # It makes tensors of all the group's layers, in any stage.
        raise ConfigError(
            "pipeline_parallel_size", "a stage has no layers of KV cache "
            f"group {index}, whose pages differ in size, and vLLM fails "
            f"there; {_PARTITION}: each needs some of that group")
    specs = [parts[name] for name in layers] if parts else [spec]
    kinds = {type(s).__name__ for s in specs}
    kind = type(specs[0]).__name__
    if len(kinds) > 1 or kind not in _WHOLE + _WINDOW + _CHUNKED + _STATE:
        raise ConfigError("kv_cache_groups", f"{where} has a cache of "
                          f"{' and '.join(sorted(kinds))}, which cannot be "
                          "stored")
    if kind in _STATE:
        _check_states(specs, where)
    tokens = spec.block_size
    sizes: list[int] = []
    geometry: Geometry | None = None
    places: tuple[tuple[int, str], ...] = ()
    if layers:
        sizes = _sizes_of(kv_cache_config, layers, specs, where)
        geometry, places = _geometry_of(sizes, tokens)
    return Group(index, layers, tokens, geometry, kind,
                 getattr(specs[0], "sliding_window") if kind in _WINDOW else 0,
                 specs[0].attention_chunk_size if kind in _CHUNKED else 0,
                 getattr(specs[0], "extra_retained_tokens", 0), kind in _STATE,
                 places, tuple(sizes))


def _check_states(specs: Sequence[Any], where: str) -> None:
    """vLLM says which states it keeps in one of its modes. Drafted tokens
    that are rejected leave others behind."""
    for spec in specs:
        mode = getattr(spec, "mamba_cache_mode", "none")
        if mode != "align":
            raise ConfigError(
                "mamba_cache_mode", f"{where} has states in mode {mode!r}: "
                "'align' is needed (--enable-prefix-caching "
                "--mamba-cache-mode align)")
        if getattr(spec, "num_speculative_blocks", 0):
            raise ConfigError(
                "speculative_config", f"{where} has states, which are not "
                "kept with speculative decoding")


def _page_bytes(spec: Any) -> int:
    for name in ("unpadded_page_size_bytes", "real_page_size_bytes"):
        size = getattr(spec, name, None)
        if size is not None:
            return size
    return spec.page_size_bytes


def _sizes_of(kv_cache_config: Any, layers: Sequence[str],
              specs: Sequence[Any], where: str) -> list[int]:
    """Of each layer's page. Where they differ, as the engine places them: the
    scheduler is told the first layer's cache alone, and both roles have to
    come to the same."""
    pages = {_page_bytes(s) for s in specs}
    strides = [_stride_of(kv_cache_config, name) for name in layers]
    if len(pages) == 1 and len(set(strides)) == 1:
        return [pages.pop()] * len(layers)
    sizes = [stride for stride in strides if stride is not None]
    if len(sizes) < len(layers) or any(
            stride < _page_bytes(spec) for spec, stride in zip(specs, sizes)):
        raise ConfigError("kv_cache_groups", f"{where} has layers with pages "
                          f"of different sizes ({sorted(pages)} bytes), laid "
                          "out in a way that does not tell each layer's")
    return sizes


def _stride_of(kv_cache_config: Any, layer: str) -> int | None:
    """What is a page of a layer, or a head's part of one."""
    for tensor in kv_cache_config.kv_cache_tensors:
        if layer in (getattr(tensor, "layers", None) or ()):
            return min(tensor.layer_stride, tensor.block_stride)
    return None


def pack(sizes: Sequence[int]) -> tuple[int, int, tuple[tuple[int, str], ...]]:
    """Layers of different sizes as the planes of a block's layers, all of
    which are of one size: bytes of K and of V, and for each of our layers the
    block's layer and plane. The least bytes; what a plane has too many is
    padding. Of as many large as small ones (MLA and its indexer) none is."""
    num, largest = len(sizes), max(sizes)

    def rows(v: int) -> int:
        if not v:
            return num
        return max(sum(size > v for size in sizes), -(-num // 2))

    v = min(sorted({0, *sizes}), key=lambda v: rows(v) * (largest + v))
    first = [i for i, size in enumerate(sizes) if not v or size > v]
    rest = [i for i, size in enumerate(sizes) if v and size <= v]
    split = num - rows(v)  # of them are V, the others K where no large one is
    places = {i: (row, "k") for row, i in enumerate(first + rest[split:])}
    places.update((i, (row, "v")) for row, i in enumerate(rest[:split]))
    return largest, v, tuple(places[i] for i in range(num))


def _geometry_of(sizes: Sequence[int], tokens: int,
                 ) -> tuple[Geometry, tuple[tuple[int, str], ...]]:
    # K and V are one plane: where they lie in a page is vLLM's business.
    if len(set(sizes)) == 1:
        k, v = sizes[0], 0
        places = tuple((row, "both") for row in range(len(sizes)))
    else:
        k, v, places = pack(sizes)
    return Geometry(num_layers=1 + max(row for row, _ in places),
                    block_size=tokens, dtype="opaque", k_bytes=k, v_bytes=v,
                    order="opaque"), places


def _some(names: Sequence[str]) -> str:
    if len(names) < 3:
        return ", ".join(names) or "no layers here"
    return f"{names[0]} to {names[-1]}"


def space_names(stages: Sequence[Plan], base: str) -> list[str]:
    """A space for each home: its blocks have a geometry of their own."""
    plan, names = stages[0], []
    for stage, g in homes_of(stages):
        of_group = f"-g{plan.groups[g].index}" * (len(plan.groups) > 1)
        names.append(f"{base}{of_group}" + f"-p{stage}" * (len(stages) > 1))
    return names
