# SPDX-License-Identifier: Apache-2.0
"""The store interface in both forms, against blocks in numpy arrays."""

import asyncio
import errno
import itertools
import json
import os
import random
import threading
import time
import unittest
from unittest import mock

import ucmfs
from ucmfs import factory
from tests.lib.private_daemon import directory
from tests.lib.seed import SEED
from tests.python.support import (LIMIT, MOUNT, TIER, backing_file,
                                  daemon_stopped, flip, id_of, join,
                                  needs_mount, needs_numpy, new_space, numpy)

TENSOR, SHARD, BLOCK = 512, 1024, 4096
SHARDS = BLOCK // SHARD
NUM = 12
counter = itertools.count()


def parent_of(space, id):
    """What a block's header says; None: it names none."""
    with open(backing_file(space, id), "rb") as file:
        head = file.read(80)
    return head[64:80] if head[52] & 2 else None


@needs_mount
@needs_numpy
class Case(unittest.TestCase):
    """want[i] is the payload of ids[i]; nothing is stored yet."""

    kind = ucmfs.Store
    options = {}

    def setUp(self):
        self.name = f"store-{next(counter)}"
        self.space = new_space(self.name)
        self.store = self.open()
        rand = numpy.random.default_rng(next(counter))
        self.ids = [id_of(f"{self.name} {i}") for i in range(NUM)]
        self.want = rand.integers(0, 256, (NUM, BLOCK), dtype="uint8")
        self.got = numpy.zeros_like(self.want)

    def open(self, **more):
        store = self.kind(**{
            "mount": MOUNT, "space": self.space, "tensor_size": TENSOR,
            "shard_size": SHARD, "block_size": BLOCK, "io": "threads",
            "timeout": LIMIT, **self.options, **more})
        self.addCleanup(store.close)
        return store

    def entries(self):
        """All (block, shard), in some order."""
        out = list(itertools.product(range(NUM), range(SHARDS)))
        random.Random(self.name).shuffle(out)
        return out

    def tensors(self, where, i, shard):
        """Those of a shard, as views of the array."""
        return [where[i, at:at + TENSOR]
                for at in range(shard * SHARD, (shard + 1) * SHARD, TENSOR)]

    def addresses(self, where, i, shard):
        return [t.ctypes.data for t in self.tensors(where, i, shard)]

    def arguments(self, entries):
        return [self.ids[i] for i, _ in entries], [s for _, s in entries]

    def check_equal(self):
        self.assertTrue(numpy.array_equal(self.got, self.want))


class Shapes(Case):
    def test_are_told(self):
        s = self.store
        self.assertEqual(
            (s.tensor_size, s.shard_size, s.block_size, s.layer_size,
             s.num_layers, s.shards, s.tensors_per_shard),
            (TENSOR, SHARD, BLOCK, SHARD, SHARDS, SHARDS, 2))
        self.assertNotEqual(s.cc_store(), 0)

    def test_that_do_not_fit_are_refused(self):
        for sizes in ({"tensor_size": 0}, {"shard_size": 1000},
                      {"block_size": 5000}, {"num_layers": 3}):
            with self.assertRaises(ucmfs.InvalidArgument):
                self.open(**sizes)

    def test_may_share_a_loader(self):
        with ucmfs.Loader(MOUNT) as loader:
            store = ucmfs.Store(loader, tensor_size=TENSOR)
            self.assertEqual(store.block_size, TENSOR)
            with self.assertRaises(ucmfs.InvalidArgument):
                ucmfs.Store(loader, mount=MOUNT, tensor_size=TENSOR)
        with self.assertRaises(ucmfs.InvalidArgument):
            store.lookup(self.ids)  # it has ended with its loader


