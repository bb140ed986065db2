# SPDX-License-Identifier: Apache-2.0
"""What a token attends to, over a paged cache: ucm_position(3).

    out, lse = attention.decode(q, keys, values, table=table,
                                num_tokens=tokens)

query [head, channel]; keys and values [block, token, head, channel], of which
the blocks in table (all) are attended to, num_tokens tokens of them (full
blocks). scale: 0 for 1 / sqrt(channels). out is [head, channel of values],
lse the logarithm of each head's sum of exponentials. Arrays are taken and
given as in ucmfs.sparse.
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import _c, _lib, _pack, _tensor
from ._tensor import Ids
from .errors import InvalidArgument
from .position import Rope

Result = tuple[memoryview, memoryview]


class _Request:
    """struct ucm_attention, and what it points to."""

    def __init__(self, query: Any, keys: Any, values: Any, table: Ids,
                 num_tokens: int | None, scale: float,
                 dtype: str | None) -> None:
        old, found = _tensor.keys_of(keys, "keys", (
            ("block", None), ("token", None), ("head", None),
            ("channel", None)), dtype)
        num_blocks, size, heads, dim = found.shape
        kept, there = _tensor.keys_of(values, "values", (
            ("block", None), ("token", size), ("head", heads),
            ("channel", None)), dtype)
        asked, q = _tensor.query_of(query, "query", dim, dtype)
        if num_tokens is None:
            num_tokens = size * (num_blocks if table is None else len(table))
        tokens = _pack.u32("attention", "num_tokens", num_tokens)
        which = _tensor.table_of(table, size, tokens)
        self.num_blocks = -(-tokens // max(size, 1))
        self.shape = (asked.num_heads, there.shape[3])
        self._keep = (found, there, q, which)
        self.c = _c.Attention(asked, old, kept, which[0], tokens, heads, dim,
                              self.shape[1], size, scale)

    def place(self, position: int | None, selected: Ids) -> None:
        """Where the query and the blocks are in the request."""
        self.c.position = self.c.num_tokens - 1 if position is None else \
            _pack.u32("attention", "position", position)
        chosen = _tensor.ids_of(
            selected, "selected",
            None if selected is None else self.num_blocks, "I")
        self.c.selected = chosen[0]
        self._keep += chosen

    def run(self, kind: str, name: str, *before: Any) -> Result:
        """Have a call write numbers of that typecode."""
        library = _lib.sparse()
        item = ctypes.sizeof({"d": ctypes.c_double, "f": ctypes.c_float}[kind])
        out = _tensor.Memory(item * self.shape[0] * self.shape[1])
        lse = _tensor.Memory(item * self.shape[0])
        work = () if kind == "d" else (_tensor.Memory(
            4 * library.ucm_attention_floats(self.c)),)
        _lib.call(getattr(library, name), "attention", *before, self.c,
                  *(memory.address for memory in work), out.address,
                  lse.address)
        return out.view(kind, *self.shape), lse.view(kind, self.shape[0])


def reference(query: Any, keys: Any, values: Any, *, table: Ids = None,
              num_tokens: int | None = None, scale: float = 0.0,
              dtype: str | None = None) -> Result:
    """(out, lse) as it is defined, in double, slowly."""
    return _Request(query, keys, values, table, num_tokens, scale,
                    dtype).run("d", "ucm_attention_reference")


def decode(query: Any, keys: Any, values: Any, *, table: Ids = None,
           num_tokens: int | None = None, scale: float = 0.0,
           dtype: str | None = None) -> Result:
    """(out, lse) in float32, fast. For several threads, give each some of the
    key heads."""
    return _Request(query, keys, values, table, num_tokens, scale,
                    dtype).run("f", "ucm_attention_decode")


class ReRope:
    """Attention in which no token is farther away than window positions, over
    an ordinary cache. training_length: 0 for no factor. Any thread.

    position: the query's (the last token's). selected: which blocks of the
    request those of the table are, ascending (0, 1, ...).
    """

    def __init__(self, rope: Rope, window: int, *, block_size: int,
                 training_length: int = 0) -> None:
        self._lib = _lib.sparse()
        self._c = _pack.fill(_c.Rerope(rope._c), "rerope", {
            "window": window, "training_length": training_length})
        size = _pack.u32("rerope", "block_size", block_size)
        self.block_size = size
        self._angles = _tensor.Memory(
            4 * self._lib.ucm_rerope_floats(self._c, size))
        _lib.call(self._lib.ucm_rerope_prepare, "rerope", self._c, size,
                  self._angles.address)

    def _request(self, query: Any, keys: Any, values: Any, table: Ids,
                 num_tokens: int | None, position: int | None,
                 selected: Ids, scale: float, dtype: str | None) -> _Request:
        out = _Request(query, keys, values, table, num_tokens, scale, dtype)
        out.place(position, selected)
        return out

    def reference(self, query: Any, keys: Any, values: Any, *,
                  table: Ids = None, num_tokens: int | None = None,
                  position: int | None = None, selected: Ids = None,
                  scale: float = 0.0, dtype: str | None = None) -> Result:
        """(out, lse) as it is defined, in double."""
        return self._request(
            query, keys, values, table, num_tokens, position, selected,
            scale, dtype).run("d", "ucm_rerope_reference", self._c)

    def decode(self, query: Any, keys: Any, values: Any, *,
               table: Ids = None, num_tokens: int | None = None,
               position: int | None = None, selected: Ids = None,
               scale: float = 0.0, dtype: str | None = None) -> Result:
        """(out, lse) in float32, fast."""
        request = self._request(query, keys, values, table, num_tokens,
                                position, selected, scale, dtype)
        if request.c.block_size != self.block_size:
            raise InvalidArgument(
                f"keys: blocks of {request.c.block_size} tokens, where the "
                f"angles are for {self.block_size}")
        return request.run("f", "ucm_rerope_decode", self._c,
                           self._angles.address)
