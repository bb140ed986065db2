# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a request matter to its next token: ucm_sparse(3).

    spec = sparse.Spec("minmax", "bfloat16", num_heads=8, head_dim=128,
                       block_size=128)
    slab = spec.build(keys)                  # [block, token, head, channel]
    scores = spec.query(q).score(slab)       # q: [head, channel]
    budget = sparse.BudgetConfig(128, initial_blocks=1, local_blocks=2,
                                 ratio=.3).of(num_tokens)
    selected = sparse.select(scores, budget)

Keys, queries and scores are taken as they are, with their strides: tensors of
torch or numpy in the host's memory, or what has a buffer. dtype= names the
type of those that cannot: Raw, and bfloat16 as numpy's uint16; nothing else is
read as another type. Results are memoryviews, which numpy.asarray() takes
without a copy.

InvalidArgument names the argument. Nothing has a thread or a lock of its own:
any thread may call, as long as no two write to the same memory.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Sequence

from . import _c, _lib, _pack, _tensor
from ._tensor import Ids
from .errors import InvalidArgument
from .layout import _number_of


class Slab:
    """Representations or codes side by side: a slot for each block.

    memory: [slot, byte] of uint8, which is used as it is; by default new
    memory, of zeros.
    """

    def __init__(self, num_slots: int, slot_bytes: int,
                 memory: Any = None) -> None:
        for name, value in (("num_slots", num_slots),
                            ("slot_bytes", slot_bytes)):
            _pack.u32("slab", name, value)
        if memory is None:
            memory = _tensor.Memory(num_slots * slot_bytes)
            base, step = memory.address, slot_bytes
        else:
            found = _tensor.array_of(
                memory, "slab", (("slot", num_slots), ("byte", slot_bytes)),
                ("uint8",), writable=True)
            base, step, memory = found.pointer, found.strides[0], found
        if step < slot_bytes and num_slots > 1:
            raise InvalidArgument(f"slab: slots are {step} bytes apart, and "
                                  f"have {slot_bytes}")
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self._keep = memory
        self._c = _c.ReprSlab(base, num_slots, max(step, slot_bytes))

    def slot(self, number: int) -> memoryview:
        """The bytes of a slot, to be read or written."""
        there = (ctypes.c_uint8 * self.slot_bytes).from_address(
            self.address_of(number))
        there.slab = self  # a view of it keeps the memory
        return memoryview(there).cast("B")

    def address_of(self, number: int) -> int:
        return self._c.base + self._c.stride_bytes * _pack.below(
            "slab", "slot", number, self.num_slots)

    def need(self, slot_bytes: int) -> ctypes.Structure:
        """It for C, if its slots are as large."""
        if self.slot_bytes < slot_bytes:
            raise InvalidArgument(f"slab: slots of {self.slot_bytes} bytes, "
                                  f"where {slot_bytes} are needed")
        return self._c


class Kept:
    """What is kept of keys: Spec's, star.Spec's, and codes.Spec's. _calls: how
    its C calls begin."""

    _calls: str
    num_heads: int
    head_dim: int
    block_size: int
    _c: ctypes.Structure

    @property
    def nbytes(self) -> int:
        """Of a block's representation."""
        return getattr(_lib.sparse(), f"{self._calls}_bytes")(self._c)

    def slab(self, num_slots: int) -> Slab:
        return Slab(num_slots, self.nbytes)

    def keys_of(self, keys: Any, dtype: str | None,
                **dims: int | None) -> tuple[Any, Any]:
        """Keys of these dimensions, and of heads and channels, for C."""
        return _tensor.keys_of(keys, "keys", (
            *dims.items(), ("head", self.num_heads),
            ("channel", self.head_dim)), dtype)

    def last(self, tokens: int | None) -> int:
        """How many tokens a last block has."""
        return self.block_size if tokens is None else _pack.u32(
            "sparse", "last_tokens", tokens)

    def build_by(self, call: Callable[..., None], keys: Any,
                 slab: Slab | None, blocks: Ids, slots: Ids,
                 last_tokens: int | None, dtype: str | None) -> Slab:
        """Built.build(), by a C call."""
        c, keep = self.keys_of(keys, dtype, block=None, token=self.block_size)
        num, which, where = _tensor.moves_of(
            blocks, slots, ("blocks", "slots"), keep.shape[0])
        slab = self.slab(num) if slab is None else slab
        call(c, which[0], num, self.last(last_tokens), slab.need(self.nbytes),
             where[0])
        return slab