class V1(Case):
    def dump_all(self):
        entries = self.entries()
        tasks = []
        for at in range(0, len(entries), 5):
            part = entries[at:at + 5]
            ids, shards = self.arguments(part)
            tasks.append(self.store.dump_data(
                ids, shards,
                [self.addresses(self.want, *entry) for entry in part]))
        for task in tasks:
            self.store.wait(task)

    def test_shards_in_any_order(self):
        self.dump_all()
        self.assertEqual(self.store.lookup(self.ids), [True] * NUM)
        entries = self.entries()
        random.shuffle(entries)
        task = self.store.load_data(
            *self.arguments(entries),
            numpy.array([self.addresses(self.got, *e) for e in entries],
                        dtype="uint64"))
        self.store.wait(task)
        self.assertTrue(self.store.check(task))
        self.check_equal()

    def test_a_block_names_the_one_before(self):
        self.store.set_parents(self.ids[1:], self.ids[:-1])
        self.dump_all()
        self.assertEqual([parent_of(self.space, id) for id in self.ids],
                         [None, *self.ids[:-1]])
        with self.assertRaises(ucmfs.InvalidArgument):
            self.store.set_parents(self.ids, self.ids[:1])

    def test_a_block_is_there_with_its_last_shard(self):
        for shard in (3, 0, 2):
            self.store.wait(self.store.dump(
                self.ids[:1], [shard], [self.tensors(self.want, 0, shard)]))
            self.assertEqual(self.store.lookup(self.ids[:1]), [False])
        self.store.wait(self.store.dump(
            self.ids[:1], [1], [self.tensors(self.want, 0, 1)]))
        self.assertEqual(self.store.lookup(self.ids[:1], [1]), [True])

    def test_tensors(self):
        # some as two tensors, some as one that is the whole shard
        for where, move in ((self.want, self.store.dump),
                            (self.got, self.store.load)):
            entries = self.entries()
            self.store.wait(move(
                *self.arguments(entries),
                [self.tensors(where, *e) for e in entries]
                if where is self.want else
                [where[i, s * SHARD:(s + 1) * SHARD] for i, s in entries]))
        self.check_equal()

    def test_tensors_that_are_wrong_are_refused(self):
        wide = numpy.zeros((TENSOR, 2), dtype="uint8")
        for tensors, text in (
                ([[wide[:, 0], wide[:, 1]]], "not contiguous"),
                ([[wide[:10].copy()] * 2], "20"),
                ([["x", "y"]], "str is no tensor"),
                ([self.tensors(self.want, 0, 0)] * 2, "")):
            with self.assertRaises(ucmfs.InvalidArgument) as caught:
                self.store.dump(self.ids[:1], [0], tensors)
            self.assertIn(text, str(caught.exception))
        cuda = ucmfs.Raw(4096, (SHARD,), (1,), 1, "cuda")
        with self.assertRaises(ucmfs.InvalidArgument) as caught:
            self.store.load(self.ids[:1], [0], [cuda])
        self.assertIn("cuda memory", str(caught.exception))

    def test_addresses_and_sizes(self):
        entries = self.entries()
        ids, shards = self.arguments(entries)
        self.store.wait(self.store.dump_data(
            ids, shards, [self.addresses(self.want, *e) for e in entries],
            [[TENSOR] * 2] * len(entries)))
        self.store.wait(self.store.load_data(
            ids, shards, [self.addresses(self.got, *e)[0] for e in entries],
            [SHARD] * len(entries)))
        self.check_equal()
        for sizes in ([SHARD - 1], [SHARD, SHARD]):
            with self.assertRaises(ucmfs.InvalidArgument):
                self.store.load_data(ids[:1], shards[:1],
                                     self.addresses(self.got, 0, 0)[:1],
                                     sizes)

    def test_arguments_that_are_wrong_are_refused(self):
        address = self.addresses(self.want, 0, 0)
        for ids, shards, addresses, text in (
                (self.ids[:1], [SHARDS], address, f"{SHARDS} of {SHARDS}"),
                (self.ids[:1], [0, 1], address, "2 for 1 blocks"),
                (self.ids[:1], [-1], address, "shard_index"),
                (self.ids[:1], [0], address[:1], "1 addresses"),
                (self.ids[:1], None, address * 2, "4 addresses"),
                ([b"x"], [0], address, "16 bytes")):
            with self.assertRaises(ucmfs.InvalidArgument) as caught:
                self.store.dump_data(ids, shards, addresses)
            self.assertIn(text, str(caught.exception))
        with self.assertRaises(ucmfs.InvalidArgument):
            self.store.lookup(self.ids[:1], [SHARDS])

    def test_a_task_says_what_it_is(self):
        before = time.monotonic()
        entries = [(i, s) for i in range(3) for s in range(SHARDS)]
        tasks = []
        for move, where in ((self.store.dump_data, self.want),
                            (self.store.load_data, self.got)):
            tasks.append(move(*self.arguments(entries), [
                self.addresses(where, *e) for e in entries]))
            self.store.wait(tasks[-1])
        dump, load = tasks
        self.assertEqual((dump.task_type, load.task_type),
                         (ucmfs.TaskType.DUMP, ucmfs.TaskType.LOAD))
        self.assertEqual(dump.task_type, "dump")
        self.assertEqual((dump.num, dump.block_count), (3 * SHARDS, 3))
        self.assertLess(dump.task_id, load.task_id)
        self.assertTrue(before <= dump.start_time <= load.start_time
                        <= time.monotonic())

    def test_lookups_and_prefixes(self):
        self.dump_all()
        absent = id_of("absent")
        ids = self.ids[:3] + [absent] + self.ids[3:]
        self.assertEqual(self.store.lookup(join(ids)),
                         [i != absent for i in ids])
        self.assertEqual(self.store.lookup_on_prefix(ids), 2)
        self.assertEqual(self.store.lookup_on_prefix(self.ids), NUM - 1)
        self.assertEqual(self.store.lookup_on_prefix([absent]), -1)
        self.assertEqual(self.store.lookup_on_prefix([]), -1)
        self.store.prefetch(ids)

    def whole(self, where):
        """For each block the addresses of all its tensors."""
        return numpy.array([[row[at:].ctypes.data
                             for at in range(0, BLOCK, TENSOR)]
                            for row in where], dtype="uint64")

    def test_of_a_prefix_what_is_there_is_loaded(self):
        self.dump_all()
        ids = [*self.ids[:3], id_of("absent"), *self.ids[4:]]
        task = self.store.load_prefix(ids, self.whole(self.got))
        self.store.wait(task)
        self.assertEqual((task.num_loaded, task.block_count), (3, 3))
        self.want[3:] = 0  # nothing behind it is loaded
        self.check_equal()

    def test_of_a_prefix_that_is_not_there_nothing_is(self):
        for ids in ([], self.ids):
            task = self.store.load_prefix(
                ids, self.whole(self.got[:len(ids)]))
            self.store.wait(task)
            self.assertEqual((task.num_loaded, task.num), (0, 0))

    def test_of_a_prefix_no_damaged_block_is_counted(self):
        self.dump_all()
        for block, shard in ((4, SHARDS - 1), (2, 1)):
            flip(backing_file(self.space, self.ids[block]),
                 4096 + shard * SHARD)
            task = self.store.load_prefix(self.ids, self.whole(self.got))
            task.result(LIMIT)
            self.assertEqual(task.num_loaded, block)
            with self.assertRaises(ucmfs.BlockDamaged):
                self.store.wait(task)

    def test_of_a_prefix_no_evicted_block_is_counted(self):
        self.dump_all()
        with mock.patch.object(self.store, "lookup_on_prefix",
                               return_value=4):
            with ucmfs.Blocks(MOUNT) as blocks:
                blocks.remove(self.ids[3:4], self.space)
            task = self.store.load_prefix(self.ids, self.whole(self.got))
            task.result(LIMIT)
        self.assertEqual(task.num_loaded, 3)

    def test_a_prefix_needs_addresses_for_each_block(self):
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "8 addresses for "
                                    "12 blocks of 8 tensors"):
            self.store.load_prefix(self.ids, self.whole(self.got[:1]))

    def test_what_exists_is_skipped(self):
        self.dump_all()
        task = self.store.dump(self.ids[:1], [0],
                               [self.tensors(self.want, 0, 0)])
        self.store.wait(task)
        self.assertEqual(task.skipped(), [True])

    def test_what_is_absent_is_named(self):
        self.dump_all()
        task = self.store.load([self.ids[0], id_of("absent")], None,
                               [self.tensors(self.got, i, 0)
                                for i in range(2)])
        with self.assertRaises(ucmfs.NotFound) as caught:
            self.store.wait(task)
        self.assertIn(id_of("absent").hex(), str(caught.exception))
        self.assertEqual(task.errors(), [0, errno.ENOENT])
        self.assertTrue(numpy.array_equal(self.got[0, :SHARD],
                                          self.want[0, :SHARD]))

    def test_what_is_damaged_is_named(self):
        self.dump_all()
        # shard 1's second tensor: layer 1 V
        flip(backing_file(self.space, self.ids[4]), 4096 + SHARD + TENSOR)
        entries = [(i, 1) for i in range(NUM)]
        task = self.store.load(*self.arguments(entries), [
            self.tensors(self.got, *e) for e in entries])
        with self.assertRaises(ucmfs.BlockDamaged) as caught:
            self.store.wait(task)
        self.assertEqual((caught.exception.block, caught.exception.plane),
                         (self.ids[4], 3))
        self.assertEqual(task.num_failed, 1)

    def test_what_is_torn_is_named(self):
        self.dump_all()
        os.truncate(backing_file(self.space, self.ids[0]), 5000)
        store = self.open(mount=None, tiers=[TIER])
        with self.assertRaises(ucmfs.BlockDamaged) as caught:
            store.wait(store.load(self.ids[:1], [3],
                                  [self.tensors(self.got, 0, 3)]))
        self.assertIn("shorter", str(caught.exception))

    def test_what_is_given_up_goes(self):
        def dump(shard):
            self.store.wait(self.store.dump(
                self.ids[:1], [shard], [self.tensors(self.want, 0, shard)]))

        dump(0)
        self.store.give_up(self.ids[:1])
        for shard in (1, 2, 3):
            dump(shard)
        self.assertEqual(self.store.lookup(self.ids[:1]), [False])
        dump(0)
        self.assertEqual(self.store.lookup(self.ids[:1]), [True])

    def test_a_wait_times_out_and_the_task_goes_on(self):
        self.dump_all()
        entries = [(i, 0) for i in range(NUM)]
        with daemon_stopped():
            task = self.store.load(*self.arguments(entries), [
                self.tensors(self.got, *e) for e in entries])
            self.assertFalse(self.store.check(task))
            with self.assertRaises(ucmfs.Timeout):
                self.store.wait(task, 0.05)
        self.store.wait(task)
        self.assertTrue(numpy.array_equal(self.got[:, :SHARD],
                                          self.want[:, :SHARD]))

    def test_a_task_can_be_awaited(self):
        self.dump_all()
        entries = self.entries()

        async def main():
            task = self.store.load(*self.arguments(entries), [
                self.tensors(self.got, *e) for e in entries])
            asyncio.get_running_loop().call_later(
                0.02, os.kill, int(os.environ["UCMFS_TEST_DAEMON"]), 18)

            async def wait():
                await task
            await asyncio.wait_for(asyncio.gather(wait(), wait()), LIMIT)

        before = threading.active_count()
        with daemon_stopped():
            asyncio.run(main())
        self.assertEqual(threading.active_count(), before)
        self.check_equal()

    def test_a_task_ends_for_all_threads(self):
        self.dump_all()
        entries = self.entries()
        for free in (False, True):
            seen = []
            store = self.open()  # one that has no files open yet
            with daemon_stopped():
                task = store.load(*self.arguments(entries), [
                    self.tensors(self.got, *e) for e in entries])
                threads = [threading.Thread(target=lambda: seen.append(
                    [o.err for o in task.result(LIMIT)])) for _ in range(8)]
                for thread in threads:
                    thread.start()
                if free:
                    task.free()
            for thread in threads:
                thread.join()
            want = [errno.ECANCELED if free else 0] * len(entries)
            self.assertEqual(seen, [want] * 8)

    def test_the_end_of_the_store_ends_tasks(self):
        self.dump_all()
        entries = self.entries()
        with daemon_stopped():
            task = self.store.load(*self.arguments(entries), [
                self.tensors(self.got, *e) for e in entries])
            closer = threading.Thread(target=self.store.close)
            closer.start()
            with self.assertRaises(ucmfs.Cancelled):
                task.wait(LIMIT)
        closer.join()
        for call in (lambda: self.store.lookup(self.ids),
                     self.store.cc_store):
            with self.assertRaises(ucmfs.InvalidArgument):
                call()

    def test_many_threads_at_once(self):
        self.dump_all()
        errors = []

        def work(seed):
            rand = random.Random(seed)
            got = numpy.zeros_like(self.want)
            try:
                for _ in range(20):
                    i, s = rand.randrange(NUM), rand.randrange(SHARDS)
                    self.store.wait(self.store.load(
                        [self.ids[i]], [s], [self.tensors(got, i, s)]))
                    at = slice(s * SHARD, (s + 1) * SHARD)
                    if not numpy.array_equal(got[i, at], self.want[i, at]):
                        errors.append((i, s))
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [threading.Thread(target=work, args=(SEED + n,))
                   for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])


