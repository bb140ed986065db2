# SPDX-License-Identifier: Apache-2.0
"""Loader, groups and tasks, on a mount, against what was written."""

import array
import asyncio
import ctypes
import errno
import fcntl
import gc
import itertools
import os
import resource
import select
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import ucmfs
from ucmfs import task as task_module
from tests.python.support import (BLOCK, LIMIT, MOUNT, TIER, Memory,
                                  backing_file, daemon_stopped, flip, id_of,
                                  join, needs_mount, needs_numpy, new_space,
                                  numpy, pages_layout, payload_of)

CONTROL = os.path.join(os.path.dirname(__file__), "..", "lib",
                       "control.py")
NUM = 64
numbers = itertools.count()


@needs_mount
class Case(unittest.TestCase):
    """A loader, a space of its own, and pages of what is to be saved."""

    loader_options = {}

    def setUp(self):
        self.name = f"loader-{next(numbers)}"
        self.space = new_space(self.name)
        self.loader = ucmfs.Loader(MOUNT, **self.loader_options)
        self.addCleanup(self.loader.close)
        self.want = join(payload_of(f"{self.name} {i}") for i in range(NUM))
        self.ids = join(id_of(f"{self.name} {i}") for i in range(NUM))
        self.memory, self.layout = pages_layout(self.want)
        self.group = self.loader.add_group(self.layout, self.space)

    def saved(self):
        self.group.save(self.ids, range(NUM)).wait(LIMIT)
        self.memory.clear()

    def id(self, i):
        return self.ids[16 * i:16 * i + 16]

    def page(self, i):
        return self.memory.content[BLOCK * i:BLOCK * (i + 1)]


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


class Completions(Case):
    """One call tells of all tasks that have ended."""

    def take(self, queue, num):
        tasks, end = [], time.monotonic() + LIMIT
        while len(tasks) < num:
            self.assertLess(time.monotonic(), end, "nothing ends")
            tasks += queue.take(1.0)
        return tasks

    def test_tell_each_task_once(self):
        with ucmfs.Completions() as queue:
            self.assertEqual(queue.take(), [])
            tasks = [self.group.save(self.id(i), [i], completions=queue)
                     for i in range(NUM)]
            taken = self.take(queue, NUM)
            self.assertEqual(set(taken), set(tasks))
            self.assertEqual([task.errors() for task in taken],
                             [[0]] * NUM)
            self.assertEqual(queue.take(), [])
            self.memory.clear()
            self.group.load(self.ids, range(NUM), completions=queue)
            (load,) = self.take(queue, 1)
            self.assertEqual(load.errors(), [0] * NUM)
            self.assertEqual(self.memory.content[:BLOCK], self.want[:BLOCK])

    def test_whose_end_was_seen_are_not_told(self):
        with ucmfs.Completions() as queue:
            task = self.group.save(self.ids, range(NUM), completions=queue)
            task.wait(LIMIT)
            self.assertEqual(queue.take(), [])

    def test_tell_of_free_pages(self):
        with ucmfs.Completions() as queue:
            save = self.group.save(self.ids, range(NUM), completions=queue,
                                   tell_copied=True)
            taken = self.take(queue, 1)
            self.assertTrue(save.copied())
            if not save.done():
                taken += self.take(queue, 1)
            self.assertTrue(save.done())
            self.assertEqual(set(taken), {save})
            self.assertEqual(queue.take(), [])

    def test_are_known_by_a_descriptor(self):
        with ucmfs.Completions() as queue:
            self.assertEqual(select.select([queue], [], [], 0)[0], [])
            self.group.save(self.ids, range(NUM), completions=queue)
            self.assertEqual(select.select([queue], [], [], LIMIT)[0],
                             [queue])
            self.assertEqual(len(queue.take()), 1)
            self.assertEqual(select.select([queue], [], [], 0)[0], [])

    def test_are_waited_for_in_a_process_with_many_files(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        many = 2048 if hard == resource.RLIM_INFINITY else min(2048, hard)
        if many <= 1024:
            self.skipTest(f"{hard} descriptors at most")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE,
                        (soft, hard))
        with ucmfs.Completions() as queue:
            high = fcntl.fcntl(queue.fileno(), fcntl.F_DUPFD_CLOEXEC, 1024)
            self.addCleanup(os.close, high)
            with mock.patch.object(queue, "fileno", lambda: high):
                self.assertEqual(queue.take(0.001), [])
                task = self.group.save(self.ids, range(NUM),
                                       completions=queue)
                self.assertEqual(queue.take(LIMIT), [task])

    def test_are_not_closed_below_a_task(self):
        queue = ucmfs.Completions()
        task = self.group.save(self.ids, range(NUM), completions=queue)
        with self.assertRaisesRegex(RuntimeError, "1 tasks are under way"):
            queue.close()
        task.wait(LIMIT)
        queue.close()
        queue.close()
        with self.assertRaisesRegex(RuntimeError, "closed"):
            queue.take()


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


