# SPDX-License-Identifier: Apache-2.0
"""Loader and groups, on a mount, against what was written."""

import array
import errno
import os
import subprocess
import sys
import unittest

import ucmfs
from tests.python.loader_case import NUM, Case
from tests.python.support import (
    BLOCK, LIMIT, MOUNT, TIER, Memory, backing_file, daemon_stopped, flip,
    id_of, join, needs_numpy, numpy)

CONTROL = os.path.join(os.path.dirname(__file__), "..", "lib",
                       "control.py")


class Blocks(Case):
    def test_are_verified_once(self):
        self.saved()
        self.group.load(self.ids, range(NUM), verify="always").wait(LIMIT)
        self.assertEqual(self.loader.stats()["unsummed_bytes"], 0)
        self.mark(0)
        self.memory.clear()
        self.group.load(self.ids, range(NUM), verify="once").wait(LIMIT)
        for i in range(NUM):
            self.assertEqual(self.page(i),
                             self.want[BLOCK * i:BLOCK * (i + 1)])
        self.assertEqual(self.loader.stats()["unsummed_bytes"],
                         BLOCK)

    def mark(self, i):
        """As a loader does once the file is old enough."""
        subprocess.run([
            sys.executable, CONTROL, MOUNT, "verified", self.space,
            "file=" + backing_file(self.space, self.id(i))],
            input=self.id(i).hex(), text=True, check=True)

    def test_are_saved_and_loaded(self):
        task = self.group.save(self.ids, range(NUM))
        task.wait(LIMIT)
        self.assertEqual(task.errors(), [0] * NUM)
        self.assertEqual(task.skipped(), [False] * NUM)
        self.memory.clear()
        order = list(reversed(range(NUM)))
        task = self.group.load(self.ids, order)
        self.assertEqual([o.ok for o in task.result(LIMIT)], [True] * NUM)
        for i in range(NUM):
            self.assertEqual(self.page(order[i]),
                             self.want[BLOCK * i:BLOCK * (i + 1)])
        stats = self.loader.stats()
        self.assertEqual((stats["saves"], stats["loads"]), (NUM, NUM))
        self.assertIn("socket", self.loader.describe())

    def test_are_removed(self):
        self.saved()
        self.assertEqual(
            self.group.remove_blocks(self.ids[:32] + id_of("absent")),
            [0, 0, errno.ENOENT])
        self.assertEqual(self.group.lookup(self.ids),
                         [False, False] + [True] * (NUM - 2))
        self.assertEqual(self.group.remove_blocks(b""), [])

    def test_that_exist_are_skipped(self):
        self.saved()
        task = self.group.save(self.ids[:32], [0, 1])
        self.assertEqual([o.text for o in task.result(LIMIT)],
                         ["was there already"] * 2)
        self.assertEqual(task.skipped(), [True, True])
        task.wait()

    def test_are_found(self):
        self.saved()
        self.assertEqual(self.group.lookup([self.id(3), bytes(16),
                                            self.id(NUM - 1)]),
                         [True, False, True])
        self.assertEqual(self.group.lookup(b""), [])
        self.assertEqual(self.group.prefix([self.id(3), bytes(16),
                                            self.id(4)]), 1)
        self.assertEqual(self.group.prefix(b""), 0)

    def test_ids_and_pages_may_be_of_any_kind(self):
        self.saved()
        split = [self.id(i) for i in range(NUM)]
        words = array.array("I", range(NUM))
        for ids in (self.ids, bytearray(self.ids), memoryview(self.ids),
                    split, tuple(split)):
            for pages in (range(NUM), list(words), words, memoryview(words),
                          array.array("q", range(NUM)), iter(words)):
                self.memory.clear()
                self.group.load(ids, pages).wait(LIMIT)
                self.assertEqual(self.memory.content, self.want)

    @needs_numpy
    def test_pages_may_be_of_numpy(self):
        self.saved()
        for kind in ("uint32", "int64", "int32", "uint64"):
            self.memory.clear()
            self.group.load(numpy.frombuffer(self.ids, dtype="uint8"),
                            numpy.arange(NUM, dtype=kind)).wait(LIMIT)
            self.assertEqual(self.memory.content, self.want, kind)
        with self.assertRaises(ucmfs.InvalidArgument):
            self.group.load(self.ids, numpy.arange(2 * NUM)[::2])

    def test_go_to_addresses_instead_of_pages(self):
        self.saved()
        other = Memory(bytes(NUM * BLOCK))
        each = self.layout.regions_of_layers(0, 2)
        step = BLOCK // each
        addresses = [other.address + BLOCK * i + step * r
                     for i in range(NUM) for r in range(each)]
        self.group.load(self.ids, addresses=addresses).wait(LIMIT)
        self.assertEqual(other.content, self.want)
        with self.assertRaises(ucmfs.InvalidArgument) as caught:
            self.group.load(self.ids, addresses=addresses[1:])
        self.assertIn(f"of {each} regions each", str(caught.exception))

    def test_may_have_parents(self):
        parents = bytes(16) + self.ids[:-16]
        self.group.save(self.ids, range(NUM), parents=parents).wait(LIMIT)
        with open(backing_file(self.space, self.id(1)), "rb") as file:
            self.assertIn(self.id(0), file.read(256))

    def test_may_be_of_those_that_nobody_waits_for(self):
        self.saved()
        self.group.load(self.ids, range(NUM), priority="prefetch").wait(LIMIT)
        self.assertEqual(self.memory.content, self.want)

    def test_go_over_tiers_as_well(self):
        self.saved()
        with ucmfs.Loader(tiers=[TIER]) as loader:
            self.assertIn("tiers", loader.describe())
            group = loader.add_group(self.layout, self.space)
            group.load(self.ids, range(NUM), verify="header",
                       order="layers", group_layers=1).wait(LIMIT)
            self.assertEqual(self.memory.content, self.want)


