# SPDX-License-Identifier: Apache-2.0
"""Blocks move while the daemon's nth call to its directories fails, or is its last.

Usage: nth_moves.py MKBLOCKS UCM PRELOAD SEED [SCENE...]

For each scene, once with all calls going well, which counts them; then with a
fault at one call: for all calls with UCMFS_TEST_LONG=1, else for a sample that
SEED makes. PRELOAD is the library of nth_call.c. After each the daemon is
started anew, without faults, and then must hold:

  - every block that was written, and that no limit asks away, has its bytes;
  - what was removed is absent;
  - no block has more than two files, none is under another name, and nothing is
    left in .ucmfs/tmp;
  - what the daemon counts in each directory is what lies there.
"""
from __future__ import annotations

import errno
import json
import mmap
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from dead_mount import DEAD

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "engines"))
from mount import Mount  # noqa: E402

MKBLOCKS, UCM, PRELOAD, SEED = sys.argv[1:5]
LONG = os.environ.get("UCMFS_TEST_LONG", "0") not in ("", "0")
SHAPE = "--quiet --layers 2 --heads 1 --dim 16 --tokens 16".split()
BLOCK = 8192
POOL = 16
DIRS = {"a": 0, "b": 1, "c": 2, "d": 3}
CONTROL = struct.Struct("IIIiIII24s")  # as nth_call.c has it
KILL, SHORT = -1, -2
# what is done to a call, and how many of them without UCMFS_TEST_LONG
FAULTS: Dict[str, Tuple[int, int]] = {
    "kill": (KILL, 3), "EIO": (errno.EIO, 1), "ENOSPC": (errno.ENOSPC, 1),
    "ESTALE": (errno.ESTALE, 1), "short": (SHORT, 1),
}
LIMIT_S = 20.0
STILL_S = 0.05
FRUITLESS_S = 10.0  # a rebalance that moves nothing is over by then
TRIES = 3


class Failure(Exception):
    pass


def must(condition: Any, what: str) -> None:
    if not condition:
        raise Failure(what)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        must(time.monotonic() < end, what)
        time.sleep(0.005)


class Pool:
    """Blocks by their names; none is another one's parent, so all may go."""

    def __init__(self, path: str) -> None:
        os.makedirs(path)
        self.names = [self.make(path, seed) for seed in range(POOL)]
        self.bytes = {name: pathlib.Path(path, name).read_bytes()
                      for name in self.names}

    @staticmethod
    def make(path: str, seed: int) -> str:
        options = [*SHAPE, "--count", "1", "--seed", str(seed)]
        subprocess.run([MKBLOCKS, *options, path], check=True)
        return subprocess.run([MKBLOCKS, *options, "--list"], check=True,
                              capture_output=True, text=True).stdout.strip()


class Control:
    """The file that the preloaded library looks into."""

    def __init__(self, path: str) -> None:
        self.path = path
        pathlib.Path(path).write_bytes(bytes(CONTROL.size))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), CONTROL.size)

    def arm(self, movers: bool, what: int, nth: int) -> None:
        self._map[:] = CONTROL.pack(0, movers, nth, what, 0, 0, 0, b"")
        self._map[:4] = struct.pack("I", 1)

    def disarm(self) -> None:
        self._map[:4] = bytes(4)

    @property
    def count(self) -> int:
        return CONTROL.unpack(self._map[:])[4]

    @property
    def moving(self) -> int:
        """Those that read or write."""
        return CONTROL.unpack(self._map[:])[5]

    @property
    def met(self) -> bool:
        return bool(CONTROL.unpack(self._map[:])[6])

    @property
    def call(self) -> str:
        return CONTROL.unpack(self._map[:])[7].rstrip(b"\0").decode()