class Built(Kept):
    """What is built of keys alone: Spec's, and star.Spec's."""

    _calls = "ucm_repr"

    def call(self, name: str, *arguments: Any) -> None:
        """A C call of this spec, which may fail."""
        _lib.call(getattr(_lib.sparse(), f"{self._calls}_{name}"),
                  "representations", self._c, *arguments)

    def build(self, keys: Any, slab: Slab | None = None, *, blocks: Ids = None,
              slots: Ids = None, last_tokens: int | None = None,
              dtype: str | None = None) -> Slab:
        """Make representations of keys [block, token, head, channel].

        blocks: which (all), slots: where (0, 1, ...), all different, in a new
        slab if none is given. last_tokens: how many the last of these blocks
        has so far.
        """
        return self.build_by(functools.partial(self.call, "build"), keys, slab,
                             blocks, slots, last_tokens, dtype)

    def growing(self) -> Growing:
        """A block to which tokens are added as they arrive."""
        return Growing(self)


@dataclass(frozen=True)
class Spec(Built):
    """What representations are alike in.

    kind: "mean", "max", "normed" or "minmax". dtype: what they are stored in,
    "float32", "bfloat16", "float16" or "int8". num_heads of keys; block_size
    in tokens.
    """

    kind: str
    dtype: str
    num_heads: int
    head_dim: int
    block_size: int

    @functools.cached_property
    def _c(self) -> _c.ReprSpec:
        out = _pack.fill(_c.ReprSpec(), "spec", {
            "kind": _number_of("spec: kind", self.kind, _c.REPR_KIND),
            "dtype": _number_of("spec: dtype", self.dtype, _c.DTYPE),
            "num_heads": self.num_heads, "head_dim": self.head_dim,
            "block_size": self.block_size})
        if not _lib.sparse().ucm_repr_bytes(out):
            _lib.call(_lib.sparse().ucm_repr_begin, "spec", out, None)
        return out

    @classmethod
    def of(cls, c: _c.ReprSpec) -> Spec:
        """What C says."""
        return cls(_c.REPR_KIND[c.kind], _c.DTYPE[c.dtype],
                   c.num_heads, c.head_dim, c.block_size)

    def query(self, q: Any, per: str = "block", *, distance: bool = False,
              dtype: str | None = None) -> Query:
        """A token's query [head, channel], made ready for all blocks.

        per: which scores of a block are wanted: "head" (of the query),
        "group" (a key head), "block" (one). distance: -|q - R| in place of
        q.R; not with "minmax".
        """
        return Query(self, q, per, distance, dtype)


class Growing:
    """What stands for the tokens that have been added so far. The bytes are
    those of build() for the same tokens."""

    def __init__(self, spec: Built) -> None:
        self.spec = spec
        self._state = _tensor.Memory(getattr(
            _lib.sparse(), f"{spec._calls}_state_bytes")(spec._c))
        self.begin()

    def begin(self) -> None:
        """Anew: no tokens."""
        self.spec.call("begin", self._state.address)

    def add(self, keys: Any, *, dtype: str | None = None) -> None:
        """Add the tokens of keys [token, head, channel]."""
        c, keep = self.spec.keys_of(keys, dtype, token=None)
        self.spec.call("add", self._state.address, c, keep.shape[0])

    def write(self, slab: Slab, slot: int = 0) -> None:
        slab.need(self.spec.nbytes)
        self.spec.call("write", self._state.address, slab.address_of(slot))


# ---- scores ----

class Scoring(NamedTuple):
    """What score_all() is asked for: blocks of a slab, in slots, or num of
    them (all) from first on. out: where the scores are written, float32
    [block], or [row, block]; by default new memory."""

    query: Query
    slab: Slab
    slots: Ids = None
    first: int = 0
    num: int | None = None
    out: Any = None

    def places(self) -> tuple[int, _tensor.Packed]:
        """How many, and the slots of them for C."""
        slots = _tensor.ids_of(self.slots, "slots", self.num)
        num = self.num
        if num is None:
            num = self.slab.num_slots - self.first if self.slots is None \
                else slots[1]
        return _pack.u32("scores", "num", num), slots


class Query:
    """A query that is ready; of Spec.query(). rows of scores it makes."""

    def __init__(self, spec: Spec, q: Any, per: str, distance: bool,
                 dtype: str | None) -> None:
        self.spec = spec
        self.per = per
        self.distance = distance
        self._lib = _lib.sparse()
        c, keep = _tensor.query_of(q, "query", spec.head_dim, dtype)
        number = _number_of("per", per, _c.SCORE_PER) | (
            _c.UCM_SCORE_DISTANCE if distance else 0)
        self.number = number  # for C
        self.num_heads = c.num_heads
        self.rows = rows_per(per, c.num_heads, spec.num_heads)
        self._floats = _tensor.Memory(
            4 * self._lib.ucm_query_floats(spec._c, c.num_heads, number))
        _lib.call(self._lib.ucm_query_prepare, "query", spec._c, c, number,
                  self._floats.address)

    def score(self, slab: Slab, slots: Ids = None, *, first: int = 0,
              num: int | None = None, out: Any = None) -> Any:
        """The scores of blocks: [block], or [row, block]; see Scoring."""
        return score_all([Scoring(self, slab, slots, first, num, out)])[0]


