# SPDX-License-Identifier: Apache-2.0
"""Operations on a mount whose daemon meets errors, or dies; see nth.sh.

usage: nth.py WORK MOUNT SEED CALL [ARGUMENT...]

  new MKBLOCKS              nothing is there yet
  operations                their names, and the system calls to fail for each
  errors PID OPERATION SYSCALL ERRNO NTH
                            the nth fails, for n from NTH until the operation is
                            not met any more; status 4: the directories have
                            been set aside after errors, and the daemon must be
                            started anew. Prints the next n.
  sample PID OPERATION SYSCALLS ERRNOS
                            every so many fail, from some one on, with one of
                            these errors
  every PID OPERATION SYSCALL ERRNO WHEN
                            those of WHEN fail, in the words of strace
  kill PID OPERATION SYSCALL NTH
                            PID dies when it begins the nth; status 3 if so
  verify                    what the last operation left
  tear                      cut a block's file, past the mount
  all [disturbed|complete]  all blocks that are served are right. disturbed:
                            some reads may fail; complete: and all that were
                            there the last time are

WORK/a and WORK/b are the directories of the only tier. WORK/nth.json keeps what
is known from one call to the next.
"""
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import control
from dead_mount import DEAD
from writers import wait_for_all_writers

WORK, MOUNT, SEED, CALL = sys.argv[1:5]
STATE = f"{WORK}/nth.json"
POOL = 400
SHAPE = "--quiet --layers 2 --heads 1 --dim 16 --tokens 16".split()
# in the words of strace: all that a call of the C library may be
STAT = "?fstat,?newfstatat"
RENAME = "?renameat,?renameat2"
CHMOD = "?fchmodat,?fchmodat2"


def daemon_pid():
    with open(f"{WORK}/run/{os.path.basename(MOUNT)}.pid") as file:
        return int(file.read())


def load():
    with open(STATE) as file:
        return json.load(file)


def save(world):
    with open(STATE, "w") as file:
        json.dump(world, file)


