#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What moving blocks costs, beside cp and beside a mount where nothing moves.

    bench/tiers.py [--rounds N] [--count N] [--bytes N] [--fast DIR] [--slow DIR]

As root, in the build directory. In turns, on blocks that the page cache has:

down    all blocks of a fast tier are moved to a slow one (the fast one is drained);
        cp -r of the same files between the same directories, then sync -f
press   the same because the fast tier is over its high mark
up      all blocks of a slow tier are copied to a fast one (ucm warm); cp -r
opens   opens and reads of the first page in a tier that nothing leaves, alone, and
        while blocks are moved between two others
reads   whole blocks of such a tier, alone, and while blocks are moved between two
        directories of the slow device

Prints MiB/s, the ratio to cp; of opens the 99th percentile in us; and the ratio to
"alone". Targets: 0.9 of cp; 2; 0.85.
"""
import argparse
import fcntl
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

BUILD = os.environ.get("top_builddir", os.getcwd())
DRAIN = 20


class Bench:
    def __init__(self, args):
        self.args = args
        self.fast = tempfile.mkdtemp(prefix="ucmfs-bench.", dir=args.fast)
        self.slow = tempfile.mkdtemp(prefix="ucmfs-bench.", dir=args.slow)
        plane = args.bytes // 64
        self.shape = ["--quiet", "--layers", "32", "--k-bytes", str(plane),
                      "--v-bytes", str(plane), "--tokens", "16"]
        self.daemon = None

    def close(self):
        if self.daemon:
            self.unmount()
        shutil.rmtree(self.fast, ignore_errors=True)
        shutil.rmtree(self.slow, ignore_errors=True)

    def make(self, folder, seed=0):
        os.makedirs(folder)
        subprocess.run([f"{BUILD}/mkblocks", *self.shape, "--seed", str(seed),
                        "--count", str(self.args.count), folder], check=True)

    def names(self, seed=0):
        out = subprocess.run(
            [f"{BUILD}/mkblocks", *self.shape, "--seed", str(seed), "--count",
             str(self.args.count), "--list"], check=True, capture_output=True,
            text=True)
        return out.stdout.split()

    # ---- a mount ----

    def mount(self, source, options=""):
        self.path = f"{self.slow}/mnt"
        os.makedirs(self.path, exist_ok=True)
        read, write = os.pipe()
        self.daemon = subprocess.Popen(
            [f"{BUILD}/ucmfs", source, self.path, "-f", "-o",
             f"ready-fd={write},log_level=error{options}"],
            pass_fds=[write], stderr=subprocess.DEVNULL)
        os.close(write)
        if os.read(read, 16) != b"READY=1\n":
            sys.exit("the daemon did not start")
        os.close(read)
        while not self.metric("ucmfs_index_complete"):
            time.sleep(0.01)

    def unmount(self):
        self.daemon.terminate()
        self.daemon.wait()
        self.daemon = None

    def metric(self, name, label=""):
        with open(f"{self.path}/.ucmfs/metrics", encoding="utf-8") as file:
            for line in file:
                if line.startswith(name + "{") and label in line:
                    return float(line.split()[-1])
        sys.exit(f"there is no metric {name}")

    def wait_for(self, name, label, value):
        while self.metric(name, label) != value:
            time.sleep(0.01)

    def drain(self, folder):
        data = bytearray(struct.pack("<IIQQI4068s", 1, 1, 0, 0, 0,
                                     os.path.realpath(folder).encode()))
        with open(f"{self.path}/.ucmfs/control", encoding="ascii") as file:
            fcntl.ioctl(file, 3 << 30 | len(data) << 16 | ord("U") << 8 | DRAIN,
                        data)

    # ---- what is measured: MiB/s ----

    def rate(self, began):
        took = time.monotonic() - began
        return self.args.count * self.args.bytes / took / (1 << 20)

    def copy(self, source, target):
        began = time.monotonic()
        subprocess.run(["cp", "-r", source, target], check=True)
        subprocess.run(["sync", "-f", target], check=True)
        rate = self.rate(began)
        shutil.rmtree(target)
        return rate

    def down(self):
        self.make(f"{self.fast}/a/blocks")
        cp = self.copy(f"{self.fast}/a/blocks", f"{self.slow}/copy")
        os.makedirs(f"{self.slow}/b")
        self.mount(f"a={self.fast}/a:b={self.slow}/b")
        began = time.monotonic()
        self.drain(f"{self.fast}/a")
        self.wait_for("ucmfs_directory_blocks", 'directory="0"', 0)
        ours = self.rate(began)
        self.unmount()
        shutil.rmtree(f"{self.fast}/a")
        shutil.rmtree(f"{self.slow}/b")
        return ours, cp

    def press(self):
        folder = f"{self.fast}/a/blocks"
        self.make(folder)
        cp = self.copy(folder, f"{self.slow}/copy")
        names = self.names()
        takes = sum(os.stat(f"{folder}/{name}").st_blocks * 512
                    for name in names)
        late = names[:max(4, len(names) // 16)]
        later = f"{self.fast}/late"
        os.makedirs(later)
        for name in late:
            os.rename(f"{folder}/{name}", f"{later}/{name[3:]}")
        os.makedirs(f"{self.slow}/b")
        self.mount(f"a={self.fast}/a:b={self.slow}/b",
                   f",limit=a:{takes},high=97,low=2")
        began = time.monotonic()
        for name in late:
            shutil.copy(f"{later}/{name[3:]}", f"{self.path}/blocks/{name}")
        while self.metric("ucmfs_directory_blocks", 'directory="0"') > \
                self.args.count * 0.02:
            time.sleep(0.01)
        ours = self.rate(began) * 0.98
        self.unmount()
        shutil.rmtree(f"{self.fast}/a")
        shutil.rmtree(later)
        shutil.rmtree(f"{self.slow}/b")
        return ours, cp

    def up(self):
        self.make(f"{self.slow}/b/blocks")
        os.makedirs(f"{self.fast}/a")
        cp = self.copy(f"{self.slow}/b/blocks", f"{self.fast}/copy")
        self.mount(f"a={self.fast}/a:b={self.slow}/b")
        ids = "\n".join(name[3:35] for name in self.names())
        began = time.monotonic()
        subprocess.run([f"{BUILD}/ucm", "warm", "-m", self.path, "--file", "-"],
                       input=ids, text=True, check=True,
                       stdout=subprocess.DEVNULL)
        self.wait_for("ucmfs_directory_blocks", 'directory="0"',
                      self.args.count)
        ours = self.rate(began)
        self.unmount()
        shutil.rmtree(f"{self.fast}/a")
        shutil.rmtree(f"{self.slow}/b")
        return ours, cp

    # ---- opens: us ----

    def open_until(self, done):
        paths = [f"{self.path}/blocks/{name}" for name in self.names(1)]
        took = []
        while not done() or len(took) < 500:
            path = paths[len(took) % len(paths)]
            began = time.perf_counter_ns()
            fd = os.open(path, os.O_RDONLY)
            os.pread(fd, 4096, 0)
            os.close(fd)
            took.append((time.perf_counter_ns() - began) / 1000)
        return statistics.quantiles(took, n=100)[98]

    def read_until(self, is_over):
        """MiB/s of whole blocks."""
        paths = [f"{self.path}/blocks/{name}" for name in self.names(1)]
        page = bytearray(self.args.bytes)
        read = i = 0
        began = time.monotonic()
        while not is_over():
            with open(paths[i % len(paths)], "rb", buffering=0) as file:
                got = file.readinto(page)
                while got:
                    read += got
                    got = file.readinto(page)
            i += 1
        return read / (time.monotonic() - began) / (1 << 20)

    def beside(self, measure, moved):
        """While the blocks of one directory are moved to a slow one, and alone."""
        self.make(f"{moved}/blocks")
        self.make(f"{self.fast}/c/blocks", 1)
        os.makedirs(f"{self.slow}/b")
        self.mount(f"c={self.fast}/c:a={moved}:b={self.slow}/b",
                   ",promote=never")
        end = time.monotonic() + 2
        alone = measure(lambda: time.monotonic() > end)
        state = {"done": False}

        def watch():
            self.drain(moved)
            self.wait_for("ucmfs_directory_blocks", 'directory="1"', 0)
            state["done"] = True

        thread = threading.Thread(target=watch)
        thread.start()
        moving = measure(lambda: state["done"])
        thread.join()
        self.unmount()
        for folder in (moved, f"{self.fast}/c", f"{self.slow}/b"):
            shutil.rmtree(folder)
        return moving, alone

    def opens(self):
        return self.beside(self.open_until, f"{self.fast}/a")

    def reads(self):
        return self.beside(self.read_until, f"{self.slow}/a")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--bytes", type=int, default=2 << 20)
    parser.add_argument("--fast", default="/dev/shm")
    parser.add_argument("--slow", default="/var/tmp")
    args = parser.parse_args()
    bench = Bench(args)
    try:
        print("what   ours    cp/alone  ratio")
        for what in ("down", "press", "up", "opens",
                     "reads"):
            runs = [getattr(bench, what)() for _ in range(args.rounds)]
            ours, other = (statistics.median(values) for values in zip(*runs))
            ratio = statistics.median(a / b for a, b in runs)
            print(f"{what:5}  {ours:6.0f}  {other:8.0f}  {ratio:.2f}",
                  flush=True)
    finally:
        bench.close()


main()