class Layers(Case):
    def test_are_loaded_by_themselves(self):
        self.saved()
        self.group.load(self.ids, range(NUM), first_layer=1,
                        num_layers=1).wait(LIMIT)
        half = BLOCK // 2
        for i in range(NUM):
            self.assertEqual(self.page(i)[:half], bytes(half))
            self.assertEqual(self.page(i)[half:],
                             self.want[BLOCK * i + half:BLOCK * (i + 1)])

    def test_are_waited_for(self):
        self.saved()
        task = self.group.load(self.ids, range(NUM), order="layers")
        for layer in (0, 1):
            self.assertTrue(task.wait_layer(layer, LIMIT))
        task.wait(LIMIT)
        self.assertTrue(task.wait_layer(0))
        task = self.group.load(self.ids[16:] + bytes(16), range(NUM))
        self.assertFalse(task.wait_layer(1, LIMIT))
        with self.assertRaises(ucmfs.InvalidArgument):
            self.group.load(self.ids, range(NUM), first_layer=1).wait_layer(0)

    def test_commit_when_the_last_is_saved(self):
        first = self.group.save(self.ids[:16], [0], first_layer=1,
                                num_layers=1)
        first.wait(LIMIT)
        self.assertEqual(self.group.lookup(self.ids[:16]), [False])
        self.group.save(self.ids[:16], [0], num_layers=1).wait(LIMIT)
        self.assertEqual(self.group.lookup(self.ids[:16]), [True])

    def test_that_no_task_has_are_refused(self):
        for layers in ({"first_layer": 2}, {"num_layers": 3}):
            with self.assertRaises(ucmfs.InvalidArgument):
                self.group.load(self.ids[:16], [0], **layers)


class Held(Case):
    def test_are_committed_by_a_call(self):
        self.group.save(self.ids, range(NUM), hold=True).wait(LIMIT)
        self.assertEqual(self.group.lookup(self.ids[:16]), [False])
        self.group.commit(self.ids).wait(LIMIT)
        self.assertEqual(self.group.lookup(self.ids), [True] * NUM)

    def test_need_all_layers(self):
        self.group.save(self.ids[:16], [0], num_layers=1,
                        hold=True).wait(LIMIT)
        task = self.group.commit(self.ids[:16])
        self.assertEqual(task.result(LIMIT)[0].err, errno.EAGAIN)

    def test_can_be_abandoned(self):
        self.group.save(self.ids, range(NUM), hold=True).wait(LIMIT)
        self.group.abandon(self.ids[:16])
        self.group.abandon()
        task = self.group.commit(self.ids[:32])
        with self.assertRaises(ucmfs.NotFound):
            task.wait(LIMIT)


