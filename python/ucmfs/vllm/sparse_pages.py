# SPDX-License-Identifier: Apache-2.0
"""What stands for the pages of a layer's KV cache, and which pages a token
attends to. Nothing here knows an engine.

Pages has a slot and a valid byte for each page. What stands for a page is made
of its keys when its last token has been written, or a load into it has ended
well. It is absent again from the next write on, and from the start of a load
on; a page that is absent is always attended to. So a valid slot stands for
exactly the keys of its page.

A page that is written at once is built from the engine's tensor. One that has
grown, or was loaded, is read from the cache, which takes ten times as long.

KVStar keeps a part of the channels, the same of all pages, or their scores
could not be compared: those of the largest keys in the first pages that are
built.

One thread at a time.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, Callable, Sequence

import numpy as np
import torch

from .. import sparse, star
from ..errors import UcmfsError
from .mount import Teller

AT_ONCE = 32  # pages of which the keys are read

_layers: weakref.WeakSet[Pages] = weakref.WeakSet()
_loaded: set[int] = set()  # for layers that are not there yet
_counted: Counter[str] = Counter()


def taken() -> dict[str, int]:
    """What was counted since the last call, in all layers: metrics.COUNTERS.
    """
    counted = dict(_counted)
    _counted.clear()
    return counted


def count(step: Step) -> None:
    """For a layer, which attends to what was chosen last."""
    _counted.update(step.counts)


def forget(pages: Sequence[int]) -> None:
    """Other bytes than those that were written are in these pages, or will
    be."""
    _loaded.difference_update(pages)
    for layer in _layers:
        layer.forget(pages)


def loaded(pages: Sequence[int]) -> None:
    """Loads into these pages have ended well."""
    _loaded.update(pages)
    for layer in _layers:
        layer.loaded(pages)


class Pages:
    """Of one layer.

    by, method: as sparse.Rows takes them. keys_of: pages -> their keys in the
    cache, [page, token, head, channel].
    """

    def __init__(self, name: str, by: Any, num_pages: int,
                 budget: sparse.BudgetConfig,
                 keys_of: Callable[[Sequence[int]], torch.Tensor], *,
                 method: Any = None) -> None:
        self.name = name
        self.spec = by if isinstance(by, sparse.Kept) else by.spec
        self.valid = np.zeros(num_pages, np.uint8)
        self.slab: sparse.Slab | None = None  # until something is built
        self.chooser: sparse.Rows | None = None  # likewise
        self._by, self._method, self._budget = by, method, budget
        self._keys_of = keys_of
        self._teller = Teller(name)
        _layers.add(self)
        self.loaded(sorted(_loaded))

    def _own(self, pages: Sequence[int]) -> list[int]:
        """Of these; another engine of the process may have more."""
        return [page for page in pages if page < len(self.valid)]

    def forget(self, pages: Sequence[int]) -> None:
        self.valid[self._own(pages)] = 0

    def loaded(self, pages: Sequence[int]) -> None:
        pages = self._own(pages)
        for at in range(0, len(pages), AT_ONCE):
            some = pages[at:at + AT_ONCE]
            self._build(self._keys_of(some), list(enumerate(some)))

    def written(self, keys: torch.Tensor, slots: torch.Tensor) -> None:
        """keys [token, head, channel] are in these slots now: slot s is token
        s % block_size of page s // block_size, below 0 nowhere."""
        size = self.spec.block_size
        places = slots.numpy()
        begins = np.flatnonzero((np.diff(places, prepend=places[:1] - 2) != 1)
                                | (places % size == 0))
        lengths = np.diff(begins, append=len(places))
        whole, ended = [], []
        for at, num, slot in zip(begins.tolist(), lengths.tolist(),
                                 places[begins].tolist()):
            page, first = divmod(slot, size)
            if page < 0:
                continue
            self.valid[page] = 0
            if num == size:
                whole.append((at, page))
            elif first + num == size:
                ended.append(page)
        if whole:
            self._build(windows_of(keys, size), whole)
        self.loaded(ended)

    def _build(self, keys: torch.Tensor, pairs: Sequence[tuple[int, int]],
               ) -> None:
        """Pages, each from a block of keys."""
        blocks, pages = [b for b, _ in pairs], [p for _, p in pairs]
        try:
            if not self.chooser:
                self._begin(keys, blocks)
            self._by.build(keys, self.slab, blocks=blocks, slots=pages)
        except UcmfsError as error:  # a key that is not finite
            self._teller.warn("representations", "%s", error)
            return
        self.valid[pages] = 1

    def _begin(self, keys: torch.Tensor, blocks: Sequence[int]) -> None:
        if isinstance(self.spec, star.Spec):
            self.spec = self._by = self.spec.choose(keys, blocks=blocks)
        self.slab = self.spec.slab(len(self.valid))
        self.chooser = sparse.Rows(self._by, self.slab, self._budget,
                                   method=self._method, built=self.valid)


def windows_of(keys: torch.Tensor, size: int) -> torch.Tensor:
    """[token, head, channel] as blocks, one from each token on."""
    token, head, channel = keys.stride()
    return keys.as_strided(
        (len(keys) - size + 1, size, *keys.shape[1:]),
        (token, token, head, channel), keys.storage_offset())


class Step:
    """The rows of a step's batch, looked at once for all layers. table and
    lengths, and what to attend to instead, which each layer overwrites:
    attended and tokens. Rows that are not in rows are copied; those that
    decode are counted, by default rows."""

    def __init__(self, rows: Sequence[int], table: torch.Tensor,
                 lengths: torch.Tensor,
                 decode: Sequence[int] = ()) -> None:
        self.rows = rows
        self.table, self.lengths = table.numpy(), lengths.numpy()
        self.attended, self.tokens = table.clone(), lengths.clone()
        self.prompts = np.delete(self.lengths, decode or rows)
        self.counts: dict[str, int] = {}
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
    attended, blocks = pages.chooser.select(queries, step.batch)
    prompts = int(-(-step.prompts // pages.spec.block_size).sum())
    step.counts = {"sparse_attended_blocks": attended - prompts,
                   "sparse_blocks": blocks - prompts}
    count(step)
