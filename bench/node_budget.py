#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a small load takes beside bulk loaders, with a budget and without.

Bulk processes load half of the blocks of a mount again and again, by way of
staging and past the page cache. Beside them one process loads a single block
every tenth of a second, which is timed from submit to done: alone, beside the
bulk, and beside it in a mount with each of the budgets that are given. MB/s is
what all had together.

    node_budget.py [--bulk 3] [--loads 60] [--dir DIR] [--budget OPTIONS ...]

OPTIONS: as after -o of ucmfs, such as budget=400M,inflight=8M.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..")
sys.path[:0] = [os.path.join(TOP, "tests", "engines"),
                os.path.join(TOP, "python")]

import numpy
import ucmfs
from mount import Mount

BLOCKS = 128
LAYERS, TOKENS, PLANE = 32, 16, 32768  # 2 MiB a block
BYTES = 2 * LAYERS * PLANE
EVERY_S = 0.1
DEFAULT = ("budget=400M", "budget=200M", "inflight=8M")


class Pages:
    """A loader, and pages for all blocks, in pieces."""

    def __init__(self, mount: str, threads: int) -> None:
        self.ids = [hashlib.md5(b"%d" % i).digest() for i in range(BLOCKS)]
        self.pages = numpy.ones((LAYERS, BLOCKS, 2, PLANE // 2), "<u2")
        tensor = ucmfs.Raw(self.pages.ctypes.data, self.pages.shape,
                           (BLOCKS * PLANE, PLANE, PLANE // 2, 1), 2, "cpu",
                           self.pages)
        self.loader = ucmfs.Loader(mount, threads=threads)
        self.group = self.loader.add_group(ucmfs.regions_of(
            [tensor], ucmfs.Geometry(LAYERS, TOKENS, "opaque", PLANE, PLANE,
                                     order="opaque"), dims="LBPD"))

    def load(self, first: int, num: int) -> None:
        ids = b"".join(self.ids[first:first + num])
        self.group.load(ids, range(first, first + num)).wait(300)


def bulk(mount: str, loaded: object, begun: object) -> None:
    pages = Pages(mount, 0)
    while True:
        pages.load(0, BLOCKS // 2)
        with loaded.get_lock():
            loaded.value += BLOCKS // 2 * BYTES
        begun.set()


def time_small(pages: Pages, loads: int) -> list:
    times = []
    for i in range(loads):
        began = time.monotonic()
        pages.load(BLOCKS // 2 + i % (BLOCKS // 2), 1)
        times.append(1000 * (time.monotonic() - began))
        time.sleep(EVERY_S)
    return sorted(times)


def measure(num_bulk: int, loads: int, options: str, base: str) -> tuple:
    with Mount(options=options, base=base) as mount:
        pages = Pages(mount.path, 1)
        pages.group.save(b"".join(pages.ids), range(BLOCKS)).wait(300)
        loaded = multiprocessing.Value("Q", 0)
        begun = [multiprocessing.Event() for _ in range(num_bulk)]
        others = [multiprocessing.Process(
            target=bulk, args=(mount.path, loaded, each), daemon=True)
            for each in begun]
        for other in others:
            other.start()
        for each in begun:
            each.wait()
        before, began = loaded.value, time.monotonic()
        times = time_small(pages, loads)
        rate = (loaded.value - before + loads * BYTES) / 1e6 / (
            time.monotonic() - began)
        for other in others:
            other.kill()
            other.join()
        pages.loader.close()
    return times, rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bulk", type=int, default=3)
    parser.add_argument("--loads", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--budget", nargs="*", default=DEFAULT)
    args = parser.parse_args()
    sides = [(0, ""), (args.bulk, "")]
    sides += [(args.bulk, options) for options in args.budget]
    print(f"{'bulk':>4} {'options':24} {'p50 ms':>8} {'p99 ms':>8}"
          f" {'max ms':>8} {'MB/s':>7}", flush=True)
    for _ in range(args.rounds):
        for num_bulk, options in sides:
            times, rate = measure(num_bulk, args.loads, options, args.dir)
            print(f"{num_bulk:4} {options or '-':24}"
                  f" {times[len(times) // 2]:8.1f}"
                  f" {times[len(times) * 99 // 100]:8.1f}"
                  f" {times[-1]:8.1f} {rate:7.0f}", flush=True)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
