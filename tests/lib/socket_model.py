# SPDX-License-Identifier: Apache-2.0
"""socket_model.py - clients of a daemon's socket, against a map kept outside of it.

usage: socket_model.py UCMFS WORK OPERATIONS

Processes of a few threads, each with a connection, make every request that reads or
changes blocks. The daemon and they are killed again and again: a process at each kind
of message, before it is sent, before its answer is read, and after; with drafts and
descriptors. In between, when no client is left:

  - each block of the map is there, and reads as what was committed; no other is;
  - no file of a draft is left, no connection, nothing beside the socket; the daemon
    has nothing in /dev/shm, which it would leave. After one that was killed so it is
    before the first client comes back;
  - descriptors that were opened before read as they did.

The map is memory that all processes share, so that it has what a killed one has
written. Each thread has its own blocks: of these it knows what every request must
answer. Before a request that changes a block, the map says what may become of it; when
the answer has come, what has. A block whose answer never came is left alone until the
clients have ended. All threads share a few other blocks, of which the map knows which
contents were ever committed.

Blocks move from tier to tier all the time (write: fast:back).
"""
from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from typing import Callable, Dict, List, NoReturn, Optional, Tuple

from seed import SEED
from control import Peer, VERBS
import soak_blocks

PROCESSES, THREADS = 4, 2
SLOTS = PROCESSES * THREADS
KEYS = 24           # of a thread
SHARED = 10         # of all
CONTENTS = 4        # that a block may have: 1 ... CONTENTS
ABSENT, NONE, UNKNOWN = 0, 255, 2
DRAFTS, HELD = 6, 8
SPACES = (b"", b"other")
POINTS = ("before", "between", "after")
# What a life may end with; hello and the like are asked for in each.
DEADLY = ("lookup touch pin unpin evict remove warm check offer verified locate "
          "path statistics drain text open create commit cancel mkspace space "
          "reopen").split()
LIFE = 150          # operations of a process, at most, before it is killed
WAIT_S = 60

Content = Tuple[int, int]  # number of a block, and which of its contents


def number_of(slot: int, key: int) -> int:
    """Of a thread's block; of a shared one, with slot SLOTS."""
    return slot * 1000 + key


def space_of(number: int) -> bytes:
    return SPACES[number % len(SPACES)]


BYTES: Dict[Content, bytes] = {}


def make_bytes() -> None:
    for slot in range(SLOTS + 1):
        for key in range(SHARED if slot == SLOTS else KEYS):
            number = number_of(slot, key)
            for content in range(1, CONTENTS + 1):
                BYTES[number, content] = soak_blocks.block(
                    number, None, number * 100 + content)


def content_of(number: int, data: bytes) -> int:
    for content in range(1, CONTENTS + 1):
        if BYTES[number, content] == data:
            return content
    raise AssertionError(f"block {number}: bytes that no version has")


class Map:
    """What all processes share. A byte is written at once."""

    ROW = 32  # content, what it may be (NONE: no more), pinned; its story

    def __init__(self) -> None:
        self.rows = mmap.mmap(-1, SLOTS * KEYS * self.ROW)
        self.begun = mmap.mmap(-1, SHARED * 256)
        self.counts = mmap.mmap(-1, 8 * (SLOTS + 2))
        for at in range(SLOTS * KEYS):
            self.rows[at * self.ROW + 1] = NONE

    def row(self, slot: int, key: int) -> Row:
        return Row(self.rows, (slot * KEYS + key) * self.ROW)

    def count(self, slot: int) -> int:
        return int(struct.unpack_from("<Q", self.counts, 8 * slot)[0])

    def add(self, slot: int, num: int) -> None:
        struct.pack_into("<Q", self.counts, 8 * slot, self.count(slot) + num)

    def total(self) -> int:
        return sum(self.count(slot) for slot in range(SLOTS))

    @property
    def held(self) -> bool:
        """Clients must not connect now."""
        return self.counts[8 * SLOTS] != 0

    @held.setter
    def held(self, held: bool) -> None:
        self.counts[8 * SLOTS] = held

    @property
    def ends(self) -> bool:
        return self.counts[8 * SLOTS + 8] != 0

    @ends.setter
    def ends(self, ends: bool) -> None:
        self.counts[8 * SLOTS + 8] = ends


