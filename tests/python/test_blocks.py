# SPDX-License-Identifier: Apache-2.0
"""What is done to the blocks of a mount by their ids."""

import errno
import itertools
import os
import unittest

import ucmfs
from tests.python.support import (LIMIT, MOUNT, TIER, id_of, join, needs_mount,
                                  new_space, pages_layout, payload_of,
                                  wait_unheld)

NUM = 1500  # more than a batch of the daemon's
counter = itertools.count()


@needs_mount
class OfAMount(unittest.TestCase):
    def setUp(self):
        self.space = new_space(f"blocks-{os.getpid()}-{next(counter)}")
        self.ids = [id_of(f"{self.space} {i}") for i in range(4)]
        _, layout = pages_layout(join(payload_of(i) for i in range(4)))
        with ucmfs.Loader(MOUNT) as loader:
            loader.add_group(layout, self.space).save(
                self.ids, range(4)).wait(LIMIT)
        self.blocks = ucmfs.Blocks(MOUNT)
        self.addCleanup(self.blocks.close)
        wait_unheld(self.blocks, self.ids, self.space)

    def there(self):
        with ucmfs.Index(MOUNT, self.space) as index:
            return list(index.lookup(self.ids)[0])

    def test_a_hint_leaves_them_as_they_are(self):
        _, layout = pages_layout(bytes(4 * len(payload_of(0))))
        with ucmfs.Loader(MOUNT) as loader:
            group = loader.add_group(layout, self.space)
            group.prefetch([*self.ids, id_of("absent")])
        self.assertEqual(
            self.blocks.warm([self.ids[0], id_of("absent")], self.space),
            [0, errno.ENOENT])
        self.assertEqual(self.there(), [1, 1, 1, 1])

    def test_are_evicted_if_not_pinned(self):
        self.assertEqual(self.blocks.pin(self.ids[:1], self.space), [0])
        self.assertEqual(
            self.blocks.evict([*self.ids[:2], id_of("absent")], self.space),
            [errno.EPERM, 0, errno.ENOENT])
        self.assertEqual(self.there(), [1, 0, 1, 1])
        self.assertEqual(self.blocks.unpin(self.ids[:1], self.space), [0])
        self.assertEqual(self.blocks.evict(self.ids[:1], self.space), [0])
        self.assertEqual(self.there(), [0, 0, 1, 1])

    def test_are_removed_pinned_or_not(self):
        self.blocks.pin(self.ids[:1], self.space)
        self.assertEqual(
            self.blocks.remove([*self.ids[:2], id_of("absent")], self.space),
            [0, 0, errno.ENOENT])
        self.assertEqual(self.there(), [0, 0, 1, 1])

    def test_are_located(self):
        self.blocks.pin(self.ids[1:2], self.space)
        self.assertEqual(self.blocks.touch(self.ids[:1], self.space), [0])
        places = self.blocks.locate([*self.ids[:2], id_of("absent")],
                                    self.space)
        self.assertIsNone(places[2])
        self.assertEqual([(p.tier, p.directory, p.size, p.pinned)
                          for p in places[:2]],
                         [(0, 0, 8192, False), (0, 0, 8192, True)])
        self.assertGreater(places[0].uses, 0)
        path = self.blocks.path(self.ids[0], self.space)
        self.assertTrue(path.startswith(os.path.realpath(TIER)), path)
        self.assertEqual(os.stat(path).st_size, 8192)
        with self.assertRaises(ucmfs.NotFound):
            self.blocks.path(id_of("absent"), self.space)

    def test_may_be_expected(self):
        before, = self.blocks.locate(self.ids[:1], self.space)
        self.assertEqual(
            self.blocks.touch([self.ids[0], id_of("absent")], self.space,
                              expected=True), [0, errno.ENOENT])
        self.assertEqual(self.blocks.locate(self.ids[:1], self.space),
                         [before])
        self.assertEqual(self.blocks.evict(self.ids[:1], self.space), [0])

    def test_may_be_kept_and_ended(self):
        uses = self.blocks.locate(self.ids[:1], self.space)[0].uses
        ids = [self.ids[0], id_of("absent")]
        for seconds in (60, 3600, 0.0001):
            self.assertEqual(self.blocks.keep(ids, self.space,
                                              seconds=seconds),
                             [0, errno.ENOENT])
        self.assertEqual(self.blocks.locate(self.ids[:1],
                                            self.space)[0].uses, uses)
        self.assertEqual(self.blocks.end(ids, self.space), [0, errno.ENOENT])
        for seconds in (3600.001, 0, -1, 2.0 ** 32, float("nan")):
            with self.assertRaisesRegex(ucmfs.InvalidArgument, "an hour at"):
                self.blocks.keep(ids, self.space, seconds=seconds)

    def test_numbers_that_c_would_cut_are_refused(self):
        blocks, ids, space = self.blocks, self.ids, self.space
        with ucmfs.Index(MOUNT, space) as index:
            for name, call in (
                    ("block_bytes -1", lambda: blocks.offer(
                        ids, space, block_bytes=-1)),
                    ("ids", lambda: blocks.path(16, space)),
                    ("ids", lambda: index.entry(16))):
                with self.subTest(name):
                    with self.assertRaises(ucmfs.InvalidArgument) as caught:
                        call()
                    self.assertIn(name, str(caught.exception))

    def test_are_found_by_a_rescan_and_on_disk_by_a_checkpoint(self):
        path = self.blocks.path(self.ids[0], self.space)
        aside = path + ".aside"
        os.rename(path, aside)
        self.assertEqual(self.blocks.remove(self.ids[:1], self.space), [0])
        self.assertEqual(self.there(), [0, 1, 1, 1])
        os.rename(aside, path)
        self.blocks.rescan()
        self.assertEqual(self.there(), [1, 1, 1, 1])
        self.blocks.flush()
        self.blocks.checkpoint()

    def test_may_be_many(self):
        ids = [id_of(f"none {i}") for i in range(NUM)]
        ids[0], ids[-1] = self.ids[0], self.ids[3]
        # a diff of so many takes minutes
        self.assertTrue(self.blocks.touch(ids, self.space) ==
                        [0, *[errno.ENOENT] * (NUM - 2), 0])
        places = self.blocks.locate(ids, self.space)
        self.assertEqual([i for i, at in enumerate(places) if at],
                         [0, NUM - 1])
        self.assertEqual(self.blocks.touch([], self.space), [])

    def test_are_of_a_space_and_a_mount_that_are_there(self):
        for call in (self.blocks.touch, self.blocks.locate):
            with self.assertRaises(ucmfs.NotFound):
                call(self.ids, "no-such-space")
        for space in ("..", "a/b", "x" * 300):
            with self.assertRaises(ucmfs.UcmfsError):
                self.blocks.remove(self.ids, space)
        with self.assertRaises(ucmfs.NotFound):
            ucmfs.Blocks(os.path.join(TIER, ".."))
        self.blocks.close()
        with self.assertRaises(ucmfs.InvalidArgument):
            self.blocks.touch(self.ids)


if __name__ == "__main__":
    unittest.main()
