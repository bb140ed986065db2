# SPDX-License-Identifier: Apache-2.0
"""Cached keys at other positions than those they were computed for:
ucm_position(3).

    rope = position.Rope(head_dim=128, base=500000, scaling="llama3",
                         factor=8, original_length=8192)
    rope.shift(keys, deltas)                 # in place, a delta for each block

Arrays are taken and given as in ucmfs.sparse.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Sequence

from . import _c, _lib, _pack, _tensor
from ._tensor import Ids
from .errors import InvalidArgument
from .layout import _number_of


# ---- rotary positions ----

@dataclass(frozen=True)
class Rope:
    """What a model's positions are made with: struct ucm_rope.

    pairing: "neox" or "gptj". scaling: "none", "linear", "yarn" or "llama3".
    rotary_dim: the first channels of a head (0: all). Where 0 is the default
    of YaRN's and Llama 3's values, it is theirs.
    """

    head_dim: int
    base: float = 10000.0
    pairing: str = "neox"
    rotary_dim: int = 0
    scaling: str = "none"
    factor: float = 1.0
    original_length: int = 0
    beta_fast: float = 0.0
    beta_slow: float = 0.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    attention_factor: float = 0.0

    @functools.cached_property
    def _c(self) -> _c.Rope:
        values = asdict(self)
        for name, names in (("pairing", _c.ROPE_PAIRING),
                            ("scaling", _c.ROPE_SCALING)):
            values[name] = _number_of(f"rope: {name}", values[name], names)
        return _pack.fill(_c.Rope(), "rope", values)

    def frequencies(self) -> memoryview:
        """The angles per position, in radians: one for each pair."""
        num = (self.rotary_dim or self.head_dim) // 2
        c = self._c
        memory = _tensor.Memory(8 * num)
        _lib.call(_lib.sparse().ucm_rope_frequencies, "rope", c,
                  memory.address, num)
        return memory.view("d", num)

    def shift(self, keys: Any, deltas: Any, *, to: Any = None,
              from_blocks: Ids = None, to_blocks: Ids = None,
              last_tokens: int | None = None, unrotated: bool = False,
              unchecked: bool = False, dtype: str | None = None) -> None:
        """Rotate keys [block, token, head, channel] by deltas, positions: one
        for each block, or one for each token of each.

        to: where they are written (in place). from_blocks, to_blocks: which,
        and where (0, 1, ...), all different; in place, all stay where they
        are, or none goes to one of from_blocks. last_tokens: how many the
        last of these blocks has. unrotated: deltas are the positions of keys
        without any. unchecked: keys are not seen to be finite first.
        """
        dims = (("block", None), ("token", None), ("head", None),
                ("channel", self.head_dim))
        source, found = _tensor.keys_of(keys, "keys", dims, dtype,
                                        writable=to is None)
        room, there = source, found
        if to is not None:
            room, there = _tensor.keys_of(to, "to", (
                ("block", None), *zip(("token", "head", "channel"),
                                      found.shape[1:])), found.dtype,
                writable=True)
        elif from_blocks is not None and to_blocks is None:
            to_blocks = from_blocks
        blocks, size, heads, _ = found.shape
        num, which, where = _tensor.moves_of(
            from_blocks, to_blocks, ("from_blocks", "to_blocks"), blocks)
        if (found.pointer, found.strides) == (there.pointer, there.strides):
            _check_in_place(which[2] or range(num), where[2] or range(num))
        every, per_token, _keep = _deltas_of(deltas, num, size)
        _lib.call(
            _lib.sparse().ucm_rope_shift, "rope", self._c, _c.ShiftRequest(
                source, _c.KeyRoom(room.base, room.num_blocks,
                                   room.stride_block, room.stride_token,
                                   room.stride_head), which[0], where[0], num,
                heads, size, size if last_tokens is None
                else _pack.u32("rope", "last_tokens", last_tokens),
                every, per_token, bool(unrotated), bool(unchecked)))


def _check_in_place(sources: Sequence[int], places: Sequence[int]) -> None:
    """All keys stay in their blocks, or all go to blocks not read here."""
    if list(sources) == list(places):
        return
    both = set(sources) & set(places)
    if both:
        raise InvalidArgument(f"to_blocks: {min(both)} is read as well")


def _deltas_of(deltas: Any, num: int,
               size: int) -> tuple[int | None, bool, Any]:
    """(address, whether there is one for each token, what keeps it)."""
    flat = deltas.reshape(-1) if hasattr(deltas, "reshape") else deltas
    address, have, keep = _tensor.list_of(flat, "deltas", "i")
    if have not in (num, num * size):
        raise InvalidArgument(f"deltas: {have}, where {num} blocks or "
                              f"{num * size} tokens are")
    return address, have != num, keep


# ---- text that stands elsewhere ----

@dataclass(frozen=True)
class ChunkConfig:
    """struct ucm_chunk_config; the defaults are the library's."""

    chunk_tokens: int = 64
    min_match_ratio: float = 0.8
    boundary_tokens: int = 2
    head_tokens: int = 0

    @functools.cached_property
    def _c(self) -> _c.ChunkConfig:
        return _pack.fill(_c.ChunkConfig(), "chunks", asdict(self))


class Source(NamedTuple):
    """A text that is cached: token ids, and the position of the first."""

    tokens: Any
    position: int = 0


class Chunk(NamedTuple):
    """What is at positions begin to before end: its first matched tokens are
    in a source, from its token on; kind: "none", "partial" or "full". delta:
    positions from there to here."""

    begin: int
    end: int
    kind: str
    matched: int
    source: int
    token: int
    delta: int


