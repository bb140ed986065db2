# SPDX-License-Identifier: Apache-2.0
"""Tasks of a loader on a mount: their ends, waits, drops, and pages that they
lend."""

import array
import asyncio
import ctypes
import errno
import fcntl
import gc
import os
import resource
import select
import threading
import time
import unittest
from unittest import mock

import ucmfs
from ucmfs import task as task_module
from tests.python.loader_case import NUM, Case
from tests.python.support import (
    BLOCK, LIMIT, MOUNT, daemon_stopped, id_of, pages_layout)


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


if __name__ == "__main__":
    unittest.main()
