# SPDX-License-Identifier: Apache-2.0
"""socket_clients.py - the clients of socket_model.py: each thread makes every request
that reads or changes blocks; the first of a process kills it.
"""
from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import struct
import sys
import threading
import time
import traceback
from typing import Callable, List, NoReturn, Optional, Tuple

from socket_facts import (
    ABSENT, BYTES, CONTENTS, KEYS, SHARED, SLOTS, SPACES, THREADS, UNKNOWN,
    Content, Map, Row, content_of, number_of, space_of)
from seed import SEED
from control import Peer
import soak_blocks

DRAFTS, HELD = 6, 8
POINTS = ("before", "between", "after")
# What a life may end with; hello and the like are asked for in each.
DEADLY = ("lookup touch pin unpin evict remove warm check offer verified locate "
          "path statistics drain text open create commit cancel mkspace space "
          "reopen").split()
LIFE = 150          # operations of a process, at most, before it is killed
WAIT_S = 60


class Gone(Exception):
    """The daemon was killed."""


class Mortal(Peer):
    """A connection whose process is killed at one of its messages."""

    verb = point = ""

    def dies(self, verb: str, point: str) -> None:
        if verb == self.verb and point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)
            while True:  # it is under way
                signal.pause()

    def ask(self, verb: str, **terms: object) -> Tuple[bytes, List[int]]:
        self.now = verb
        self.dies(verb, "before")
        try:
            answer = self.request(verb, **terms)
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                raise Gone from error
            raise
        self.dies(verb, "after")
        return answer

    def send(self, message: bytes, fds: Tuple[int, ...] = ()) -> None:
        super().send(message, fds)
        self.dies(self.now, "between")


def numbers(data: bytes) -> List[int]:
    return [number for number, in struct.iter_unpack("<i", data)]


class Draft:
    def __init__(self, number: int, draft: int, fd: int, content: int,
                 whole: bool) -> None:
        self.number, self.draft, self.fd = number, draft, fd
        self.content, self.whole = content, whole