class Row:
    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self.memory, self.at = memory, at

    def _field(offset: int) -> property:  # type: ignore
        return property(
            lambda self: self.memory[self.at + offset],
            lambda self, value: self.memory.__setitem__(self.at + offset,
                                                        value))

    content = _field(0)
    maybe = _field(1)
    pinned = _field(2)

    def note(self, what: str) -> None:
        """The latest: Commit (d: it was there), Remove and Evict (in small: refused),
        what was Found or Absent between two rounds."""
        at = self.at + 4
        self.memory[at:at + 28] = self.memory[at + 1:at + 28] + what.encode()

    def __str__(self) -> str:
        story = self.memory[self.at + 4:self.at + 32].strip(b"\0").decode()
        return f"(content {self.content} or {self.maybe}, {story})"

    def is_sure(self) -> bool:
        return self.maybe == NONE and self.pinned != UNKNOWN

    def settle(self, content: int, pinned: Optional[int] = None) -> None:
        self.content = content
        if pinned is not None:
            self.pinned = pinned
        self.maybe = NONE


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


# ---- the daemon, and what is left ----

class Daemon:
    def __init__(self, ucmfs: str, work: str) -> None:
        self.ucmfs, self.work = ucmfs, work
        self.socket = f"{work}/socket/store"
        self.tiers = [f"{work}/fast", f"{work}/slow"]
        for folder in (f"{work}/socket", *self.tiers):
            os.mkdir(folder)
        with open(f"{work}/ucmfs.conf", "w") as out:
            out.write("write: fast:back\ncheckpoint: 0\n")
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.start()

    def start(self) -> None:
        ready, ours = os.pipe()
        with open(f"{self.work}/log", "ab") as log:
            self.process = subprocess.Popen(
                [self.ucmfs, "serve",
                 f"fast={self.tiers[0]}:slow={self.tiers[1]}", "--socket",
                 self.socket, "-f", "-o",
                 f"ready-fd={ours},config={self.work}/ucmfs.conf"],
                pass_fds=(ours,), stderr=log, preexec_fn=die_with_parent)
        os.close(ours)
        said = os.read(ready, 64)
        os.close(ready)
        assert said.strip() == b"READY=1", "the daemon does not start"

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0, self.process.returncode
        assert not os.listdir(f"{self.work}/socket")

    def peers(self) -> int:
        assert self.process
        num, tasks = 0, f"/proc/{self.process.pid}/task"
        for task in os.listdir(tasks):
            try:
                with open(f"{tasks}/{task}/comm") as comm:
                    num += comm.read() == "ucm-peer\n"
            except (FileNotFoundError, ProcessLookupError):
                pass
        return num

    def temps(self) -> List[str]:
        return [f"{folder}/{name}" for tier in self.tiers
                for folder, _, names in os.walk(f"{tier}/.ucmfs/tmp")
                for name in names]

    def files(self) -> List[str]:
        """Names of all blocks, in all directories."""
        return [name for tier in self.tiers
                for _, _, names in os.walk(tier) for name in names
                if name.endswith(".bin")]

    def has_nothing_beside(self) -> None:
        assert os.listdir(f"{self.work}/socket") == ["store"]
        assert self.process
        fds = f"/proc/{self.process.pid}/fd"
        for fd in os.listdir(fds):
            try:
                path = os.readlink(f"{fds}/{fd}")
            except FileNotFoundError:
                continue
            assert not path.startswith("/dev/shm/") or \
                path.startswith(self.work), path


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < ends, f"in vain: {what}"
        time.sleep(0.005)


# ---- between the rounds ----