Ranges = list[tuple[int, int]]


def find_chunks(config: ChunkConfig, tokens: Any, sources: Sequence[Source],
                position: int = 0) -> list[Chunk]:
    """Tell a request's tokens, from position on, apart into chunks, and find
    each in the sources."""
    mine = _pack.pack_numbers(tokens, "q", "tokens")
    texts = [_pack.pack_numbers(source.tokens, "q", "sources")
             for source in sources]
    c_sources = (_c.ChunkSource * max(len(sources), 1))(
        *(_c.ChunkSource(_pack.address_of(text), len(text),
                         _pack.u32("chunks", "position", source.position))
          for text, source in zip(texts, sources)))
    room = -(-len(mine) // max(config._c.chunk_tokens, 1))
    out = (_c.Chunk * max(room, 1))()
    num = ctypes.c_uint32()
    _lib.call(_lib.sparse().ucm_chunks_find, "chunks", config._c,
              _pack.address_of(mine), len(mine),
              _pack.u32("chunks", "position", position), c_sources,
              len(sources), out, room, ctypes.byref(num))
    return [Chunk(c.begin, c.end, _c.CHUNK_KIND[c.kind], c.matched,
                  c.source, c.token, c.delta) for c in out[:num.value]]


def _chunks_of(chunks: Sequence[Chunk]) -> ctypes.Array:
    out = (_c.Chunk * max(len(chunks), 1))()
    for c, chunk in zip(out, chunks):
        _pack.fill(c, "chunks", {**chunk._asdict(), "kind": _number_of(
            "chunks: kind", chunk.kind, _c.CHUNK_KIND)})
    return out


def recompute(config: ChunkConfig, chunks: Sequence[Chunk]) -> Ranges:
    """What is computed of ascending chunks, as (begin, end): those that are
    not cached, what differs, and boundaries."""
    room = 2 * len(chunks)
    out = (_c.Range * max(room, 1))()
    num = ctypes.c_uint32()
    _lib.call(_lib.sparse().ucm_chunks_recompute, "chunks", config._c,
              _chunks_of(chunks), len(chunks), out, room, ctypes.byref(num))
    return [(r.begin, r.end) for r in out[:num.value]]


def chunk_deltas(chunks: Sequence[Chunk], num: int,
                 first: int = 0) -> memoryview:
    """By how much each of num tokens from first on has moved, for
    Rope.shift(); 0 for those that are not used."""
    num = _pack.u32("chunks", "num", num)
    memory = _tensor.Memory(4 * num)
    _lib.call(_lib.sparse().ucm_chunks_deltas, "chunks", _chunks_of(chunks),
              len(chunks), _pack.u32("chunks", "first", first), memory.address,
              num)
    return memory.view("i", num)


def merge_ranges(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Sorted, and one of those that overlap or touch; empty ones go."""
    out = (_c.Range * max(len(ranges), 1))()
    for c, (begin, end) in zip(out, ranges):
        _pack.fill(c, "ranges", {"begin": begin, "end": end})
    num = ctypes.c_uint32()
    _lib.call(_lib.sparse().ucm_ranges_merge, "ranges", out, len(ranges),
              ctypes.byref(num))
    return [(r.begin, r.end) for r in out[:num.value]]


# ---- which tokens are computed anew ----

def deviation(cached: Any, fresh: Any, *, cached_values: Any = None,
              fresh_values: Any = None, table: Ids = None,
              relative: bool = False, dtype: str | None = None) -> memoryview:
    """How far cached keys [block, token, head, channel] (and values) are from
    fresh ones [token, head, channel]: a float for each token.

    table: which block has tokens 0 to block size - 1 and so on. relative:
    divided by the sum of |fresh|.
    """
    if (cached_values is None) != (fresh_values is None):
        raise InvalidArgument("cached_values, fresh_values: one is missing")
    rows = (("head", None), ("channel", None))
    new, found = _tensor.keys_of(fresh, "fresh", (("token", None), *rows),
                                 dtype)
    tokens, heads, dim = found.shape
    rows = (("head", heads), ("channel", dim))
    old, there = _tensor.keys_of(
        cached, "cached", (("block", None), ("token", None), *rows), dtype)
    size = there.shape[1]
    values, keep = [_c.Keys()] * 2, []
    if cached_values is not None:
        for i, (array, name, dims) in enumerate((
                (cached_values, "cached_values",
                 (("block", None), ("token", size))),
                (fresh_values, "fresh_values", (("token", tokens),)))):
            values[i], kept = _tensor.keys_of(array, name, (*dims, *rows),
                                              dtype)
            keep.append(kept)
    which = _tensor.table_of(table, size, tokens)
    memory = _tensor.Memory(4 * tokens)
    _lib.call(_lib.sparse().ucm_kv_deviation, "deviation",
              _c.DeviationRequest(old, new, *values, which[0], tokens, heads,
                                  dim, size, bool(relative)), memory.address)
    return memory.view("f", tokens)


def select_tokens(scores: Any, rule: str, value: float) -> memoryview:
    """Which tokens are computed anew, ascending, by their scores: deviations,
    say (HKVD). rule: "ratio", "threshold" or "quantile"; -inf: not to be
    chosen."""
    found = _tensor.floats_of(scores, "scores")
    room = found.shape[0]
    memory, num = _tensor.Memory(4 * room), ctypes.c_uint32()
    _lib.call(_lib.sparse().ucm_hkvd_select, "tokens", found.pointer, room,
              _number_of("rule", rule, _c.HKVD_RULE), value, memory.address,
              room, ctypes.byref(num))
    return memory.view("I", num.value)
