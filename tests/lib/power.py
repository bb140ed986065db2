# SPDX-License-Identifier: Apache-2.0
"""Writers, a power cut in the middle of it, and what must be there afterwards.

usage: power.py WORK MOUNT DISK MKBLOCKS SEED CUT CALL [ARGUMENT...]

  new                 nothing has been written yet
  make                blocks to copy from, in WORK/src
  check               what the mount serves now, after the last cut, is right
  write DURABILITY PID PLAN
                      writers on the mount that PID serves. The plan is cut: at
                      a random moment; checkpoint: right after a checkpoint;
                      slow: the same, and its syncfs takes seconds; rush: as
                      cut, of blocks that it tears; closing: PID is ending; or
                      quiet: no cut, the writers end well
  grow_old            what was written last is older than the seconds before a
                      checkpoint that recovery distrusts
  rush PID            a cut as soon as a checkpoint succeeds, or before that
  kill PID            at a random moment; the machine goes on
  cut
  sum                 a line about all cuts; fails if they prove nothing

DISK is the file system whose power is cut, with the directories a and b of one
tier. WORK/world.json keeps what was acknowledged from one call to the next:

  blocks   path in the mount: digest of its bytes, has it checksums
  must     what has to be served, whatever was cut
  gone     what was removed, and must not come back
"""
import errno
import fcntl
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import control

WORK, MOUNT, DISK, MKBLOCKS, SEED, CUT, CALL = sys.argv[1:8]
CUT = int(CUT)
RANDOM = random.Random(f"{SEED} {CUT} {CALL}")
STATE = f"{WORK}/world.json"
DIRS = ("a", "b")
SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), of ext4 and XFS
FLAGS = {"default": 0, "logflush": 1, "nologflush": 2}
LIMIT_S = 60
SLACK_S = 2  # of fs/medium/recovery.c
SPACE = "spaces/s"
SHAPE = "--quiet --layers 4 --heads 4 --dim 64 --tokens 16".split()
MANIFEST = {"model": "x" * 6000, "geometry": {
    "num_layers": 4, "block_size": 16, "dtype": "float16", "k_bytes": 8192,
    "v_bytes": 8192, "num_kv_heads": 4, "head_dim": 64}}
# name: how many for each cut, options of mkblocks, are there checksums
KINDS = {
    "paged": (90, [], True),
    "process": (60, [], True),
    "packed": (20, ["--form", "packed"], True),
    "raw": (20, ["--no-crc"], False),
    "packed-raw": (8, ["--form", "packed", "--no-crc"], False),
    "bare": (8, ["--form", "bare"], False),
}


def load():
    with open(STATE) as file:
        return json.load(file)


