# SPDX-License-Identifier: Apache-2.0
"""Writers at full speed into a store that is too small, and readers beside them.

Usage: tier_load.py MKBLOCKS MOUNT SECONDS WRITERS READERS LIMIT...

Each writer makes block after block of chains of its own, as mkblocks makes them
in a directory beforehand, over and over under new names. A reader takes a name
that a writer has just finished, and reads it: whole and right, or absent. LIMIT:
DIRECTORY=BYTES, looked at all the time: no directory has more than that, and one
block for each writer.
"""

import errno
import os
import random
import subprocess
import sys
import threading
import time

POOL = 200  # blocks of a chain
SHAPE = ["--layers", "2", "--heads", "2", "--dim", "16", "--tokens", "4"]


class Load:
    def __init__(self, argv):
        self.mkblocks, self.mount = argv[:2]
        self.seconds, self.writers, self.readers = map(int, argv[2:5])
        self.limits = dict(item.split("=") for item in argv[5:])
        self.end = time.monotonic() + self.seconds
        self.lock = threading.Lock()
        self.known = {}  # path: bytes
        self.counts = {"written": 0, "read": 0, "absent": 0, "measured": 0}
        self.errors = []

    def fail(self, text):
        with self.lock:
            self.errors.append(text)
        self.end = 0

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def run(self):
        threads = [threading.Thread(target=self.guard, args=(fn, number))
                   for fn, num in ((self.write, self.writers),
                                   (self.read, self.readers),
                                   (self.measure, 1))
                   for number in range(num)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def guard(self, fn, number):
        try:
            fn(number)
        except Exception as error:  # pylint: disable=broad-except
            self.fail(f"{fn.__name__}: {error!r}")

    def goes_on(self):
        return time.monotonic() < self.end

    # ---- writers ----

    def chain(self, seed, folder):
        options = [*SHAPE, "--count", str(POOL), "--seed", str(seed)]
        subprocess.run([self.mkblocks, *options, "--quiet", folder], check=True)
        names = subprocess.run([self.mkblocks, *options, "--list"], check=True,
                               capture_output=True, text=True).stdout.split()
        for name in names:
            with open(f"{folder}/{name}", "rb") as file:
                yield name, file.read()
            os.unlink(f"{folder}/{name}")

    def write(self, number):
        base = os.environ["WORK"] + f"/chains.{os.getpid()}.{number}"
        seed = number * 100000
        while self.goes_on():
            seed += 1
            os.makedirs(f"{base}/{seed}")
            for name, data in self.chain(seed, f"{base}/{seed}"):
                if not self.goes_on():
                    return
                self.write_one(name, data)

    def write_one(self, name, data):
        with self.lock:
            self.known[name] = data
            if len(self.known) > 4000:
                del self.known[next(iter(self.known))]
        try:
            fd = os.open(f"{self.mount}/blocks/{name}",
                         os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return  # chains may begin alike
        try:
            done = os.write(fd, data)
        finally:
            os.close(fd)
        if done != len(data):
            self.fail(f"{name}: {done} of {len(data)} bytes were written")
        self.count("written")

    # ---- readers ----

    def read(self, number):
        draw = random.Random(number)
        while self.goes_on():
            with self.lock:
                names = list(self.known)
            if not names:
                time.sleep(0.01)  # until the first one is there
                continue
            for _ in range(50):
                name = names[-1 - int(draw.expovariate(0.01)) % len(names)]
                self.read_one(name)

    def read_one(self, name):
        with self.lock:
            data = self.known.get(name)
        try:
            with open(f"{self.mount}/blocks/{name}", "rb") as file:
                found = file.read()
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            self.count("absent")
            return
        if data is not None and found != data:
            self.fail(f"{name}: wrong bytes")
        self.count("read")

    # ---- limits ----

    def measure(self, _):
        slack = self.writers * 65536
        while self.goes_on():
            for directory, limit in self.limits.items():
                used = disk_usage(f"{directory}/blocks")
                if used > int(limit) + slack:
                    self.fail(f"{directory}: {used} bytes, and {limit} are "
                              "allowed")
            self.count("measured")


def disk_usage(directory):
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def main():
    load = Load(sys.argv[1:])
    load.run()
    print(" ".join(f"{name} {num}" for name, num in load.counts.items()))
    for error in load.errors[:10]:
        print(f"FAIL: {error}")
    sys.exit(bool(load.errors))


main()
