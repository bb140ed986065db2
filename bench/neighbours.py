#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What requests of one tier cost while another keeps its own waiting.

    bench/neighbours.py [--seconds N] [--rounds N], as root, in the build directory

Opens and closes blocks of a tier in memory, from each processor in turns: alone;
while two programs write files on a disk, past the mount, and sync each ("disk"); while
they do so in another tier of the mount ("syncs"); while that tier's server is stopped
with sixteen files open for writing, which are closed ("hung"). In turns, over io_uring
(if fuse.enable_uring is Y) and over /dev/fuse. Prints the 50th and 99th percentile, and
the ratio of the second to that of "alone"; for "syncs" to that of "disk", because the
programs take processors from whoever measures. Targets: 1.5 for syncs, 2 for hung.
"""
import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

BUILD = os.environ.get("top_builddir", os.getcwd())
SMALL = "--quiet --layers 2 --heads 1 --dim 16 --tokens 16".split()
BLOCKS = 64
WRITERS = 2
STAY = 64  # opens on a processor before the next


def mkblocks(folder, first, num):
    subprocess.run([f"{BUILD}/mkblocks", *SMALL, "--start", str(first),
                    "--count", str(num), folder], check=True)


def names(first, num):
    out = subprocess.run([f"{BUILD}/mkblocks", *SMALL, "--list", "--start",
                          str(first), "--count", str(num)], check=True,
                         capture_output=True, text=True)
    return out.stdout.split()


class Mount:
    def __init__(self, work, source, io_uring):
        self.path = f"{work}/mnt"
        read, write = os.pipe()
        options = (f"ready-fd={write},entry_timeout=0,keep_open=0,"
                   f"log_level=error,"
                   f"io_uring={'on' if io_uring else 'off'}")
        self.daemon = subprocess.Popen(
            [f"{BUILD}/ucmfs", source, self.path, "-f", "-o", options],
            pass_fds=[write], stderr=subprocess.DEVNULL)
        os.close(write)
        if os.read(read, 16) != b"READY=1\n":
            sys.exit("the daemon did not start")
        os.close(read)

    def end(self):
        self.daemon.terminate()
        self.daemon.wait()


def measure(paths, seconds):
    """Latencies in us."""
    cpus = sorted(os.sched_getaffinity(0))
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not len(took) % STAY:
            os.sched_setaffinity(0, {cpus[len(took) // STAY % len(cpus)]})
            os.stat(paths[0])  # the first one there pays for the move
        path = paths[len(took) % len(paths)]
        began = time.perf_counter_ns()
        os.close(os.open(path, os.O_RDONLY))
        took.append((time.perf_counter_ns() - began) / 1000)
    os.sched_setaffinity(0, set(cpus))
    return took


def sync_until(stop, folder, number):
    """Files of files/ on the disk, each synced."""
    while not stop.is_set():
        fd = os.open(f"{folder}/{number}", os.O_RDWR | os.O_CREAT, 0o644)
        os.write(fd, bytes(65536))
        os.fsync(fd)
        os.close(fd)


def with_syncs(folder, paths, seconds):
    stop = threading.Event()
    children = []
    for number in range(WRITERS):
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            sync_until(stop, folder, number)
        children.append(pid)
    took = measure(paths, seconds)
    for pid in children:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    return took


def alone(mount, paths, seconds):
    return measure(paths, seconds)


def with_hung(mount, paths, seconds, work, server):
    left = names(1000, 16)
    source = f"{work}/source"
    fds = []
    for name in left:
        with open(f"{source}/{name}", "rb") as block:
            data = block.read()
        fd = os.open(f"{mount.path}/blocks/{name}", os.O_WRONLY | os.O_CREAT)
        os.write(fd, data)
        fds.append(fd)
    os.kill(server, signal.SIGSTOP)
    threads = [threading.Thread(target=close_one, args=(fd,)) for fd in fds]
    for thread in threads:
        thread.start()
    took = measure(paths, seconds)
    os.kill(server, signal.SIGCONT)
    for thread in threads:
        thread.join()
    return took


def close_one(fd):
    try:
        os.close(fd)
    except OSError:
        pass  # what is asked here is how long others wait


def fresh(work, *parts):
    for part in parts:
        shutil.rmtree(f"{work}/{part}", ignore_errors=True)
        os.makedirs(f"{work}/{part}")


def one(kind, io_uring, seconds):
    """Percentiles of one kind, on a mount of its own."""
    memory = tempfile.mkdtemp(prefix="ucmfs-bench.", dir="/dev/shm")
    work = tempfile.mkdtemp(prefix="ucmfs-bench.", dir="/var/tmp")
    server = None
    try:
        fresh(work, "mnt", "disk", "plain", "tier", "source/x")
        os.makedirs(f"{memory}/blocks")
        mkblocks(f"{memory}/blocks", 0, BLOCKS)
        mkblocks(f"{work}/source", 1000, 16)
        slow = f"{work}/disk"
        if kind == "hung":
            subprocess.run([f"{BUILD}/tests/lib/flush_fails", slow,
                            f"{work}/tier", f"{work}/sign"], check=True)
            while not os.path.exists(f"{work}/sign.pid"):
                time.sleep(0.01)
            with open(f"{work}/sign.pid") as file:
                server = int(file.read())
            slow = f"{work}/tier"
        mount = Mount(work, f"slow={slow}:fast={memory}", io_uring)
        paths = [f"{mount.path}/blocks/{name}" for name in names(0, BLOCKS)]
        measure(paths, 0.2)
        took = {"alone": lambda: alone(mount, paths, seconds),
                "disk": lambda: with_syncs(f"{work}/plain", paths, seconds),
                "syncs": lambda: with_syncs(f"{mount.path}/files", paths,
                                            seconds),
                "hung": lambda: with_hung(mount, paths, seconds, work, server),
                }[kind]()
        mount.end()
        cuts = statistics.quantiles(took, n=100)
        return cuts[49], cuts[98], max(took), len(took)
    finally:
        if server:
            os.kill(server, signal.SIGCONT)
            subprocess.run(["umount", "-l", f"{work}/tier"], check=False)
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with open("/sys/module/fuse/parameters/enable_uring") as file:
        can_uring = file.read(1) == "Y"
    print("transport  beside  p50 us  p99 us  max us  opens  ratio")
    for io_uring in ([True, False] if can_uring else [False]):
        found = {kind: [] for kind in ("alone", "disk", "syncs", "hung")}
        for _ in range(args.rounds):
            for kind in found:
                found[kind].append(one(kind, io_uring, args.seconds))
        for kind, runs in found.items():
            base = statistics.median(p99 for _, p99, _, _ in found[
                "disk" if kind == "syncs" else "alone"])
            p50, p99, most, num = map(statistics.median, zip(*runs))
            print(f"{'io_uring' if io_uring else '/dev/fuse':9}  {kind:6}"
                  f"  {p50:6.1f}  {p99:6.1f}  {most:6.0f}  {num:5.0f}"
                  f"  {p99 / base:.2f}", flush=True)


main()
