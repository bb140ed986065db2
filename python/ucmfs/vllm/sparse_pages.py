# SPDX-License-Identifier: Apache-2.0
"""What stands for the pages of a layer's KV cache, and which pages a token
attends to. Nothing here knows an engine.

Pages has a slot and a valid byte for each page. A page's representation is
made of the keys as they are written, since the cache itself is packed by the
engine's kernel. A page is

  absent   until all of its tokens have been written in their order; also again
           from the first write into it on, and when it is forgotten because
           its bytes came from elsewhere (a load)
  growing  absent, with its first tokens in a row of kept keys
  valid    its slot stands for exactly the keys that it holds

A page that is not valid is always attended to.

Cost. A page that is written at once is built from the engine's tensor. A page
that grows is built when it is full, from a copy of its keys: there is a row of
them for each page that may grow, two for each request that may run (a step can
end one page and begin the next), and a layer takes half a page of memory for
each row that has been used. The alternative, ucm_repr_add() for each token,
takes less memory and a call for each row and layer. If there is no row left,
the page that grew longest ago gives up its own.

One thread at a time.
"""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Sequence

import numpy as np
import torch

from .. import sparse
from ..errors import UcmfsError
from .mount import Teller

_layers: weakref.WeakSet[Pages] = weakref.WeakSet()


def forget(pages: Iterable[int]) -> None:
    """Other bytes than those that were written are in these pages, or will
    be."""
    for layer in _layers:
        layer.forget(pages)


class Pages:
    """Of one layer."""

    def __init__(self, name: str, spec: sparse.Spec, num_pages: int,
                 num_rows: int, dtype: torch.dtype,
                 budget: sparse.BudgetConfig | None = None) -> None:
        self.name = name
        self.spec = spec
        self.slab = spec.slab(num_pages)
        self.valid = np.zeros(num_pages, np.uint8)
        self.chooser = sparse.Rows(spec, self.slab, budget, built=self.valid) \
            if budget else None
        # memory is taken when a row is first written
        self._keys = torch.empty((num_rows, spec.block_size, spec.num_heads,
                                  spec.head_dim), dtype=dtype)
        self._free = list(reversed(range(num_rows)))
        # pages that grow: [row, tokens]; the one written longest ago first
        self._growing: dict[int, list[int]] = {}
        self._teller = Teller(name)
        _layers.add(self)

    def forget(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.valid[page] = 0
            self._stop(page)

    def written(self, keys: torch.Tensor, slots: torch.Tensor) -> None:
        """keys [token, head, channel] are in these slots now: slot s is token
        s % block_size of page s // block_size, below 0 nowhere."""
        size = self.spec.block_size
        places = slots.numpy()
        begins = np.flatnonzero((np.diff(places, prepend=places[:1] - 2) != 1)
                                | (places % size == 0))
        lengths = np.diff(begins, append=len(places))
        whole, full, source, target = [], [], [], []
        for at, num, slot in zip(begins.tolist(), lengths.tolist(),
                                 places[begins].tolist()):
            page, first = divmod(slot, size)
            if page < 0:
                continue
            self.valid[page] = 0
            if num == size:
                self._stop(page)
                whole.append((at, page))
                continue
            row = self._grow(page, first, num)
            if row is None:
                continue
            begin = row * size + first
            source += range(at, at + num)
            target += range(begin, begin + num)
            if first + num == size:
                full.append((row, page))
        if source:
            self._keys.flatten(0, 1)[torch.tensor(target)] = \
                keys[torch.tensor(source)]
        self._build(windows_of(keys, size) if whole else keys, whole)
        self._build(self._keys, full)
        for _, page in full:
            self._stop(page)

    def _grow(self, page: int, first: int, num: int) -> int | None:
        """The row for tokens that are written to a page; None: they do not
        follow those that are kept."""
        grown = self._growing.pop(page, None)
        if not grown and first == 0:
            grown = [self._row(), 0]
        elif grown and first not in (0, grown[1]):
            self._free.append(grown[0])
            grown = None
        if not grown:
            return None
        self._growing[page] = [grown[0], first + num]
        return grown[0]

    def _row(self) -> int:
        if not self._free:
            self._stop(next(iter(self._growing)))
        return self._free.pop()

    def _stop(self, page: int) -> None:
        grown = self._growing.pop(page, None)
        if grown:
            self._free.append(grown[0])

    def _build(self, keys: torch.Tensor, pairs: Sequence[tuple[int, int]],
               ) -> None:
        """Pages, each from a block of keys."""
        if not pairs:
            return
        blocks, pages = [b for b, _ in pairs], [p for _, p in pairs]
        try:
            self.spec.build(keys, self.slab, blocks=blocks, slots=pages)
        except UcmfsError as error:  # a key that is not finite
            self._teller.warn("representations", "%s", error)
            return
        self.valid[pages] = 1


def windows_of(keys: torch.Tensor, size: int) -> torch.Tensor:
    """[token, head, channel] as blocks, one from each token on."""
    token, head, channel = keys.stride()
    return keys.as_strided(
        (len(keys) - size + 1, size, *keys.shape[1:]),
        (token, token, head, channel), keys.storage_offset())


class Step:
    """The rows of a step's batch, looked at once for all layers. table and
    lengths, and what to attend to instead, which each layer overwrites:
    attended and tokens. Rows that are not in rows are copied."""

    def __init__(self, rows: Sequence[int], table: torch.Tensor,
                 lengths: torch.Tensor) -> None:
        self.rows = rows
        self.table, self.lengths = table.numpy(), lengths.numpy()
        self.attended, self.tokens = table.clone(), lengths.clone()
        dense = np.ones(len(lengths), np.uint8)
        dense[rows] = 0
        self.batch = sparse.Batch(
            self.table, self.lengths, dense=dense,
            out=(self.attended.numpy(), self.tokens.numpy()))


def select_rows(pages: Pages, step: Step, queries: torch.Tensor) -> None:
    """Choose for a layer by its queries, of [row, head, channel].

    The budget is of all blocks; pages without a representation come on top of
    what it chooses by score.
    """
    assert pages.chooser is not None
    pages.chooser.select(queries, step.batch)
