# SPDX-License-Identifier: Apache-2.0
"""Writers at full speed into three tiers, while everything that moves blocks runs
and the daemon is killed again and again.

Usage: motion_soak.py UCM SECONDS LIFE_SECONDS [KIND...]

The run is a sequence of lives of a daemon, each of which ends with a kill -9. In
each, processes write, remove, read and compare, pin, warm, change a quota, flush,
scrub, drain and undrain (soak_workers.py). What may vanish is what the kind of
life says:

  roomy  all that is live fits into one directory of the lowest tier: nothing
  quota  the same, but for a space whose quota is passed and changes: its blocks,
         and not below the low mark of the least quota that may have held
  full   more is written than there is room for: blocks, while the lowest tier is
         at its marks, and in no tier below them
  brim   the same with marks at the limits, so that writers have to make room
  still  nothing is written, all tiers are below their low marks, and a directory
         of the lowest is drained, for which the others have no room: nothing

In all lives: no write, read, flush or scrub fails; bytes are right; removed blocks
do not come back; pinned ones stay; no parent is evicted before its child; no limit
is exceeded; nothing is quarantined. soak_account.py has the account.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                             "engines"))
import soak_blocks  # noqa: E402
from mount import Mount  # noqa: E402
from seed import SEED  # noqa: E402
from soak_account import (NO_QUOTA, REMOVED, SPACES,  # noqa: E402
                          WRITERS, Account, Directory, Disks, Look, Rules,
                          Shared, Unit, writer_of)
from soak_workers import (Drainer, LastDrainer, Life, Worker,  # noqa: E402
                          Writer, compare, crew)

UCM = sys.argv[1]
SECONDS, LIFE_SECONDS = float(sys.argv[2]), float(sys.argv[3])
LOOK_S = 0.15
END_S = 30.0
HANG_S = 3.0
MNT_FORCE = 1
MIB = 1 << 20
UNITS = [Unit("fast", 1 * MIB, False), Unit("mid", 2 * MIB, False),
         Unit("d", 8 * MIB, True), Unit("e", 8 * MIB, True)]
DIRECTORIES = [Directory("a", 0, 0), Directory("b", 1, 1), Directory("c", 1, 1),
               Directory("d", 2, 2), Directory("e", 2, 3)]
LAST = 3  # drained in still lives
# live blocks of a writer, so that all fit into a directory of the lowest tier
# while the other one is drained
BOUND = 150
MOST_SHOWN = 8  # lives

_libc = ctypes.CDLL(None)


@dataclasses.dataclass(frozen=True)
class Kind:
    rules: Rules
    bound: Optional[int]
    options: str
    quotas: bool = False
    warms: bool = True
    fill: int = 100  # percent of the limits, when it begins


KINDS: Dict[str, Kind] = {
    "roomy": Kind(Rules(), BOUND, "write=fast:back"),
    "quota": Kind(Rules(quota=True), BOUND, "write=fast:back", quotas=True),
    "full": Kind(Rules(tiers=True), None, "write=fast:back"),
    # no copies, which would leave first
    "brim": Kind(Rules(tiers=True, high=100, low=98), None, "promote=never",
                 warms=False),
    "still": Kind(Rules(), 0, "promote=never", warms=False, fill=65),
}
POLICIES = ("hazard", "lru")


class Soak:
    def __init__(self, work: str) -> None:
        self.mount = Mount(tiers=0, start=False, base=work, scanned=False)
        self.disks = Disks(self.mount.work, DIRECTORIES, UNITS)
        paths = self.disks.paths
        self.mount.tiers = [f"fast={paths[0]}", f"mid={paths[1]},{paths[2]}",
                            f"slow={paths[3]},{paths[4]}"]
        self.limits = (f"limit=fast:{UNITS[0].limit},limit=mid:{UNITS[1].limit},"
                       f"limit={paths[3]}:{UNITS[2].limit},"
                       f"limit={paths[4]}:{UNITS[3].limit}")
        self.shared = Shared(self.mount.work, len(paths))
        self.account = Account(self.shared, self.disks)
        self.pids: List[int] = []
        self.number = 0
        self.aborts = 0
        self.sums: Dict[str, int] = {}
        self.failed: Dict[str, int] = {}
        self.shown = 0
        atexit.register(self.end_life)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    # the daemon

    def start(self, kind: Kind) -> None:
        policy = POLICIES[(SEED + self.number) % len(POLICIES)]
        self.mount.options = f"{self.limits},policy={policy},{kind.options}"
        self.mount.settings = f"high={kind.rules.high},low={kind.rules.low}"
        self.shared.ending[0] = 0
        for which in range(len(DIRECTORIES)):
            self.shared.drained[which] = 0
            self.shared.drains[which] += 1
        self.mount.start()
        with open(os.environ["UCMFS_TEST_PID"], "w", encoding="utf-8") as file:
            print(self.mount.pid, file=file)  # for the watchdog

    def make_spaces(self) -> None:
        os.mkdir(f"{self.mount.path}/spaces/q")
        for space in SPACES:
            with open(f"{self.mount.path}/{space}/space.json", "w",
                      encoding="utf-8") as file:
                file.write(soak_blocks.MANIFEST)

    def end_life(self) -> None:
        self.shared.ending[0] = 1
        if not self.pids:
            return
        os.kill(self.mount.pid, signal.SIGKILL)
        soon = time.monotonic() + HANG_S
        if not all(self.wait_for(pid, soon)
                   for pid in [self.mount.pid, *self.pids]):
            # the kernel does not end a mount whose daemon was about to notify
            # it (see TODO), until it is aborted, as by umount -f
            self.aborts += 1
            _libc.umount2(self.mount.path.encode(), MNT_FORCE)
        self.mount.crash()
        self.end_workers()

    def end_workers(self) -> None:
        end = time.monotonic() + END_S
        while self.pids:
            pid = self.pids.pop()
            if not self.wait_for(pid, end):
                self.shared.fault("hang", f"process {pid} does not end")
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if status:
                self.shared.fault("test", f"process {pid}: status {status}")

    @staticmethod
    def wait_for(pid: int, until: float) -> bool:
        fd = os.pidfd_open(pid)
        try:
            return bool(select.select([fd], [], [],
                                      max(0.0, until - time.monotonic()))[0])
        finally:
            os.close(fd)

    # one life

    def chains(self) -> List[List[Tuple[int, int]]]:
        """The live ones of each writer, the oldest first."""
        found: List[List[Tuple[int, int]]] = [[] for _ in range(WRITERS)]
        for number in sorted(self.account.expected):
            mine = found[writer_of(number)]
            if mine and sum(mine[-1]) == number and \
                    self.shared.position[number]:
                mine[-1] = (mine[-1][0], mine[-1][1] + 1)
            else:
                mine.append((number, 1))
        return found

    def life(self, kind: Kind) -> Life:
        return Life(self.shared, self.disks, self.mount.path, UCM, self.number,
                    kind.bound, kind.quotas, kind.warms, self.chains())

    def remove(self, worker: Worker, number: int) -> None:
        try:
            os.unlink(worker.path(number))
        except FileNotFoundError:
            return  # the account finds out why
        self.shared.since[number] = time.monotonic()
        self.shared.state[number] = REMOVED
        self.shared.removed[writer_of(number)] += soak_blocks.BYTES

    def is_below(self, percent: int) -> bool:
        limits = sum(unit.limit for unit in UNITS)
        return sum(self.account.look().used) < limits * percent // 100

    def fill(self, kind: Kind) -> None:
        """Write until the tiers are almost as full as they may be."""
        worker = Writer(self.life(kind), 0)
        while self.is_below(kind.fill - 5):
            for _ in range(10):
                worker.write_chain()

    def thin_out(self, kind: Kind) -> None:
        """Remove chains until no unit is fuller than it may be."""
        worker = Worker(self.life(kind), "thin out")
        end = time.monotonic() + END_S
        while time.monotonic() < end:
            look = self.account.look()
            over = {index for index, unit in enumerate(UNITS)
                    if look.used[index] > unit.percent(kind.fill)}
            chains = [(first, length) for each in self.chains()
                      for first, length in each]
            worker.random.shuffle(chains)
            if not over:
                return
            for first, length in chains[:20]:
                numbers = range(first + length - 1, first - 1, -1)
                if any(DIRECTORIES[place].unit in over for n in numbers
                       for place in look.places.get(n, [])):
                    for number in numbers:
                        self.remove(worker, number)
        self.shared.fault("test", "it cannot be thinned out")

    def bring_within(self, kind: Kind) -> None:
        """Prepare a life: what vanishes here may do so."""
        self.account.rules = dataclasses.replace(kind.rules, quota=True,
                                                 tiers=True)
        worker = Worker(self.life(kind), "before")
        if kind.bound:
            for chains in self.chains():
                while sum(length for _, length in chains) > kind.bound:
                    first, length = chains.pop(0)
                    for number in range(first + length - 1, first - 1, -1):
                        self.remove(worker, number)
        if kind.fill < 100:
            self.fill(kind)
            self.thin_out(kind)
            while self.is_below(kind.fill - 7):  # chains are in many units
                self.fill(kind)
                self.thin_out(kind)
        size = MIB if kind.quotas else NO_QUOTA
        self.shared.set_quota(size, False)
        worker.must_ucm("quota", "set", "q",
                        str(size) if kind.quotas else "none")
        self.shared.set_quota(size, True)
        # two equal looks: limits ask for nothing more
        last: Dict[int, List[int]] = {}
        end = time.monotonic() + END_S
        while time.monotonic() < end:
            look = self.account.look()
            if look.places.keys() == last.keys() and not self.pressure():
                break
            last = look.places
            self.wait_for(self.mount.pid, time.monotonic() + 0.3)
        else:
            self.shared.fault("settle", "blocks go on vanishing")
        self.account.rules = kind.rules

    def pressure(self) -> int:
        with open(f"{self.mount.path}/.ucmfs/metrics", encoding="utf-8") as file:
            return sum(int(line.split()[-1]) for line in file
                       if line.startswith("ucmfs_directory_pressure_bytes{"))

    def ends(self, until: float) -> bool:
        """Wait for the next look; true if the life ends before it."""
        if self.wait_for(self.mount.pid, min(until,
                                             time.monotonic() + LOOK_S)):
            self.shared.fault("daemon", "it has ended by itself")
            return True
        return time.monotonic() >= until

    def run(self, name: str) -> None:
        kind = KINDS[name]
        self.start(kind)
        if not self.number:
            self.make_spaces()
        self.bring_within(kind)
        life = self.life(kind)
        drainer = (LastDrainer(life, [0, 1, 2], LAST) if kind.bound == 0
                   else Drainer(life, "drainer"))
        reader = Worker(life, "account")
        seconds = LIFE_SECONDS
        if kind.bound == 0 and SECONDS > 300:
            seconds += 35  # until the drain gives up
        until = time.monotonic() + seconds
        self.account.look()
        before = self.counts()
        self.pids = crew(life, drainer)
        while not self.ends(until):
            self.account.look()
            self.account.check_denied(lambda n: compare(reader, n))
        if kind.bound == 0:
            self.check_drained(reader)
        self.end_life()
        look = self.account.look(quiet=True)
        self.account.check_quiet(look)
        self.number += 1
        self.tell(name, before, look)

    def check_drained(self, worker: Worker) -> None:
        """What is left is counted."""
        def counts() -> List[int]:
            return [len(self.disks.names_in(each))
                    for each in range(len(DIRECTORIES))]

        if self.shared.drained[LAST] != 2:
            self.shared.fault("test", "the last drain was not reached")
            return
        for _ in range(20):
            before = counts()
            left = Drainer(worker.life, "count").left(LAST)
            if counts() != before:
                continue
            if left != before[LAST] or not left:
                self.shared.fault("drain", f"{left} blocks are left, it says; "
                                  f"there are {before[LAST]}")
            return

    # what came of it

    def counts(self) -> Dict[str, int]:
        shared = self.shared
        return {"written": sum(shared.written),
                "removed": sum(shared.removed) // soak_blocks.BYTES,
                "evicted": self.account.asked, "read": sum(shared.read)}

    def tell(self, name: str, before: Dict[str, int], look: Look) -> None:
        after = self.counts()
        counts = {key: after[key] - before[key] for key in after}
        history = self.shared.history()
        for verb in "sync", "drain", "scrub", "warm", "quota":
            counts[verb] = sum(text.startswith((f"ucm {verb} ", f"ucm {verb}:"))
                               and ": 0: " in text for _, text in history)
        for key, count in counts.items():
            self.sums[key] = self.sums.get(key, 0) + count
            self.sums[f"{name}: {key}"] = \
                self.sums.get(f"{name}: {key}", 0) + count
        faults = self.shared.faults()
        options = self.mount.options.split("policy=")[1]
        print(f"life {self.number}, {name}, {options}: {counts}; then "
              f"{self.account.tell_used(look)}, {len(look.places)} blocks; "
              f"{len(faults)} faults", flush=True)
        if faults:
            self.show(name, faults, history)
        self.shared.clear()

    def show(self, name: str, faults: List[List[Any]],
             history: List[List[Any]]) -> None:
        first: Dict[str, List[List[Any]]] = {}
        for fault in faults:
            first.setdefault(fault[1], []).append(fault)
        for what, those in first.items():
            key = f"{name}: {what}"
            self.failed[key] = self.failed.get(key, 0) + len(those)
            print(f"FAIL: {what}, {len(those)} times, at first:")
            for moment, _, text in those[:3]:
                print(f"  | {moment}: {text}")
        self.shown += 1
        if self.shown > MOST_SHOWN:
            return
        moment = next((moment for moment, what, _ in faults if what == "lost"),
                      faults[0][0])
        print("-- the account, before that and after:")
        looks = list(self.account.looks)
        for look in [each for each in looks if each.began <= moment][-9:] + \
                [each for each in looks if each.began > moment][:3] + looks[-1:]:
            print("  |", self.account.tell_look(look))
        print("-- what was done before that, and after:")
        for line in [each for each in history if each[0] <= moment][-15:] + \
                [each for each in history if each[0] > moment][:10]:
            print("  |", *line)
        print("-- the daemon's log, the last lines:")
        for text in self.mount.said.splitlines()[-25:]:
            print("  |", text)
        sys.stdout.flush()

    def check_enough(self) -> None:
        """Enough was done to say something."""
        for key, least in (("read", 200), ("sync", 2), ("drain", 2),
                           ("scrub", 1), ("removed", 20)):
            if self.sums.get(key, 0) < least:
                self.failed[f"only {self.sums.get(key, 0)}: {key}"] = 1
        for kind in "quota", "full", "brim":
            key = f"{kind}: evicted"
            if self.sums.get(key, 0) < 100:
                self.failed[f"only {self.sums.get(key, 0)}: {key}"] = 1


def main() -> int:
    kinds = sys.argv[4:] or list(KINDS)
    soak = Soak(os.environ["UCMFS_TEST_DIR"])
    began = time.monotonic()
    end = began + SECONDS
    while time.monotonic() < end or soak.number < len(kinds):
        soak.run(kinds[soak.number % len(kinds)])
    if len(kinds) == len(KINDS):
        soak.check_enough()
    print(f"{soak.number} lives, {time.monotonic() - began:.0f} s: "
          f"{ {k: n for k, n in soak.sums.items() if ':' not in k} }; "
          f"{soak.aborts} mounts hung until they were aborted")
    for what, count in soak.failed.items():
        print(f"FAIL: {what} ({count})")
    if soak.failed:
        print(f"again with UCMFS_TEST_SEED={SEED}")
    soak.mount.close()
    return 1 if soak.failed else 0


if __name__ == "__main__":
    sys.exit(main())