class Account:
    """Nobody is connected: what is there, is it what must be?"""

    def __init__(self, facts: Map, daemon: Daemon) -> None:
        self.map, self.daemon = facts, daemon
        self.held: List[Tuple[int, Content]] = []

    def open(self, peer: Peer, number: int) -> Optional[int]:
        data, fds = peer.request("open", soak_blocks.id_of(number), 1,
                                 space=space_of(number))
        result = struct.unpack_from("<i", data)[0]
        assert result in (0, -errno.ENOENT), f"block {number}: {result}"
        return fds[0] if fds else None

    def look(self, peer: Peer, number: int) -> int:
        """Which content it has now."""
        data, _ = peer.request("lookup", soak_blocks.id_of(number), 1,
                               space=space_of(number))
        fd = self.open(peer, number)
        assert numbers(data) == [int(fd is not None)], \
            f"block {number}: a look-up says {numbers(data)}"
        if fd is None:
            return ABSENT
        content = content_of(number, os.pread(fd, 2 * soak_blocks.BYTES, 0))
        self.held.append((fd, (number, content)))
        return content

    def is_pinned(self, peer: Peer, number: int) -> int:
        data, _ = peer.request("locate", soak_blocks.id_of(number), 1,
                               space=space_of(number))
        result, _, _, flags = struct.unpack_from("<iBBH", data)
        return 0 if result else flags & 1

    def settle_row(self, peer: Peer, slot: int, key: int) -> int:
        row, number = self.map.row(slot, key), number_of(slot, key)
        content = self.look(peer, number)
        may = {row.content} | ({row.maybe} - {NONE})
        assert content in may, \
            f"block {number} {row}: {content}"
        pinned = self.is_pinned(peer, number)
        # a pin ends with its block
        assert row.pinned in (pinned, UNKNOWN) or not content, \
            f"block {number}: pinned {pinned}, not {row.pinned}"
        row.settle(content, pinned)
        row.note("F" if content else "A")
        return content

    def settle(self) -> None:
        self.reread()
        self.daemon.has_nothing_beside()
        wait_until("connections end", lambda: self.daemon.peers() == 0)
        there = set()
        with Peer(self.daemon.socket) as peer:
            for slot in range(SLOTS):
                for key in range(KEYS):
                    if self.settle_row(peer, slot, key):
                        there.add(number_of(slot, key))
            for key in range(SHARED):
                number = number_of(SLOTS, key)
                content = self.look(peer, number)
                assert not content or self.map.begun[key * 256 + content], \
                    f"block {number}: {content} was never committed"
                if content:
                    there.add(number)
            data, _ = peer.request("statistics")
            blocks = struct.unpack_from("<Q", data, 8)[0]
            assert blocks == len(there), f"{blocks}, not {len(there)} blocks"
            peer.request("flush")
        wait_until("drafts are dropped", lambda: not self.daemon.temps())
        names = {soak_blocks.id_of(number).hex() + ".bin" for number in there}
        assert set(self.daemon.files()) == names, "other files"

    def reread(self) -> None:
        for fd, content in self.held:
            assert os.pread(fd, 2 * soak_blocks.BYTES, 0) == BYTES[content], \
                f"block {content}: a descriptor has other bytes"
            os.close(fd)
        self.held.clear()


class Round:
    """Clients, each of which is replaced when it has been killed."""

    def __init__(self, facts: Map, daemon: Daemon, lives: int) -> None:
        self.map, self.daemon, self.lives = facts, daemon, lives
        self.pids: Dict[int, int] = {}

    def start(self, process: int) -> None:
        self.lives += 1
        pid = os.fork()
        if not pid:
            run_process(self.map, self.daemon.socket, process, self.lives - 1)
        self.pids[pid] = process

    def reap(self, again: bool) -> None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid not in self.pids:
            time.sleep(0.002)
            return
        process = self.pids.pop(pid)
        assert status in (0, signal.SIGKILL), f"a client failed: {status}"
        if again:
            self.start(process)

    def kill_daemon(self) -> None:
        self.map.held = True
        self.daemon.kill()
        self.daemon.start()
        wait_until("drafts of the last daemon are removed",
                   lambda: not self.daemon.temps())
        self.daemon.has_nothing_beside()
        self.map.held = False

    def run(self, operations: int, kill_at: int) -> None:
        first = self.map.total()
        killed = False
        for process in range(PROCESSES):
            self.start(process)
        while (done := self.map.total() - first) < operations:
            if done >= kill_at and not killed:
                self.kill_daemon()
                killed = True
            self.reap(True)
        self.map.ends = True
        while self.pids:
            self.reap(False)
        self.map.ends = False

    def end(self) -> None:
        for pid in self.pids:
            try:  # it may have been waited for a moment ago
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        self.pids.clear()


def main() -> int:
    ucmfs, work, operations = sys.argv[1], sys.argv[2], int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rounds = max(3, operations // 25000)
    chance = random.Random(f"{SEED} rounds")
    make_bytes()
    facts, daemon = Map(), Daemon(ucmfs, work)
    account, lives = Account(facts, daemon), 0
    round_now = None
    try:
        with Peer(daemon.socket) as peer:
            peer.request("mkspace", space=SPACES[1], argument=0o755)
        for number in range(rounds):
            round_now = Round(facts, daemon, lives)
            part = operations // rounds
            round_now.run(part, chance.randrange(part))
            lives = round_now.lives
            account.settle()
            print(f"# round {number + 1} of {rounds}: {facts.total()} "
                  f"operations, {lives} processes", flush=True)
        daemon.end()
        account.reread()
    except BaseException:
        if round_now:
            round_now.end()
        assert daemon.process
        daemon.process.kill()
        daemon.process.wait()
        with open(f"{work}/log") as log:
            lines = [line for line in log if "not committed" not in line]
        print("".join(lines[-30:]))
        raise
    assert lives >= len(DEADLY) * len(POINTS), f"{lives} lives"
    return 0


if __name__ == "__main__":
    assert set(DEADLY) <= set(VERBS)
    sys.exit(main())