class WholeBlocks(Case):
    """As UCM's direct connector: one shard, several tensors."""

    options = {"shard_size": 0}

    def test_of_several_tensors(self):
        rows = [[row[at:at + TENSOR] for at in range(0, BLOCK, TENSOR)]
                for row in self.want]
        self.assertEqual(self.store.tensors_per_shard, 8)
        self.store.wait(self.store.dump(self.ids, [0] * NUM, rows))
        self.store.wait(self.store.load(self.ids, None, list(self.got)))
        self.check_equal()


class WithGeometry(Case):
    options = {"geometry": ucmfs.Geometry(
        SHARDS, 16, "float16", TENSOR, TENSOR, 1, 16)}

    def test_are_the_loaders_blocks(self):
        self.store.wait(self.store.dump(
            self.ids, None, [self.tensors(self.want, i, 0)
                             for i in range(NUM)]))
        for shard in range(1, SHARDS):
            self.store.wait(self.store.dump(
                self.ids, [shard] * NUM, [self.tensors(self.want, i, shard)
                                          for i in range(NUM)]))
        layout = ucmfs.regions_of(
            [self.got.view("float16").reshape(NUM, SHARDS, 2, 16, 1, 16)],
            self.options["geometry"], dims="BLPNHD")
        group = self.store.loader.add_group(layout, self.space)
        group.load(self.ids, range(NUM)).wait(LIMIT)
        self.check_equal()