class Waiting(Case):
    """The daemon is stopped while a load is under way."""

    loader_options = {"io": "threads"}

    def pending(self, **options):
        """A load that cannot end before the daemon goes on."""
        return self.group.load(self.ids, range(NUM), **options)

    def setUp(self):
        super().setUp()
        self.saved()

    def test_times_out_and_goes_on(self):
        with daemon_stopped():
            task = self.pending()
            self.assertFalse(task.done())
            for ask in (task.errors, task.skipped, task.outcomes,
                        lambda: task.num_failed):
                with self.assertRaises(RuntimeError):
                    ask()
            begin = time.monotonic()
            for wait in (task.wait, task.result):
                with self.assertRaises(ucmfs.Timeout) as caught:
                    wait(0.05)
                self.assertIn("load", str(caught.exception))
            self.assertGreaterEqual(time.monotonic() - begin, 0.1)
            with self.assertRaises(TimeoutError):
                task.wait_layer(0, 0)
        task.wait(LIMIT)
        self.assertEqual(self.memory.content, self.want)
        self.assertTrue(task.done())

    def test_leaves_the_gil_to_others(self):
        counted = []
        stop = threading.Event()

        def count():
            n = 0
            while not stop.is_set():
                n += 1
            counted.append(n)

        with daemon_stopped():
            task = self.pending()
            thread = threading.Thread(target=count)
            thread.start()
            try:
                # one call in C of half a second
                with self.assertRaises(ucmfs.Timeout):
                    task.wait(0.5)
            finally:
                stop.set()
                thread.join()
        # with the GIL held it would be a few turns before and after
        self.assertGreater(counted[0], 10000)
        task.wait(LIMIT)

    def test_in_an_event_loop_lets_it_run(self):
        async def main(task):
            beats = 0

            async def wait():
                await task

            async def beat():
                nonlocal beats
                while beats < 20:
                    beats += 1
                    await asyncio.sleep(0.001)
                os.kill(int(os.environ["UCMFS_TEST_DAEMON"]), 18)

            await asyncio.wait_for(
                asyncio.gather(wait(), wait(), wait(), beat()), LIMIT)
            await task  # again, done
            return beats

        before = threading.active_count()
        with daemon_stopped():
            task = self.pending()
            self.assertEqual(asyncio.run(main(task)), 20)
        self.assertEqual(threading.active_count(), before)
        self.assertEqual(self.memory.content, self.want)

    def test_in_an_event_loop_can_be_given_up(self):
        async def main(task):
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(wrapped(task), 0.05)

        async def wrapped(task):
            await task

        with daemon_stopped():
            task = self.pending()
            asyncio.run(main(task))
            self.assertFalse(task.done())
        task.wait(LIMIT)

    def test_in_an_event_loop_raises(self):
        async def main():
            with self.assertRaises(ucmfs.NotFound) as caught:
                await self.group.load(id_of("nowhere"), [0])
            self.assertEqual(len(caught.exception.outcomes), 1)

        asyncio.run(main())

    def test_with_an_eventfd_of_ones_own(self):
        fd = task_module.new_eventfd()
        self.addCleanup(os.close, fd)

        async def main(task):
            await task

        tasks = [self.pending(eventfd=fd) for _ in range(3)]
        told = 0
        while told < 3:
            self.assertTrue(select.select([fd], [], [], LIMIT)[0])
            told += int.from_bytes(os.read(fd, 8), "little")
        self.assertTrue(all(t.done() for t in tasks))
        asyncio.run(main(self.pending(eventfd=fd)))

    def test_past_the_deadline_ends(self):
        with daemon_stopped():
            task = self.pending(deadline_ms=50)
            with self.assertRaises(ucmfs.Timeout) as caught:
                task.wait(LIMIT)
            self.assertEqual(set(task.errors()), {errno.ETIMEDOUT})
            self.assertEqual(len(caught.exception.outcomes), NUM)

    def test_ends_by_cancel(self):
        with daemon_stopped():
            task = self.pending()
            task.cancel()
            with self.assertRaises(ucmfs.Cancelled):
                task.wait(LIMIT)
        task.cancel()

    def test_ends_by_free_once_and_again(self):
        with daemon_stopped():
            task = self.pending()
            task.free()
            self.assertTrue(task.done())
            self.assertEqual(set(task.errors()), {errno.ECANCELED})
        task.free()

    def test_ends_for_all_threads_when_one_frees(self):
        seen = []

        def wait(task):
            try:
                task.wait(LIMIT)
            except ucmfs.Cancelled as error:
                seen.append(error)

        with daemon_stopped():
            task = self.pending()
            threads = [threading.Thread(target=wait, args=(task,))
                       for _ in range(8)]
            for thread in threads:
                thread.start()
            task.free()
            for thread in threads:
                thread.join()
        self.assertEqual(len(seen), 8)

    def test_of_many_threads_at_once(self):
        errors = []

        def load(seed):
            try:
                for i in range(30):
                    n = (seed * 31 + i * 7) % NUM
                    task = self.group.load(self.id(n), [n])
                    if i % 3 == 0:
                        while not task.done():
                            time.sleep(0)
                    elif i % 3 == 1:
                        task.wait(LIMIT)
                    else:
                        del task
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [threading.Thread(target=load, args=(n,))
                   for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])


