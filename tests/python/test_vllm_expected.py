# SPDX-License-Identifier: Apache-2.0
"""What a mount is told of blocks that are about to be loaded."""

from __future__ import annotations

import errno
import threading
import time
import unittest
from typing import Any, List, Tuple
from unittest import mock

from tests.python.support import (LIMIT, MOUNT, id_of, needs_mount,
                                  new_space)
from ucmfs.blocks import Blocks
from ucmfs.errors import NotConnected
from ucmfs.vllm import expected as module
from ucmfs.vllm import mount as mount_py
from ucmfs.vllm.expected import MOST, Expected


class FakeBlocks:
    """Of a mount that may fail, and hang."""

    told: List[Tuple[bytes, str]] = []
    opened = closed = 0
    fails: List[Exception] = []
    reached = threading.Event()
    go_on = threading.Event()

    def __init__(self, mount: str) -> None:
        FakeBlocks.opened += 1

    def touch(self, ids: bytes, space: str, *, expected: bool) -> None:
        assert expected
        self.reached.set()
        assert self.go_on.wait(LIMIT)
        if self.fails:
            raise self.fails.pop()
        self.told.append((ids, space))

    def close(self) -> None:
        FakeBlocks.closed += 1


class Case(unittest.TestCase):

    def setUp(self) -> None:
        FakeBlocks.told, FakeBlocks.fails = [], []
        FakeBlocks.opened = FakeBlocks.closed = 0
        FakeBlocks.reached = threading.Event()
        FakeBlocks.go_on = threading.Event()
        patch = mock.patch.object(module, "Blocks", FakeBlocks)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(FakeBlocks.go_on.set)

    def told(self, num: int) -> List[Tuple[bytes, str]]:
        end = time.monotonic() + LIMIT
        while len(FakeBlocks.told) < num:
            self.assertLess(time.monotonic(), end, "it is not told")
            threading.Event().wait(0.001)
        return FakeBlocks.told

    def test_is_told_by_a_thread_in_order(self) -> None:
        expected = Expected("/mnt")
        for i in range(3):
            expected.add(id_of(i), "s")
        self.assertTrue(FakeBlocks.reached.wait(LIMIT))
        FakeBlocks.go_on.set()
        self.assertEqual(self.told(3), [(id_of(i), "s") for i in range(3)])
        expected.close()
        self.assertEqual((FakeBlocks.opened, FakeBlocks.closed), (1, 1))

    def test_nothing_takes_no_thread(self) -> None:
        expected = Expected("/mnt")
        expected.add(b"", "s")
        expected.close()
        self.assertEqual(FakeBlocks.opened, 0)

    def test_a_mount_that_went_is_connected_again(self) -> None:
        expected = Expected("/mnt")
        FakeBlocks.go_on.set()
        FakeBlocks.fails = [NotConnected("gone")]
        expected.add(id_of(1), "s")
        expected.add(id_of(2), "s")
        self.assertEqual(self.told(1), [(id_of(2), "s")])
        expected.close()
        self.assertEqual((FakeBlocks.opened, FakeBlocks.closed), (2, 2))

    def test_what_is_too_much_is_left_out(self) -> None:
        expected = Expected("/mnt")
        expected.add(id_of(0), "s")
        self.assertTrue(FakeBlocks.reached.wait(LIMIT))
        for i in range(MOST + 10):
            expected.add(id_of(1 + i), "s")
        FakeBlocks.go_on.set()
        self.assertEqual(len(self.told(1 + MOST)), 1 + MOST)
        expected.close()

    def test_the_end_does_not_wait_for_a_mount_that_hangs(self) -> None:
        for num in (1, MOST + 1):
            expected = Expected("/mnt")
            for i in range(num):
                expected.add(id_of(i), "s")
            self.assertTrue(FakeBlocks.reached.wait(LIMIT))
            with mock.patch.object(mount_py, "CLOSE_SECONDS", 0.01):
                expected.close()
            expected.add(id_of(0), "s")
            thread = expected._chores._thread
            FakeBlocks.go_on.set()
            thread.join(LIMIT)
            self.assertFalse(thread.is_alive())
            self.assertEqual(len(FakeBlocks.told), 1)
            self.setUp()

    @needs_mount
    def test_a_mount_takes_it(self) -> None:
        results: List[Any] = []

        class Seen(Blocks):
            def touch(self, *args: Any, **terms: Any) -> List[int]:
                results.append(super().touch(*args, **terms))
                return results[-1]

        space = new_space("expected")
        with mock.patch.object(module, "Blocks", Seen):
            expected = Expected(MOUNT)
            expected.add(id_of(1) + id_of(2), space)
            end = time.monotonic() + LIMIT
            while not results and time.monotonic() < end:
                threading.Event().wait(0.001)
            expected.close()
        self.assertEqual(results, [2 * [errno.ENOENT]])


if __name__ == "__main__":
    unittest.main()
