# SPDX-License-Identifier: Apache-2.0
"""Saves that a mount may refuse, on one that endures next to nothing: a block
uses up what may be written for hours. What is not refused is written."""

import unittest

import ucmfs
from tests.python.support import (BLOCK, LIMIT, MOUNT, id_of, join,
                                  needs_mount, new_space, pages_layout,
                                  payload_of)

NUM = 6


@needs_mount
class Refused(unittest.TestCase):
    def setUp(self):
        self.name = self.id().rsplit(".", 1)[-1]
        self.space = new_space(self.name)
        self.ids = [id_of(f"{self.name} {i}") for i in range(NUM)]
        self.memory, self.layout = pages_layout(
            join(payload_of(i) for i in range(NUM)))
        self.blocks = ucmfs.Blocks(MOUNT)
        self.addCleanup(self.blocks.close)
        # what was left over by the test before
        self.save(1, [id_of(f"{self.name} spent")])

    def save(self, num, ids, **more):
        """Outcomes of a loader's save; and what it has counted."""
        with ucmfs.Loader(MOUNT, io="threads") as loader:
            group = loader.add_group(self.layout, self.space)
            task = group.save(ids, range(num), **more)
            return task.result(LIMIT), task, loader.stats()

    def there(self, ids):
        return [place is not None
                for place in self.blocks.locate(ids, self.space)]

    def test_offers(self):
        self.assertEqual(self.blocks.offer(self.ids, self.space),
                         [False] * NUM)
        parents = [bytes(16)] + self.ids[:-1]
        self.assertEqual(self.blocks.offer(
            self.ids, self.space, parents=parents, block_bytes=BLOCK),
            [False] * NUM)
        # one that is there is
        spent = id_of(f"{self.name} spent")
        self.assertEqual(self.blocks.offer([spent], self.space), [True])
        with self.assertRaises(ucmfs.InvalidArgument):
            self.blocks.offer(self.ids, self.space, parents=parents[:1])

    def test_a_save_that_may_be_refused(self):
        outcomes, task, stats = self.save(NUM, self.ids, may_refuse=True)
        self.assertEqual([o.refused for o in outcomes], [True] * NUM)
        self.assertTrue(all(o.ok and not o.skipped for o in outcomes))
        self.assertEqual(outcomes[0].text, "refused")
        self.assertEqual(task.refused(), [True] * NUM)
        self.assertEqual(task.num_failed, 0)
        task.wait()
        self.assertEqual((stats["save_refused"], stats["saves"],
                          stats["save_failed"]), (NUM, 0, 0))
        self.assertEqual(self.there(self.ids), [False] * NUM)

    def test_one_that_may_not(self):
        outcomes, task, stats = self.save(NUM, self.ids)
        self.assertTrue(all(o.ok and not o.refused for o in outcomes))
        self.assertEqual(task.refused(), [False] * NUM)
        self.assertEqual((stats["save_refused"], stats["saves"]), (0, NUM))
        self.assertEqual(self.there(self.ids), [True] * NUM)

    def test_layers_one_by_one(self):
        for layer in range(self.layout.geometry.num_layers):
            outcomes, _, _ = self.save(NUM, self.ids, may_refuse=True,
                                       first_layer=layer, num_layers=1)
            self.assertEqual([o.refused for o in outcomes], [True] * NUM)
        self.assertEqual(self.there(self.ids), [False] * NUM)

    def store(self, kind, **more):
        store = kind(mount=MOUNT, space=self.space, tensor_size=BLOCK // 4,
                     shard_size=BLOCK // 2, block_size=BLOCK,
                     geometry=self.layout.geometry, io="threads", timeout=LIMIT, **more)
        self.addCleanup(store.close)
        return store

    def shard(self, i, shard):
        at = self.memory.address + i * BLOCK + shard * (BLOCK // 2)
        return [at, at + BLOCK // 4]

    def test_shards(self):
        store = self.store(ucmfs.Store, may_refuse=True)
        for shard in (1, 0):
            task = store.dump_data(self.ids, [shard] * NUM,
                                   [self.shard(i, shard) for i in range(NUM)])
            store.wait(task)
            self.assertEqual(task.refused(), [True] * NUM)
        self.assertEqual(store.lookup(self.ids), [False] * NUM)
        # the attempt is over: one that may not be refused is written
        other = self.store(ucmfs.Store)
        for shard in range(2):
            other.wait(other.dump_data(
                self.ids, [shard] * NUM,
                [self.shard(i, shard) for i in range(NUM)]))
        self.assertEqual(other.lookup(self.ids), [True] * NUM)

    def test_offsets(self):
        store = self.store(ucmfs.StoreV0, may_refuse=True)
        self.assertEqual(store.create(self.ids), [0] * NUM)
        self.assertEqual(store.wait(store.dump_data(
            self.ids, 0, [self.memory.address + i * BLOCK
                          for i in range(NUM)], BLOCK)), 0)
        self.assertEqual(store.commit(self.ids), [0] * NUM)
        self.assertEqual(store.lookup(self.ids), [False] * NUM)
        # they are reserved no more
        self.assertEqual(store.create(self.ids), [0] * NUM)
        self.assertEqual(store.commit(self.ids, [False] * NUM), [0] * NUM)