class V0(Case):
    kind = ucmfs.StoreV0

    def test_created_dumped_committed(self):
        s = self.store
        self.assertEqual(s.create(self.ids), [0] * NUM)
        self.assertEqual(s.create(self.ids[:1]), [errno.EALREADY])
        # two halves each, in any order; a number for all, or one for each
        half = BLOCK // 2
        self.assertEqual(s.wait(s.dump(self.ids, half,
                                       list(self.want[:, half:]))), 0)
        self.assertEqual(s.commit(self.ids[:1]), [errno.EAGAIN])
        task = s.dump(self.ids, [0] * NUM, list(self.want[:, :half]))
        self.assertEqual(s.wait(task), 0)
        self.assertEqual(s.check(task), (0, True))
        self.assertEqual(s.lookup(self.ids), [False] * NUM)
        self.assertEqual(s.commit(self.ids, [True] * (NUM - 1) + [False]),
                         [0] * NUM)
        self.assertEqual(s.lookup(self.ids), [True] * (NUM - 1) + [False])
        self.assertEqual(s.create(self.ids[:1]), [errno.EEXIST])
        # rows of one tensor; and one layer from the middle
        self.assertEqual(s.wait(s.load(self.ids[:-1], None,
                                       self.got[:-1])), 0)
        self.got[-1] = self.want[-1]
        self.check_equal()
        layer = numpy.zeros(SHARD, dtype="uint8")
        self.assertEqual(s.wait(s.load(self.ids[:1], 2 * SHARD, layer)), 0)
        self.assertTrue(numpy.array_equal(
            layer, self.want[0, 2 * SHARD:3 * SHARD]))

    def test_a_block_names_the_one_before(self):
        s = self.store
        s.set_parents(self.ids, [bytes(16), *self.ids[:-1]])
        s.create(self.ids)
        s.wait(s.dump(self.ids, 0, list(self.want)))
        self.assertEqual(s.commit(self.ids), [0] * NUM)
        self.assertEqual([parent_of(self.space, id) for id in self.ids],
                         [None, *self.ids[:-1]])

    def test_by_addresses(self):
        s = self.store
        s.create(self.ids)
        starts = [row.ctypes.data for row in self.want]
        self.assertEqual(s.wait(s.dump_data(self.ids, 0, starts, BLOCK)), 0)
        self.assertEqual(s.commit(self.ids), [0] * NUM)
        ends = numpy.array([row.ctypes.data for row in self.got],
                           dtype="uint64")
        self.assertEqual(s.wait(s.load_data(self.ids, None, ends,
                                            [BLOCK] * NUM)), 0)
        self.check_equal()

    def test_errors_are_numbers(self):
        s = self.store
        task = s.load(self.ids[:1], 0, self.got[0])
        self.assertEqual(s.wait(task), errno.ENOENT)
        self.assertEqual(s.check(task), (errno.ENOENT, True))
        task = s.dump(self.ids[:1], 0, self.want[0])
        self.assertEqual(s.wait(task), errno.ENOENT)  # not created
        self.assertEqual(s.commit_task(self.ids[:1]).task_type,
                         ucmfs.TaskType.COMMIT)
        self.assertEqual(s.commit(self.ids[:1]), [errno.ENOENT])

    def test_arguments_that_are_wrong_are_refused(self):
        s = self.store
        for call in (lambda: s.load(self.ids[:1], 100, self.got[0]),
                     lambda: s.load(self.ids[:1], 0, self.got[0, :100]),
                     lambda: s.load(self.ids[:2], [0], list(self.got[:2])),
                     lambda: s.load(self.ids[:2], 0, self.got[:3]),
                     lambda: s.load(self.ids[:2], 0, [self.got[0]]),
                     lambda: s.load_data(self.ids[:1], 0, [4096], [1, 2]),
                     lambda: s.commit(self.ids[:2], [True])):
            with self.assertRaises(ucmfs.InvalidArgument):
                call()

    def test_a_check_never_waits(self):
        s = self.store
        s.create(self.ids[:1])
        with daemon_stopped():
            task = s.dump(self.ids[:1], 0, self.want[0])
            if not task.done():
                self.assertEqual(s.check(task), (0, False))
                with self.assertRaises(ucmfs.Timeout):
                    s.wait(task, 0.02)
                self.assertEqual(s.commit(self.ids[:1]), [errno.EBUSY])
        self.assertEqual(s.wait(task), 0)
        self.assertEqual(s.commit(self.ids[:1], False), [0])
        self.assertEqual(s.lookup(self.ids[:1]), [False])