class Failures(Case):
    def test_of_absent_blocks_are_named(self):
        self.saved()
        absent = id_of("nowhere")
        task = self.group.load(self.ids[:16] + absent + self.ids[16:32],
                               [0, 1, 2])
        with self.assertRaises(ucmfs.NotFound) as caught:
            task.wait(LIMIT)
        error = caught.exception
        self.assertIn(absent.hex(), str(error))
        self.assertEqual([o.err for o in error.outcomes],
                         [0, errno.ENOENT, 0])
        self.assertEqual(task.errors(), [0, errno.ENOENT, 0])
        self.assertEqual(task.num_failed, 1)
        self.assertEqual(self.page(2), self.want[BLOCK:2 * BLOCK])

    def test_of_damaged_blocks_name_the_plane(self):
        self.saved()
        # layer 1 V, layer 0 K; header
        flip(backing_file(self.space, self.id(3)), 4096 + 3 * 512 + 77)
        flip(backing_file(self.space, self.id(9)), 4096)
        flip(backing_file(self.space, self.id(11)), 0)
        task = self.group.load(self.ids, range(NUM))
        with self.assertRaises(ucmfs.BlockDamaged) as caught:
            task.wait(LIMIT)
        error = caught.exception
        self.assertEqual((error.block, error.plane), (self.id(3), 3))
        self.assertIn("layer 1 V", str(error))
        outcomes = error.outcomes
        self.assertEqual([i for i, o in enumerate(outcomes) if o.err],
                         [3, 9, 11])
        self.assertEqual(outcomes[9].plane, 0)
        self.assertIsNone(outcomes[11].plane)
        self.assertNotEqual(outcomes[11].fault, "")
        for i in set(range(NUM)) - {3, 9, 11}:
            self.assertEqual(self.page(i),
                             self.want[BLOCK * i:BLOCK * (i + 1)])

    def test_of_torn_blocks_say_so(self):
        self.saved()
        os.truncate(backing_file(self.space, self.id(0)), 4096 + 100)
        with ucmfs.Loader(tiers=TIER) as loader:
            group = loader.add_group(self.layout, self.space)
            with self.assertRaises(ucmfs.BlockDamaged) as caught:
                group.load(self.ids, range(NUM)).wait(LIMIT)
            self.assertEqual(caught.exception.block, self.id(0))
            self.assertIsNone(caught.exception.plane)
            self.assertIn("shorter", caught.exception.fault)

    def test_of_arguments_start_nothing(self):
        before = self.loader.stats()
        for call, text in (
                (lambda: self.group.load(self.ids, range(NUM + 1)), "pages"),
                (lambda: self.group.load(self.ids[1:], range(NUM)), "ids"),
                (lambda: self.group.load([b"short"], [0]), "16 bytes"),
                (lambda: self.group.load(self.ids[:16], [NUM]), "page"),
                (lambda: self.group.load(self.ids[:16], [-1]), "pages"),
                (lambda: self.group.load(self.ids[:16], ["x"]), "pages"),
                (lambda: self.group.load(self.ids[:16]), "neither"),
                (lambda: self.group.load(self.ids[:16], [0],
                                         verify="some"), "verify"),
                (lambda: self.group.load(self.ids[:16], [0], order="up"),
                 "order"),
                (lambda: self.group.load(self.ids[:16], [0],
                                         priority="low"), "priority"),
                (lambda: self.group.save(self.ids[:16], [0],
                                         parents=bytes(32)), "parents"),
                (lambda: ucmfs.Loader(MOUNT, io="fast"), "io"),
                (lambda: self.loader.add_group(
                    ucmfs.Layout(self.layout.geometry, 1), self.space),
                 "seal")):
            with self.assertRaises(ucmfs.InvalidArgument) as caught:
                call()
            self.assertIn(text, str(caught.exception))
        self.assertEqual(self.loader.stats(), before)

    def test_of_spaces_that_are_not_there(self):
        with self.assertRaises(ucmfs.NotFound) as caught:
            self.loader.add_group(self.layout, "nowhere")
        self.assertIn("nowhere", str(caught.exception))

    def test_of_memory_of_the_other_kind(self):
        raw = ucmfs.Raw(4096, (2, 2, 2, 256), (1024, 512, 256, 1), 2, "cuda")
        layout = ucmfs.regions_of([raw], self.layout.geometry, dims="BLPD")
        with self.assertRaises(ucmfs.InvalidArgument) as caught:
            self.loader.add_group(layout, self.space)
        self.assertIn("cuda memory", str(caught.exception))

    def test_of_events_and_streams_of_the_host(self):
        for call in (self.group.load, self.group.save):
            with self.assertRaises(ucmfs.InvalidArgument) as caught:
                call(self.ids, range(NUM), after=1)
            self.assertIn("have no events", str(caught.exception))
        task = self.group.save(self.ids, range(NUM))
        for layer in None, 0:
            with self.assertRaises(ucmfs.InvalidArgument):
                task.wait_stream(layer, 0)
        task.wait(LIMIT)

    def test_of_a_group_that_was_removed(self):
        before = self.group.number
        self.group.remove()
        self.group.remove()
        for call in (lambda: self.group.load(self.ids, range(NUM)),
                     lambda: self.group.lookup(self.ids)):
            with self.assertRaises(ucmfs.InvalidArgument):
                call()
        group = self.loader.add_group(self.layout, self.space)
        self.assertNotEqual(group.number, before)
        group.save(self.ids, range(NUM)).wait(LIMIT)

    def test_of_a_group_that_is_in_use(self):
        self.group.save(self.ids, range(NUM)).wait(LIMIT)
        with ucmfs.Loader(MOUNT, io="threads") as loader:
            group = loader.add_group(self.layout, self.space)
            with daemon_stopped():
                task = group.load(self.ids, range(NUM))
                with self.assertRaises(ucmfs.Busy) as caught:
                    group.remove()
                self.assertIn("not done", str(caught.exception))
            task.wait(LIMIT)
            group.remove()

    def test_after_the_end(self):
        self.loader.close()
        self.loader.close()
        for call in (lambda: self.group.load(self.ids, range(NUM)),
                     self.loader.stats, self.loader.describe,
                     lambda: self.group.lookup(self.ids)):
            with self.assertRaises(ucmfs.InvalidArgument):
                call()


