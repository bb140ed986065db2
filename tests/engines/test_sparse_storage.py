#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages whose blocks stay in the store, without an engine or a store."""

import errno
import importlib.util
import random
import unittest
from array import array
from types import SimpleNamespace
from typing import Any, Dict, List, Set, Tuple

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("this Python has no torch")

import numpy as np

from ucmfs import sparse
from ucmfs.task import Outcome
from ucmfs.vllm.metadata import Job, Part
from ucmfs.vllm.metrics import UcmfsStats
from ucmfs.vllm.sparse_pages import Pages
from ucmfs.vllm.sparse_storage import Storage

SIZE, PAGES, LAYERS = 4, 24, 2
BUDGET = sparse.BudgetConfig(SIZE, 1, 2, ratio=0.4)


def name_of(block: int) -> bytes:
    return block.to_bytes(16, "big")


class Cache:
    """What is in the pages, by what a group's loads put there. bad: blocks
    that cannot be loaded, by their errors."""

    block_tokens, payload_bytes, space = SIZE, 1 << 10, "space"
    geometry = SimpleNamespace(num_layers=LAYERS)

    def __init__(self) -> None:
        self.has = np.full((LAYERS, PAGES), -1)
        self.bad: Dict[int, int] = {}
        self.loads: List[Tuple[int, List[int], str]] = []

    def load(self, ids: bytes, pages: Any, *, first_layer: int,
             num_layers: int, priority: str, **_: Any) -> Any:
        assert num_layers == 1 and len(ids) == 16 * len(pages)
        self.loads.append((first_layer, list(pages), priority))
        outcomes = []
        for at, page in enumerate(pages):
            block = int.from_bytes(ids[16 * at:16 * at + 16], "big")
            err = self.bad.get(block, 0)
            self.has[first_layer, page] = -2 if err else block
            outcomes.append(Outcome(err, "damaged" if err else "", False, -1,
                                    False))
        return SimpleNamespace(
            result=lambda: outcomes,
            errors=lambda: [outcome.err for outcome in outcomes])


class Kept:
    """There are representations of these blocks."""

    def __init__(self, blocks: Set[int]) -> None:
        self.blocks, self.saved = blocks, set()  # type: Set[int], Set[int]
        self.removed: Set[int] = set()

    def load(self, space: str, ids: bytes, seconds: float) -> Any:
        assert seconds > 0
        there = [int.from_bytes(ids[at:at + 16], "big") in self.blocks
                 for at in range(0, len(ids), 16)]
        return SimpleNamespace(there=there, put=lambda *_: None)

    def save(self, space: str, ids: bytes, pages: Any) -> None:
        assert len(ids) == 16 * len(pages)
        self.saved.update(int.from_bytes(ids[at:at + 16], "big")
                          for at in range(0, len(ids), 16))

    def remove(self, space: str, ids: Any) -> None:
        self.removed.update(int.from_bytes(id, "big") for id in ids)


class Case(unittest.TestCase):

    def setUp(self) -> None:
        self.cache = Cache()
        self.stats = UcmfsStats()
        self.storage = Storage(
            SimpleNamespace(mount="", verify="once", deadline_ms=0),
            self.cache, PAGES, {row: row for row in range(LAYERS)},
            self.stats)
        self.kept = self.storage.kept = Kept(set(range(1000)))
        spec = sparse.Spec("mean", "bfloat16", 1, 32, SIZE)
        for row in range(LAYERS):
            self.storage.open(row, Pages(
                "layer", spec, PAGES, BUDGET, lambda pages: None), 1)

    def begin(self, blocks: List[int], pages: List[int],
              extra: int = 1) -> List[int]:
        """A prompt of these blocks and some tokens: what is loaded of it."""
        part = Part(0, b"".join(map(name_of, blocks)),
                    array("I", pages).tobytes(),
                    array("I", range(len(blocks))).tobytes())
        job = Job(1, "request", [part], SIZE * len(blocks) + extra)
        self.storage.forget(job.parts)
        job = self.storage.leave(job, part, part.ids, self.cache)
        loaded = [page for part in job.parts
                  for page in array("I", part.pages)]
        for page in loaded:
            self.cache.has[:, page] = blocks[pages.index(page)]
        return loaded

    def need(self, row: int, *tables: List[int]) -> None:
        width = max(map(len, tables))
        self.storage.need(
            row, np.array([[*table, *[0] * (width - len(table))]
                           for table in tables]),
            np.array([SIZE * len(table) for table in tables]))

    def write(self, page: int, block: int) -> None:
        for row in range(LAYERS):
            self.storage.written(row, np.arange(SIZE * page,
                                                SIZE * page + SIZE))
            self.cache.has[row, page] = block


