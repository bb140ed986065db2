# SPDX-License-Identifier: Apache-2.0
"""soak_workers.py - the processes of a life of motion_soak.py.

Each is a child that works until the daemon is killed (shared.ending), and reports
what failed before that. Its choices follow from the seed, the life and its name;
how many it makes does not.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from typing import Callable, Deque, List, Optional, Tuple

import soak_blocks
from seed import SEED
from soak_account import (BEGUN, LIVE, REMOVED, REMOVING, SPACES, SPAN, WRITERS,
                          Disks, Shared, space_of)

MIB = 1 << 20
PR_SET_PDEATHSIG = 1
UCM_LIMIT_S = 120
CHAIN = 6   # blocks, at most
PINS = 24   # at a time
_libc = ctypes.CDLL(None)


class Over(Exception):
    """The daemon is being killed."""


@dataclasses.dataclass
class Life:
    """What the workers need to know."""
    shared: Shared
    disks: Disks
    mount: str
    ucm: str
    number: int
    # live blocks of each writer, which removes the oldest when it has more;
    # None: no bound; 0: nothing is written
    bound: Optional[int]
    quotas: bool  # they change
    warms: bool
    chains: List[List[Tuple[int, int]]]  # of each writer, the oldest first


# ---- workers ----

class Worker:
    def __init__(self, life: Life, name: str) -> None:
        self.life, self.shared = life, life.shared
        self.random = random.Random(f"{SEED} {life.number} {name}")

    def check_ending(self) -> None:
        if self.shared.ending[0]:
            raise Over

    def path(self, number: int) -> str:
        return (f"{self.life.mount}/{SPACES[space_of(number)]}/"
                f"{soak_blocks.path_of(number)}")

    def wait(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Until it holds; False: it did not, in that time."""
        end = time.monotonic() + seconds
        while not holds():
            self.check_ending()
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def pause(self, least: float, most: float) -> None:
        self.wait(self.random.uniform(least, most), lambda: False)

    def listed(self, num: int, space: Optional[int] = None) -> List[int]:
        """Blocks that were there when the directories were last walked."""
        have = self.shared.num_listed[0]
        found = [self.shared.listed[self.random.randrange(have)]
                 for _ in range(num)] if have else []
        return [n for n in found if self.shared.state[n] == LIVE and
                (space is None or space_of(n) == space)]

    def run_ucm(self, *args: str) -> Tuple[int, str]:
        """Its exit status, and what it said."""
        self.check_ending()
        try:
            done = subprocess.run(
                [self.life.ucm, args[0], "-m", self.life.mount, *args[1:]],
                check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=UCM_LIMIT_S,
                preexec_fn=die_with_parent)
        except subprocess.TimeoutExpired:
            self.check_ending()
            self.shared.fault(args[0], f"ucm {' '.join(args)} hangs")
            raise Over from None
        said = " / ".join(done.stdout.split("\n")[-6:])
        self.shared.note(f"ucm {' '.join(args)[:120]}: {done.returncode}: "
                         f"{said[:400]}")
        self.check_ending()
        return done.returncode, done.stdout

    def must_ucm(self, *args: str) -> bool:
        status, said = self.run_ucm(*args)
        if status:
            self.shared.fault(args[0], f"ucm {' '.join(args)}: status "
                              f"{status}: {said.strip()}")
        return not status

    def work(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            while True:
                self.check_ending()
                self.work()
        except Over:
            pass
        except OSError as error:
            if not self.shared.ending[0]:
                self.shared.fault(type(self).__name__, str(error))


def die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(worker: Worker) -> int:
    """A child; its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()
        worker.run()
        status = 0
    except BaseException:  # pylint: disable=broad-except
        worker.shared.fault("test", traceback.format_exc())
    finally:
        sys.stdout.flush()
        os._exit(status)


def refused(error: OSError) -> str:
    return errno.errorcode.get(error.errno, str(error.errno))


# ---- writers ----

class Writer(Worker):
    """Writes chains from their heads, and removes them from their ends."""

    def __init__(self, life: Life, writer: int) -> None:
        super().__init__(life, f"writer {writer}")
        self.writer = writer
        self.chains: Deque[Tuple[int, int]] = collections.deque(
            life.chains[writer])
        self.live = sum(length for _, length in self.chains)

    def write(self, number: int) -> None:
        shared = self.shared
        data = soak_blocks.block(
            number, number - 1 if shared.position[number] else None)
        shared.state[number] = BEGUN
        shared.written[self.writer] += 1
        fd = os.open(self.path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL,
                     0o644)
        try:
            done = os.write(fd, data)
        finally:
            os.close(fd)
        if done != len(data):
            raise OSError(errno.EIO, f"{done} of {len(data)} bytes")
        shared.since[number] = time.monotonic()
        shared.state[number] = LIVE

    def write_chain(self) -> None:
        shared = self.shared
        first = self.writer * SPAN + shared.written[self.writer]
        length = self.random.randint(1, CHAIN)
        for position in range(length):
            shared.position[first + position] = position
            try:
                self.write(first + position)
            except OSError as error:
                self.check_ending()
                shared.fault(f"write: {refused(error)}",
                             f"{SPACES[space_of(first)]}: {error}; drained "
                             f"{list(shared.drained)}")
                length = position
                break
        if length:
            self.chains.append((first, length))
            self.live += length

    def remove(self, number: int) -> None:
        shared = self.shared
        if shared.state[number] != LIVE:
            return
        shared.state[number] = REMOVING
        try:
            os.unlink(self.path(number))
        except FileNotFoundError:
            shared.state[number] = LIVE  # the account finds out why
            return
        shared.since[number] = time.monotonic()
        shared.state[number] = REMOVED
        shared.removed[self.writer] += soak_blocks.BYTES

    def remove_chain(self, which: int) -> None:
        first, length = self.chains[which]
        del self.chains[which]
        self.live -= length
        for number in range(first + length - 1, first - 1, -1):
            self.remove(number)

    def work(self) -> None:
        bound = self.life.bound
        self.write_chain()
        while bound is not None and self.live > bound:
            self.check_ending()
            self.remove_chain(0)
        if bound is None and self.random.random() < 0.05:
            # one of the last, which the limits have not evicted yet
            self.remove_chain(self.random.randrange(
                max(0, len(self.chains) - 200), len(self.chains)))
        while len(self.chains) > 2000:
            self.chains.popleft()


# ---- readers ----

def compare(worker: Worker, number: int) -> bool:
    """False: it is absent."""
    shared = worker.shared
    try:
        with open(worker.path(number), "rb", buffering=0) as file:
            found = file.read(2 * soak_blocks.BYTES)
    except FileNotFoundError:
        return False
    parent = number - 1 if shared.position[number] else None
    if found != soak_blocks.block(number, parent):
        shared.fault("bytes", f"{SPACES[space_of(number)]} {number:x}: "
                     f"{len(found)} wrong bytes: {found[:80]!r}")
    return True


class Reader(Worker):
    """Reads all once, then some more often than others, so that they come up."""

    def __init__(self, life: Life, which: int) -> None:
        super().__init__(life, f"reader {which}")
        self.which = which
        self.rest = list(life.shared.listed[:life.shared.num_listed[0]])
        self.hot: List[int] = []

    def next(self) -> List[int]:
        if self.rest and not self.which:
            return [self.rest.pop()]
        if self.random.random() < 0.02:
            self.hot = self.listed(8)
        if self.hot and self.random.random() < 0.5:
            return [self.random.choice(self.hot)]
        return self.listed(1)

    def work(self) -> None:
        shared = self.shared
        numbers = self.next()
        if not numbers:
            self.pause(0.01, 0.02)
        for number in numbers:
            if shared.state[number] != LIVE:
                continue
            try:
                there = compare(self, number)
            except OSError as error:
                self.check_ending()
                shared.fault(f"read: {refused(error)}", str(error))
                continue
            shared.read[self.which] += there
            if not there and shared.state[number] == LIVE:
                shared.denied[number] = time.monotonic()
            elif there:
                shared.denied[number] = 0


# ---- administration ----

class Flusher(Worker):
    def work(self) -> None:
        self.must_ucm("sync")
        self.pause(0.0, 0.5)


class Keeper(Worker):
    """Pins, warms and scrubs, and changes the quota."""

    def __init__(self, life: Life) -> None:
        super().__init__(life, "keeper")
        have = life.shared.num_listed[0]
        self.pins = [n for n in life.shared.listed[:have]
                     if life.shared.pinned[n]]
        self.acts = [self.pin, self.pin, self.unpin, self.scrub]
        if life.quotas:
            self.acts += [self.quota] * 3
        if life.warms:
            self.acts += [self.warm] * 3

    def pin(self) -> None:
        for number in self.listed(4):
            if len(self.pins) >= PINS or self.shared.pinned[number]:
                continue
            self.shared.pinned[number] = 1
            try:
                os.setxattr(self.path(number), "user.ucmfs.pinned", b"1")
            except FileNotFoundError:
                self.check_ending()
                continue
            self.shared.pinned[number] = 2
            self.pins.append(number)

    def unpin(self) -> None:
        self.random.shuffle(self.pins)
        for _ in range(min(6, len(self.pins))):
            number = self.pins.pop()
            self.shared.pinned[number] = 1
            try:
                os.setxattr(self.path(number), "user.ucmfs.pinned", b"0")
            except FileNotFoundError:
                self.check_ending()
            self.shared.pinned[number] = 0

    def quota(self) -> None:
        size = self.random.randrange(MIB // 2, 2 * MIB, 4096)
        self.shared.set_quota(size, False)
        if self.must_ucm("quota", "-b", "set", "q", str(size)):
            self.shared.set_quota(size, True)

    def warm(self) -> None:
        for space, args in enumerate(([], ["-s", "q"])):
            ids = [soak_blocks.id_of(n).hex() for n in self.listed(8, space)]
            if ids:  # absent ones are named, and the status is 1
                self.run_ucm("warm", *args, *ids)

    def scrub(self) -> None:
        self.must_ucm("scrub", "--rate", "0")

    def work(self) -> None:
        self.random.choice(self.acts)()
        self.pause(0.0, 0.2)


class Drainer(Worker):
    """Drains a directory for a moment, then the next one."""

    def choose(self) -> int:
        """Those of the lowest tier more often: their blocks find the least room
        elsewhere."""
        return self.random.choice([
            index for index, each in enumerate(self.life.disks.directories)
            for _ in range(3 if self.life.disks.units[each.unit].lowest
                           else 1)])

    def begin(self, which: int) -> None:
        shared = self.shared
        shared.drained[which] = 1
        shared.drains[which] += 1
        self.run_ucm("drain", "-b", self.life.disks.paths[which])
        self.left(which)  # is it drained?
        shared.drained[which] = 2

    def end(self, which: int) -> None:
        shared = self.shared
        shared.drained[which] = 1
        shared.drains[which] += 1
        if self.must_ucm("drain", "--stop", self.life.disks.paths[which]):
            shared.drained[which] = 0

    def left(self, which: int) -> int:
        _, said = self.run_ucm("drain", "-j", "--status",
                               self.life.disks.paths[which])
        try:
            answer = json.JSONDecoder().raw_decode(said, said.index("{"))[0]
        except ValueError:
            self.shared.fault("drain", f"--status: {said}")
            return 0
        if not answer["draining"]:
            self.shared.fault("drain", f"it is not drained: {said}")
        return int(answer["blocks"])

    def work(self) -> None:
        which = self.choose()
        self.begin(which)
        end = time.monotonic() + self.random.uniform(0.2, 3)
        while self.left(which) and time.monotonic() < end:
            self.pause(0.1, 0.2)
        self.end(which)
        self.pause(0.0, 2.0)


class LastDrainer(Drainer):
    """Directories whose blocks have room elsewhere become empty. The last one's
    do not all have room: it keeps the rest."""

    def __init__(self, life: Life, roomy: List[int], last: int) -> None:
        super().__init__(life, "drainer")
        self.roomy, self.last = roomy, last

    def work(self) -> None:
        path = self.life.disks.paths
        while self.roomy:
            which = self.roomy.pop(0)
            self.begin(which)
            if not self.wait(10, lambda: not self.left(which)):
                self.shared.fault("drain", f"{path[which]} is not empty after "
                                  "10 s, and there is room elsewhere")
            self.end(which)
        if not self.shared.drained[self.last]:
            self.begin(self.last)
        # it ends by itself when nothing more can leave
        status, said = self.run_ucm("drain", path[self.last])
        if not status:
            self.shared.fault("drain", "there is no room elsewhere, and the "
                              f"status is 0: {said.strip()}")
        self.wait(float("inf"), lambda: False)


def crew(life: Life, drainer: Drainer) -> List[int]:
    """Their process ids."""
    workers: List[Worker] = [Reader(life, 0), Reader(life, 1), Keeper(life),
                             Flusher(life, "flusher"), drainer]
    if life.bound != 0:
        workers += [Writer(life, each) for each in range(WRITERS)]
    return [start(each) for each in workers]