class SaveBudget(Case):
    loader_options = {"threads": 1, "staging_bytes": 1}

    def test_drops_what_is_over(self):
        num = 2 * (16 << 20) // BLOCK  # the budget: 16 MiB
        ids = join(id_of(f"{self.name} over {i}") for i in range(num))
        with daemon_stopped():
            first = self.group.save(self.ids, range(NUM))
            task = self.group.save(ids, [i % NUM for i in range(num)])
        errors = [o.err for o in task.result(LIMIT)]
        self.assertIn(errno.ENOBUFS, errors)
        self.assertLessEqual(set(errors), {0, errno.ENOBUFS})
        with self.assertRaises(ucmfs.Dropped):
            task.wait()
        first.wait(LIMIT)


class WriteBuffer(Case):
    loader_options = {"io": "threads", "write_buffer_bytes": 64 << 20}

    def test_frees_pages_before_they_are_written(self):
        with daemon_stopped():
            task = self.group.save(self.ids, range(NUM))
            self.assertTrue(task.wait_copied(LIMIT))
            self.assertTrue(task.copied())
            self.assertFalse(task.done())
            self.memory.clear()
        task.wait(LIMIT)
        self.assertTrue(task.copied())
        self.group.load(self.ids, range(NUM)).wait(LIMIT)
        self.assertEqual(self.memory.content, self.want)
        self.assertGreater(self.loader.stats()["save_buffered_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