def rows_per(per: str, query_heads: int, key_heads: int) -> int:
    return {"head": query_heads, "group": key_heads, "block": 1}[per]


class Scores:
    """Where the scores of a request go, and what its slots are, for C."""

    def __init__(self, wanted: Any, rows: int, per: str,
                 width: int = 1) -> None:
        self.first = _pack.u64("scores", "first", wanted.first)
        self.num, self._keep = wanted.places()
        self.slots, size = self._keep[0], self.num * width
        dims = (("score", size),) if per == "block" else \
            (("row", rows), ("score", size))
        if wanted.out is None:
            memory = _tensor.Memory(4 * rows * size)
            self.out = memory.view("f", *(n for _, n in dims))
            self.address, self.stride = memory.address, size
        else:
            found = _tensor.rows_of(wanted.out, "out", dims)
            self.out, self.address = wanted.out, found.pointer
            self.stride = max(found.strides[0], size) if len(dims) > 1 \
                else size


def score_all(requests: Sequence[Scoring]) -> list[Any]:
    """The scores of many requests, of queries of one spec, in one call. No
    two may be written to the same place."""
    places, parts = [], []
    for wanted in requests:
        query, spec = wanted.query, requests[0].query.spec
        if query.spec != spec:
            raise InvalidArgument("query: requests have different specs")
        place = Scores(wanted, query.rows, query.per)
        places.append(place)
        parts.append(_c.ScoreRequest(
            query._floats.address, query.num_heads, query.number,
            ctypes.pointer(wanted.slab.need(spec.nbytes)), place.slots,
            place.first, place.num, place.address, place.stride))
    if parts:
        _lib.call(_lib.sparse().ucm_score, "scores", spec._c,
                  (_c.ScoreRequest * len(parts))(*parts), len(parts))
    return [place.out for place in places]


def reduce(scores: Any, how: str) -> memoryview:
    """One score of a block, from many rows [row, block]: their "mean", "sum"
    or "max"."""
    found = _tensor.rows_of(scores, "scores",
                            (("row", None), ("score", None)), writable=False)
    rows, num = found.shape
    memory = _tensor.Memory(4 * num)
    _lib.call(_lib.sparse().ucm_score_reduce, "scores", found.pointer, rows,
              num, max(found.strides[0], num),
              _number_of("how", how, _c.REDUCTION), memory.address)
    return memory.view("f", num)


# ---- selection ----

class Budget(NamedTuple):
    """Of a request's num_blocks the first ones and the last ones are taken,
    and topk of the others."""

    num_blocks: int
    first: int
    last: int
    topk: int


@dataclass(frozen=True)
class BudgetConfig:
    """How many blocks are selected: struct ucm_budget_config. budget_tokens:
    0, or at least block_size."""

    block_size: int
    initial_blocks: int = 0
    local_blocks: int = 0
    sink_tokens: int = 0
    recent_tokens: int = 0
    ratio: float = 0.0
    budget_tokens: int = 0
    min_topk: int = 0
    max_topk: int = 0
    dense_tokens: int = 0

    @functools.cached_property
    def _c(self) -> _c.BudgetConfig:
        values = {name: getattr(self, name)
                  for name in self.__dataclass_fields__}
        out = _c.BudgetConfig()
        for name, _ in _c.Windows._fields_:
            _pack.fill(out.windows, "budget", {name: values.pop(name)})
        return _pack.fill(out, "budget", values)

    def of(self, tokens: int) -> Budget:
        """The budget of a request of so many tokens."""
        out = _c.Budget()
        _lib.call(_lib.sparse().ucm_budget_blocks, "budget", self._c,
                  _pack.u32("budget", "tokens", tokens), out)
        return Budget(*(getattr(out, name) for name in Budget._fields))


def select(scores: Any, budget: Budget) -> memoryview:
    """The blocks that are selected, ascending: the budget's first and last
    ones, and topk of the others by their scores; of equal ones the lower."""
    found = _tensor.floats_of(scores, "scores", num=budget.num_blocks)
    c = _pack.fill(_c.Budget(), "budget", budget._asdict())
    room = min(budget.first + budget.last + budget.topk, budget.num_blocks)
    memory, num = _tensor.Memory(4 * room), ctypes.c_uint32()
    _lib.call(_lib.sparse().ucm_select, "selection", found.pointer, c,
              memory.address, room, ctypes.byref(num))
    return memory.view("I", num.value)


