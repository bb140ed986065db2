# SPDX-License-Identifier: Apache-2.0
"""A store of the older interface as one of the newer one."""

from __future__ import annotations

import unittest

from ucmfs.adapter import V0ToV1Adapter, bytes_at
from ucmfs.errors import InvalidArgument, UcmfsError

from tests.python.support import Memory, id_of, join, payload_of

TENSOR, SHARD, BLOCK = 32, 64, 192
SHARDS, NUM = 3, 4
IDS = [id_of(f"adapter {i}") for i in range(NUM)]
WANT = [payload_of(f"adapter {i}", BLOCK) for i in range(NUM)]


class Old:
    """As UCM's documents have V0, in memory. `blocks` are committed. A task is
    done at the second question; the first failing is told at its end."""

    def __init__(self, one_flag):
        self.one_flag = one_flag
        self.blocks, self.drafts, self.given_up = {}, {}, []
        self.fail = self.broken = False
        self.others, self.incomplete = (), ()

    def create(self, block_ids):
        for block in block_ids:
            assert block not in self.drafts
            if block not in self.others:
                self.drafts[block] = bytearray(BLOCK)
        if self.one_flag:
            return None
        return [17 if block in self.others else 0 for block in block_ids]

    def lookup(self, block_ids):
        return [block in self.blocks for block in block_ids]

    def prefetch(self, block_ids):
        self.wanted = block_ids

    def _task(self, status):
        return {"questions": 0, "status": -50005 if self.fail else status}

    def load(self, block_ids, offset, dst_tensor):
        for block, at, tensor in zip(block_ids, offset, dst_tensor):
            if block not in self.blocks:
                return self._task(-50005)
            tensor[:] = self.blocks[block][at:at + len(tensor)]
        return self._task(0)

    def dump(self, block_ids, offset, src_tensor):
        if self.broken:
            raise ValueError("no dump")
        for block, at, tensor in zip(block_ids, offset, src_tensor):
            self.drafts[block][at:at + len(tensor)] = tensor
        return self._task(0)

    def wait(self, task):
        task["questions"] = 2
        return task["status"]

    def check(self, task):
        task["questions"] += 1
        done = task["questions"] > 1
        return (task["status"] if done else 0), done

    def commit(self, block_ids, is_success):
        if self.one_flag:
            flags = [bool(is_success)] * len(block_ids)
        else:
            flags = list(is_success)
        if all(flags) and any(block in self.incomplete
                              for block in block_ids):
            return 11 if self.one_flag else [
                11 if block in self.incomplete else 0 for block in block_ids]
        for block, good in zip(block_ids, flags):
            draft = self.drafts.pop(block)
            if good:
                self.blocks[block] = bytes(draft)
            else:
                self.given_up.append(block)