class Storages(Case):

    def test_the_windows_are_loaded_and_the_rest_is_when_needed(self) -> None:
        loaded = self.begin(list(range(8)), list(range(10, 18)))
        self.assertEqual(loaded, [10, 17])  # the last window has a token more
        self.need(1, [10, 12, 17])
        self.need(1, [10, 12, 13])
        self.assertEqual(self.cache.loads, [(1, [12], "demand"),
                                            (1, [13], "demand")])
        self.assertEqual(self.storage.end_step(), set())
        self.assertEqual(
            [self.stats.data["sparse_left_blocks"],
             self.stats.data["sparse_retrieved_blocks"]], [12, 2])

    def test_what_nothing_stands_for_is_loaded_and_comes_to_be(self) -> None:
        self.kept.blocks -= {3, 4}
        self.assertEqual(self.begin(list(range(8)), list(range(8))),
                         [0, 3, 4, 7])
        self.storage.end_step()
        self.assertEqual(self.kept.saved, {3, 4})

    def test_prompts_with_more_to_compute_are_loaded(self) -> None:
        self.assertEqual(len(self.begin(list(range(8)), list(range(8)),
                                        SIZE + 1)), 8)
        self.assertEqual(len(self.begin(list(range(8)), list(range(8)), 0)),
                         8)

    def test_a_damaged_block_is_reported_once_and_its_mark_goes(self) -> None:
        self.begin(list(range(8)), list(range(8)))
        self.cache.bad = {2: errno.EBADMSG, 3: errno.ENOENT}
        self.need(0, [0, 2, 3, 4])
        self.assertEqual(self.storage.end_step(), {2, 3})
        self.assertEqual(self.storage.end_step(), set())
        self.assertEqual(self.kept.removed, {2})

    def test_after_a_deadline_no_load_is_begun_in_the_step(self) -> None:
        self.begin(list(range(8)), list(range(8)))
        self.cache.bad = {2: errno.ETIMEDOUT}
        self.need(0, [2])
        self.need(0, [4])
        self.assertEqual(len(self.cache.loads), 1)
        self.assertEqual(self.storage.end_step(), {2, 4})
        self.need(0, [4])
        self.assertEqual(self.storage.end_step(), set())

    def test_pages_that_lack_something_are_not_saved(self) -> None:
        self.begin(list(range(8)), list(range(8)))
        saves = ("space", name_of(2), [2])
        self.assertFalse(self.storage.keep([saves]))
        self.need(0, [2])
        self.assertFalse(self.storage.keep([saves]))
        self.need(1, [2])
        self.assertTrue(self.storage.keep([saves]))
        self.assertEqual(self.kept.saved, {2})

    def test_any_order(self) -> None:
        """What a kernel reads is what its table means, or it is reported."""
        pick = random.Random(7)
        means = [-1] * PAGES
        for _ in range(2000):
            what = pick.random()
            pages = pick.sample(range(PAGES), pick.randint(1, 9))
            if what < 0.2:
                blocks = pick.sample(range(1000), len(pages))
                self.kept.blocks = set(pick.sample(range(1000), 800))
                self.begin(blocks, pages, pick.randint(0, SIZE + 1))
                for page, block in zip(pages, blocks):
                    means[page] = block
            elif what < 0.4:
                means[pages[0]] = pick.randint(1000, 2000)
                self.write(pages[0], means[pages[0]])
            else:
                self.cache.bad = {} if pick.random() < 0.9 else {
                    block: errno.ENOENT for block in means[::3]}
                row = pick.randrange(LAYERS)
                self.need(row, pages[:4], pages[2:] or pages)
                wrong = {page for page in pages
                         if self.cache.has[row, page] != means[page]}
                self.assertLessEqual(wrong, self.storage.end_step())
        self.assertGreater(len(self.cache.loads), 300)


if __name__ == "__main__":
    unittest.main()