class Thread:
    """One connection, the drafts that it has, and descriptors."""

    def __init__(self, facts: Map, socket: str, slot: int, verb: str,
                 point: str, seed: str) -> None:
        self.map, self.socket, self.slot = facts, socket, slot
        self.verb, self.point = verb, point
        self.random = random.Random(seed)
        self.drafts: List[Draft] = []
        self.held: List[Tuple[int, Content]] = []
        self.peer: Optional[Mortal] = None

    # ---- connecting ----

    def connect(self) -> bool:
        """False: it is the end."""
        self.forget()
        while not self.map.ends:
            if not self.map.held:
                try:
                    self.peer = Mortal(self.socket)
                    return True
                except OSError as error:
                    assert error.errno in (errno.ECONNREFUSED, errno.ENOENT), \
                        error
            time.sleep(0.002)
        return False

    def forget(self) -> None:
        for draft in self.drafts:
            self.close(draft)
        self.drafts.clear()
        if self.peer:
            self.peer.close()
            self.peer = None

    @staticmethod
    def close(draft: Draft) -> None:
        if draft.fd >= 0:
            os.close(draft.fd)
        draft.fd = -1

    def ask(self, verb: str, *numbers: int, tail: bytes = b"",
            **terms: object) -> Tuple[bytes, List[int]]:
        assert self.peer
        items = b"".join(soak_blocks.id_of(number) + tail
                         for number in numbers)
        self.map.add(self.slot, max(1, len(numbers)))
        return self.peer.ask(verb, items=items, num=len(numbers),
                             space=space_of(numbers[0]) if numbers else b"",
                             **terms)

    # ---- which block ----

    def sure(self) -> Optional[int]:
        """An own key of which everything is known."""
        for _ in range(10):
            key = self.random.randrange(KEYS)
            if self.row(key).is_sure():
                return key
        return None

    def some(self) -> List[int]:
        """A few such, of one space."""
        keys = [key for key in range(KEYS) if self.row(key).is_sure()]
        which = self.random.randrange(len(SPACES))
        keys = [key for key in keys
                if space_of(self.number(key)) == SPACES[which]]
        return self.random.sample(keys, min(len(keys),
                                            self.random.randint(1, 6)))

    def row(self, key: int) -> Row:
        return self.map.row(self.slot, key)

    def number(self, key: int) -> int:
        return number_of(self.slot, key)

    # ---- requests that change nothing ----

    def each(self, verb: str, present: Tuple[int, ...],
             absent: Tuple[int, ...], **terms: object) -> None:
        keys = self.some()
        if not keys:
            return
        data, _ = self.ask(verb, *map(self.number, keys), **terms)
        for key, result in zip(keys, numbers(data)):
            row = self.row(key)
            assert result in (absent if row.content == ABSENT else present), \
                f"{verb} of {self.number(key)} {row}: {result}"

    def lookup(self) -> None:
        self.each("lookup", (1,), (0,))

    def touch(self) -> None:
        self.each("touch", (0,), (-errno.ENOENT,),
                  flags=self.random.choice((0, 4)))

    def warm(self) -> None:
        self.each("warm", (0, -errno.EAGAIN), (-errno.ENOENT,))

    def check(self) -> None:
        self.each("check", (0,), (-errno.ENOENT,))

    def offer(self) -> None:
        self.each("offer", (1,), (0, 1), tail=bytes(16))

    def verified(self) -> None:
        self.each("verified", (0,), (-errno.ENOENT,), tail=bytes(8))

    def locate(self) -> None:
        keys = self.some()
        if not keys:
            return
        data, _ = self.ask("locate", *map(self.number, keys))
        for key, place in zip(keys, struct.iter_unpack("<iBBHQqIIII", data)):
            row = self.row(key)
            want = -errno.ENOENT if row.content == ABSENT else 0
            assert place[0] == want, \
                f"locate {self.number(key)} {row}: {place}"
            assert place[0] or place[4] == soak_blocks.BYTES, place
            assert place[0] or place[3] & 1 == row.pinned, \
                f"locate {self.number(key)}: pinned: {place}"

    def path(self) -> None:
        key = self.sure()
        if key is None:
            return
        there = self.row(key).content != ABSENT
        try:
            data, _ = self.ask("path", self.number(key))
            name = soak_blocks.path_of(self.number(key)).encode()
            assert there and data[:data.index(0)].endswith(name), data
        except OSError as error:
            assert error.errno == errno.ENOENT and not there, error

    def statistics(self) -> None:
        data, _ = self.ask("statistics")
        scanned, blocks = struct.unpack_from("<IQ", data, 4)
        assert scanned < 2 and blocks <= SLOTS * KEYS + SHARED, blocks

    def text(self) -> None:
        _, fds = self.ask("text", argument=2)
        size = os.fstat(fds[0]).st_size
        os.close(fds[0])
        assert size > 1000, size

    def hello(self) -> None:
        _, fds = self.ask("hello", flags=1)
        for fd in fds:
            os.close(fd)

    def space(self) -> None:
        assert self.peer
        self.map.add(self.slot, 1)
        self.peer.ask("space", space=SPACES[1])

    def mkspace(self) -> None:
        assert self.peer
        self.map.add(self.slot, 1)
        try:
            self.peer.ask("mkspace", space=b"n%d" % self.slot, argument=0o755)
        except OSError as error:
            assert error.errno == errno.EEXIST, error

    def drain(self) -> None:
        """Only a question: of a directory that is none."""
        assert self.peer
        self.map.add(self.slot, 1)
        try:
            self.peer.ask("drain", items=b"/none", num=5)
        except OSError as error:
            assert error.errno == errno.ENOENT, error

    def whole_store(self) -> None:
        if self.random.randrange(50):
            return
        verb = self.random.choice(("flush", "rescan", "checkpoint"))
        try:
            self.ask(verb)
        except OSError as error:
            assert verb == "checkpoint" and error.errno == errno.EAGAIN, error

    # ---- reading ----

    def read(self, fd: int, content: Content, what: str) -> None:
        assert os.pread(fd, 2 * soak_blocks.BYTES, 0) == BYTES[content], \
            f"block {content}: {what}"

    def open(self) -> None:
        keys = self.some()
        if not keys:
            return
        data, fds = self.ask("open", *map(self.number, keys))
        for key, (result, _, size) in zip(keys,
                                          struct.iter_unpack("<iIQ", data)):
            row = self.row(key)
            want = -errno.ENOENT if row.content == ABSENT else 0
            assert result == want, \
                f"open {self.number(key)} {row}: {result}"
            if result:
                continue
            assert size == soak_blocks.BYTES, size
            self.keep(fds.pop(0), (self.number(key), row.content))
        assert not fds

    def keep(self, fd: int, content: Content) -> None:
        self.read(fd, content, "it is another one's")
        self.held.append((fd, content))
        if len(self.held) > HELD:
            os.close(self.held.pop(self.random.randrange(HELD))[0])

    def reread(self) -> None:
        if self.held:
            fd, content = self.random.choice(self.held)
            self.read(fd, content, "a descriptor has other bytes")

    # ---- writing ----

    def create_of(self, number: int) -> Tuple[int, int, int]:
        """Its result, the draft and the descriptor."""
        data, fds = self.ask("create", number, size=soak_blocks.BYTES)
        result, draft, _, _ = struct.unpack("<iIII", data)
        assert len(fds) == (result == 0), (result, fds)
        return result, draft, fds[0] if fds else -1

    def write(self, draft: Draft) -> None:
        data = BYTES[draft.number, draft.content]
        if not draft.whole:
            data = data[:self.random.randrange(len(data))]
        # a part of it now, and perhaps the rest through another descriptor
        cut = self.random.randrange(len(data) + 1)
        os.pwrite(draft.fd, data[:cut], 0)
        if draft.whole and not self.random.randrange(4):
            self.close(draft)
            draft.fd = self.reopened(draft)
        os.pwrite(draft.fd, data[cut:], cut)
        if self.random.randrange(4):
            self.close(draft)

    def reopened(self, draft: Draft) -> int:
        assert self.peer
        self.map.add(self.slot, 1)
        data, fds = self.peer.ask("reopen", num=1,
                                  items=struct.pack("<I", draft.draft))
        assert numbers(data) == [0], numbers(data)
        return fds[0]

    def create(self) -> None:
        key = self.sure()
        if key is None or len(self.drafts) == DRAFTS:
            return
        row, number = self.row(key), self.number(key)
        result, name, fd = self.create_of(number)
        want = 0 if row.content == ABSENT else -errno.EEXIST
        assert result == want, f"create {number} {row}: {result}"
        if result:
            return
        draft = Draft(number, name, fd, self.random.randint(1, CONTENTS),
                      self.random.randrange(10) > 0)
        self.drafts.append(draft)
        self.write(draft)

    def reopen(self) -> None:
        if not self.drafts:
            return
        draft = self.random.choice(self.drafts)
        os.close(self.reopened(draft))

    def commit_of(self, draft: Draft) -> int:
        assert self.peer
        self.map.add(self.slot, 1)
        # with the header, or the daemon reads it
        head = BYTES[draft.number, draft.content][:self.random.choice((0, 4096))]
        data, _ = self.peer.ask("commit", num=1, items=struct.pack(
            "<II4096s", draft.draft, len(head), head))
        return numbers(data)[0]

    def take_draft(self) -> Optional[Draft]:
        """Of a block of which all is known, still."""
        if not self.drafts:
            return None
        at = self.random.randrange(len(self.drafts))
        if not self.row(self.drafts[at].number % 1000).is_sure():
            return None
        return self.drafts.pop(at)

    def commit(self) -> None:
        draft = self.take_draft()
        if not draft:
            return
        row = self.row(draft.number % 1000)
        before = row.content
        # Also where it is there, as it may be removed before a dead one's commit; and
        # before one that is refused, as the file is closed when its writer is killed.
        if draft.whole:
            row.maybe = before or draft.content
        if draft.fd >= 0:
            result = self.commit_of(draft)
            assert result == -errno.EBUSY, f"an open file: {result}"
            self.close(draft)
        if not draft.whole:
            result = self.commit_of(draft)
            assert result == -errno.EINVAL, f"half a block: {result}"
            return
        result = self.commit_of(draft)
        assert result == 0, f"commit {draft.number}: {result}"
        row.note("d" if before else "C")
        # of two writers the first one's is there
        row.settle(before or draft.content)

    def cancel(self) -> None:
        if self.drafts:
            self.cancel_of(self.drafts.pop(
                self.random.randrange(len(self.drafts))))

    def cancel_of(self, draft: Draft) -> None:
        self.close(draft)
        assert self.peer
        self.map.add(self.slot, 1)
        data, _ = self.peer.ask("cancel", num=1,
                                items=struct.pack("<I", draft.draft))
        assert numbers(data) == [0], numbers(data)

    def pin_as(self, verb: str, pinned: int) -> None:
        key = self.sure()
        if key is None:
            return
        row, was = self.row(key), self.row(key).pinned
        row.pinned = UNKNOWN
        data, _ = self.ask(verb, self.number(key))
        want = -errno.ENOENT if row.content == ABSENT else 0
        assert numbers(data) == [want], f"{verb}: {numbers(data)}"
        row.pinned = was if want else pinned

    def pin(self) -> None:
        self.pin_as("pin", 1)

    def unpin(self) -> None:
        self.pin_as("unpin", 0)

    def remove_by(self, verb: str, may: Tuple[int, ...]) -> None:
        key = self.sure()
        if key is None:
            return
        row, number = self.row(key), self.number(key)
        row.maybe = ABSENT
        result = numbers(self.ask(verb, number)[0])[0]
        if row.content == ABSENT:
            assert result == -errno.ENOENT, f"{verb} {number} {row}: {result}"
        elif verb == "evict" and row.pinned:
            assert result == -errno.EPERM, f"{verb} {number} {row}: {result}"
        else:
            assert result == 0 or result in may, f"{verb} {number} {row}: {result}"
        letter = verb[0]
        row.note(letter if result else letter.upper())
        row.settle(*((row.content,) if result else (ABSENT, 0)))

    def remove(self) -> None:
        self.remove_by("remove", ())

    def evict(self) -> None:
        self.remove_by("evict", (-errno.EBUSY,))

    # ---- blocks of all ----

    def shared(self) -> None:
        number = number_of(SLOTS, self.random.randrange(SHARED))
        what = self.random.randrange(4)
        if what == 0:
            result = numbers(self.ask("remove", number)[0])[0]
            assert result in (0, -errno.ENOENT), result
        elif what == 1:
            self.write_shared(number)
        else:
            data, fds = self.ask("open", number)
            result = struct.unpack_from("<i", data)[0]
            assert result in (0, -errno.ENOENT), result
            if fds:
                self.read_shared(number, fds[0])

    def write_shared(self, number: int) -> None:
        result, name, fd = self.create_of(number)
        if result:
            assert result == -errno.EEXIST, result
            return
        draft = Draft(number, name, fd, self.random.randint(1, CONTENTS), True)
        os.pwrite(fd, BYTES[number, draft.content], 0)
        self.close(draft)
        if self.random.randrange(2):
            self.cancel_of(draft)
            return
        self.map.begun[number % 1000 * 256 + draft.content] = 1
        result = self.commit_of(draft)
        assert result == 0, result

    def read_shared(self, number: int, fd: int) -> None:
        data = os.pread(fd, 2 * soak_blocks.BYTES, 0)
        content = content_of(number, data)
        assert self.map.begun[number % 1000 * 256 + content], \
            f"block {number}: content {content} was never committed"
        self.keep(fd, (number, content))

    # ---- a life ----

    OFTEN = ("create create create commit commit commit open open lookup evict "
             "remove shared shared reread").split()
    SELDOM = DEADLY + ["hello", "whole_store"]

    def once(self) -> None:
        words = self.OFTEN if self.random.randrange(3) else self.SELDOM
        method: Callable[[], None] = getattr(self, self.random.choice(words))
        method()

    def live(self, length: int) -> None:
        alive = self.connect()
        done = 0
        while alive and not self.map.ends:
            try:
                if done == length and self.point:
                    assert self.peer
                    self.peer.verb, self.peer.point = self.verb, self.point
                if done >= length and self.point:
                    getattr(self, self.verb)()  # until it can be made
                self.once()
                done += 1
            except Gone:
                alive = self.connect()
                done = min(done, length)
        self.forget()


PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_process(facts: Map, socket: str, process: int, life: int) -> NoReturn:
    """The first of its threads kills it."""
    die_with_parent()
    verb = DEADLY[life % len(DEADLY)]
    point = POINTS[life // len(DEADLY) % len(POINTS)]
    threads = []

    def run(index: int) -> None:
        try:
            thread = Thread(facts, socket, process * THREADS + index, verb,
                            "" if index else point, f"{SEED} {life} {index}")
            thread.live(random.Random(f"{SEED} {life}").randrange(LIFE))
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    for index in range(THREADS):
        threads.append(threading.Thread(target=run, args=(index,)))
        threads[-1].start()
    for started in threads:
        started.join()
    os._exit(0)