class Scene:
    """One kind of move."""

    tiers = "fast=a:slow=b"
    options = "policy=lru"
    settings = ""
    movers = True    # their calls alone count
    from_start = False  # also those of the start
    planted: Dict[str, int] = {}  # blocks that lie in a directory
    may_go = 0  # blocks that limits ask away, at most

    def __init__(self, pool: Pool, control: Control) -> None:
        self.pool = pool
        self.control = control
        self.mount = Mount(tiers=len(DIRS), start=False, scanned=False)
        self.dirs = dict(zip(DIRS, self.mount.tiers))
        self.faulted = False
        self.written: List[str] = []
        self.perhaps: List[str] = []  # what became of them was not heard
        self.removed: List[str] = []
        self.next = 0

    # what there is

    def configure(self, tiers: str) -> None:
        self.mount.options = self.options
        self.mount.settings = ("threads=1,checkpoint=86400"
                               f",{self.settings}").rstrip(",")
        self.mount.tiers = [self.source_of(tier) for tier in tiers.split(":")]

    def source_of(self, tier: str) -> str:
        name, dirs = tier.split("=")
        return f"{name}=" + ",".join(self.dirs[each]
                                     for each in dirs.split(","))

    def used_dirs(self) -> List[str]:
        return [self.dirs[each] for tier in self.tiers.split(":")
                for each in tier.split("=")[1].split(",")]

    def plant(self) -> None:
        for where, num in self.planted.items():
            for _ in range(num):
                name = self.take()
                path = pathlib.Path(self.dirs[where], "blocks", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.pool.bytes[name])
                os.utime(path, (self.next, self.next))  # long ago
                self.written.append(name)

    def take(self) -> str:
        self.next += 1
        return self.pool.names[self.next - 1]

    def path(self, name: str) -> str:
        return f"{self.mount.path}/blocks/{name}"

    def stats(self) -> Any:
        with open(f"{self.mount.path}/.ucmfs/stats.json", "rb") as file:
            return json.load(file)

    def directories(self) -> List[Any]:
        return [one for tier in self.stats()["tiers"]
                for one in tier["directories"]]

    # what is done

    def start(self, faults: bool) -> None:
        preload = {"LD_PRELOAD": PRELOAD, "UCMFS_NTH_CALL": self.control.path}
        if faults:
            os.environ.update(preload)
        try:
            self.mount.start()
        finally:
            for name in preload:
                os.environ.pop(name, None)

    def is_complete(self) -> bool:
        return self.stats()["index"]["complete"]

    def write_file(self, name: str, data: bytes) -> bool:
        try:
            fd = os.open(self.path(name),
                         os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in DEAD:
                raise
            return False
        return True

    def write(self, num: int) -> None:
        for _ in range(num):
            name = self.take()
            self.perhaps.append(name)
            if not self.write_file(name, self.pool.bytes[name]):
                continue
            self.perhaps.remove(name)
            self.written.append(name)

    def arrange(self) -> None:
        pass

    def act(self) -> None:
        raise NotImplementedError

    def is_done(self) -> bool:
        """All that was to be moved has been."""
        return True

    # what must hold

    def look(self) -> None:
        """Through the mount."""
        missing = []
        for name in self.written + self.perhaps + self.removed:
            try:
                found = pathlib.Path(self.path(name)).read_bytes()
            except FileNotFoundError:
                missing.append(name)
                continue
            must(name not in self.removed, f"{name} is back")
            must(found == self.pool.bytes[name], f"{name}: wrong bytes")
        lost = set(missing) & set(self.written)
        must(len(lost) <= self.may_go, f"lost: {lost}")

    def compare(self) -> Optional[str]:
        """What lies there and what is counted; None, or what differs."""
        places: Dict[str, int] = {}
        for one in self.directories():
            files = list(pathlib.Path(one["path"], "blocks").glob("??/*"))
            used = sum(file.stat().st_blocks * 512 for file in files)
            if (one["blocks"], one["used_bytes"]) != (len(files), used):
                return (f"{one['path']}: {len(files)} files, {used} bytes; "
                        f"counted {one['blocks']}, {one['used_bytes']}")
            if used > one.get("limit_bytes", used) + BLOCK:
                return f"{one['path']}: {used} bytes: over its limit"
            for file in files:
                name = f"{file.parent.name}/{file.name}"
                places[name] = places.get(name, 0) + 1
            left = [path for path
                    in pathlib.Path(one["path"], ".ucmfs/tmp").rglob("*")
                    if not path.is_dir()]
            if left:
                return f"temporary files: {left}"
        crowded = [name for name, num in places.items() if num > 2]
        if crowded:
            return f"in more than two places: {crowded}"
        strangers = set(places) - set(self.written + self.perhaps)
        return f"left: {strangers}" if strangers else None

    def settles(self) -> None:
        said: List[Optional[str]] = [None]

        def agrees() -> bool:
            try:
                said[0] = self.compare()
            except FileNotFoundError as error:  # it moved meanwhile
                said[0] = str(error)
            return said[0] is None

        try:
            wait_until(agrees, "")
        except Failure:
            raise Failure(said[0] or "") from None

    # one life

    def run(self, what: int, nth: int) -> bool:
        """True if the fault was met."""
        self.faulted = what != 0
        self.configure(self.tiers)
        self.plant()
        if self.from_start:
            self.control.arm(self.movers, what, nth)
        died = not self.live(what, nth)
        met = self.control.met
        self.control.disarm()
        if died:
            self.mount.crash()
        else:
            self.look()
            self.mount.stop()
        self.start(False)
        wait_until(self.is_complete, "the scan does not end")
        self.look()
        self.settles()
        self.mount.stop()
        return met

    def live(self, what: int, nth: int) -> bool:
        """False: it was killed."""
        try:
            self.start(True)
            wait_until(self.is_complete, "the scan does not end")
            self.arrange()
            if not self.from_start:
                self.control.arm(self.movers, what, nth)
            self.act()
            self.wait_for_end(what)
            return True
        except (OSError, RuntimeError) as error:
            must(what == KILL and self.control.met, f"it failed: {error}")
            return False

    def wait_for_end(self, what: int) -> None:
        """Done; or met by the fault, and nothing more is called."""
        count, since = -1, time.monotonic()
        end = since + LIMIT_S
        while True:
            now = time.monotonic()
            if self.control.count != count:
                count, since = self.control.count, now
            if what == KILL and self.control.met:
                raise OSError(errno.ENOTCONN, "killed")
            if now - since > STILL_S and (self.control.met or self.is_done()):
                return
            must(now < end, "nothing moves")
            time.sleep(0.005)


class Down(Scene):
    """Over the high mark of a fast tier, with another one below it."""
    tiers = "fast=a:mid=b,c:slow=d"
    options = "policy=lru,promote=never,limit=fast:128K"
    settings = "high=80,low=65"

    def arrange(self) -> None:
        self.write(12)

    def act(self) -> None:
        self.write(1)

    def is_done(self) -> bool:
        return not self.directories()[0]["pressure_bytes"]


class Up(Scene):
    """What is used comes up."""
    tiers = "fast=a:mid=b:slow=c"
    options = "policy=lru,promote=now"
    planted = {"b": 2, "c": 2}

    def act(self) -> None:
        for name in self.written[1:3]:
            pathlib.Path(self.path(name)).read_bytes()

    def is_done(self) -> bool:
        return self.directories()[0]["blocks"] == 2


class UpWhereFull(Scene):
    """For it another one goes down, and leaves the lowest."""
    tiers = "fast=a:slow=b"
    # looking at all once, as is done afterwards, is not enough
    options = "policy=lru,promote=2,limit=fast:16K,limit=slow:32K"
    settings = "high=100,low=99"
    planted = {"b": 4, "a": 2}  # the oldest first
    may_go = 2

    def act(self) -> None:
        for _ in range(2):
            pathlib.Path(self.path(self.written[3])).read_bytes()

    def is_done(self) -> bool:
        return os.path.exists(
            f"{self.dirs['a']}/blocks/{self.written[3]}")


class Back(Scene):
    """What is written is copied below."""
    options = "policy=lru,promote=never,write=fast:back"

    def act(self) -> None:
        self.write(2)

    def is_done(self) -> bool:
        return not self.stats()["index"]["unsaved"]


class Leave(Scene):
    """Copied below already: one place goes."""
    options = "policy=lru,promote=never,write=fast:back,limit=fast:128K"
    settings = "high=80,low=65"

    def arrange(self) -> None:
        self.write(12)
        wait_until(lambda: not self.stats()["index"]["unsaved"], "not saved")

    def act(self) -> None:
        self.write(1)

    def is_done(self) -> bool:
        return (not self.directories()[0]["pressure_bytes"] and
                not self.stats()["index"]["unsaved"])


class Through(Scene):
    """The commit copies it below."""
    options = "policy=lru,promote=never,write=fast:through"
    movers = False

    def act(self) -> None:
        self.write(1)


class Evict(Down):
    """Over the high mark of the only tier."""
    tiers = "only=a"
    options = "policy=lru,limit=only:128K"
    may_go = 4


class Room(Scene):
    """A new block takes the room of another one."""
    tiers = "only=a"
    options = "policy=lru,limit=only:64K"
    settings = "high=100,low=99,movers=1"
    movers = False
    may_go = 3

    def arrange(self) -> None:
        self.write(8)

    def act(self) -> None:
        self.write(1)


class Unlink(Scene):
    """A block in two places."""
    options = "policy=lru,promote=never,write=fast:back"
    movers = False

    def arrange(self) -> None:
        self.write(3)
        wait_until(lambda: not self.stats()["index"]["unsaved"], "not saved")

    def act(self) -> None:
        name = self.written.pop(1)
        self.perhaps.append(name)
        try:
            os.unlink(self.path(name))
        except OSError as error:
            if error.errno in DEAD:
                raise
            return
        self.perhaps.remove(name)
        self.removed.append(name)


class Drain(Scene):
    """A directory is emptied, into the other one of its tier."""
    tiers = "all=a,b"
    options = "policy=lru"
    planted = {"a": 3}

    def act(self) -> None:
        done = subprocess.run([UCM, "drain", "-m", self.mount.path,
                               "--background", self.dirs["a"]], check=False,
                              capture_output=True)
        must(not done.returncode or self.control.met, f"drain: {done.stderr}")

    def is_done(self) -> bool:
        return not self.directories()[0]["blocks"]


class Rebalance(Scene):
    """A directory is new, and gets its share."""
    tiers = "all=a,b"
    planted = {"a": 5}
    from_start = True

    def act(self) -> None:
        self.began = time.monotonic()

    def is_done(self) -> bool:
        # of 32 new directories one is the place of none of the five
        return (self.directories()[1]["blocks"] > 0 or
                time.monotonic() - self.began > FRUITLESS_S)


SCENES: Dict[str, Type[Scene]] = {kind.__name__: kind for kind in (
    Down, Up, UpWhereFull, Back, Leave, Through, Evict, Room, Unlink, Drain,
    Rebalance)}


# ---- all of them ----

class Trials:
    def __init__(self) -> None:
        work = os.environ["UCMFS_TEST_DIR"]
        self.pool = Pool(f"{work}/pool")
        self.control = Control(f"{work}/control")
        self.failed = 0

    def one(self, kind: Type[Scene], fault: str, what: int, nth: int) -> bool:
        """True if the fault was met."""
        scene = kind(self.pool, self.control)
        try:
            return scene.run(what, nth)
        except (Failure, OSError, RuntimeError) as error:
            print(f"FAIL: {kind.__name__}: {fault} at call {nth} "
                  f"({self.control.call or 'not met'}): {error}")
            for line in scene.mount.said.splitlines()[-30:]:
                print("  |", line)
            self.failed += 1
            return self.control.met
        finally:
            scene.mount.close()

    def sweep(self, kind: Type[Scene], fault: str, draw: random.Random,
              calls: int) -> None:
        what, num = FAULTS[fault]
        tried = met = nth = 0  # nth: the last that was met
        if not LONG:
            for each in draw.sample(range(1, calls + 1), min(num, calls)):
                met += self.one(kind, fault, what, each)
        else:
            while tried < nth + TRIES:  # two runs may differ a little
                tried += 1
                if self.one(kind, fault, what, tried):
                    nth = tried
                    met += 1
        print(f"{kind.__name__}: {fault}: met at {met} of {calls} calls",
              flush=True)

    def all_of(self, kind: Type[Scene]) -> None:
        draw = random.Random(f"{SEED} {kind.__name__}")
        self.one(kind, "no fault", 0, 0)
        calls, moving = self.control.count, self.control.moving
        must(calls, f"{kind.__name__}: no call was counted")
        for fault in FAULTS:
            self.sweep(kind, fault, draw,
                       moving if fault == "short" else calls)


def main() -> int:
    trials = Trials()
    for name in sys.argv[5:] or SCENES:
        trials.all_of(SCENES[name])
    shutil.rmtree(os.environ["UCMFS_TEST_DIR"] + "/pool")
    return 1 if trials.failed else 0


if __name__ == "__main__":
    sys.exit(main())
