#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The representations of a layer's pages, and the choice among them, without
an engine."""

import importlib.util
import random
import unittest
from typing import Any, Dict, List, Set

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("this Python has no torch")

import numpy as np
import torch

from ucmfs import codes, sparse, star
from ucmfs.vllm.sparse_pages import (AT_ONCE, Pages, Step, count, forget,
                                     loaded, select_rows, taken)

SIZE, HEADS, DIM, PAGES, ROWS = 8, 2, 32, 12, 4
BUDGET = sparse.BudgetConfig(SIZE, 1, 2, ratio=0.4)
CODES = codes.Encoder(codes.Spec("tokens", HEADS, DIM, 64, SIZE))
HAMMING = codes.Method("hamming", "best", "block", 2 * HEADS)
STAR = star.Spec("bfloat16", HEADS, DIM, SIZE, 2, DIM // 2)


class Cache:
    """What is in the pages, and which of them a representation may be of."""

    def __init__(self, num: int = PAGES, dtype: torch.dtype = torch.float32,
                 ) -> None:
        self.keys = torch.randn(num, SIZE, HEADS, DIM).to(dtype)
        self.full: Set[int] = set()

    def write(self, page: int, first: int, keys: torch.Tensor) -> None:
        self.keys[page, first:first + len(keys)] = keys
        self.full.discard(page)
        if first + len(keys) == SIZE:
            self.full.add(page)

    def load(self, pages: List[int]) -> None:
        forget(pages)
        self.keys[pages] = torch.randn(len(pages), *self.keys.shape[1:]).to(
            self.keys.dtype)
        loaded(pages)
        self.full.update(pages)

    def pages(self, by: Any) -> Pages:
        return Pages("layer", by, len(self.keys), BUDGET,
                     lambda pages: self.keys[list(pages)],
                     method=HAMMING if by is CODES else None)


def spec(kind: str = "mean") -> sparse.Spec:
    return sparse.Spec(kind, "bfloat16", HEADS, DIM, SIZE)


def built(pages: Pages, keys: torch.Tensor) -> sparse.Slab:
    """Of one block, by what builds in these pages."""
    by = CODES if pages.spec is CODES.spec else pages.spec
    return by.build(keys[None])


def bits(slab: sparse.Slab, slot: int) -> bytes:
    return bytes(slab.slot(slot))


class Case(unittest.TestCase):

    def setUp(self) -> None:
        forget(range(2 * AT_ONCE))

    def check(self, pages: Pages, cache: Cache) -> None:
        self.assertEqual(set(np.flatnonzero(pages.built)), cache.full)
        for page in cache.full:
            self.assertEqual(bits(pages.slab, page),
                             bits(built(pages, cache.keys[page]), 0), page)


class Written(Case):

    def test_a_valid_page_has_the_keys_that_are_in_the_cache(self) -> None:
        for seed in range(40):
            with self.subTest(seed=seed):
                self.steps(seed)

    def steps(self, seed: int) -> None:
        """Requests that write pages, end, and begin in pages of others, beside
        loads."""
        forget(range(PAGES))
        source = random.Random(seed)
        torch.manual_seed(seed)
        cache = Cache(dtype=torch.bfloat16)
        pages = cache.pages(source.choice([spec("mean"), spec("minmax"),
                                           CODES, STAR]))
        at: Dict[int, int] = {}  # the page that a request writes, its tokens
        for _ in range(100):
            keys: List[torch.Tensor] = []
            slots: List[int] = []
            for page in source.sample(range(PAGES), ROWS // 2):
                first = at.get(page, 0) % SIZE
                if source.random() < 0.1:
                    first = source.randrange(SIZE)
                num = source.choice([1, 1, 1, source.randint(1, SIZE), SIZE])
                num = min(num, SIZE - first)
                new = torch.randn(num, HEADS, DIM).bfloat16()
                cache.write(page, first, new)
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
                cache.full.discard(gone)
            if source.random() < 0.1:
                cache.load(source.sample(range(PAGES), 2))
            self.check(pages, cache)

    def test_keys_that_are_not_finite_make_no_page_valid(self) -> None:
        pages = Cache().pages(spec())
        keys = torch.zeros(SIZE, HEADS, DIM)
        keys[3, 1, 7] = torch.inf
        with self.assertLogs("vllm.ucmfs", "WARNING"):
            pages.written(keys, torch.arange(SIZE))
        self.assertFalse(pages.built.any())

    def test_no_tokens(self) -> None:
        Cache().pages(spec()).written(torch.zeros(0, HEADS, DIM),
                                      torch.zeros(0).long())


class Loaded(Case):

    def test_before_a_layer_is_there(self) -> None:
        cache = Cache(AT_ONCE + 3)
        cache.load(list(range(AT_ONCE + 3)))
        forget([2])
        cache.full.discard(2)
        self.check(cache.pages(spec()), cache)

    def test_pages_of_a_larger_cache(self) -> None:
        small, large = Cache(), Cache(2 * AT_ONCE)
        pages = small.pages(spec())
        large.load([1, AT_ONCE])
        self.check(large.pages(spec()), large)
        small.full.add(1)
        self.check(pages, small)


class Selected(Case):
    """20 lines of numpy choose the same."""

    def test_as_by_hand(self) -> None:
        for seed in range(50):
            with self.subTest(seed=seed):
                self.one(seed)

    def one(self, seed: int) -> None:
        source = np.random.default_rng(seed)
        torch.manual_seed(seed)
        pages = Cache().pages(spec())
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
        step = Step(rows, torch.from_numpy(table), torch.from_numpy(lengths),
                    SIZE)
        taken()
        select_rows(pages, step, queries)
        attended, blocks = (counted := taken()).values()
        self.assertEqual(list(counted), ["sparse_attended_blocks",
                                         "sparse_blocks"])
        self.assertEqual(taken(), {})
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
            attended -= len(keep)
            blocks -= num
        self.assertEqual((attended, blocks), (0, 0), "counts others too")

    def test_rows_that_decode_are_counted(self) -> None:
        """Also those that are not chosen for, and in all layers."""
        cache = Cache()
        layers = [cache.pages(spec()) for _ in range(2)]
        loaded(list(range(PAGES)))
        table = torch.arange(PAGES, dtype=torch.int32).expand(3, -1)
        lengths = torch.tensor([10 * SIZE, 3 * SIZE - 1, 7 * SIZE],
                               dtype=torch.int32)
        step = Step([0], table.contiguous(), lengths, SIZE, [0, 1])
        taken()
        for pages in layers:
            select_rows(pages, step, torch.randn(3, 2 * HEADS, DIM))
        count(step)  # one that takes the choice of the second
        kept = -(-int(step.tokens[0]) // SIZE)
        self.assertLess(kept, 10)
        self.assertEqual(list(taken().values()),
                         [3 * (kept + 3), 3 * (10 + 3)])


class Needles(Case):
    """One key among many that a query looks for."""

    NUM = 64

    def found(self, by: Any, seed: int) -> bool:
        torch.manual_seed(seed)
        cache = Cache(self.NUM)
        page = random.Random(seed).randrange(2, self.NUM - 2)
        query = torch.randn(1, HEADS, DIM)
        cache.keys[page, seed % SIZE] = 2 * query[0]
        pages = cache.pages(by)
        loaded(list(range(self.NUM)))
        step = Step([0], torch.arange(self.NUM, dtype=torch.int32)[None],
                    torch.tensor([self.NUM * SIZE], dtype=torch.int32), SIZE)
        select_rows(pages, step, query.repeat_interleave(2, 1))
        return page in step.attended[0, :step.tokens // SIZE].tolist()

    def test_what_finds_them(self) -> None:
        """Bounds and codes do. Means of 8 keys find most, and those of a
        page of use would not."""
        for by in spec("minmax"), CODES:
            self.assertTrue(all(self.found(by, seed) for seed in range(40)))


if __name__ == "__main__":
    unittest.main()