class Case(unittest.TestCase):
    one_flag = False

    def setUp(self):
        self.old = Old(self.one_flag)
        self.store = V0ToV1Adapter(self.old, to_tensor=bytes_at,
                                   tensor_size=TENSOR, shard_size=SHARD,
                                   block_size=BLOCK)
        self.memory = Memory(join(WANT))

    def addresses(self, i, shard):
        first = self.memory.address + i * BLOCK + shard * SHARD
        return [first, first + TENSOR]

    def move(self, call, entries):
        return call([IDS[i] for i, _ in entries], [s for _, s in entries],
                    [self.addresses(*entry) for entry in entries])

    def dump(self, entries):
        self.store.wait(self.move(self.store.dump_data, entries))

    def dump_all(self):
        self.dump([(i, s) for i in range(NUM) for s in range(SHARDS)])

    def test_bytes_come_back(self):
        self.dump_all()
        self.assertEqual([self.old.blocks[block] for block in IDS], WANT)
        self.memory.clear()
        self.store.wait(self.move(self.store.load_data, [
            (i, s) for s in (2, 0, 1) for i in range(NUM)]))
        self.assertEqual(self.memory.content, join(WANT))

    def test_tensors_are_handed_on(self):
        whole = [bytearray(WANT[0][at:at + TENSOR])
                 for at in range(0, BLOCK, TENSOR)]
        rows = [whole[2 * s:2 * s + 2] for s in range(SHARDS)]
        self.store.wait(self.store.dump(IDS[:1] * SHARDS, range(SHARDS),
                                        rows))
        self.assertEqual(self.old.blocks, {IDS[0]: WANT[0]})
        got = [bytearray(TENSOR), bytearray(TENSOR)]
        self.store.wait(self.store.load(IDS[:1], [1], [got]))
        self.assertEqual(join(got), WANT[0][SHARD:2 * SHARD])

    def test_a_block_is_there_with_its_last_shard(self):
        for shard in (2, 0):
            self.dump([(0, shard)])
            self.assertEqual(self.store.lookup(IDS[:1]), [False])
        last = self.move(self.store.dump_data, [(0, 1)])
        self.assertFalse(self.store.check(last))
        self.assertEqual(self.store.lookup(IDS[:1]), [False])
        self.assertTrue(self.store.check(last))
        self.assertEqual(self.store.lookup(IDS[:1]), [True])
        self.store.wait(last)
        self.assertEqual(self.store.lookup_on_prefix(IDS), 0)

    def test_what_exists_is_skipped(self):
        self.dump_all()
        self.memory.clear()
        self.dump([(0, 0)])
        self.assertEqual(self.old.blocks[IDS[0]], WANT[0])
        self.assertEqual(self.old.drafts, {})

    def test_a_block_is_given_up_when_a_dump_fails(self):
        self.dump([(0, 0), (0, 1)])
        self.old.fail = True
        with self.assertRaisesRegex(UcmfsError, "-50005"):
            self.dump([(0, 2)])
        self.assertEqual((self.old.blocks, self.old.given_up),
                         ({}, IDS[:1]))
        self.old.fail = False
        self.dump_all()  # and may be dumped again
        self.assertEqual(self.store.lookup(IDS), [True] * NUM)

    def test_a_block_is_given_up_when_it_cannot_be_dumped(self):
        self.old.broken = True
        with self.assertRaisesRegex(ValueError, "no dump"):
            self.dump_all()
        self.assertEqual(self.old.drafts, {})
        self.old.broken = False
        self.dump_all()
        self.assertEqual(self.store.lookup(IDS), [True] * NUM)

    def test_a_block_that_is_not_committed_is_given_up(self):
        self.old.incomplete = IDS[:1]
        with self.assertRaisesRegex(UcmfsError, "1 of 1 blocks"):
            self.dump([(0, s) for s in range(SHARDS)])
        self.assertEqual((self.old.drafts, self.old.given_up),
                         ({}, IDS[:1]))

    def test_tasks_may_be_one(self):
        self.old._task = lambda status: None
        self.old.wait = lambda task: 0
        for shard in range(SHARDS):
            self.move(self.store.dump_data, [(0, shard)])
        self.store.wait(None)
        self.assertEqual(self.old.blocks, {IDS[0]: WANT[0]})

    def test_what_is_absent_is_an_error(self):
        with self.assertRaisesRegex(UcmfsError, "-50005"):
            self.store.wait(self.move(self.store.load_data, [(0, 0)]))

    def test_the_rest(self):
        self.assertEqual(self.store.cc_store(), 0)
        self.store.prefetch(join(IDS))
        self.assertEqual(self.old.wanted, IDS)

    def test_arguments_that_are_wrong_are_refused(self):
        for ids, shards, addresses in (
                (IDS[:1], [SHARDS], self.addresses(0, 0)),
                (IDS[:1], [-1], self.addresses(0, 0)),
                (IDS[:2], [0], self.addresses(0, 0) * 2),
                (IDS[:1], None, self.addresses(0, 0)[:1])):
            with self.assertRaises(InvalidArgument):
                self.store.dump_data(ids, shards, addresses)
        self.assertEqual(self.old.drafts, {})
        with self.assertRaises(InvalidArgument):
            V0ToV1Adapter(self.old, tensor_size=TENSOR, shard_size=SHARD + 1)


class WithOneFlagForAll(Case):
    one_flag = True


class WithAnswers(Case):

    def test_what_another_one_creates_is_skipped(self):
        self.old.others = IDS[:1]
        self.dump_all()
        self.assertEqual(set(self.old.blocks), set(IDS[1:]))
        self.assertEqual(self.old.given_up, [])


if __name__ == "__main__":
    unittest.main()