@needs_mount
@needs_numpy
class ByName(unittest.TestCase):
    def config(self, **more):
        return {"storage_backends": MOUNT, "store_pipeline": "Cache|Posix",
                "io_direct": True, "tensor_size": TENSOR,
                "shard_size": SHARD, "block_size": BLOCK, **more}

    def test_all_of_them_move_bytes(self):
        space = new_space("by-name")
        want = numpy.arange(BLOCK, dtype="uint32").view("uint8")[:BLOCK]
        pretending = {"UcmEmptyStore", "UcmFakeStore"}
        for name in set(factory.UcmConnectorFactory.names()) - pretending:
            block = id_of(name)
            config = self.config(storage_backends=f"{MOUNT}/spaces/{space}")
            with factory.UcmConnectorFactory.create_connector(
                    name, config) as v0:
                self.assertIsInstance(v0, ucmfs.StoreV0)
                self.assertEqual(v0.create([block]), [0])
                self.assertEqual(v0.wait(v0.dump([block], 0, want)), 0)
                self.assertEqual(v0.commit([block]), [0])
            with factory.UcmConnectorFactoryV1.create_connector(
                    name, config) as v1:
                self.assertIsInstance(v1, ucmfs.Store)
                got = numpy.zeros_like(want)
                v1.wait(v1.load([block] * SHARDS, range(SHARDS),
                                list(got.reshape(SHARDS, SHARD))))
                self.assertTrue(numpy.array_equal(got, want))

    def test_paths_say_mount_space_or_tiers(self):
        new_space("a-space")
        for path, place, space in (
                (MOUNT, MOUNT, None), (MOUNT + "/", MOUNT, None),
                ([MOUNT], MOUNT, None), (f"{MOUNT}/blocks", MOUNT, None),
                (f"{MOUNT}/spaces/a-space", MOUNT, "a-space"),
                (TIER, None, None)):
            found = ucmfs.validate_config({"storage_backends": path})
            self.assertEqual(found.mount, place)
            self.assertEqual(found.store_options.get("space"), space)
            self.assertEqual(found.tiers, [] if place else [TIER])
        for path in (f"{MOUNT}/files", f"{MOUNT}:{TIER}",
                     f"{MOUNT}/blocks/00"):
            with self.assertRaises(ucmfs.ConfigError):
                ucmfs.validate_config({"storage_backends": path})

    def test_other_ways_to_say_a_path(self):
        new_space("said-so")
        for path, space in ((MOUNT, None), (f"{MOUNT}/spaces/said-so",
                                            "said-so")):
            for given in (
                    {"storage_backend": "posix", "storage_path": path},
                    {"storage": {"path": path}}, {"nfs_path": path},
                    {"pipeline": "Cache|Posix",
                     "posix": {"storage_backends": path}},
                    {"pipeline": [{"type": "cache", "size_gb": 1},
                                  {"type": "posix", "path": path}]},
                    {"kv_connector_extra_config": {"storage_path": path}}):
                found = ucmfs.validate_config(given)
                self.assertEqual((found.mount, found.tiers), (MOUNT, []))
                self.assertEqual(found.store_options.get("space"), space)

    def test_a_pipeline_of_maps_or_a_list(self):
        sizes = {k: v for k, v in self.config().items() if "_size" in k}
        for given in (
                {"pipeline": "Cache|Posix", "cache": {"buffer_number": 8},
                 "posix": {"storage_backends": MOUNT, **sizes}},
                {"pipeline": [{"type": "posix", "path": MOUNT, **sizes}]},
                {"pipeline": ["Cache", "Posix"], "storage_backends": MOUNT,
                 **sizes}):
            with factory.UcmConnectorFactoryV1.create_connector(
                    "UcmPipelineStore", given) as store:
                self.assertEqual(store.shards, SHARDS)
                self.assertEqual(store.lookup([id_of("nowhere")]), [False])

    def test_on_tiers(self):
        with factory.UcmConnectorFactoryV1.create_connector(
                "UcmPosixStore",
                self.config(storage_backends=TIER)) as store:
            self.assertEqual(store.lookup([id_of("nowhere")]), [False])
            self.assertIn("tiers", store.loader.describe())

    def test_in_directories_that_were_never_mounted(self):
        """A store saves into them, the next one finds it."""
        want = numpy.arange(BLOCK, dtype="uint32").view("uint8")[:BLOCK]
        with directory() as path:
            for form, name in itertools.product(
                    (factory.UcmConnectorFactoryV1,
                     factory.UcmConnectorFactory),
                    ("UcmPosixStore", "UcmPipelineStore")):
                block = id_of(f"{form.__name__} {name}")
                tier = os.path.join(path, f"{name}{form.__name__}")
                os.mkdir(tier)
                config = self.config(storage_backends=tier)
                with self.assertLogs("ucmfs", "INFO") as logs, \
                        form.create_connector(name, config) as store:
                    self.save(store, block, want)
                self.assertIn(f"{tier}: no mount of ucmfs: used by a private "
                              "daemon", "\n".join(logs.output))
                config = self.config(pipeline=[{"type": "nfs", "path": tier}])
                del config["storage_backends"], config["store_pipeline"]
                with factory.UcmConnectorFactoryV1.create_connector(
                        "UcmPipelineStore", config) as store:
                    self.assertEqual(store.lookup([block, id_of(path)]),
                                     [True, False])
                    got = numpy.zeros_like(want)
                    store.wait(store.load(
                        [block] * SHARDS, range(SHARDS),
                        list(got.reshape(SHARDS, SHARD))))
                    self.assertTrue(numpy.array_equal(got, want))

    def save(self, store, block, want):
        if isinstance(store, ucmfs.StoreV0):
            self.assertEqual(store.create([block]), [0])
            self.assertEqual(store.wait(store.dump([block], 0, want)), 0)
            self.assertEqual(store.commit([block]), [0])
            return
        store.wait(store.dump([block] * SHARDS, range(SHARDS),
                              list(want.reshape(SHARDS, SHARD))))

    def test_files_of_json(self):
        path = os.path.join(TIER, "..", "ucm.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"ucm_connectors": [{
                "ucm_connector_name": "UcmPcStore",
                "ucm_connector_config": self.config()}]}, file)
        found = ucmfs.validate_config(path)
        with factory.UcmConnectorFactoryV1.create_connector(
                found.connector, found.connector_config) as store:
            self.assertEqual(store.shards, SHARDS)


if __name__ == "__main__":
    unittest.main()
