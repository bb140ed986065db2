# SPDX-License-Identifier: Apache-2.0
"""soak_account.py - what must be there; the daemon is not asked.

Shared is memory of all processes of the campaign: the state of each block, as the
process that wrote or removed it saw it, and what is drained and which quota holds
at this moment. Disks walks the backing directories. Account compares both several
times a second, and decides for each block that vanished whether a limit asked for
it.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import mmap
import os
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from soak_blocks import BYTES, number_of

WRITERS = 4
MISSES = 4  # looks that do not find a block, one after the other: it is gone
SPAN = 1 << 20  # blocks that a writer can make
SPACES = ("blocks", "spaces/q")

NO_QUOTA = 1 << 62

# states of a block
NONE, BEGUN, LIVE, REMOVING, REMOVED, LOST = range(6)


def writer_of(number: int) -> int:
    return number // SPAN


def space_of(number: int) -> int:
    """The second half of the writers have the space with the quota."""
    return writer_of(number) * 2 // WRITERS


# ---- shared memory ----

class Shared:
    """Memory that is inherited; each value has one process that writes it."""

    def __init__(self, work: str, num_dirs: int) -> None:
        num = WRITERS * SPAN
        self.state = self._array(num, "B")
        self.position = self._array(num, "B")  # in its chain
        self.pinned = self._array(num, "B")    # 2: surely, 1: perhaps
        self.since = self._array(num, "d")     # LIVE or REMOVED
        self.denied = self._array(num, "d")    # read, and was absent
        self.written = self._array(WRITERS, "Q")
        self.removed = self._array(WRITERS, "Q")
        self.drained = self._array(num_dirs, "B")  # 2: surely, 1: perhaps
        self.drains = self._array(num_dirs, "Q")   # how often that changed
        self.quota = self._array(3, "Q")  # set, being set, least since a look
        for which in range(3):
            self.quota[which] = NO_QUOTA
        self.ending = self._array(1, "B")
        self.read = self._array(WRITERS, "Q")
        self.listed = self._array(1 << 16, "I")  # blocks to choose from
        self.num_listed = self._array(1, "I")
        self._faults = f"{work}/faults"
        self._history = f"{work}/history"
        self.clear()

    @staticmethod
    def _array(num: int, kind: str) -> memoryview:
        size = num * {"B": 1, "I": 4, "Q": 8, "d": 8}[kind]
        return memoryview(mmap.mmap(-1, size)).cast(kind)

    @staticmethod
    def _append(path: str, *words: object) -> None:
        line = json.dumps([round(time.monotonic(), 3), *words]) + "\n"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    @staticmethod
    def _lines(path: str) -> List[List[Any]]:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def clear(self) -> None:
        for path in self._faults, self._history:
            with open(path, "w", encoding="utf-8"):
                pass

    def fault(self, kind: str, text: str) -> None:
        self._append(self._faults, kind, text)

    def note(self, text: str) -> None:
        self._append(self._history, text)

    def faults(self) -> List[List[Any]]:
        return self._lines(self._faults)

    def history(self) -> List[List[Any]]:
        return self._lines(self._history)

    def set_quota(self, size: int, done: bool) -> None:
        """Before and after it is set."""
        self.quota[1] = size
        self.quota[2] = min(self.quota[2], size)
        if done:
            self.quota[0] = size

    def take_least_quota(self) -> int:
        """Of those that may have held since the last call."""
        least = min(self.quota)
        self.quota[2] = min(self.quota[0], self.quota[1])
        return least


# ---- the directories ----

SLACK = 16 * BYTES  # in the hands of processes and movers
FLUX = 6000         # blocks that come to a directory, and leave it, in a second

@dataclasses.dataclass(frozen=True)
class Directory:
    name: str
    tier: int
    unit: int  # what its limit is of


@dataclasses.dataclass(frozen=True)
class Unit:
    """What a limit is of: a directory, or a tier."""
    name: str
    limit: int
    lowest: bool

    def percent(self, percent: int) -> int:
        return self.limit * percent // 100


@dataclasses.dataclass
class Look:
    """One walk through all directories, from the top down. It takes some
    milliseconds; a block that moves down meanwhile is not missed."""
    began: float
    drained: List[int]
    drains: List[int]
    removed: int
    removed_q: int
    quota: int
    # of the units: bytes, and how wrong that may be
    used: List[int]
    slack: List[int]
    # of a block: directories
    places: Dict[int, List[int]] = dataclasses.field(default_factory=dict)
    # of the units: how far below its low mark it may be; None: as far as it is
    may_lack: List[Optional[int]] = dataclasses.field(default_factory=list)
    ended: float = 0.0

    def live_bytes(self, space: Optional[int] = None) -> int:
        return BYTES * sum(space is None or space_of(number) == space
                           for number in self.places)


class Disks:
    def __init__(self, work: str, directories: List[Directory],
                 units: List[Unit]) -> None:
        self.paths = [f"{work}/{each.name}" for each in directories]
        self.directories, self.units = directories, units
        for path in self.paths:
            os.mkdir(path)

    @staticmethod
    def _names(path: str) -> List[str]:
        try:
            return [name for name in os.listdir(path)
                    if name.endswith(".bin")]
        except FileNotFoundError:
            return []

    def names_in(self, directory: int) -> List[str]:
        return [name for space in SPACES for bucket in range(256)
                for name in self._names(f"{self.paths[directory]}/{space}/"
                                        f"{bucket:02x}")]

    def walk(self, shared: Shared) -> Look:
        half = WRITERS // 2
        look = Look(time.monotonic(), list(shared.drained),
                    list(shared.drains), sum(shared.removed),
                    sum(shared.removed[half:]), shared.take_least_quota(),
                    [0] * len(self.units), [SLACK] * len(self.units))
        found = []
        os.setpriority(os.PRIO_PROCESS, 0, -15)  # less moves meanwhile
        for index, directory in enumerate(self.directories):
            began = time.monotonic()
            found.append(self.names_in(index))
            look.slack[directory.unit] += BYTES * int(
                FLUX * (time.monotonic() - began))
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        for index, directory in enumerate(self.directories):
            look.used[directory.unit] += BYTES * len(found[index])
            for name in found[index]:
                number = number_of(name)
                if number is None:
                    shared.fault("bytes", f"{directory.name}: a stranger, "
                                 f"{name}")
                else:
                    look.places.setdefault(number, []).append(index)
        look.ended = time.monotonic()
        return look

    def quarantined(self) -> List[str]:
        found = []
        for path in self.paths:
            folder = f"{path}/.ucmfs/quarantine"
            if os.path.isdir(folder):
                found += [f"{folder}/{name}" for name in os.listdir(folder)]
        return found


# ---- the account ----


@dataclasses.dataclass
class Rules:
    """What of a space may vanish: nothing, what its quota asks for, or what the
    limits of tiers ask for; and the marks, percent of these."""
    quota: bool = False
    tiers: bool = False
    high: int = 90
    low: int = 75


class Account:
    def __init__(self, shared: Shared, disks: Disks) -> None:
        self.shared, self.disks = shared, disks
        self.expected: Set[int] = set()
        self.asked = 0  # blocks that limits have evicted
        self.rules = Rules()
        self.looks: Deque[Look] = collections.deque(maxlen=600)
        self._first = [writer * SPAN for writer in range(WRITERS)]
        self._begun: Set[int] = set()
        self._missing: Dict[int, List[Look]] = {}
        self._undead: Set[int] = set()

    # what must be there

    def _find_new(self) -> None:
        state = self.shared.state
        for writer in range(WRITERS):
            end = writer * SPAN + self.shared.written[writer]
            self._begun.update(range(self._first[writer], end))
            self._first[writer] = end
        for number in [n for n in self._begun if state[n] != BEGUN]:
            self._begun.discard(number)
            if state[number] == LIVE:
                self.expected.add(number)

    def _forget_removed(self) -> None:
        state = self.shared.state
        self.expected = {n for n in self.expected if state[n] == LIVE}

    def _settle(self, look: Look) -> None:
        """Nothing runs: what was begun has been done or not, for good."""
        state, since = self.shared.state, self.shared.since
        for number in list(self._begun):
            if state[number] != BEGUN:
                continue
            state[number] = LIVE if number in look.places else REMOVED
            since[number] = look.ended
        for number in self.expected:
            if state[number] == REMOVING:
                state[number] = LIVE if number in look.places else REMOVED
                since[number] = look.ended
        self._find_new()

    # rules

    def _note_full(self, look: Look) -> None:
        """Until it is drained, a unit that has been full loses only what is
        above its low mark, and what is removed."""
        last = self.looks[-1] if self.looks else look
        lacks = last.may_lack or [None] * len(self.disks.units)
        for index, unit in enumerate(self.disks.units):
            mine = [i for i, each in enumerate(self.disks.directories)
                    if each.unit == index]
            lack = lacks[index]
            if any(look.drained[i] or look.drains[i] != last.drains[i]
                   for i in mine):
                lack = None
            elif look.used[index] >= unit.percent(self.rules.high) - SLACK // 2:
                lack = 0
            elif lack is not None:
                lack += look.removed - last.removed
            look.may_lack.append(lack)

    def _tiers_asked(self, before: Look, first: Look, now: Look,
                     others: int) -> Optional[str]:
        """others: bytes that vanished at the same time for another reason."""
        gone = first.removed - before.removed + others
        if not any(look.used[index] >= unit.percent(self.rules.low) - gone -
                   look.slack[index] for look in (before, first)
                   for index, unit in enumerate(self.disks.units)
                   if unit.lowest and
                   not self._is_drained(index, before, first)):
            return "the lowest tier has room"
        for index, unit in enumerate(self.disks.units):
            if all(look.may_lack[index] is not None and look.used[index] <
                   unit.percent(self.rules.low) - look.may_lack[index] - others -
                   look.slack[index] for look in (first, now)):
                return f"{unit.name} is below its low mark"
        return None

    def _is_drained(self, unit: int, before: Look, first: Look) -> bool:
        """All of it, from the first look to the second."""
        return all(before.drained[i] == first.drained[i] == 2 and
                   before.drains[i] == first.drains[i]
                   for i, each in enumerate(self.disks.directories)
                   if each.unit == unit)

    def _quota_asked(self, before: Look, first: Look) -> Optional[str]:
        quota = min(before.quota, first.quota)
        if quota == NO_QUOTA:
            return "it has no quota"
        gone = first.removed_q - before.removed_q + SLACK
        used = first.live_bytes(1)
        if used + gone < quota * self.rules.low // 100:
            return f"{used} bytes are left, of a quota of {quota}"
        return None

    def _judge(self, lost: List[int], before: Look, first: Look,
               now: Look) -> None:
        """They were there before, and absent first and now."""
        # also in a life without quotas: that of the life before holds at first
        over = self._quota_asked(before, first) is None
        others = [n for n in lost if not (over and space_of(n))]
        reason = None
        if others and self.rules.tiers:
            reason = self._tiers_asked(before, first, now,
                                       BYTES * (len(lost) - len(others)))
        elif others and self.rules.quota and space_of(others[0]):
            reason = self._quota_asked(before, first)
        elif others:
            reason = "there is room for all"
        if reason is None:
            self.asked += len(lost)
            return
        self.shared.fault(
            "lost", f"{len(others)} blocks, such as {self.tell(others[0])}: "
            f"{reason}; used {self.tell_used(before)}, then "
            f"{self.tell_used(first)}, then {self.tell_used(now)}")

    # words

    def tell(self, number: int) -> str:
        shared = self.shared
        first = number - shared.position[number]
        chain = [("-", "begun", "live", "removing", "removed", "lost")
                 [shared.state[n]] for n in range(first, first + 6)
                 if shared.position[n] == n - first]
        places: List[str] = []
        for look in list(self.looks)[-8:]:
            if number in look.places:
                places = [self.disks.directories[i].name
                          for i in look.places[number]]
        return (f"{SPACES[space_of(number)]} {number:x} (of "
                f"{shared.since[number]:.3f}, last in {places}, number "
                f"{number - first} of a chain: {' '.join(chain)})")

    def tell_used(self, look: Look) -> str:
        return " ".join(
            f"{unit.name}:{100 * used // unit.limit}%"
            for unit, used in zip(self.disks.units, look.used))

    def tell_look(self, look: Look) -> str:
        drained = [each.name for each, drained in
                   zip(self.disks.directories, look.drained) if drained]
        return (f"{look.began:.3f} to {look.ended:.3f}: used "
                f"{self.tell_used(look)}; "
                f"{len(look.places)} blocks, {look.live_bytes(1)} bytes of q; "
                f"removed {look.removed}; drained {drained}; "
                f"quota {'-' if look.quota == NO_QUOTA else look.quota}")

    # what vanished

    def _check_lost(self, number: int, before: Look, now: Look) -> None:
        """No limit may ask for these."""
        shared, state = self.shared, self.shared.state
        if shared.pinned[number] == 2:
            shared.fault("pinned", f"lost: {self.tell(number)}")
        child = number + 1
        if (shared.position[child] and state[child] == LIVE and
                shared.since[child] < before.began and
                number in before.places and child in now.places):
            shared.fault("parent", f"evicted before its child: "
                         f"{self.tell(number)}")

    def _lose(self, lost: List[int], before: Look, first: Look,
              now: Look) -> None:
        for number in lost:
            self._check_lost(number, before, now)
        self._judge(lost, before, first, now)
        for number in lost:
            self.shared.state[number] = LOST
            self.expected.discard(number)

    def _check_undead(self, look: Look) -> None:
        state, since = self.shared.state, self.shared.since
        seen = {n for n in look.places if state[n] in (REMOVED, LOST) and
                since[n] < look.began}
        for number in seen & self._undead:
            self.shared.fault("back", f"{self.tell(number)} is there")
            state[number] = NONE
        self._undead = seen

    def look(self, quiet: bool = False) -> Look:
        """quiet: no other process runs, so that all is exact."""
        shared = self.shared
        self._find_new()
        self._forget_removed()
        expected = set(self.expected)
        look = self.disks.walk(shared)
        if quiet:
            self._settle(look)
            expected = {n for n in self.expected if shared.state[n] == LIVE}
        self._note_full(look)
        before = self.looks[-1] if self.looks else look
        self.looks.append(look)
        absent = {n for n in expected if n not in look.places and
                  shared.state[n] == LIVE}
        # one that moves up, or aside, may be missed now and then
        missing = {n: self._missing.get(n, []) + [look] for n in absent}
        lost = [n for n, looks in missing.items()
                if quiet or len(looks) == MISSES]
        groups: Dict[float, Tuple[List[Look], List[int]]] = {}
        for number in lost:
            looks = missing.pop(number)
            groups.setdefault(looks[0].began, (looks, []))[1].append(number)
        for looks, numbers in groups.values():
            earlier = [each for each in self.looks
                       if each.began < looks[0].began]
            self._lose(numbers, earlier[-1] if earlier else before, looks[0],
                       look if quiet else looks[1])
        self._missing = missing
        self._check_undead(look)
        self._list(look)
        return look

    def _list(self, look: Look) -> None:
        numbers = [n for n in look.places if self.shared.state[n] == LIVE]
        room = len(self.shared.listed)
        for i, number in enumerate(numbers[:room]):
            self.shared.listed[i] = number
        self.shared.num_listed[0] = min(len(numbers), room)

    # present, and not found by readers

    def check_denied(self, read: Callable[[int], bool]) -> None:
        """Read again what a reader did not find, and the directories have."""
        shared, look = self.shared, self.looks[-1]
        for number in look.places:
            if (not shared.denied[number] or shared.state[number] != LIVE or
                    shared.denied[number] + 0.5 > look.began):
                continue
            shared.denied[number] = 0
            if not read(number) and number in self.look().places and \
                    not read(number) and shared.state[number] == LIVE:
                shared.fault("hidden", "it is there, and absent: "
                             f"{self.tell(number)}")

    def check_quiet(self, look: Look) -> None:
        """No daemon runs."""
        for unit, used in zip(self.disks.units, look.used):
            if used > unit.limit:
                self.shared.fault("limit", f"{unit.name} has {used} bytes, "
                                  f"of {unit.limit}")
        crowded = [n for n, places in look.places.items() if len(places) > 2]
        if crowded:
            self.shared.fault("places", "in more than two: "
                              f"{self.tell(crowded[0])}")
        for path in self.disks.quarantined():
            self.shared.fault("quarantine", path)
            os.unlink(path)
