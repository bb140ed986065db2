# SPDX-License-Identifier: Apache-2.0
"""ucmfs.sparse, codes, star, position and attention on a CUDA device, for all
requests of a step at once: <ucm/sparse_cuda.h>, ucm_sparse_cuda(3).

    cuda = sparse_cuda.Device(0)
    kind = sparse_cuda.Kind(spec, num_heads=32)
    ready = torch.empty(num, kind.ready, device="cuda")
    cuda.build(kind, keys, slab, slots=slot_mapping, stream=stream)
    cuda.prepare(kind, queries, ready, stream=stream)
    requests = sparse_cuda.Requests(tables, tokens)
    cuda.score(kind, ready, slab, requests, scores, stream=stream)
    cuda.select(budget, requests, scores[:, 0], tables_out, tokens_out, status,
                stream=stream)

Arrays are the device's: tensors of torch, or what has a
__cuda_array_interface__. Shapes are in elements; dimensions with a + may be
apart, the others have no gaps. Lengths are in tokens. Keys and queries are
float32, float16 or bfloat16. Results are written where the caller says.

A call queues kernels in stream (an address, as torch's cuda_stream; what has
one; 0, the legacy default stream) and returns. It allocates nothing and does
not wait, so it can be captured in a CUDA graph. Arrays must stay until the
stream has come so far: those of Requests, Kind and Attention are kept by
these, the others are not kept. What the device alone can
see (ids, positions, numbers that are not finite) is not refused: see there.

InvalidArgument names the argument. UcmfsError (ENODEV): there is no driver,
no device, or libucmsparse was built without CUDA. Any thread.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Sequence

from . import _c, _lib, _pack, _tensor, attention, codes, position, sparse, \
    star
from ._handle import Handle
from .errors import InvalidArgument
from .layout import _number_of, is_dense, raw_of

# ---- arrays ----

# name, types, and dimensions, of which those with a ":" may be apart: the
# struct's field that says so, if any, follows. "!": it is written. A dimension
# with the name of a field is that field.
_REQUESTS = ("tables int32 num:table_stride max_blocks", "tokens int32 num")
_WRITTEN = ("slots int64 num", "blocks int32 num", "tokens int32 num")
_QUERIES = "queries num: heads: head_dim"
_CACHE = "keys blocks: block_size: num_heads: head_dim"
_SCORES = ("!scores float32 request:stride_request row:stride_row score",
           "!weights float32 request:stride_request row:stride_row score")
_VOTES = (_SCORES[0][1:], _SCORES[1],
          "!votes float32 request:votes_stride score")
_SELECT = ("scores float32 request:scores_stride block",
           "!tables_out int32 request room", "!tokens_out int32 request",
           "!status int32 request", "!blocks_out uint32|int32 request room",
           "!num_out uint32|int32 request")
_SHIFT = ("deltas int32 num", "from_blocks int32 num", "to_blocks int32 num",
          "tokens int32 num")
_DEVIATION = (f"cached {_CACHE}",
              "fresh keys num_tokens: num_heads: head_dim",
              f"cached_values {_CACHE}",
              "fresh_values keys num_tokens: num_heads: head_dim",
              "table int32 entry")
_ATTENTION = (f"queries {_QUERIES}", f"keys {_CACHE}",
              "values keys blocks: block_size: num_heads: value_dim",
              "positions int32 num",
              "selected uint32|int32 num:selected_stride max_blocks")
_RESULT = ("!work float32 number",
           "!out float32 request:out_stride head value",
           "!lse float32 request:lse_stride head")


class _Arrays:
    """Arrays whose dimensions agree: sizes that are known, and what the first
    array says of the others."""

    def __init__(self, **known: int) -> None:
        self.known = known
        self.kept: list[_tensor.Array] = []

    def at(self, values: Any, text: str) -> _tensor.Array:
        """Where an array is; strides as C has them."""
        name, types, *dims = text.split()
        out, name = name[0] == "!", name.lstrip("!")
        kinds = _tensor.KEYS if types in _MADE else types.split("|")
        plain = [dim.partition(":")[0] for dim in dims]
        found = _tensor.array_of(
            values, name, [(dim, self.known.get(dim)) for dim in plain], kinds,
            writable=out, device="cuda")
        last = sum(":" not in dim for dim in dims)
        if not is_dense(found._replace(shape=found.shape[-last:],
                                       strides=found.strides[-last:])):
            raise InvalidArgument(f"{name}: strides {found.strides}, where no "
                                  f"gaps may be in {', '.join(dims[-last:])}")
        if out:
            _tensor._check_apart(found, name)
        self.known.update(zip(plain, found.shape))
        self.known.pop("blocks", None)  # there may be other caches
        self.kept.append(found)
        # of a single one a tensor may have any stride
        return found._replace(strides=tuple(
            stride if size > 1 else math.prod(found.shape[i + 1:])
            for i, (size, stride) in enumerate(zip(found.shape,
                                                   found.strides))))

    def fill(self, c: Any, texts: Sequence[str], *arrays: Any) -> Any:
        """c, a struct, with these arrays, of which None stays NULL."""
        for text, values in zip(texts, arrays):
            if values is not None:
                self._set(c, text, self.at(values, text))
        for name in self.known.keys() & {name for name, _ in c._fields_}:
            setattr(c, name, self.known[name])
        return c

    def _set(self, c: Any, text: str, found: _tensor.Array) -> None:
        name, types, *dims = text.split()
        setattr(c, name.lstrip("!"), _MADE[types](found)
                if types in _MADE else found.pointer)
        for dim, stride in zip(dims, found.strides):
            self._stride(c, name, dim.partition(":")[2], stride)

    def _stride(self, c: Any, name: str, field: str, stride: int) -> None:
        """Two arrays may have one field."""
        if field and getattr(c, field) not in (0, stride):
            raise InvalidArgument(f"{name.lstrip('!')}: strides: {stride} "
                                  f"where {field} is {getattr(c, field)}")
        if field:
            setattr(c, field, stride)


def _keys(found: _tensor.Array) -> _c.Keys:
    return _c.Keys(found.pointer, found.dtype_number, (1, *found.shape)[-4],
                   *(0, *found.strides)[-4:-1])


def _queries(found: _tensor.Array) -> _c.CudaQueries:
    return _c.CudaQueries(found.pointer, found.dtype_number,
                          *found.shape[1::-1], found.strides[0],
                          found.strides[1])


_MADE = {"keys": _keys, "queries": _queries}


class Requests:
    """A step's: tables int32 [request+, block] of the cache's blocks, which
    are also the slots of a slab, and tokens int32 [request]; below 1: none.
    All have room for as many blocks."""

    def __init__(self, tables: Any, tokens: Any) -> None:
        arrays = _Arrays()
        self._c = arrays.fill(_c.CudaRequests(), _REQUESTS, tables, tokens)
        self.num, self.max_blocks = self._c.num, self._c.max_blocks
        self._keep = arrays.kept


# ---- what is kept, and how it is asked ----

# How calls begin, the struct of a score, the type of a ready query, its size.
_KINDS = {
    sparse.Spec: ("", _c.CudaScore, "float32", "ucm_query_floats"),
    star.Spec: ("star_", _c.CudaStarScore, "float32", "ucm_star_query_floats"),
    codes.Encoder: ("code_", _c.CudaCodeScore, "int64|uint64",
                    "ucm_code_query_words")}


def image_of(by: Any) -> memoryview:
    """Bytes that a device needs a copy of: of a codes.Encoder, an
    attention.ReRope, or a star.Spec that has chosen channels."""
    if isinstance(by, star.Spec):
        return memoryview(by._chosen or b"").cast("B")
    return (by._memory if isinstance(by, codes.Encoder) else by._angles).view()


def _copy_of(by: Any, image: Any) -> _tensor.Array:
    return _Arrays(byte=len(image_of(by))).at(image, "image uint8 byte")


class Kind:
    """What is kept of keys, and how it is asked. by: sparse.Spec; star.Spec;
    or codes.Encoder with a method, which says num_heads and per itself.
    num_heads of a query; per: "head", "group" or "block"; num_queries of a
    request (star). image: uint8 [byte], a copy of image_of(by).

    ready: the size of a query that is, in float32, or of codes in int64; rows
    of scores that it makes.
    """

    def __init__(self, by: Any, num_heads: int = 0, per: str = "block", *,
                 method: codes.Method | None = None, num_queries: int = 1,
                 image: Any = None) -> None:
        self._name, self._score, self._item, ready = _KINDS[type(by)]
        self.spec = spec = by.spec if method else by
        if method:
            num_heads, per = method.num_heads // (method.merged_heads or 1), \
                method.per
        heads = _pack.u32("kind", "num_heads", num_heads)
        self.num_queries = _pack.u32("kind", "num_queries", num_queries)
        number = _number_of("per", per, _c.SCORE_PER)
        there = _copy_of(by, image) if image is not None else None
        copy, self._keep = there and there.pointer, (by, method, there)
        self._begin, self._method, self._after = (spec._c,), (), (number,)
        self._asked, sized = {"per": number, "num_heads": heads}, (heads,
                                                                   number)
        self.width = 1
        if method:
            self._begin = (_c.CudaEncoder(by._memory.address, copy),)
            self._method, self._after, self._asked = (method._c,), (), {}
            sized = self._method
            if method.over == "each":
                self.width = spec.block_size
        elif isinstance(spec, star.Spec):
            self._begin, self._after = (spec._c, copy), (num_queries,)
            self._asked["num_queries"] = num_queries
            sized = num_queries, heads
        self.rows = sparse.rows_per(per, num_queries * heads, spec.num_heads)
        self.ready = getattr(_lib.sparse(), ready)(spec._c, *sized)


def _slab_of(slab: Any, kind: Kind) -> Any:
    found = _Arrays(byte=kind.spec.nbytes).at(slab, "slab uint8 slot: byte")
    return ctypes.pointer(_c.ReprSlab(found.pointer, found.shape[0],
                                      found.strides[0]))


class Attention:
    """What the next tokens of requests attend to. queries [request+, head+,
    channel]; keys, values [block+, token+, head+, channel]; scale: 0 for
    1 / sqrt(channels).

    Of ReRoPE alone: positions int32 [request], of the queries (the last
    tokens'); selected uint32 [request+, block], which blocks of a request
    those of its table are (0, 1, ...).
    """

    def __init__(self, queries: Any, keys: Any, values: Any,
                 requests: Requests, *, scale: float = 0.0,
                 positions: Any = None, selected: Any = None) -> None:
        arrays = _Arrays(num=requests.num, max_blocks=requests.max_blocks)
        self._c = arrays.fill(
            _c.CudaAttention(requests=requests._c, scale=scale), _ATTENTION,
            queries, keys, values, positions, selected)
        if not self._c.value_dim:  # to C, as many as keys have
            raise InvalidArgument("values: there are no channels")
        self._keep = arrays.kept, requests

    @property
    def floats(self) -> int:
        """That work needs; 0: it is wrong, or has no requests."""
        return _lib.sparse().ucm_sparse_cuda_attention_floats(self._c)

    def _to(self, *results: Any) -> _c.CudaAttention:
        c = _c.CudaAttention.from_buffer_copy(self._c)  # threads may share it
        arrays = _Arrays(request=c.requests.num, head=c.queries.num_heads,
                         value=c.value_dim)
        arrays.fill(c, _RESULT, *results)
        have, floats = arrays.known.get("number", 0), self.floats
        if have < floats:
            raise InvalidArgument(f"work: {have} floats, where {floats} are "
                                  "needed")
        return c


# ---- calls ----

class Device(Handle):
    """A device by its number, with the kernels, in its primary context. close
    it when nothing that was queued may still run."""

    _CLOSE = "ucm_sparse_cuda_close"

    def __init__(self, number: int = 0) -> None:
        super().__init__(f"CUDA device {number}", _lib.sparse())
        _lib.call(self._lib.ucm_sparse_cuda_open, self._what,
                  _pack.whole("device", "number", number, ctypes.c_int32),
                  self._handle)

    def _call(self, name: str, stream: Any, *arguments: Any) -> None:
        _lib.call(getattr(self._lib, f"ucm_sparse_cuda_{name}"), name,
                  self._open(), *arguments, _pack.u64(
                      name, "stream", getattr(stream, "cuda_stream", stream)))

    def build(self, kind: Kind, keys: Any, slab: Any, *, slots: Any = None,
              blocks: Any = None, tokens: Any = None,
              stream: Any = 0) -> None:
        """Write what is kept of keys [block+, token+, head+, channel] into
        slab, uint8 [slot+, byte], at the numbers of their blocks.

        slots: int64 [token], of tokens that were written, as vLLM's
        slot_mapping. Or blocks: int32 [block], with tokens: int32 [block], by
        default full.
        """
        if (slots is not None) == (blocks is not None):
            raise InvalidArgument("slots, blocks: one of the two is needed")
        spec = kind.spec
        found = _Arrays(**{name: getattr(spec, name) for name in (
            "block_size", "num_heads", "head_dim")}).at(keys, _ATTENTION[1])
        self._call(f"{kind._name}build", stream, *kind._begin, _keys(found),
                   _Arrays().fill(_c.CudaWritten(), _WRITTEN, slots, blocks,
                                  tokens), _slab_of(slab, kind))

    def prepare(self, kind: Kind, queries: Any, out: Any, *,
                rope: Any = None, stream: Any = 0) -> None:
        """Make queries [request+, head+, channel] ready, in out: float32, or
        int64 of codes, [request+, kind.ready]. Each request has
        kind.num_queries of them. rope: of codes, their last rope_dim channels,
        where they are apart."""
        apart, dim = None, kind.spec.head_dim
        if rope is not None:
            part = getattr(kind.spec, "rope_dim", 0)
            apart, dim = _queries(_Arrays(head_dim=part).at(
                rope, f"rope {_QUERIES}")), dim - part
        c = _queries(_Arrays(head_dim=dim).at(queries, _ATTENTION[0]))
        place = _Arrays(request=c.num // (kind.num_queries or 1),
                        number=kind.ready).at(
            out, f"!out {kind._item} request: number")
        self._call(f"{kind._name}prepare", stream, *kind._begin,
                   *kind._method, c, *(kind._after or (apart,)), place.pointer,
                   place.strides[0])

    def score(self, kind: Kind, queries: Any, slab: Any, requests: Requests,
              scores: Any, *, weights: Any = None, scale: float = 1.0,
              stream: Any = 0) -> None:
        """Scores float32 [request+, row+, block] of the requests' blocks, by
        queries as of prepare(). row: of kind.rows; block: of all of a table,
        and with codes' "each" of their tokens. weights: of
        merged channels, as scores, for vote()."""
        arrays = _Arrays(request=requests.num, row=kind.rows,
                         number=kind.ready,
                         score=requests.max_blocks * kind.width)
        ready = arrays.at(queries, f"queries {kind._item} request: number")
        more = {"scale": scale} if weights is not None else {}
        c = kind._score(
            queries=ready.pointer,
            query_stride=ready.strides[0] if requests.num > 1 else 0,
            slab=_slab_of(slab, kind), requests=requests._c, **kind._asked,
            **more)
        self._call(f"{kind._name}score", stream, kind.spec._c, *kind._method,
                   arrays.fill(c, _SCORES, scores, weights))

    def vote(self, kind: Kind, requests: Requests, scores: Any, weights: Any,
             votes: Any, *, scale: float = 1.0, stream: Any = 0) -> None:
        """Votes float32 [request+, block] by scores and weights of score(),
        with the same scale; weights are used up."""
        arrays = _Arrays(request=requests.num, row=kind.rows,
                         score=requests.max_blocks)
        c = _c.CudaStarVote(requests=requests._c, num_rows=kind.rows,
                            scale=scale)
        self._call("star_vote", stream, kind.spec.block_size,
                   arrays.fill(c, _VOTES, scores, weights, votes))

    def select(self, config: sparse.BudgetConfig, requests: Requests,
               scores: Any, tables_out: Any, tokens_out: Any, status: Any, *,
               blocks_out: Any = None, num_out: Any = None,
               stream: Any = 0) -> None:
        """Choose by scores float32 [request+, block]: tables_out int32
        [request, room], and tokens_out int32 [request], name the selected
        blocks alone. status int32 [request]: 0, or -EINVAL, and nothing is
        written for that request. blocks_out, num_out: uint32, as tables_out
        and tokens_out: which blocks of a request they are, and how many."""
        arrays = _Arrays(request=requests.num, block=requests.max_blocks)
        self._call("select", stream, config._c, arrays.fill(
            _c.CudaSelect(requests=requests._c), _SELECT, scores, tables_out,
            tokens_out, status, blocks_out, num_out))

    def shift(self, rope: position.Rope, keys: Any, deltas: Any, *,
              to: Any = None, from_blocks: Any = None, to_blocks: Any = None,
              tokens: Any = None, unrotated: bool = False,
              stream: Any = 0) -> None:
        """position.Rope.shift(), unchecked. deltas: int32 [number], or
        [number, token], of the blocks that move. from_blocks, to_blocks:
        int32 [number] (0, 1, ...); tokens: int32 [number], that they have
        (all are full)."""
        apart = to is not None
        each = len(raw_of(deltas, "deltas").shape) == 2
        arrays = _Arrays(head_dim=rope.head_dim)
        source = arrays.at(keys, f"{'!' * (not apart)}keys {_CACHE}")
        room = arrays.at(to, f"!to {_CACHE}") if apart else source
        if room.dtype != source.dtype:
            raise InvalidArgument(f"to: {room.dtype}, where keys are of "
                                  f"{source.dtype}")
        if not apart and not (to_blocks is not None):
            to_blocks = from_blocks
        c = _c.CudaShift(_keys(source), _c.KeyRoom(
            room.pointer, room.shape[0], *room.strides[:3]), per_token=each,
                         unrotated=bool(unrotated))
        self._call("shift", stream, rope._c, arrays.fill(
            c, (_SHIFT[0] + " block_size" * each, *_SHIFT[1:]), deltas,
            from_blocks, to_blocks, tokens))

    def deviation(self, cached: Any, fresh: Any, out: Any, *,
                  cached_values: Any = None, fresh_values: Any = None,
                  table: Any = None, relative: bool = False,
                  stream: Any = 0) -> None:
        """position.deviation() into out, float32 [token]. table: int32
        [block]."""
        arrays = _Arrays()
        c = arrays.fill(
            _c.DeviationRequest(relative=bool(relative)), _DEVIATION, cached,
            fresh, cached_values, fresh_values, table)
        have = arrays.known.get("entry", c.cached.num_blocks)
        if have * c.block_size < c.num_tokens:
            raise InvalidArgument(
                f"table: {have} blocks of {c.block_size}, where there are "
                f"{c.num_tokens} tokens")
        self._call("deviation", stream, c, arrays.at(
            out, "!out float32 num_tokens").pointer)

    def attention(self, what: Attention, work: Any, out: Any, lse: Any = None,
                  *, rerope: attention.ReRope | None = None, image: Any = None,
                  stream: Any = 0) -> None:
        """attention.decode() of each request, or rerope's, of which image is
        as in Kind: out float32 [request+, head, channel of values], lse
        float32 [request+, head]. work: float32 [what.floats or more]."""
        before: tuple[Any, ...] = ()
        if rerope is not None:
            if rerope.block_size != what._c.block_size:
                raise InvalidArgument(
                    f"keys: blocks of {what._c.block_size} tokens, where the "
                    f"angles are for {rerope.block_size}")
            before = rerope._c, _copy_of(rerope, image).pointer
        self._call("rerope" if before else "attention", stream, *before,
                   what._to(work, out, lse))
