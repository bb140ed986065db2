# SPDX-License-Identifier: Apache-2.0
"""Hash codes of keys, and scores by them: ucm_sparse(3), "Hash codes".

    spec = codes.Spec("tokens", num_heads=8, head_dim=128, bits=128,
                      block_size=128)
    encoder = codes.Encoder(spec)
    slab = encoder.build(keys)               # [block, token, head, channel]
    method = codes.Method("hamming", "best", "block", num_heads=32)
    scores = encoder.query(q, method).score(slab)

Arrays are taken and given as in ucmfs.sparse.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import asdict, dataclass
from typing import Any, Sequence

from . import _c, _lib, _pack, _tensor
from ._tensor import Ids
from .errors import InvalidArgument
from .layout import _number_of
from .sparse import Kept, Scores, Scoring, Slab, rows_per


@dataclass(frozen=True)
class Spec(Kept):
    """What codes are alike in: struct ucm_code_spec.

    form: "tokens" or "counts". rope_dim: the last channels of head_dim, which
    have rope_bits of their own (MLA). norms: with each code what "estimate"
    scales it by; not with "counts", nor with fewer bits than channels.
    """

    form: str
    num_heads: int
    head_dim: int
    bits: int
    block_size: int
    rope_dim: int = 0
    rope_bits: int = 0
    norms: bool = False
    seed: int = 0

    _calls = "ucm_code"

    @functools.cached_property
    def _c(self) -> _c.CodeSpec:
        out = _pack.fill(_c.CodeSpec(), "spec", {
            **asdict(self), "norms": bool(self.norms),
            "form": _number_of("spec: form", self.form, _c.CODE_FORM)})
        if not _lib.sparse().ucm_code_bytes(out):
            _lib.call(_lib.sparse().ucm_code_encoder_make, "spec", out, None,
                      None)
        return out

    @classmethod
    def of(cls, c: _c.CodeSpec) -> Spec:
        """What C says."""
        values = {name: getattr(c, name) for name in cls.__dataclass_fields__}
        values.update(form=_c.CODE_FORM[c.form], norms=bool(c.norms))
        return cls(**values)


@dataclass(frozen=True)
class Method:
    """How blocks are scored: struct ucm_code_method.

    measure: "hamming" or "estimate". over: of a block's tokens the "best", or
    their "sum", or "each". per: "head", "group" or "block". num_heads of the
    query, of which merged_heads of a group are averaged first.
    """

    measure: str
    over: str
    per: str
    num_heads: int
    merged_heads: int = 1

    @classmethod
    def of(cls, c: _c.CodeMethod) -> Method:
        """What C says."""
        return cls(_c.CODE_MEASURE[c.measure], _c.CODE_OVER[c.over],
                   _c.SCORE_PER[c.per], c.num_heads, c.merged_heads)

    @functools.cached_property
    def _c(self) -> _c.CodeMethod:
        values = asdict(self)
        for name, names in (("measure", _c.CODE_MEASURE),
                            ("over", _c.CODE_OVER), ("per", _c.SCORE_PER)):
            values[name] = _number_of(f"method: {name}", values[name], names)
        return _pack.fill(_c.CodeMethod(), "method", values)


class Encoder:
    """W, and the centers that are subtracted from keys: [head, channel] of
    float32. All that share codes take the same. Any thread."""

    def __init__(self, spec: Spec, centers: Any = None) -> None:
        self.spec = spec
        self._lib = _lib.sparse()
        self._memory = _tensor.Memory(
            self._lib.ucm_code_encoder_bytes(spec._c))
        middle = None
        if centers is not None:
            found = _tensor.dense_of(centers, "centers", (
                ("head", spec.num_heads), ("channel", spec.head_dim)))
            middle = found.pointer
        _lib.call(self._lib.ucm_code_encoder_make, "encoder", spec._c, middle,
                  self._memory.address)

    def matrix(self, rope: bool = False) -> memoryview:
        """W: [channel, bit] of float32, bits padded; or that of rope_dim's
        channels. To be read."""
        spec, stride = self.spec, ctypes.c_size_t()
        start = self._lib.ucm_code_matrix(self._memory.address, bool(rope),
                                          ctypes.byref(stride))
        if not start:
            raise InvalidArgument("encoder: rope: spec has no rope_dim")
        channels = spec.rope_dim if rope else spec.head_dim - spec.rope_dim
        num = 4 * channels * stride.value
        at = ctypes.cast(start, ctypes.c_void_p).value - self._memory.address
        return self._memory.view()[at:at + num].toreadonly().cast(
            "f", (channels, stride.value))

    def build(self, keys: Any, slab: Slab | None = None, *, blocks: Ids = None,
              slots: Ids = None, last_tokens: int | None = None,
              dtype: str | None = None) -> Slab:
        """Make codes of keys, as sparse.Spec.build() does."""
        return self.spec.build_by(functools.partial(
            _lib.call, self._lib.ucm_code_build, "codes",
            self._memory.address), keys, slab, blocks, slots, last_tokens,
                                  dtype)

    def add(self, keys: Any, first_token: int, slab: Slab, slot: int = 0, *,
            dtype: str | None = None) -> None:
        """Add the tokens of keys [token, head, channel] to a block that has
        first_token tokens so far; with 0 it is begun anew."""
        spec = self.spec
        c, keep = spec.keys_of(keys, dtype, token=None)
        slab.need(spec.nbytes)
        _lib.call(self._lib.ucm_code_add, "codes", self._memory.address, c,
                  _pack.u32("codes", "first_token", first_token),
                  keep.shape[0], slab.address_of(slot))

    def query(self, q: Any, method: Method, *, rope: Any = None,
              dtype: str | None = None) -> Query:
        """A token's query [head, channel], made ready for all blocks. rope:
        its last rope_dim channels, where they are apart."""
        return Query(self, q, method, rope, dtype)


class Query:
    """A query that is ready; of Encoder.query(). rows of scores it makes."""

    def __init__(self, encoder: Encoder, q: Any, method: Method, rope: Any,
                 dtype: str | None) -> None:
        spec = encoder.spec
        self.encoder, self.spec, self.method = encoder, spec, method
        self._lib = _lib.sparse()
        apart, part = None, 0
        if rope is not None:
            apart, _keep = _tensor.query_of(rope, "rope", spec.rope_dim, dtype)
            part = spec.rope_dim
        c, _keep_query = _tensor.query_of(q, "query", spec.head_dim - part,
                                          dtype)
        words = self._lib.ucm_code_query_words(spec._c, method._c)
        self._words = _tensor.Memory(8 * words)
        _lib.call(self._lib.ucm_code_query_prepare, "query",
                  encoder._memory.address, method._c, c, apart,
                  self._words.address)
        self.per = method.per
        self.rows = rows_per(method.per, method.num_heads
                             // method.merged_heads, spec.num_heads)

    def score(self, slab: Slab, slots: Ids = None, *, first: int = 0,
              num: int | None = None, out: Any = None) -> Any:
        """The scores of blocks: [block], or [row, block]; with "each", of
        the tokens of all blocks in their place. See sparse.Scoring."""
        return score_all([Scoring(self, slab, slots, first, num, out)])[0]


def score_all(requests: Sequence[Scoring]) -> list[Any]:
    """The scores of many requests, of queries of one spec and method, in one
    call. No two may be written to the same place."""
    places, parts = [], []
    for wanted in requests:
        query, like = wanted.query, requests[0].query
        if (query.spec, query.method) != (like.spec, like.method):
            raise InvalidArgument("query: requests have different specs or "
                                  "methods")
        each = query.method.over == "each"
        place = Scores(wanted, query.rows, query.per,
                       query.spec.block_size if each else 1)
        places.append(place)
        parts.append(_c.CodeRequest(
            query._words.address,
            ctypes.pointer(wanted.slab.need(query.spec.nbytes)), place.slots,
            place.first, place.num, place.address, place.stride))
    if parts:
        _lib.call(_lib.sparse().ucm_code_score, "scores", like.spec._c,
                  like.method._c, (_c.CodeRequest * len(parts))(*parts),
                  len(parts))
    return [place.out for place in places]