class Dropped(Case):
    loader_options = {"io": "threads"}

    def test_tasks_go_on_with_their_memory(self):
        self.saved()
        memory, layout = pages_layout(bytes(NUM * BLOCK))
        other = self.loader.add_group(layout, self.space)
        address = memory.address
        with daemon_stopped():
            other.load(self.ids, range(NUM))
            del memory, layout, other
            gc.collect()
        deadline = time.monotonic() + LIMIT
        while ctypes.string_at(address, NUM * BLOCK) != self.want:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)

    def test_saves_are_finished_at_the_end(self):
        self.group.save(self.ids, range(NUM))
        self.loader.close()
        with ucmfs.Loader(MOUNT) as loader:
            group = loader.add_group(self.layout, self.space)
            self.assertEqual(group.lookup(self.ids), [True] * NUM)

    def test_of_two_who_close_both_wait(self):
        self.saved()
        with daemon_stopped():
            self.group.load(self.ids, range(NUM))
            threads = [threading.Thread(target=self.loader.close)
                       for _ in range(4)]
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        self.loader.close()

    def test_loads_are_cancelled_at_the_end(self):
        self.saved()
        with daemon_stopped():
            task = self.group.load(self.ids, range(NUM))
            closer = threading.Thread(target=self.loader.close)
            closer.start()
            with self.assertRaises(ucmfs.Cancelled):
                task.wait(LIMIT)
        closer.join()
        self.assertTrue(task.done())

    def test_tasks_leave_no_descriptors(self):
        self.saved()
        self.group.load(self.ids, range(NUM)).wait(LIMIT)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(200):
            self.group.load(self.ids[:16], [0])
        for task in [self.group.load(self.ids[:16], [0])
                     for _ in range(50)]:
            task.wait(LIMIT)
        deadline = time.monotonic() + LIMIT
        while self.loader._tasks:
            self.assertLess(time.monotonic(), deadline)
            self.loader._reap_at = 0
            self.loader._reap()
        # each thread of the loader may have opened the block by now
        self.assertLess(len(os.listdir("/proc/self/fd")), before + 10)

    def test_tasks_are_few(self):
        self.saved()
        for _ in range(500):
            self.group.load(self.ids[:16], [0])
            time.sleep(0)
        self.assertLess(len(self.loader._tasks), 500)

    def test_in_a_child_nothing_is_waited_for(self):
        self.saved()
        child = os.fork()
        if not child:
            status = 1
            try:
                self.loader.close()
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.group.load(self.ids, range(NUM)).wait(LIMIT)


