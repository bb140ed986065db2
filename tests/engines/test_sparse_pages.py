#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The representations of a layer's pages, and the choice among them, without
an engine."""

import importlib.util
import random
import unittest
from typing import Dict, List

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("this Python has no torch")

import numpy as np
import torch

from ucmfs import sparse
from ucmfs.vllm.sparse_pages import Pages, Step, forget, select_rows

SIZE, HEADS, DIM, PAGES, ROWS = 8, 2, 32, 12, 4


class Model:
    """A cache whose pages are remembered token by token; None: not written
    since the page was begun, or in another order."""

    def __init__(self) -> None:
        self.pages: Dict[int, List[torch.Tensor]] = {}

    def write(self, page: int, first: int, keys: torch.Tensor) -> None:
        if first == 0:
            self.pages[page] = []
        if page in self.pages and len(self.pages[page]) == first:
            self.pages[page] += list(keys)
        else:
            self.pages.pop(page, None)

    def full(self, page: int) -> bool:
        return len(self.pages.get(page, ())) == SIZE


def spec(kind: str = "mean") -> sparse.Spec:
    return sparse.Spec(kind, "bfloat16", HEADS, DIM, SIZE)


def bits(slab: sparse.Slab, slot: int) -> bytes:
    return bytes(slab.slot(slot))


class Written(unittest.TestCase):

    def check(self, pages: Pages, model: Model, exact: bool) -> None:
        for page in range(PAGES):
            if pages.valid[page]:
                self.assertTrue(model.full(page), page)
                want = pages.spec.build(torch.stack(model.pages[page])[None])
                self.assertEqual(bits(pages.slab, page), bits(want, 0), page)
            elif exact:
                self.assertFalse(model.full(page), page)

    def steps(self, seed: int, num_rows: int) -> None:
        """Requests that write pages, end, and begin in pages of others."""
        source = random.Random(seed)
        torch.manual_seed(seed)
        pages = Pages("layer", spec(source.choice(["mean", "minmax"])), PAGES,
                      num_rows, torch.bfloat16)
        model = Model()
        at: Dict[int, int] = {}  # the page that a request writes, its tokens
        for _ in range(200):
            keys: List[torch.Tensor] = []
            slots: List[int] = []
            for page in source.sample(range(PAGES), ROWS // 2):
                first = at.get(page, 0) % SIZE
                if source.random() < 0.1:
                    first = source.randrange(SIZE)
                num = source.choice([1, 1, 1, source.randint(1, SIZE), SIZE])
                num = min(num, SIZE - first)
                new = torch.randn(num, HEADS, DIM).bfloat16()
                model.write(page, first, new)
                at[page] = first + num
                keys.append(new)
                slots += range(page * SIZE + first, page * SIZE + first + num)
                if source.random() < 0.2:  # padding
                    keys.append(torch.full((1, HEADS, DIM), torch.nan))
                    slots.append(-1)
            # as in an engine: a part of a wider row
            wide = torch.cat([torch.cat(keys).bfloat16()] * 3, dim=2)
            pages.written(wide[:, :, DIM:2 * DIM], torch.tensor(slots))
            if source.random() < 0.1:
                gone = source.randrange(PAGES)
                forget([gone])
                model.pages.pop(gone, None)
            self.check(pages, model, exact=num_rows >= PAGES)

    def test_a_valid_page_has_the_keys_that_were_written(self) -> None:
        for seed in range(20):
            self.steps(seed, PAGES)

    def test_with_fewer_rows_than_pages_that_grow(self) -> None:
        for seed in range(20):
            self.steps(seed, ROWS)

    def test_keys_that_are_not_finite_make_no_page_valid(self) -> None:
        pages = Pages("layer", spec(), PAGES, ROWS, torch.float32)
        keys = torch.zeros(SIZE, HEADS, DIM)
        keys[3, 1, 7] = torch.inf
        with self.assertLogs("vllm.ucmfs", "WARNING"):
            pages.written(keys, torch.arange(SIZE))
        self.assertFalse(pages.valid.any())

    def test_no_tokens(self) -> None:
        pages = Pages("layer", spec(), PAGES, ROWS, torch.float32)
        pages.written(torch.zeros(0, HEADS, DIM), torch.zeros(0).long())


class Selected(unittest.TestCase):
    """20 lines of numpy choose the same."""

    def test_as_by_hand(self) -> None:
        for seed in range(50):
            with self.subTest(seed=seed):
                self.one(seed)

    def one(self, seed: int) -> None:
        source = np.random.default_rng(seed)
        torch.manual_seed(seed)
        pages = Pages("layer", spec(), PAGES, ROWS, torch.float32,
                      sparse.BudgetConfig(SIZE, 1, 2, ratio=0.4))
        keys = torch.randn(PAGES * SIZE, HEADS, DIM)
        pages.written(keys, torch.arange(PAGES * SIZE))
        gone = source.choice(PAGES, 3, replace=False)
        pages.forget(gone.tolist())
        rows = [0, 2]
        table = np.stack([source.permutation(PAGES) for _ in range(3)]
                         ).astype(np.int32)
        lengths = source.integers(SIZE + 1, PAGES * SIZE, 3).astype(np.int32)
        queries = torch.randn(len(table), 2 * HEADS, DIM)
        queries[1] = torch.nan  # is not looked at
        step = Step(rows, torch.from_numpy(table), torch.from_numpy(lengths))
        select_rows(pages, step, queries)
        table_out, lengths_out = step.attended.numpy(), step.tokens.numpy()
        self.assertEqual(table_out[1].tolist(), table[1].tolist())
        self.assertEqual(lengths_out[1], lengths[1])
        means = keys.view(PAGES, SIZE, HEADS, DIM).mean(1)
        for row in rows:
            tokens = int(lengths[row])
            num = -(-tokens // SIZE)
            q = queries[row].view(HEADS, 2, DIM).mean(1)
            ids = table[row, :num]
            score = (means[ids] * q).sum((1, 2)).numpy()
            between = [i for i in range(1, num - 2)]
            absent = [i for i in between if ids[i] in gone]
            have = sorted((i for i in between if i not in absent),
                          key=lambda i: -score[i])
            keep = sorted({0, num - 1, max(num - 2, 0), *absent,
                           *have[:int(len(between) * 0.4)]})
            length = len(keep) * SIZE - (-tokens % SIZE)
            self.assertEqual(table_out[row, :len(keep)].tolist(),
                             ids[keep].tolist())
            self.assertEqual(lengths_out[row], length)


if __name__ == "__main__":
    unittest.main()