def read(path):
    """Its bytes; None if it is absent."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def write_new(path, data, sync=False):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(fd, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


class Failure(Exception):
    pass


def must(condition, what):
    if not condition:
        raise Failure(what)


# ---- blocks ----

class World:
    """world["blocks"]: a path in the mount, and where its bytes are."""

    def __init__(self):
        self.state = load()
        self.blocks = self.state["blocks"]

    def next(self):
        number = self.state["next"]
        self.state["next"] += 1
        if number // POOL >= self.state["pools"]:
            self.make_pool()
        pool = f"{WORK}/src/{number // POOL}"
        with open(f"{pool}/list") as names:
            name = names.read().split()[number % POOL]
        path = f"blocks/{name}"
        self.blocks[path] = f"{pool}/{name}"
        return path

    def make_pool(self):
        pool = f"{WORK}/src/{self.state['pools']}"
        options = ["--count", str(POOL), "--seed", str(self.state["pools"])]
        os.makedirs(pool)
        mkblocks = self.state["mkblocks"]
        subprocess.run([mkblocks, *SHAPE, *options, pool], check=True)
        with open(f"{pool}/list", "w") as names:
            subprocess.run([mkblocks, *SHAPE, *options, "--list"], check=True,
                           stdout=names)
        self.state["pools"] += 1

    def bytes_of(self, path):
        return read(self.blocks[path])

    def store(self, path, method="plain"):
        full = f"{MOUNT}/{path}"
        data = self.bytes_of(path)
        if method == "rename":
            write_new(f"{full}.tmp", data)
            os.rename(f"{full}.tmp", full)
        else:
            write_new(full, data, method == "fsync")

    def stored(self):
        path = self.next()
        self.store(path)
        return path

    def is_right(self, path):
        """There, and with its bytes."""
        found = read(f"{MOUNT}/{path}")
        must(found in (None, self.bytes_of(path)), f"{path}: wrong bytes")
        return found is not None

    def has_become(self, path):
        """The same, and so it must be after the next start. The daemon hears of
        the last close a moment after close(2), and tries once more then."""
        wait_for_all_writers(daemon_pid())
        there = self.is_right(path)
        self.state["fates"][path] = there
        return there


# ---- operations ----

class Operation:
    """One at a time: arranged, tried, and its result looked at.

    result: 0, the number of an error, or None: the daemon died.
    """
    enough = any  # of the directories, which an error sets aside for a while

    def __init__(self, world):
        self.world = world

    def fate(self, result, done, there):
        """What came to be is what was said."""
        must(result is None or done == (result == 0),
             f"{there}: result {result}, and done: {done}")


class Commit(Operation):
    syscalls = ("openat2", STAT, "lseek", "pread64", CHMOD, "linkat",
                "unlinkat", "mkdirat", "fdatasync", "fsync")

    def arrange(self):
        return self.world.next()

    def act(self, path):
        self.world.store(path, ("plain", "fsync", "rename")[
            self.world.state["next"] % 3])

    def verify(self, path, result):
        done = self.world.has_become(path)
        # what failed at close(2) is tried again at the last close
        must(done or result != 0, f"{path}: lost")


class Unlink(Operation):
    syscalls = ("unlinkat", "openat2")

    def arrange(self):
        return self.world.stored()

    def act(self, path):
        os.unlink(f"{MOUNT}/{path}")

    def verify(self, path, result):
        self.fate(result, not self.world.has_become(path), path)


def pin_of(path):
    return os.getxattr(f"{MOUNT}/{path}", "user.ucmfs.pinned")


class Pin(Operation):
    syscalls = ("openat2",)
    value = b"1"

    def arrange(self):
        return self.world.stored()

    def act(self, path):
        os.setxattr(f"{MOUNT}/{path}", "user.ucmfs.pinned", self.value)

    def verify(self, path, result):
        must(self.world.has_become(path), f"{path}: lost")
        pinned = pin_of(path)
        self.world.state["pins"][path] = pinned.decode()
        self.fate(result, pinned == self.value, path)


class Unpin(Pin):
    syscalls = ("unlinkat",)
    value = b"0"

    def arrange(self):
        path = self.world.stored()
        os.setxattr(f"{MOUNT}/{path}", "user.ucmfs.pinned", b"1")
        return path


class Checkpoint(Operation):
    syscalls = ("syncfs", "utimensat", "openat2", "pwrite64", "fsync", RENAME)

    def arrange(self):
        return self.world.stored()

    def act(self, _):
        control.ask(MOUNT, "checkpoint")

    def verify(self, path, _):
        must(self.world.is_right(path), f"{path}: lost")
        for directory in "ab":
            state = read(f"{WORK}/{directory}/.ucmfs/state").decode()
            must(re.fullmatch(r"clean=[01]\ncheckpoint=\d+\nboot=\S+\s*"
                              r"(snapshot=[0-9a-f]+\n)?", state),
                 f"state: {state}")


class Quarantine(Operation):
    """A block that is shorter than it was is noticed when it is opened."""
    syscalls = ("openat2", STAT, RENAME)

    def arrange(self):
        path = self.world.stored()
        for directory in "ab":
            full = f"{WORK}/{directory}/{path}"
            if os.path.exists(full):
                os.truncate(full, 4096)
        return path

    def act(self, path):
        must(read(f"{MOUNT}/{path}") is None, f"{path}: it is damaged")

    def verify(self, path, _):
        must(read(f"{MOUNT}/{path}") is None, f"{path}: it is damaged")


class Rename(Operation):
    """In files/, over a file."""
    syscalls = (STAT, RENAME, "openat2")

    def arrange(self):
        self.world.state["next"] += 1
        name = f"{MOUNT}/files/{self.world.state['next']}"
        write_new(f"{name}-new", b"new")
        write_new(name, b"old")
        return name

    def act(self, name):
        os.rename(f"{name}-new", name)

    def verify(self, name, result):
        old, new = read(name), read(f"{name}-new")
        must((old, new) in ((b"old", b"new"), (b"new", None)),
             f"{name}: {old}, {new}")
        must(result is None or result or (old, new) == (b"new", None),
             f"{name}: renamed? {old}, {new}")


OPERATIONS = {kind.__name__.lower(): kind for kind in (
    Commit, Unlink, Pin, Unpin, Checkpoint, Quarantine, Rename)}


# ---- faults ----

class Tracer:
    """strace on a running daemon; a thread counts its own calls."""

    def __init__(self, pid, syscalls, inject):
        self.log = f"{WORK}/strace"
        self.process = subprocess.Popen(
            ["strace", "-f", "-qq", "-p", str(pid), "-o", self.log,
             "-e", f"trace={syscalls}", "-e", f"inject={syscalls}:{inject}"],
            stderr=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while not self.holds_all(pid):
            must(time.monotonic() < end, "strace does not attach")
            time.sleep(0.001)

    @staticmethod
    def holds_all(pid):
        """Threads that end meanwhile need not be."""
        tasks = f"/proc/{pid}/task"
        for task in os.listdir(tasks):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), \
                    open(f"{tasks}/{task}/status") as status:
                if "TracerPid:\t0\n" in status.read():
                    return False
        return True

    def end(self, died=False):
        """How often it has interfered."""
        if not died:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()  # it waits for a thread that has died
            self.process.wait()
        return (read(self.log) or b"").count(b"(INJECTED)")


def attempt(operation, item):
    """0 or the number of an error; None: the daemon died meanwhile."""
    try:
        operation.act(item)
    except OSError as error:
        return None if error.errno in DEAD else error.errno
    return 0


def answers():
    """It lives, and its one thread has done what close(2) does not wait for."""
    try:
        os.statvfs(MOUNT)
        return True
    except OSError as error:
        must(error.errno in DEAD, f"statvfs: {error}")
        return False


def try_with(world, pid, name, syscalls, inject, times):
    """Operations under faults; how many of these there were."""
    operation = OPERATIONS[name](world)
    items = [operation.arrange() for _ in range(times)]
    tracer = Tracer(pid, syscalls, inject)
    try:
        results = [attempt(operation, item) for item in items]
        must(answers(), f"{name}, {syscalls}:{inject}: the daemon is dead")
    finally:
        met = tracer.end()
    for item, result in zip(items, results):
        try:
            operation.verify(item, result)
        except (Failure, OSError) as error:
            raise Failure(f"{name}, {syscalls}:{inject}: {error}") from None
    return met


def is_set_aside(name):
    stats = json.loads(read(f"{MOUNT}/.ucmfs/stats.json"))
    return not OPERATIONS[name].enough(
        directory["state"] == "good"
        for directory in stats["tiers"][0]["directories"])


def errors(pid, name, syscall, error, nth):
    world = World()
    nth = int(nth)
    try:
        while not is_set_aside(name):
            if not try_with(world, pid, name, syscall,
                            f"error={error}:when={nth}", 1):
                print(nth)
                return
            nth += 1
    finally:
        save(world.state)
    print(nth)
    sys.exit(4)


def sample(pid, name, syscalls, errnos):
    world = World()
    choice = random.Random(f"{SEED} {name}")
    total = 0
    try:
        for one in syscalls.split("+"):
            if is_set_aside(name):
                break
            error = choice.choice(errnos.split())
            when = f"{choice.randint(1, 3)}+{choice.randint(2, 5)}"
            total += try_with(world, pid, name, one,
                              f"error={error}:when={when}", 6)
    finally:
        save(world.state)
    print(f"{name}: {total} faults")


def every(pid, name, syscall, error, when):
    world = World()
    try:
        must(try_with(world, pid, name, syscall, f"error={error}:when={when}",
                      6), f"{syscall}: not met")
    finally:
        save(world.state)


def kill(pid, name, syscalls, nth):
    world = World()
    operation = OPERATIONS[name](world)
    item = operation.arrange()
    tracer = Tracer(pid, syscalls, f"signal=SIGKILL:when={nth}")
    result = attempt(operation, item)
    died = not answers()
    tracer.end(died)
    world.state["last"] = (name, item, result)
    save(world.state)
    sys.exit(3 if died else 0)


def verify():
    world = World()
    name, item, result = world.state["last"]
    OPERATIONS[name](world).verify(item, result)
    save(world.state)


# ---- the rest ----

def new(mkblocks):
    save({"blocks": {}, "served": [], "fates": {}, "pins": {}, "next": 0,
          "pools": 0, "mkblocks": mkblocks})


def listed():
    for bucket in os.listdir(f"{MOUNT}/blocks"):
        if len(bucket) == 2:
            for name in os.listdir(f"{MOUNT}/blocks/{bucket}"):
                yield f"blocks/{bucket}/{name}"


def everything(how=""):
    world = World()
    seen = set()
    try:
        for path in listed():
            must(path in world.blocks, f"{path}: nobody has written it")
            if world.is_right(path):
                seen.add(path)
    except OSError:
        must(how == "disturbed", "what is listed cannot be read")
    lost = set(world.state["served"]) - seen
    must(how != "complete" or not lost, f"lost: {lost}")
    if how != "disturbed":
        for path, there in world.state["fates"].items():
            must(there == (path in seen),
                 f"{path}: there: {there}, and not so after a start")
        for path, pin in world.state["pins"].items():
            must(pin_of(path) == pin.encode(), f"{path}: pinned? not {pin}")
        world.state["fates"], world.state["pins"] = {}, {}
        world.state["served"] = sorted(seen)
    save(world.state)
    print(f"{len(seen)} blocks are served")


def tear():
    world = World()
    for path in world.state["served"]:
        for directory in "ab":
            full = f"{WORK}/{directory}/{path}"
            if os.path.exists(full):
                os.truncate(full, 4096)
                world.state["served"].remove(path)
                save(world.state)
                return


def operations():
    for name, kind in OPERATIONS.items():
        print(name, "+".join(kind.syscalls))


CALLS = {"new": new, "operations": operations, "errors": errors,
         "sample": sample, "every": every, "kill": kill, "verify": verify,
         "tear": tear, "all": everything}
try:
    CALLS[CALL](*sys.argv[5:])
except Failure as failure:
    print("FAIL:", failure)
    sys.exit(1)
