# SPDX-License-Identifier: Apache-2.0
"""What both ways into vLLM stand on: threads for what may hang, a link to a
mount that goes and comes back, pauses."""

from __future__ import annotations

import errno
import threading
import unittest
from typing import Any, Callable, List
from unittest import mock

import ucmfs
from tests.python.support import (LIMIT, MOUNT, id_of, needs_mount, pages_layout,
                                  payload_of)
from ucmfs.errors import NotConnected, Timeout, UcmfsError, from_errno
from ucmfs.vllm import mount as module
from ucmfs.vllm.mount import (Attempt, Chores, Link, Pause, Space, Teller,
                              cause_of, close_all, deadline_of, end_tasks,
                              remove_blocks, warm_blocks)


def seconds(**names: float) -> Any:
    return mock.patch.multiple(module, **names)


class Gate:
    """Something that hangs until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> str:
        self.reached.set()
        assert self.open.wait(LIMIT)
        return "through"


class Case(unittest.TestCase):

    def setUp(self) -> None:
        log = mock.patch.object(module, "log")
        self.log = log.start()
        self.addCleanup(log.stop)

    def gate(self) -> Gate:
        gate = Gate()
        self.addCleanup(gate.open.set)
        return gate

    def soon(self, what: Callable[[], Any]) -> Any:
        end = module.time.monotonic() + LIMIT
        while True:
            got = what()
            if got:
                return got
            self.assertLess(module.time.monotonic(), end, "nothing happens")
            threading.Event().wait(0.001)


class ChoresTest(Case):

    def test_one_after_another_in_a_thread_of_their_own(self) -> None:
        chores, seen = Chores("test"), []
        self.assertTrue(Chores("idle").end())  # without one
        for i in range(5):
            chores.add(lambda i=i: seen.append((i, threading.get_ident())))
        self.assertTrue(chores.end())
        self.assertEqual([i for i, _ in seen], list(range(5)))
        (thread,) = {thread for _, thread in seen}
        self.assertNotEqual(thread, threading.get_ident())

    def test_one_that_fails_does_not_stop_the_next(self) -> None:
        chores, seen = Chores("test"), []
        chores.add(lambda: 1 // 0)
        chores.add(lambda: seen.append(1))
        self.assertTrue(chores.end())
        self.assertEqual(seen, [1])
        self.log.exception.assert_called_once()

    def test_after_the_end_there_are_none(self) -> None:
        chores, seen = Chores("test"), []
        self.assertTrue(chores.end())
        chores.add(lambda: seen.append(1))
        self.assertTrue(chores.end())
        self.assertEqual(seen, [])

    def test_one_that_hangs_is_abandoned(self) -> None:
        chores, gate = Chores("test"), self.gate()
        chores.add(gate)
        with seconds(CLOSE_SECONDS=0.01):
            self.assertFalse(chores.end())
        gate.open.set()
        self.assertTrue(chores.end())

    def test_as_many_as_there_may_be(self) -> None:
        chores, gate, seen = Chores("test", 3), self.gate(), []
        chores.add(gate)
        self.assertTrue(gate.reached.wait(LIMIT))
        for _ in range(10):
            chores.add(lambda: seen.append(1))
        gate.open.set()
        self.assertTrue(chores.end())
        self.assertEqual(len(seen), 3)

    def test_questions(self) -> None:
        chores = Chores("test")
        self.assertNotEqual(chores.ask(threading.get_ident),
                            threading.get_ident())
        with self.assertRaises(ZeroDivisionError):
            chores.ask(lambda: 1 // 0)
        let_go = threading.Event()
        chores.add(lambda: let_go.wait(0.5))
        with seconds(LATE_SECONDS=0.01), self.assertRaises(Timeout):
            chores.ask(threading.get_ident)
        let_go.set()
        self.assertTrue(chores.end())


class AttemptTest(Case):

    def test_until_it_succeeds(self) -> None:
        results: List[Any] = [OSError("a"), OSError("a"), OSError("b"), 7]

        def make() -> Any:
            result = results.pop(0)
            if isinstance(result, Exception):
                raise result
            return result

        with seconds(RETRY_SECONDS=0.001):
            attempt = Attempt("test", make)
            self.assertEqual(self.soon(attempt.take), 7)
        self.assertIsNone(attempt.take())
        self.assertTrue(attempt.end())
        # each cause once
        self.assertEqual([str(call.args[1]) for call
                          in self.log.warning.call_args_list], ["a", "b"])

    def test_the_first_try_is_waited_for_and_no_other(self) -> None:
        gate = self.gate()
        attempt = Attempt("test", gate)
        began = module.time.monotonic()
        attempt.wait_once(0.01)
        attempt.wait_once(LIMIT)
        self.assertLess(module.time.monotonic() - began, LIMIT / 2)
        self.assertIsNone(attempt.take())

    def test_a_try_that_fails_at_once_is_not_waited_for(self) -> None:
        began = module.time.monotonic()
        attempt = Attempt("test", lambda: 1 // 0)
        attempt.wait_once(LIMIT)
        self.assertLess(module.time.monotonic() - began, LIMIT / 2)
        self.assertTrue(attempt.end())

    def test_what_nobody_wants_is_discarded(self) -> None:
        seen: List[Any] = []
        done = threading.Event()

        def discard(made: Any) -> None:
            seen.append(made)
            done.set()

        for late in (False, True):
            gate = self.gate()
            attempt = Attempt("test", gate, discard)
            self.assertTrue(gate.reached.wait(LIMIT))
            if late:
                attempt.give_up()
            gate.open.set()
            attempt.wait_once(LIMIT if not late else 0)
            attempt.give_up()
            self.assertTrue(done.wait(LIMIT))
            done.clear()
            self.assertIsNone(attempt.take())
        self.assertEqual(seen, ["through"] * 2)

    def test_one_that_hangs(self) -> None:
        attempt = Attempt("test", self.gate())
        with seconds(CLOSE_SECONDS=0.01):
            self.assertFalse(attempt.end())


class Ends(Case):

    def task(self, slow: bool) -> mock.Mock:
        task = mock.Mock()
        if slow:
            task.wait_returned.side_effect = Timeout(110, "late")
        return task

    def test_tasks_in_time_end_and_others_are_freed(self) -> None:
        tasks = [self.task(slow) for slow in (False, True, False)]
        end_tasks(tasks)
        self.assertEqual([t.free.called for t in tasks],
                         [False, True, False])
        for task in tasks:
            self.assertLessEqual(task.wait_returned.call_args.args[0],
                                 module.CLOSE_SECONDS)

    def test_all_are_closed(self) -> None:
        closers = [mock.Mock(), mock.Mock()]
        close_all("/m", closers)
        for each in closers:
            each.assert_called_once_with()
        self.log.warning.assert_not_called()
        close_all("/m", closers, idle=False)
        self.log.warning.assert_called_once()

    def test_a_mount_that_hangs_is_left(self) -> None:
        with seconds(CLOSE_SECONDS=0.01):
            close_all("/m", [self.gate()])
        self.assertIn("/m", self.log.warning.call_args.args)


class FakeOpen:
    """Of a mount that is there or not."""

    there = True
    made: List[FakeOpen] = []

    def __init__(self, path: str, spaces: List[Space], ranks: int) -> None:
        self.new: List[Space] = []
        if not self.there:
            raise NotConnected(errno.ENOTCONN, f"{path}: gone")
        self.names = [space.name for space in spaces]
        self.closed = threading.Event()
        self.made.append(self)

    def close(self) -> None:
        self.closed.set()


class Links(Case):

    def setUp(self) -> None:
        super().setUp()
        for patch in (mock.patch.object(module, "Open", FakeOpen),
                      mock.patch.multiple(FakeOpen, there=True, made=[]),
                      seconds(RETRY_SECONDS=0.001)):
            patch.start()
            self.addCleanup(patch.stop)

    def link(self, *names: str) -> Link:
        link = Link("/m", [Space(name, {}) for name in names])
        self.addCleanup(link.close)
        return link

    def test_opens_or_raises(self) -> None:
        self.assertEqual(self.link("a", "b").now.names, ["a", "b"])
        FakeOpen.there = False
        with self.assertRaises(NotConnected):
            self.link("a")

    def test_goes_and_comes_back(self) -> None:
        link = self.link("a")
        first = link.now
        FakeOpen.there = False
        link.lost(OSError("gone"))
        self.assertIsNone(link.now)
        link.lost(OSError("gone"))  # said once
        self.assertEqual(link.losses, 1)
        self.assertTrue(first.closed.wait(LIMIT))
        FakeOpen.there = True
        again = self.soon(lambda: link.now)
        self.assertIsNot(again, first)
        link.lost(OSError("gone"))
        self.assertEqual(link.losses, 2)

    def test_comes_back_with_nobody_asking(self) -> None:
        link = self.link("a")
        link.lost(OSError("gone"))
        self.soon(lambda: len(FakeOpen.made) == 2)

    def test_moves(self) -> None:
        link = self.link("a")
        first = link.now
        self.assertTrue(link.move([Space("b", {})], LIMIT))
        self.assertEqual(link.now.names, ["b"])
        self.assertEqual(link.losses, 0)
        self.assertTrue(first.closed.wait(LIMIT))

    def test_moves_when_the_mount_is_back(self) -> None:
        """And never to the spaces that it was to reopen before."""
        link = self.link("a")
        FakeOpen.there = False
        link.lost(OSError("gone"))
        self.assertFalse(link.move([Space("b", {})], LIMIT))
        FakeOpen.there = True
        self.assertEqual(self.soon(lambda: link.now).names, ["b"])

    def test_a_mount_that_hangs_holds_up_nothing(self) -> None:
        link, gate = self.link("a"), self.gate()
        with mock.patch.object(FakeOpen, "close", lambda _: gate()), \
                mock.patch.object(FakeOpen, "__init__", lambda *_: gate()):
            link.lost(OSError("gone"))
            self.assertIsNone(link.now)
            self.assertFalse(link.move([Space("b", {})], 0.01))
            link.close()

    def test_closes_all_that_it_opened(self) -> None:
        link = self.link("a")
        link.lost(OSError("gone"))
        self.soon(lambda: len(FakeOpen.made) == 2)
        link.close()
        for each in FakeOpen.made:
            self.assertTrue(each.closed.wait(LIMIT))
        self.assertIsNone(link.now)


class Leaving(Case):
    def test_tries_all_spaces_while_those_that_go_leave_the_list(self) -> None:
        names, tried = ["one", "stays", "two", "three"], []

        def leave(_: str, name: str) -> bool:
            tried.append(name)
            return name != "stays"

        chores = mock.Mock()
        chores.add = lambda chore: chore()  # done before the next is added
        with mock.patch.object(module, "leave_space", leave):
            module.leave_spaces("/mnt", names, chores)
        self.assertEqual(tried, ["one", "stays", "two", "three"])
        self.assertEqual(names, ["stays"])


class Pauses(Case):

    def setUp(self) -> None:
        super().setUp()
        self.now = 100.0
        self.pause = Pause("/m", lambda: self.now)

    def lasts(self, wanted: float) -> None:
        self.assertTrue(self.pause)
        self.now += wanted - 0.01
        self.assertTrue(self.pause)
        self.now += 0.02
        self.assertFalse(self.pause)

    def test_as_long_as_it_took_and_twice_as_long_each_time(self) -> None:
        self.assertFalse(self.pause)
        self.pause.ended(errno.ETIMEDOUT, 3.0)
        for wanted in (3.0, 6.0, 12.0, 24.0, 30.0, 30.0):
            self.lasts(wanted)
            self.pause.ended(errno.ETIMEDOUT, 3.0)

    def test_one_that_is_quick_to_fail(self) -> None:
        for err in (errno.ENOTCONN, errno.EIO):
            self.pause.ended(0, 0.0)
            for wanted in (1.0, 2.0, 4.0):
                self.pause.ended(err, 0.001)
                self.lasts(wanted)

    def test_those_of_one_time_count_once(self) -> None:
        for _ in range(8):
            self.pause.ended(errno.ETIMEDOUT, 1.0)
        self.log.warning.assert_called_once()
        self.lasts(1.0)

    def test_success_forgets_them(self) -> None:
        self.pause.ended(errno.EIO, 0.0)
        self.lasts(1.0)
        self.pause.ended(0, 0.1)
        self.pause.ended(errno.EIO, 0.0)
        self.lasts(1.0)

    def test_what_fails_alone(self) -> None:
        for err in (errno.ENOENT, errno.EBADMSG, errno.ECANCELED):
            self.pause.ended(err, 9.0)
            self.assertFalse(self.pause)


class Words(Case):

    def test_causes(self) -> None:
        for err, cause in ((errno.ENOENT, "absent"),
                           (errno.EBADMSG, "damaged"),
                           (errno.ESTALE, "disconnected"),
                           (errno.EDQUOT, "full"), (errno.EPERM, "io")):
            self.assertEqual(cause_of(err), cause)

    def test_deadlines(self) -> None:
        self.assertEqual(deadline_of(0, 1 << 40), 0)
        self.assertEqual(deadline_of(300, 0), 300)
        self.assertEqual(deadline_of(300, module.SLOWEST), 1300)

    def test_each_kind_of_warning_at_most_so_often(self) -> None:
        teller = Teller("rank 3")
        for _ in range(3):
            teller.warn("load", "%d blocks", 4)
            teller.warn("save", "no room")
        said = [call.args[0] % call.args[1:]
                for call in self.log.warning.call_args_list]
        self.assertEqual(said, ["ucmfs: rank 3: load: 4 blocks",
                                "ucmfs: rank 3: save: no room"])
        with seconds(WARN_SECONDS=0.0):
            teller.warn("load", "again")
        self.assertEqual(self.log.warning.call_count, 3)


@needs_mount
class OnAMount(Case):
    IDS = [id_of(f"vllm-mount {i}") for i in range(3)]

    def setUp(self) -> None:
        super().setUp()
        _, self.layout = pages_layout(b"".join(map(payload_of, self.IDS)))
        self.space = Space("vllm-mount", {
            "geometry": self.layout.geometry.to_json()})

    def test_a_link(self) -> None:
        link = Link(MOUNT, [self.space])
        here = link.now
        self.assertEqual(here.told, [
            ("vllm-mount", ucmfs.space_id(self.space.manifest))])
        self.assertTrue(here.mapped)
        self.assertEqual(here.indexes[0].prefix(id_of("nothing"))[0], 0)
        link.close()

    def test_why_a_space_is_new(self) -> None:
        def space(**more):
            manifest = {**self.space.manifest, "engine": {"era": "1"}, **more}
            return Space(ucmfs.default_name("compared", manifest), manifest)

        def told():
            return [str(call) for call in self.log.warning.mock_calls]

        def open_once(space):
            before = set(threading.enumerate())
            Link(MOUNT, [space]).close()
            for thread in set(threading.enumerate()) - before:
                thread.join(LIMIT)

        one, other = space(), space(engine={"era": "2"}, added=1)
        open_once(one)  # late, it would be compared with the other
        link = Link(MOUNT, [other])
        self.addCleanup(link.close)
        self.soon(lambda: any("engine.era" in text for text in told()))
        text = next(text for text in told() if "engine.era" in text)
        for word in (one.name, other.name, "'1'", "'2'", "added"):
            self.assertIn(word, text)
        # it is said once, and not of an epoch, which was asked for
        self.log.warning.reset_mock()
        open_once(other)
        open_once(space(epoch="2"))
        self.assertEqual(told(), [])

    def test_what_is_not_there(self) -> None:
        with self.assertRaises(UcmfsError):
            Link(MOUNT + "/nowhere", [self.space])

    def test_removing_blocks(self) -> None:
        ids = self.IDS
        link = Link(MOUNT, [self.space])
        self.addCleanup(link.close)
        with ucmfs.Loader(MOUNT) as loader:
            loader.add_group(self.layout, self.space.name).save(
                ids, range(3)).wait(LIMIT)
        remove_blocks(MOUNT, self.space.name, [id_of("absent"), *ids[:2]])
        self.log.warning.assert_not_called()
        found, _ = link.now.indexes[0].lookup(b"".join(ids))
        self.assertEqual(found, bytes([0, 0, 1]))
        remove_blocks("/dev/null", "a", ids[:1])
        self.log.warning.assert_called_once()


class WarmTest(Case):

    def test_who_may_not_is_no_warning_each_time(self) -> None:
        for err, warnings in (errno.EPERM, 0), (errno.ENOTCONN, 1):
            with mock.patch.object(module, "Blocks",
                                   side_effect=from_errno(err, "warm")):
                warm_blocks("/mnt", "a", [id_of(0)])
            self.assertEqual(self.log.warning.call_count, warnings)


if __name__ == "__main__":
    unittest.main()
