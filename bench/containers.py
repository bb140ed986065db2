#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What would a file for several blocks bring?

    bench/containers.py [--dir DIR] [--mib N] [--rounds N] [--block KIB]...

The same bytes lie in files of one block, and in containers of 8 and of 16 blocks
that follow each other in a chain. They are read with O_DIRECT by eight threads:

    random  single blocks, anywhere: a file is opened for each
    runs    chains of 1 to 32 blocks from a container's beginning, as prefixes
            are: block by block, or, of containers, in reads of at most 4 MiB,
            as the loader makes them

Rounds take turns; figures are medians, and ratios those of a round's own. Run it
in the build directory.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

READER = os.path.join(os.environ.get("top_builddir", "."),
                      "bench/containers_read")
HEAD = 4096
RUNS = 32  # blocks of the longest prefix
READ = (4 << 20) + HEAD  # the longest read


def arguments():
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=int, action="append",
                        help="KiB of a block's payload [128, 512, 2048]")
    parser.add_argument("--depth", type=int, default=8,
                        help="files at a time [8]")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Layout:
    """Blocks of `size` bytes, `each` to a file."""

    def __init__(self, top, size, each, num):
        self.size, self.each, self.num = size, each, num
        self.dir = os.path.join(top, f"{size}-{each}")
        os.mkdir(self.dir)
        for number in range(num // each):
            with open(self.path(number), "wb") as file:
                for _ in range(each):
                    file.write(os.urandom(size))
                os.fsync(file.fileno())

    def path(self, number):
        return os.path.join(self.dir, f"{number:05d}.bin")

    def at(self, block):
        return block // self.each, block % self.each * self.size


def single_plan(layout, blocks):
    """A read for each block."""
    return [(*layout.at(block), layout.size) for block in blocks]


def joined_plan(layout, blocks):
    """A read for what lies in a row in one file."""
    reads = []
    for number, offset, length in single_plan(layout, blocks):
        if reads and reads[-1][0] == number and \
                sum(reads[-1][1:]) == offset and \
                reads[-1][2] + length <= READ:
            reads[-1] = (number, reads[-1][1], reads[-1][2] + length)
        else:
            reads.append((number, offset, length))
    return reads


def read(layout, plan, depth):
    """Seconds that the reads took, and of the processor."""
    lines = "".join(f"{layout.path(number)} {offset} {length}\n"
                    for number, offset, length in plan)
    most = max(length for _, _, length in plan)
    said = subprocess.run([READER, str(depth), str(most)], check=True,
                          text=True, input=lines, capture_output=True).stdout
    seconds, cpu, done = map(float, said.split())
    want = sum(length for _, _, length in plan)
    if done != want:
        sys.exit(f"containers: read {done} of {want} bytes")
    return seconds, cpu


def measure(args, size, num, top, rng):
    layouts = {each: Layout(top, size, each, num) for each in (1, 8, 16)}
    took = {(kind, each): [] for kind in ("random", "runs")
            for each in layouts}
    for turn in range(args.rounds + 1):
        blocks = rng.sample(range(num), num // 2)
        prefixes = []
        for start in rng.sample(range(0, num, RUNS), num // RUNS):
            prefixes += range(start, start + rng.randint(1, RUNS))
        plans = {"random": (single_plan, blocks),
                 "runs": (joined_plan, prefixes)}
        order = list(took)
        rng.shuffle(order)
        for kind, each in order:
            plan, which = plans[kind]
            seconds, cpu = read(layouts[each],
                                plan(layouts[each], which), args.depth)
            if turn:
                took[kind, each].append(
                    (len(which) * size / seconds / 1e6,
                     cpu / len(which) * 1e6))
    return took


def table(args, size, took):
    for (kind, each), rounds in took.items():
        base = took[kind, 1]
        ratios = sorted(here[0] / there[0]
                        for here, there in zip(rounds, base))
        row = {
            "block": size - HEAD, "reads": kind, "blocks to a file": each,
            "MB/s": round(statistics.median(r[0] for r in rounds)),
            "ratio": round(statistics.median(ratios), 2),
            "q1": round(ratios[len(ratios) // 4], 2),
            "q3": round(ratios[3 * len(ratios) // 4], 2),
            "CPU us a block": round(statistics.median(r[1] for r in rounds)),
        }
        print(json.dumps(row) if args.json else
              "{block:>9} {reads:7} {blocks to a file:>3} {MB/s:>6} MB/s  "
              "{ratio:5.2f} ({q1:.2f}-{q3:.2f})  "
              "{CPU us a block:>5} us".format(**row), flush=True)


def main():
    args = arguments()
    rng = random.Random()
    for kib in args.block or (128, 512, 2048):
        size = kib * 1024 + HEAD
        num = max(64, args.mib * 1024 // kib // RUNS * RUNS)
        top = tempfile.mkdtemp(prefix="ucmfs-bench.", dir=args.dir)
        try:
            table(args, size, measure(args, size, num, top, rng))
        finally:
            shutil.rmtree(top)


main()
