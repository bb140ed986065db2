# SPDX-License-Identifier: Apache-2.0
"""What stands for the pages of a layer's KV cache, and which pages a token
attends to. Nothing here knows an engine.

Pages has a slot for each page, and says whether it is built. What stands for a
page is made of its keys when its last token has been written, or a load into
it has ended well. It is absent again from the next write on, and from the
start of a load on; a page that is absent is always attended to. So a slot that
is built stands for exactly the keys of its page.

A page that is written at once is built from the engine's tensor. One that has
grown, or was loaded, is read from the cache, which takes ten times as long.

One thread at a time.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from typing import Any, Callable, Sequence

import numpy as np
import torch

from .. import methods, sparse
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


class Pages(methods.Pages):
    """Of one layer. keys_of: pages -> their keys in the cache, [page, token,
    head, channel]."""

    def __init__(self, name: str, by: Any, num_pages: int,
                 budget: sparse.BudgetConfig,
                 keys_of: Callable[[Sequence[int]], torch.Tensor], *,
                 method: Any = None) -> None:
        super().__init__(by, budget, np.zeros(num_pages, np.uint8), method)
        self.name = name
        self._keys_of = keys_of
        self._teller = Teller(name)
        _layers.add(self)
        self.loaded(sorted(_loaded))

    def _own(self, pages: Sequence[int]) -> list[int]:
        """Of these; another engine of the process may have more."""
        return [page for page in pages if page < len(self.built)]

    def forget(self, pages: Sequence[int]) -> None:
        self.built[self._own(pages)] = 0

    def loaded(self, pages: Sequence[int]) -> None:
        pages = self._own(pages)
        for at in range(0, len(pages), AT_ONCE):
            some = pages[at:at + AT_ONCE]
            self._try(self._keys_of(some), range(len(some)), some)

    def written(self, keys: torch.Tensor, slots: torch.Tensor) -> None:
        """keys [token, head, channel] are in these slots now: slot s is token
        s % block_size of page s // block_size, below 0 nowhere."""
        size = self.spec.block_size
        places = slots.numpy()
        begins = np.flatnonzero((np.diff(places, prepend=places[:1] - 2) != 1)
                                | (places % size == 0))
        lengths = np.diff(begins, append=len(places))
        blocks, whole, ended = [], [], []
        for at, num, slot in zip(begins.tolist(), lengths.tolist(),
                                 places[begins].tolist()):
            page, first = divmod(slot, size)
            if page < 0:
                continue
            self.built[page] = 0
            if num == size:
                blocks.append(at)
                whole.append(page)
            elif first + num == size:
                ended.append(page)
        if whole:
            self._try(windows_of(keys, size), blocks, whole)
        self.loaded(ended)

    def _try(self, keys: torch.Tensor, blocks: Sequence[int],
             pages: Sequence[int]) -> None:
        try:
            self.build(keys, blocks, pages)
        except UcmfsError as error:  # a key that is not finite
            self._teller.warn("representations", "%s", error)


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
    decode are counted, by default rows. size: tokens in a page."""

    def __init__(self, rows: Sequence[int], table: torch.Tensor,
                 lengths: torch.Tensor, size: int,
                 decode: Sequence[int] = ()) -> None:
        self.rows = rows
        self.table, self.lengths = table.numpy(), lengths.numpy()
        self.attended, self.tokens = table.clone(), lengths.clone()
        self.prompts = int(-(-np.delete(self.lengths, decode or rows)
                             // size).sum())  # their blocks
        self.counts: dict[str, int] = {}
        self._dense = np.ones(len(lengths), np.uint8)
        self._dense[rows] = 0
        self.batch = sparse.Batch(
            self.table, self.lengths, dense=self._dense,
            out=(self.attended.numpy(), self.tokens.numpy()))

    @functools.cached_property
    def trial(self) -> sparse.Batch:
        """The same rows for a choice that nothing attends to."""
        return sparse.Batch(self.table, self.lengths, dense=self._dense)


def select_rows(pages: Pages, step: Step, queries: torch.Tensor) -> None:
    """Choose for a layer by its queries, of [row, head, channel].

    The budget is of all blocks; pages without a representation come on top of
    what it chooses by score.
    """
    assert pages.rows
    attended, blocks = pages.rows.select(queries, step.batch)
    step.counts = {"sparse_attended_blocks": attended - step.prompts,
                   "sparse_blocks": blocks - step.prompts}
    count(step)