def save(world):
    with open(STATE, "w") as file:
        json.dump(world, file)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def digest(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def fail(problems):
    for problem in problems[:20]:
        print("FAIL:", problem)
    if problems:
        print(f"{len(problems)} problems; seed {SEED}, cut {CUT}")
        sys.exit(1)


# ---- the cut ----

def shut_down(disk_fd, flags):
    fcntl.ioctl(disk_fd, SHUTDOWN, FLAGS[flags].to_bytes(4, "little"))


def choose_flags():
    # the log, and not the data: the worst that can happen to a block
    return RANDOM.choices(list(FLAGS), (1, 6, 3))[0]


def end_daemon(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it was ending


def do_cut(pid=None):
    disk_fd = os.open(DISK, os.O_RDONLY)
    flags = choose_flags()
    shut_down(disk_fd, flags)
    if pid:
        end_daemon(pid)
    os.close(disk_fd)
    return flags


def ask_checkpoint():
    """True, or False if something is in doubt."""
    try:
        control.ask(MOUNT, "checkpoint")
        return True
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return False
        raise


# ---- writers ----

class Session:
    """What is done between the start of the daemon and the cut."""

    def __init__(self, world):
        self.world = world
        self.lock = threading.Lock()
        self.paused = threading.Event()  # no more blocks are begun
        self.ended = threading.Event()  # the cut begins
        self.acked = []
        self.must = set(world["must"])
        self.removed = set()
        self.touched = set()  # their removal has begun, at least
        self.gone = set()
        self.problems = []
        self.sources = {}
        self.threads = []

    def ack(self, path):
        """Its writer was told so before the cut began."""
        with self.lock:
            if not self.ended.is_set():
                self.acked.append(path)
                self.removed.discard(path)

    def run(self, fn, *args):
        def body():
            try:
                fn(*args)
            except OSError as error:
                if not self.ended.is_set():
                    self.problems.append(f"{fn.__name__}: {error}")
        self.threads.append(threading.Thread(target=body))
        self.threads[-1].start()

    def join(self):
        for thread in self.threads:
            thread.join(LIMIT_S)
            if thread.is_alive():
                self.problems.append("a writer hangs")

    def take(self, kind):
        """Sources of a kind, until there are no more or the cut comes."""
        for name in sorted(self.sources[kind]):
            if self.ended.is_set() or self.paused.is_set():
                return
            space = "blocks" if int(name[:2], 16) % 2 else SPACE
            yield self.sources[kind][name], f"{space}/{name}"


def sync_half(fd, data):
    """The log has the whole size, and the disk half of the bytes."""
    half = len(data) // 2
    os.write(fd, data[:half])
    os.fsync(fd)
    os.ftruncate(fd, len(data))
    os.write(fd, data[half:])


def write_at(path, data, method):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        if method == "half":
            sync_half(fd, data)
        else:
            os.write(fd, data)
        if method == "fsync":
            os.fsync(fd)
    finally:
        os.close(fd)


def store(session, source, path, method):
    full = f"{MOUNT}/{path}"
    if method == "cp":
        done = subprocess.run(["cp", source, full], stderr=subprocess.DEVNULL)
    elif method == "dd":
        done = subprocess.run(
            ["dd", f"if={source}", f"of={full}", "bs=12k", "conv=fsync"],
            stderr=subprocess.DEVNULL)
    if method in ("cp", "dd"):
        if done.returncode:
            raise OSError(errno.EIO, f"{method} fails: {path}")
    elif RANDOM.random() < 0.3 or (method != "fsync" and
                                   not session.world["blocks"][path][1]):
        write_at(full + ".tmp", read(source), method)
        os.rename(full + ".tmp", full)
    else:
        write_at(full, read(source), method)
    session.ack(path)


def writer(session, kind, methods):
    for source, path in session.take(kind):
        store(session, source, path, RANDOM.choice(methods))


def process_writer(session):
    """A program that knows nothing of us: its blocks lie in blocks/."""
    args = [MKBLOCKS, *SHAPE, *options_of("process"), "--chunk", "3000",
            "--print", "--method", RANDOM.choice(("create", "rename")),
            f"{MOUNT}/blocks"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as process:
        for line in process.stdout:
            session.ack(f"blocks/{line.strip()}")
            if session.ended.is_set():
                process.kill()
    if process.returncode and not session.ended.is_set():
        raise OSError(errno.EIO, "mkblocks fails")


def remover(session):
    """Half of what earlier cuts left, and some of it comes again."""
    known = session.world["blocks"]
    for path in RANDOM.sample(session.world["served"],
                              len(session.world["served"]) // 2):
        if session.ended.is_set():
            return
        with session.lock:
            session.must.discard(path)
            session.touched.add(path)
        os.unlink(f"{MOUNT}/{path}")
        with session.lock:
            if not session.ended.is_set():
                session.removed.add(path)
        source = known[path][2]
        if os.path.exists(source) and RANDOM.random() < 0.3:
            with session.lock:
                session.removed.discard(path)
            store(session, source, path, RANDOM.choice(("plain", "half")))


def version_bytes(version):
    return f"{version:08d}".encode() * 4096


def files_writer(session):
    """A file is replaced again and again, as programs do it."""
    files = session.world["files"]
    folder = f"{MOUNT}/files"
    while not session.ended.is_set():
        version = files["begun"] = files["begun"] + 1
        # the first is made where the old one is, the other perhaps elsewhere
        temporary = f"{folder}/" + RANDOM.choice(
            (f"x.{version}.tmp", f"new-{version}"))
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, version_bytes(version))
        os.fsync(fd)
        os.close(fd)
        os.rename(temporary, f"{folder}/x")
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        with session.lock:
            if not session.ended.is_set():
                files["acked"] = version


def checkpointer(session, done):
    """What was acknowledged before a checkpoint began is on disk."""
    while not session.ended.is_set():
        with session.lock:
            acked, removed = set(session.acked), set(session.removed)
        succeeded = ask_checkpoint()
        with session.lock:
            if succeeded and not session.ended.is_set():
                session.must |= {path for path in acked - session.removed
                                 if session.world["blocks"][path][1]}
                session.gone |= removed & session.removed
                done.set()
        session.ended.wait(RANDOM.random() / 10)


def make_space(session):
    manifest = f"{MOUNT}/{SPACE}/space.json"
    os.makedirs(f"{MOUNT}/{SPACE}", exist_ok=True)
    if not os.path.exists(manifest):
        with open(manifest, "w") as file:
            json.dump(MANIFEST, file)
    session.world["manifest"] = False  # it may be lost


def find_sources(session):
    for kind, (_, _, has_crc) in KINDS.items():
        top = f"{WORK}/src/{CUT}/{kind}"
        session.sources[kind] = {}
        for bucket in os.listdir(top):
            for name in os.listdir(f"{top}/{bucket}"):
                source = f"{top}/{bucket}/{name}"
                name = f"{bucket}/{name}"
                session.sources[kind][name] = source
                for space in ("blocks", SPACE):
                    session.world["blocks"][f"{space}/{name}"] = (
                        digest(read(source)), has_crc, source)


def begin_half(session):
    """What is torn has its whole size: that only its bytes can show."""
    session.run(writer, session, "paged", ("half",))
    session.run(writer, session, "packed", ("half",))


def begin(session):
    every = ("plain", "half", "half", "fsync")
    session.run(writer, session, "paged", ("half", "half", "cp", "dd"))
    session.run(writer, session, "packed", every)
    session.run(writer, session, "raw", every)
    session.run(writer, session, "packed-raw", every)
    # fsync says of half a bare block that it is a whole one
    session.run(writer, session, "bare", ("plain", "fsync"))
    session.run(process_writer, session)
    session.run(remover, session)
    session.run(files_writer, session)


def wait_for(what, condition, session):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end or session.problems:
            session.problems.append(f"waited in vain for {what}")
            return
        time.sleep(0.001)


def wait_for_slow_checkpoint(session):
    """Of the first directory: that of the other takes as long again.

    Recovery distrusts the last two seconds before a checkpoint. So what counts,
    if that has its time too late, is what was written before them.
    """
    before = read(f"{DISK}/a/.ucmfs/state")
    session.run(checkpointer, session, threading.Event())
    begin(session)
    time.sleep(0.7)
    session.paused.set()
    wait_for("a slow checkpoint",
             lambda: read(f"{DISK}/a/.ucmfs/state") != before, session)


def wait_for_moment(session, plan):
    goal = RANDOM.randrange(30 if plan == "rush" else 10, 60)
    done = threading.Event()
    if plan == "rush":
        begin_half(session)
    else:
        begin(session)
    if plan == "checkpoint" or RANDOM.random() < 0.2:
        session.run(checkpointer, session, done)
    wait_for(f"{goal} blocks", lambda: len(session.acked) >= goal, session)
    if plan == "checkpoint":
        done.clear()
        wait_for("a checkpoint", done.is_set, session)
    else:
        time.sleep(RANDOM.random() / 50)


def end_session(session, plan, pid):
    disk_fd = os.open(DISK, os.O_RDONLY)
    flags = "logflush" if plan in ("slow", "rush") else choose_flags()
    with session.lock:
        session.ended.set()
    if plan == "closing":
        os.kill(pid, signal.SIGTERM)
        time.sleep(RANDOM.random() / 10)
    if plan != "quiet":
        shut_down(disk_fd, flags)
        end_daemon(pid)
    os.close(disk_fd)
    session.join()
    return "no cut yet" if plan == "quiet" else flags


def note_promises(session, plan, durability):
    world, acked = session.world, set(session.acked)
    must = session.must
    if durability == "full":
        must |= {path for path in acked if world["blocks"][path][1]}
    if plan == "quiet":
        must |= acked | (set(world["served"]) - session.touched)
        session.gone = session.removed
    world["must"] = sorted(must - session.removed)
    world["gone"] = sorted(session.gone & session.removed)
    world["durability"] = durability
    world["acked"] += len(acked)
    world["cuts"] += 1
    world["time"] = time.time()


def write(durability, pid, plan):
    world = load()
    session = Session(world)
    find_sources(session)
    make_space(session)
    if plan == "slow":
        wait_for_slow_checkpoint(session)
    else:
        wait_for_moment(session, plan)
    flags = end_session(session, plan, int(pid))
    note_promises(session, plan, durability)
    save(world)
    print(f"{plan}, durability={durability}, {flags}: {len(session.acked)} "
          f"blocks acknowledged, {len(world['must'])} must be there")
    fail(session.problems)


# ---- before and after ----

def options_of(kind):
    number = list(KINDS).index(kind)
    count, options, _ = KINDS[kind]
    seed = (CUT + 1) * 16 + number
    return ["--count", str(count), "--seed", str(seed), *options]


def make():
    for kind in KINDS:
        top = f"{WORK}/src/{CUT}/{kind}"
        os.makedirs(top)
        subprocess.run([MKBLOCKS, *SHAPE, *options_of(kind), top], check=True)
    old = f"{WORK}/src/{CUT - 2}"
    if os.path.exists(old):
        subprocess.run(["rm", "-r", old], check=True)


def new():
    save({"blocks": {}, "must": [], "gone": [], "served": [], "set_aside": [],
          "files": {"begun": 0, "acked": 0}, "manifest": False, "acked": 0,
          "cuts": 0, "torn": 0, "durability": "none"})


def listed():
    found = []
    for space in ("blocks", SPACE):
        top = f"{MOUNT}/{space}"
        if not os.path.isdir(top):
            continue
        for bucket in os.listdir(top):
            if len(bucket) == 2:
                found += [f"{space}/{bucket}/{name}"
                          for name in os.listdir(f"{top}/{bucket}")]
    return found


class Check:
    def __init__(self):
        self.world = load()
        self.problems = []

    def is_served(self, path):
        """Is it there? If so, it is what its writer wrote."""
        try:
            data = read(f"{MOUNT}/{path}")
        except FileNotFoundError:
            return False
        except OSError as error:
            self.problems.append(f"{path}: {error}")
            return False
        known = self.world["blocks"].get(path)
        if not known:
            self.problems.append(f"{path}: nobody has written it")
        elif digest(data) != known[0]:
            self.problems.append(f"{path}: wrong bytes are served")
        return True

    def is_settled(self):
        index = json.loads(read(f"{MOUNT}/.ucmfs/stats.json"))["index"]
        return index["complete"] and not index["in_doubt"]

    def at_once(self):
        """Before it has all been looked at: by name, or by what is listed."""
        paths = listed() if RANDOM.random() < 0.5 else list(
            set(self.world["must"]) | set(self.world["served"]) |
            set(RANDOM.sample(sorted(self.world["blocks"]),
                              min(200, len(self.world["blocks"])))))
        RANDOM.shuffle(paths)
        for path in paths:
            self.is_served(path)

    def all_of_it(self):
        end = time.monotonic() + LIMIT_S
        while not self.is_settled():
            if time.monotonic() > end:
                self.problems.append("doubts are not settled")
                break
            time.sleep(0.002)
        served = {path for path in listed() if self.is_served(path)}
        must, gone = set(self.world["must"]), set(self.world["gone"])
        self.problems += [f"{path}: lost" for path in sorted(must - served)]
        self.problems += [f"{path}: removed, and back"
                          for path in sorted(gone & served)]
        return served

    def look_at_set_aside(self, directory, name):
        """What was set aside was torn, or has no checksums."""
        space, rest = name.rsplit("@", 1)
        block = f"{rest[:2]}/{rest.split('.')[0]}.bin"
        path = f"{'spaces/' + space if space else 'blocks'}/{block}"
        right, has_crc, _ = self.world["blocks"][path]
        data = read(f"{DISK}/{directory}/.ucmfs/quarantine/{name}")
        whole = digest(data) == right
        self.world["torn"] += not whole
        if has_crc and whole:
            self.problems.append(f"{path}: right, and yet set aside")
        elif has_crc and self.world["durability"] != "none":
            self.problems.append(f"{path}: torn, in spite of durability="
                                 f"{self.world['durability']}")

    def quarantine(self):
        seen = set(self.world["set_aside"])
        for directory in DIRS:
            for name in os.listdir(f"{DISK}/{directory}/.ucmfs/quarantine"):
                if name not in seen:
                    self.look_at_set_aside(directory, name)
                    self.world["set_aside"].append(name)

    def files(self):
        files = self.world["files"]
        try:
            data = read(f"{MOUNT}/files/x")
        except FileNotFoundError:
            data = b""
        version = int(data[:8] or 0)
        if data != (version_bytes(version) if version else b""):
            self.problems.append("files/x: a mixture")
        if not files["acked"] <= version <= files["begun"]:
            self.problems.append(f"files/x: version {version}: {files}")
        files["acked"] = version
        for name in os.listdir(f"{MOUNT}/files"):
            if name != "x":
                os.unlink(f"{MOUNT}/files/{name}")

    def manifest(self):
        """All of space.json, or nothing."""
        try:
            found = json.loads(read(f"{MOUNT}/{SPACE}/space.json"))
        except FileNotFoundError:
            found = None
        except ValueError:
            found = "torn"
        if found is not None and found != MANIFEST:
            self.problems.append("space.json is not what was written")
        if self.world["manifest"] and found is None:
            self.problems.append("space.json is lost")
        self.world["manifest"] = found is not None

    def temporaries(self):
        for directory in DIRS:
            left = [name for _, _, names
                    in os.walk(f"{DISK}/{directory}/.ucmfs/tmp")
                    for name in names]
            if left:
                self.problems.append(f"left in {directory}/.ucmfs/tmp: {left}")


def check():
    one = Check()
    one.at_once()
    served = one.all_of_it()
    one.quarantine()
    one.files()
    one.manifest()
    one.temporaries()
    blocks = one.world["blocks"]
    # what has come from the disk once is on it
    one.world["must"] = sorted(path for path in served
                               if path in blocks and blocks[path][1])
    one.world["served"] = sorted(served)
    one.world["gone"] = []
    save(one.world)
    print(f"{len(served)} blocks are served")
    fail(one.problems)


def grow_old():
    time.sleep(max(0, load()["time"] + SLACK_S + 0.2 - time.time()))


def states():
    return [read(f"{DISK}/{directory}/.ucmfs/state") for directory in DIRS]


def rush(pid):
    """Before much of what is in doubt has been checked."""
    before = states()
    ended = threading.Event()

    def ask():
        while not ended.is_set():
            try:
                ask_checkpoint()
            except OSError:
                return  # the cut
    threading.Thread(target=ask).start()
    end = time.monotonic() + 0.5 + 2 * RANDOM.random()
    while states() == before and time.monotonic() < end:
        pass
    ended.set()
    checkpoint = states() != before
    print(do_cut(int(pid)), "after a checkpoint" if checkpoint else "")


def kill(pid):
    time.sleep(RANDOM.random() / 10)
    end_daemon(int(pid))


def total():
    world = load()
    print(f"{world['cuts']} cuts, {world['acked']} blocks acknowledged, "
          f"{world['torn']} torn; seed {SEED}")
    if world["acked"] < 100:
        fail([f"{world['acked']} blocks acknowledged: that proves nothing"])
    if not world["torn"]:
        fail(["no block was torn: that proves nothing"])


CALLS = {"new": new, "make": make, "check": check, "write": write,
         "grow_old": grow_old, "rush": rush, "kill": kill,
         "cut": lambda: print(do_cut()), "sum": total}
CALLS[CALL](*sys.argv[8:])
