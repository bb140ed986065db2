# SPDX-License-Identifier: Apache-2.0
"""Merged channels: KVStar's representations, scores and vote; ucm_sparse(3),
"Merged channels".

    spec = star.Spec("bfloat16", num_heads=8, head_dim=128, block_size=128,
                     merge_tokens=4, kept=star.kept(128, .5))
    spec = spec.choose(keys)                 # the channels that are kept
    slab = spec.build(keys)
    votes = spec.query([q1, q2], "head").vote(slab)

Arrays are taken and given as in ucmfs.sparse.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from array import array
from typing import Any, Sequence

from . import _c, _lib, _pack, _tensor
from ._tensor import Ids
from .errors import InvalidArgument
from .layout import _number_of
from .sparse import Built, Scores, Scoring, Slab, rows_per


def kept(head_dim: int, ratio: float) -> int:
    """How many channels of a head are kept at a ratio."""
    out = _lib.sparse().ucm_star_kept(
        _pack.u32("kept", "head_dim", head_dim), ratio)
    if not out:
        raise InvalidArgument(f"kept: ratio {ratio} is not above 0 and at "
                              "most 1")
    return out


@dataclasses.dataclass(frozen=True)
class Spec(Built):
    """What merged channels are alike in: struct ucm_star_spec.

    Groups of merge_tokens tokens are merged. kept channels of each head, by
    choose(): channels; without them all, and kept is head_dim.
    """

    dtype: str
    num_heads: int
    head_dim: int
    block_size: int
    merge_tokens: int
    kept: int
    channels: tuple[int, ...] | None = None

    _calls = "ucm_star"

    @classmethod
    def of(cls, c: _c.StarSpec, channels: Sequence[int] | None = None) -> Spec:
        """What C says, with these channels."""
        return cls(_c.DTYPE[c.dtype], c.num_heads, c.head_dim,
                   c.block_size, c.merge_tokens, c.kept,
                   None if channels is None else tuple(channels))

    @functools.cached_property
    def _chosen(self) -> array | None:
        if self.channels is None:
            return None
        out = _pack.pack_numbers(self.channels, "H", "channels")
        if len(out) != self.num_heads * self.kept:
            raise InvalidArgument(
                f"channels: {len(out)}, where {self.num_heads} heads keep "
                f"{self.kept} each")
        return out

    @functools.cached_property
    def _c(self) -> _c.StarSpec:
        out = _pack.fill(_c.StarSpec(), "spec", {
            "dtype": _number_of("spec: dtype", self.dtype, _c.DTYPE),
            **{name: getattr(self, name) for name in (
                "num_heads", "head_dim", "block_size", "merge_tokens",
                "kept")}})
        if self._chosen is not None:
            out.channels = _pack.address_of(self._chosen)
        if not _lib.sparse().ucm_star_bytes(out):
            _lib.call(_lib.sparse().ucm_star_begin, "spec", out, None)
        return out

    def _any(self) -> Spec:
        """This with some channels: what has none yet would have to keep
        all."""
        # checks all but kept
        dataclasses.replace(self, kept=self.head_dim, channels=None)._c
        number = _pack.below("spec", "kept", self.kept, self.head_dim + 1)
        return dataclasses.replace(self, channels=(
            *range(number),) * self.num_heads)

    def choose(self, keys: Any, *, blocks: Ids = None,
               last_tokens: int | None = None,
               dtype: str | None = None) -> Spec:
        """This with the channels of the largest mean |K| in these blocks."""
        spec = self._any()
        c, found = spec.keys_of(keys, dtype, block=None, token=self.block_size)
        num, which, _ = _tensor.moves_of(blocks, None, ("blocks", ""),
                                         found.shape[0])
        memory = _tensor.Memory(2 * self.num_heads * self.kept)
        spec.call("channels", c, which[0], num, self.last(last_tokens),
                  memory.address)
        return dataclasses.replace(self, channels=tuple(memory.view(
            "H", self.num_heads * self.kept)))

    def query(self, queries: Sequence[Any], per: str = "block", *,
              dtype: str | None = None) -> Query:
        """The queries [head, channel] of several tokens, made ready for all
        blocks. per: "head" (of each query), "group", "block"."""
        return Query(self, queries, per, dtype)


class Query:
    """Queries that are ready; of Spec.query(). rows of scores they make."""

    def __init__(self, spec: Spec, queries: Sequence[Any], per: str,
                 dtype: str | None) -> None:
        self.spec, self.per = spec, per
        self.number = _number_of("per", per, _c.SCORE_PER)
        self._lib = _lib.sparse()
        parts = [_tensor.query_of(q, f"query {i}", spec.head_dim, dtype)
                 for i, q in enumerate(queries)]
        if len({found.shape for _, found in parts}) != 1:
            raise InvalidArgument("queries: there are none, or of different "
                                  "numbers of heads")
        self.num_queries = len(parts)
        self.num_heads = parts[0][0].num_heads
        self.rows = rows_per(per, self.num_queries * self.num_heads,
                             spec.num_heads)
        self._floats = _tensor.Memory(4 * self._lib.ucm_star_query_floats(
            spec._c, self.num_queries, self.num_heads))
        _lib.call(self._lib.ucm_star_query_prepare, "query", spec._c,
                  (_c.Query * len(parts))(*(c for c, _ in parts)), len(parts),
                  self._floats.address)

    def _score(self, wanted: Scoring, weights: int | None,
               scale: float) -> Scores:
        place = Scores(wanted, self.rows, self.per)
        _lib.call(self._lib.ucm_star_score, "scores", self.spec._c,
                  _c.StarRequest(self._floats.address, self.num_queries,
                                 self.num_heads, self.number,
                                 ctypes.pointer(wanted.slab.need(
                                     self.spec.nbytes)), place.slots,
                                 place.first, place.num, place.address,
                                 weights, place.stride, scale), 1)
        return place

    def score(self, slab: Slab, slots: Ids = None, *, first: int = 0,
              num: int | None = None, out: Any = None) -> Any:
        """The largest product with a group of each block: [block], or
        [row, block]; see sparse.Scoring."""
        return self._score(Scoring(self, slab, slots, first, num, out), None,
                           0).out

    def vote(self, slab: Slab, slots: Ids = None, *, first: int = 0,
             num: int | None = None, scale: float = 1.0) -> memoryview:
        """What each block gets of the rows' votes, which softmax shares out
        among the groups of all blocks. Of a query per "head"."""
        wanted = Scoring(self, slab, slots, first, num)
        weights = _tensor.Memory(4 * self.rows * wanted.places()[0])
        place = self._score(wanted, weights.address, scale)
        votes = _tensor.Memory(4 * place.num)
        _lib.call(self._lib.ucm_star_vote, "votes", place.address,
                  weights.address, self.rows, place.num, place.stride, scale,
                  votes.address)
        return votes.view("f", place.num)
