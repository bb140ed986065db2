# SPDX-License-Identifier: Apache-2.0
"""Look-ups in the index of a mount."""

import itertools
import os
import threading
import unittest

import ucmfs
from tests.python.support import (LIMIT, MOUNT, id_of, join, needs_mount,
                                  new_space, pages_layout, payload_of)

NUM = 200
counter = itertools.count()


@needs_mount
class Lookups(unittest.TestCase):
    def setUp(self):
        self.space = new_space(f"index-{os.getpid()}-{next(counter)}")
        self.ids = [id_of(f"{self.space} {i}") for i in range(NUM)]
        _, layout = pages_layout(join(payload_of(i) for i in range(NUM)))
        with ucmfs.Loader(MOUNT) as loader:
            loader.add_group(layout, self.space).save(
                self.ids, range(NUM)).wait(LIMIT)
        self.index = ucmfs.Index(MOUNT, self.space)
        self.addCleanup(self.index.close)

    def test_answer_for_each(self):
        for num in (0, 1, 63, 64, 65, 128, NUM):
            ids = self.ids[:num]
            want = bytes([1] * num)
            for given in (ids, join(ids), bytearray(join(ids))):
                self.assertEqual(self.index.lookup(given),
                                 (want, bytes(num)))
        mixed = [i for one in self.ids for i in (one, id_of(one))]
        for look in self.index.lookup, self.index.peek:
            self.assertEqual(look(mixed),
                             (bytes([1, 0] * NUM), bytes(2 * NUM)))

    def test_count_prefixes(self):
        absent = id_of("absent")
        for at in (0, 1, 63, 64, NUM):
            ids = self.ids[:at] + [absent] + self.ids[at:]
            for given in (ids, join(ids), memoryview(join(ids))):
                self.assertEqual(self.index.prefix(given), (at, False))
        self.assertEqual(self.index.prefix(b""), (0, False))
        with self.assertRaises(ucmfs.InvalidArgument):
            self.index.prefix(b"x")

    def test_tell_of_a_block(self):
        entry = self.index.entry(self.ids[0])
        self.assertEqual(entry.size, 8192)
        self.assertEqual((entry.tier, entry.pinned), (0, False))
        self.assertIsNone(self.index.entry(id_of("absent")))

    def test_see_blocks_come_and_go(self):
        os.unlink(os.path.join(MOUNT, "spaces", self.space,
                               self.ids[1].hex()[:2],
                               self.ids[1].hex() + ".bin"))
        self.assertEqual(self.index.prefix(self.ids), (1, False))

    def test_tell_how_they_know(self):
        info = self.index.info()
        self.assertIn(info["backend"], ("map", "socket"))
        self.assertEqual(info["backend"] == "map", info["why"] is None)
        self.assertTrue(info["complete"])

    def test_of_the_default_space(self):
        with ucmfs.Index(MOUNT) as index:
            self.assertEqual(index.prefix(self.ids), (0, False))

    def test_of_threads_with_one_each(self):
        seen = []

        def look():
            with ucmfs.Index(MOUNT, self.space) as index:
                for _ in range(50):
                    seen.append(index.prefix(self.ids))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(seen), {(NUM, False)})

    def test_that_cannot_be_are_named(self):
        for space, kind in (("nowhere", ucmfs.NotFound),
                            ("../x", ucmfs.InvalidArgument)):
            with self.assertRaises(kind) as caught:
                ucmfs.Index(MOUNT, space)
            self.assertIn(space, str(caught.exception))
        self.index.close()
        self.index.close()
        for call in (self.index.info, lambda: self.index.prefix(b""),
                     lambda: self.index.lookup(b"")):
            with self.assertRaises(ucmfs.InvalidArgument):
                call()


if __name__ == "__main__":
    unittest.main()
