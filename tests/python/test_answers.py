# SPDX-License-Identifier: Apache-2.0
"""Answers for a scheduler that must not wait: what is known of a block, for
how long, and what becomes of it when the thread that looks hangs."""

import errno
import logging
import tracemalloc
import unittest
from typing import Callable, List, Set
from unittest import mock

from ucmfs.errors import UcmfsError, from_errno
from ucmfs.vllm import answers
from ucmfs.vllm.answers import FRESH_SECONDS, KEPT_SECONDS, Answers

LATE = 7.0
KNOWN, NOT_THERE, UNKNOWN = (b"\1", b"\0"), (b"\0", b"\0"), (b"\0", b"\1")


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def ids_of(*numbers: int) -> bytes:
    return b"".join(map(id_of, numbers))


class Case(unittest.TestCase):
    """Blocks in .there; looks are made by run(), and .asked has their ids."""

    def setUp(self) -> None:
        self.now = 1000.0
        self.there: Set[bytes] = set()
        self.asked: List[List[bytes]] = []
        self.chores: List[Callable[[], None]] = []
        self.during: Callable[[], None] = lambda: None
        self.answers = Answers("test", self.look, self, LATE,
                               lambda: self.now)
        log = logging.getLogger("vllm.ucmfs")
        log.setLevel(logging.CRITICAL)
        self.addCleanup(log.setLevel, logging.NOTSET)

    def add(self, chore: Callable[[], None]) -> None:
        """As the asker."""
        self.chores.append(chore)

    def look(self, ids: bytes):
        each = [ids[at:at + 16] for at in range(0, len(ids), 16)]
        self.asked.append(each)
        found = bytes(id in self.there for id in each)
        self.during()
        return found, bytes(len(each))

    def run_chores(self) -> None:
        while self.chores:
            self.chores.pop(0)()

    def ask(self, *numbers: int):
        return self.answers.lookup(ids_of(*numbers))

    def asked_for(self, *numbers: int) -> int:
        """How often, in all."""
        return sum(ids.count(id_of(number)) for ids in self.asked
                   for number in numbers)


class Age(Case):

    def test_unknown_until_the_thread_has_looked(self) -> None:
        self.there = {id_of(1)}
        for _ in range(3):
            self.assertEqual(self.ask(1, 2), (b"\0\0", b"\1\1"))
        self.assertEqual(len(self.chores), 1)
        self.run_chores()
        self.assertEqual(self.ask(1, 2), (b"\1\0", b"\0\0"))
        self.assertEqual(self.asked, [[id_of(1), id_of(2)]])

    def test_prefix(self) -> None:
        self.there = {id_of(1), id_of(2), id_of(4)}
        self.assertEqual(self.answers.prefix(ids_of(1, 2, 3)), (0, True))
        self.run_chores()
        for numbers, want in (((1, 2), (2, False)), ((1, 3, 2), (1, False)),
                              ((1, 2, 4), (2, True)), ((), (0, False))):
            self.assertEqual(self.answers.prefix(ids_of(*numbers)), want)

    def test_fresh_answers_are_not_asked_for_again(self) -> None:
        self.ask(1)
        self.run_chores()
        self.there = {id_of(1)}
        self.now += FRESH_SECONDS - 0.1
        self.assertEqual(self.ask(1), NOT_THERE)
        self.assertEqual(self.chores, [])

    def test_stale_ones_are_answers_and_asked_for(self) -> None:
        """Both ways: saved by another, and removed."""
        self.there = {id_of(1)}
        self.ask(1, 2)
        self.run_chores()
        self.there = {id_of(2)}
        self.now += FRESH_SECONDS
        self.assertEqual(self.ask(1, 2), (b"\1\0", b"\0\0"))
        self.assertEqual(self.ask(1, 2), (b"\1\0", b"\0\0"))
        self.run_chores()
        self.assertEqual(self.ask(1, 2), (b"\0\1", b"\0\0"))
        self.assertEqual(self.asked_for(1), 2)

    def test_old_ones_are_forgotten(self) -> None:
        self.there = {id_of(1)}
        self.ask(1)
        self.run_chores()
        self.now += KEPT_SECONDS
        self.assertEqual(self.ask(1), UNKNOWN)
        self.run_chores()
        self.assertEqual(self.ask(1), KNOWN)

    def test_many_are_looked_for_in_pieces(self) -> None:
        numbers = range(2 * answers.PIECE + 1)
        self.ask(*numbers)
        self.ask(10 ** 6)
        self.run_chores()
        self.assertEqual([len(ids) for ids in self.asked],
                         [answers.PIECE, answers.PIECE, 1, 1])
        self.assertEqual(self.ask(*numbers)[1], bytes(len(numbers)))