def select_table(table: Any, block_size: int, tokens: int,
                 selected: Any) -> tuple[memoryview, int]:
    """(a block table that names the selected blocks alone, the tokens in
    it), from that of a request of so many tokens."""
    size = _pack.u32("table", "block_size", block_size)
    tokens = _pack.u32("table", "tokens", tokens)
    whole, _, _keep = _tensor.table_of(table, size, tokens)
    chosen, num, _chosen = _tensor.list_of(selected, "selected", "I")
    memory, length = _tensor.Memory(4 * num), ctypes.c_uint32()
    _lib.call(_lib.sparse().ucm_select_table, "table", whole, size, tokens,
              chosen, num, memory.address, num, ctypes.byref(length))
    return memory.view("i", num), length.value


# ---- rows of a batch ----

class Batch:
    """The decode rows of a step, for the Rows of all layers: int32 tables
    [row, block] of pages and lengths [row] in tokens, which are read at each
    call. dense: uint8 [row]; 1: it attends to all its blocks.

    tables and lengths are what to attend to, after Rows.select(): out, or new
    memory; entries after a row's tokens mean nothing. One thread's at a time.
    """

    def __init__(self, tables: Any, lengths: Any, *, dense: Any = None,
                 out: tuple[Any, Any] | None = None) -> None:
        table, length = _int_rows(tables, lengths)
        num, width = table.shape
        self.tables, self.lengths = out or (
            _tensor.Memory(4 * num * width).view("i", num, width),
            _tensor.Memory(4 * num).view("i", num))
        to = _int_rows(self.tables, self.lengths, num, "out: ")
        skip = _tensor.array_of(dense, "dense", (("row", num),), ("uint8",)) \
            if dense is not None else None
        self._keep = table, length, to, skip
        self._rows = _c.SparseRows(
            num=num, tables=table.pointer, stride_table=table.strides[0],
            lengths=length.pointer, dense=skip and skip.pointer,
            max_blocks=min(width, to[0].shape[1]))
        self._out = _c.SparseTables(to[0].pointer, to[0].strides[0],
                                    to[1].pointer)


class Rows:
    """Block tables of a batch's decode rows, in one call a layer and step:
    ucm_retrieve(3), "Rows of a batch".

    by: Spec, star.Spec, or codes.Encoder with a method: what slab holds of the
    engine's pages, of page p in slot p. built: uint8 [slot], read at each
    call; 0: nothing is in it. One thread's at a time.
    """

    def __init__(self, by: Any, slab: Slab, budget: BudgetConfig, *,
                 method: Any = None, built: Any = None) -> None:
        spec = by if isinstance(by, Built) else by.spec
        self._c = _c.SparsePages(slab=ctypes.pointer(slab.need(spec.nbytes)))
        if by is spec:
            setattr(self._c, "star" if by._calls == "ucm_star" else "spec",
                    ctypes.pointer(by._c))
        elif method:
            self._c.encoder = by._memory.address
            self._c.code_method = ctypes.pointer(method._c)
        if built is not None:
            built = _tensor.array_of(
                built, "built", (("slot", slab.num_slots),), ("uint8",))
            self._c.built = built.pointer
        self._keep, self._spec, self._config = (by, slab, built), spec, budget
        self._work = _tensor.Memory(0)

    def select(self, queries: Any, batch: Batch, *,
               dtype: str | None = None) -> tuple[int, int]:
        """Choose by queries [row, head, channel]. (blocks that rows attend
        to, blocks in all.)"""
        rows, out = batch._rows, batch._out
        q = _tensor.array_of(
            queries, "queries", (("row", rows.num), ("head", None),
                                 ("channel", self._spec.head_dim)),
            _tensor.KEYS, dtype=dtype)
        rows.query = _c.Query(q.pointer, q.dtype_number, q.shape[1],
                              q.strides[1])
        rows.stride_query = q.strides[0]
        wanted = _lib.sparse().ucm_sparse_select_bytes(self._c, rows)
        if wanted > self._work.num_bytes:
            self._work = _tensor.Memory(wanted)
        _lib.call(_lib.sparse().ucm_sparse_select, "rows", self._c,
                  self._config._c, rows, self._work.address, wanted, out)
        return out.blocks_attended, out.blocks_in_all


def _int_rows(tables: Any, lengths: Any, num: int | None = None,
              out: str = "") -> tuple[_tensor.Array, _tensor.Array]:
    take = functools.partial(_tensor.rows_of, kind="int32", writable=bool(out))
    table = take(tables, f"{out}tables", (("row", num), ("block", None)))
    return table, take(lengths, f"{out}lengths", (("row", table.shape[0]),))
