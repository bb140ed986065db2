#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What do huge pages under an engine's slots bring to loads?

    bench/slots.py --tier DIR [--blocks N] [--kib KIB] [--rounds N]
                   [--verify full|header]

As root, in the build directory. DIR is a tier (a directory that ucmfs has been
mounted on, and is not now) on a disk. Blocks are loaded from it into slots in
shared memory, with a deadline: into staging memory and copied, straight into
slots of small pages, and of huge ones, which the kernel has made of small ones
as UcmfsTier asks it to. Sides take turns; figures are medians, and ratios to
the first side those of a round's own. The slots lie in a tmpfs of their own
(huge=advise), mounted for the time of the run.
"""
import argparse
import ctypes
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))
os.environ.setdefault("UCMFS_LIBRARY", os.path.join(
    os.environ.get("top_builddir", "."), ".libs/libucm.so.0"))

import ucmfs  # noqa: E402
from ucmfs.vllm.hugepages import use_huge_pages  # noqa: E402
from ucmfs.vllm.slots import geometry_of, layout_of  # noqa: E402

DEADLINE_MS = 600_000


def arguments():
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tier", required=True)
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--kib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--verify", choices=("full", "header"),
                        default="full")
    return parser.parse_args()


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Side:
    """A loader, and slots of its own."""

    def __init__(self, name, options, folder, *, direct, huge):
        self.name = name
        self.options = options
        self.size = options.kib << 10
        self.gigabytes = self.size * options.blocks / 1e9
        self.figures = []
        self.map = self.memory(folder)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        begin = time.monotonic()
        why = use_huge_pages(address, len(self.map)) if huge else ""
        self.collapse = time.monotonic() - begin
        if why:
            sys.exit(f"slots: no huge pages: {why}")
        self.loader = ucmfs.Loader(tiers=[options.tier])
        layout = layout_of(geometry_of(self.size, 16), address,
                           options.blocks, direct)
        begin = time.monotonic()
        self.group = self.loader.add_group(layout)
        self.pin = time.monotonic() - begin

    def memory(self, folder):
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(self.size * self.options.blocks)
            memory = mmap.mmap(file.fileno(), 0)
        memory.madvise(23)  # MADV_POPULATE_WRITE, as vLLM
        return memory

    def turn(self, ids):
        used, begin = cpu(), time.monotonic()
        task = self.group.load(
            ids, range(self.options.blocks), verify=self.options.verify,
            deadline_ms=DEADLINE_MS, lend="local")
        task.wait()
        seconds = time.monotonic() - begin
        self.figures.append((self.gigabytes / seconds,
                             (cpu() - used) / self.gigabytes))

    def check(self, ids):
        """Each slot begins with its block's name."""
        for i in range(self.options.blocks):
            at = i * self.size
            if self.map[at:at + 16] != ids[16 * i:16 * i + 16]:
                sys.exit(f"slots: {self.name}: slot {i} has other bytes")

    def fill(self, ids):
        for i in range(self.options.blocks):
            at = i * self.size
            self.map[at:at + self.size] = os.urandom(self.size)
            self.map[at:at + 16] = ids[16 * i:16 * i + 16]


def median(side, which):
    return statistics.median(figure[which] for figure in side.figures)


def ratios(side, first, which):
    values = [mine[which] / theirs[which]
              for mine, theirs in zip(side.figures, first.figures)]
    if len(values) < 2:
        return f"{values[0]:.2f}"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def measure(options, folder):
    ids = os.urandom(16 * options.blocks)
    sides = [Side("staging", options, folder, direct=False, huge=False),
             Side("small pages", options, folder, direct=True, huge=False),
             Side("huge pages", options, folder, direct=True, huge=True)]
    sides[0].fill(ids)
    sides[0].group.save(ids, range(options.blocks)).wait()
    for number in range(options.rounds + 1):
        for side in sides if number % 2 else sides[::-1]:
            side.turn(ids)
            if not number:
                side.check(ids)
                side.figures.clear()
    print(f"# {options.blocks} blocks of {options.kib} KiB, verify "
          f"{options.verify}, {options.rounds} rounds; load "
          f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} processors")
    print("| into | GB/s | ratio | CPU, s/GB | ratio | to huge pages, s/GB "
          "| pinning, s/GB |\n|---|---|---|---|---|---|---|")
    for side in sides:
        direct = side.loader.stats()["direct_bytes"] > 0
        if direct != (side is not sides[0]):
            sys.exit(f"slots: {side.name}: its slots were "
                     f"{'' if direct else 'not '}read into")
        print(f"| {side.name} | {median(side, 0):.2f} "
              f"| {ratios(side, sides[0], 0)} | {median(side, 1):.4f} "
              f"| {ratios(side, sides[0], 1)} "
              f"| {side.collapse / side.gigabytes:.2f} "
              f"| {side.pin / side.gigabytes if direct else 0:.3f} |")
    for side in sides:
        side.loader.close()
    remove(options.tier, ids)


def remove(tier, ids):
    mine = {ids[at:at + 16].hex() for at in range(0, len(ids), 16)}
    for folder, _, names in os.walk(os.path.join(tier, "blocks")):
        for name in names:
            if name.split(".", maxsplit=1)[0] in mine:
                os.unlink(os.path.join(folder, name))


def main():
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="ucmfs-slots.") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=advise,size=80%",
                        "ucmfs-slots", folder], check=True)
        try:
            measure(options, folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


if __name__ == "__main__":
    main()