if __name__ == "__main__":
    unittest.main()


class _Lending(task_module.Task):
    """A load that is done while its only page is lent, as C has it."""

    def __init__(self, owner):
        self.lends = True
        self.freed = 0
        super().__init__(owner, 1, bytes(16), [self], -1, "load")

    def _c_poll(self, handle):
        return array.array("i", [-errno.ETIMEDOUT, 0, 0])

    def _c_wait(self, handle, timeout_ms):
        return -errno.EIO

    def _c_wait_returned(self, handle, timeout_ms):
        return -errno.ETIMEDOUT if self.lends else -errno.EIO

    def _c_is_returned(self, handle):
        return not self.lends

    def _c_cancel(self, handle):
        pass

    def _c_free(self, handle):
        self.freed += 1


class Lent(unittest.TestCase):
    """Pages that are lent keep their task, and what it works on."""

    def setUp(self):
        self.owner = task_module.TaskOwner()
        self.task = _Lending(self.owner)

    def test_until_they_are_returned(self):
        task = self.task
        self.assertTrue(task.done())
        self.assertEqual(task.errors(), [errno.ETIMEDOUT])
        self.assertEqual(len(task.result()), 1)
        self.assertFalse(task.returned())
        with self.assertRaises(ucmfs.Timeout):
            task.wait_returned(0.01)
        self.assertEqual(task.freed, 0)
        self.assertIn(task, self.owner._tasks)
        task.lends = False
        task.wait_returned(LIMIT)
        self.assertTrue(task.returned())
        self.assertEqual(task.freed, 1)
        self.assertNotIn(task, self.owner._tasks)
        self.assertEqual(task.errors(), [errno.ETIMEDOUT])

    def test_a_look_at_it_frees_it(self):
        self.assertFalse(self.task.returned())
        self.task.lends = False
        self.assertTrue(self.task.returned())
        self.assertTrue(self.task.returned())
        self.assertEqual(self.task.freed, 1)

    def test_are_waited_for_at_a_close(self):
        threading.Timer(0.05, setattr, (self.task, "lends", False)).start()
        self.owner._end_tasks(cancel=False)
        self.assertEqual(self.task.freed, 1)


class Lending(Case):
    """A load that may lend and does not have to is as any other."""

    def test_a_load_in_time_lends_nothing(self):
        self.saved()
        for lend in "never", "local", "always":
            task = self.group.load(self.ids, range(NUM), lend=lend,
                                   deadline_ms=60000)
            task.wait(LIMIT)
            self.assertTrue(task.returned())
            self.assertEqual(task.lent(), [False] * NUM)
            self.assertEqual(self.memory.content[:BLOCK], self.want[:BLOCK])
            self.memory.clear()
        with self.assertRaises(ucmfs.InvalidArgument):
            self.group.load(self.ids, range(NUM), lend="sometimes")