class Learned(Case):

    def test_at_once(self) -> None:
        self.answers.learn(id_of(1), True)
        self.assertEqual(self.ask(1), KNOWN)
        self.answers.learn(id_of(1), False)
        self.assertEqual(self.ask(1), NOT_THERE)
        self.assertEqual(self.chores, [])

    def test_newer_than_a_look_that_is_made(self) -> None:
        for there in (True, False):
            self.there = set() if there else {id_of(2)}
            self.during = lambda: self.answers.learn(id_of(2), there)
            self.ask(1, 2)
            self.run_chores()
            self.assertEqual(self.ask(2), KNOWN if there else NOT_THERE)
            self.now += KEPT_SECONDS

    def test_newer_than_a_look_that_waits(self) -> None:
        self.ask(1)
        self.answers.learn(id_of(1), True)
        self.run_chores()
        self.assertEqual(self.ask(1), KNOWN)
        self.assertEqual(self.asked_for(1), 0)


class Late(Case):

    def hang(self) -> None:
        """Since more than LATE seconds, with block 1 known to be there."""
        self.there = {id_of(1)}
        self.ask(1)
        self.run_chores()
        self.now += KEPT_SECONDS - LATE - 1
        self.ask(2)
        self.now += LATE + 0.5

    def test_what_is_not_known_is_absent_and_not_asked_for(self) -> None:
        self.hang()
        with self.assertLogs("vllm.ucmfs", "WARNING") as logs:
            for _ in range(2):
                self.assertEqual(self.ask(1, 2, 3), (b"\1\0\0", b"\0\0\0"))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("have waited for 7 s", logs.output[0])
        self.there.add(id_of(2))
        self.run_chores()
        self.assertEqual(self.asked_for(3), 0)
        self.assertEqual(self.ask(2), KNOWN)
        self.assertEqual(self.ask(3), UNKNOWN)

    def test_the_oldest_question_counts(self) -> None:
        """Those that come later do not wait for their own bound."""
        self.ask(1)
        self.now += LATE - 1
        self.assertEqual(self.ask(2), UNKNOWN)
        self.now += 2
        self.assertEqual(self.ask(2), NOT_THERE)

    def test_a_thread_that_gets_on_is_not_late(self) -> None:
        self.ask(*range(answers.PIECE * 3))
        self.ask(10 ** 6)
        self.now += LATE - 1
        self.during = lambda: self.assertEqual(self.ask(10 ** 6), UNKNOWN)
        self.run_chores()
        self.assertEqual(self.ask(10 ** 6), NOT_THERE)

    def test_too_many_questions(self) -> None:
        with mock.patch.object(answers, "ASKED_MOST", 3):
            self.ask(1, 2, 3)
            self.assertEqual(self.ask(2, 4), (b"\0\0", b"\1\0"))
            self.run_chores()
            self.assertEqual(self.asked_for(4), 0)
            self.assertEqual(self.ask(4), UNKNOWN)


class Errors(Case):

    def fail(self) -> None:
        raise from_errno(errno.EIO, "a look")

    def test_are_told_once_and_what_is_asked_is_asked_anew(self) -> None:
        self.during = self.fail
        self.ask(1)
        self.ask(2)
        self.run_chores()
        self.during = lambda: None
        with self.assertRaises(UcmfsError) as caught:
            self.ask(1)
        self.assertEqual(caught.exception.errno, errno.EIO)
        self.assertEqual(self.ask(1, 2), (b"\0\0", b"\1\1"))
        self.run_chores()
        self.assertEqual(self.ask(1, 2), (b"\0\0", b"\0\0"))
        self.assertEqual(self.asked_for(2), 1)

    def test_no_look_after_the_end(self) -> None:
        self.ask(1)
        self.during = self.answers.end
        self.ask(*range(2 * answers.PIECE))
        self.run_chores()
        self.assertEqual(len(self.asked), 1)


class Bounds(Case):

    def test_the_least_wanted_are_forgotten(self) -> None:
        with mock.patch.object(answers, "KNOWN_MOST", 20):
            for number in range(100):
                self.answers.learn(id_of(number), True)
                self.assertEqual(self.ask(0), KNOWN)
        self.assertEqual(self.ask(99), KNOWN)
        self.assertEqual(self.ask(50), UNKNOWN)
        known = len(self.answers._young) + len(self.answers._old)
        self.assertLessEqual(known, 20)

    def test_memory(self) -> None:
        """What is said beside KNOWN_MOST."""
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        with mock.patch.object(answers, "KNOWN_MOST", 20_000):
            for at in range(0, 40_000, 4000):
                self.ask(*range(at, at + 4000))
                self.run_chores()
                self.asked.clear()
        self.assertLess(tracemalloc.get_traced_memory()[0], 20_000 * 150)


if __name__ == "__main__":
    unittest.main()
