#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a loader's first loads cost, of two builds of libucm in turns.

Staging memory comes with its use: so the open of a loader costs less than
where all of it was made then, and the first loads cost more. In each round a
process with either library opens a loader over TIER (a directory that has been
a tier of a mount), loads its blocks into pages that are in pieces, so that
they go through staging, and does so once more. The blocks are made when they
are not there.

    first_loads.py --library OLD/libucm.so --library NEW/libucm.so TIER
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "..")
BLOCKS = 128
LAYERS, TOKENS, PLANE = 32, 16, 32768  # 2 MiB a block
WHAT = ("open ms", "first ms", "second ms", "cpu ms", "pinned MiB")


def is_made(tier: str, block: bytes) -> bool:
    name = block.hex()
    return os.path.exists(os.path.join(tier, "blocks", name[:2],
                                       f"{name}.bin"))


def pinned_mib() -> float:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmPin:"):
                return int(line.split()[1]) / 1024
    return 0.0


def one_run(tier: str) -> None:
    sys.path.insert(0, os.path.join(TOP, "python"))
    import numpy
    import ucmfs

    ids = [hashlib.md5(b"%d" % i).digest() for i in range(BLOCKS)]
    pages = numpy.zeros((LAYERS, len(ids), 2, PLANE // 2), "<u2")
    tensor = ucmfs.Raw(pages.ctypes.data, pages.shape,
                       (len(ids) * PLANE, PLANE, PLANE // 2, 1), 2, "cpu",
                       pages)
    pages.fill(1)
    times = [time.monotonic()]
    loader = ucmfs.Loader(tiers=tier)
    times.append(time.monotonic())
    group = loader.add_group(ucmfs.regions_of(
        [tensor], ucmfs.Geometry(LAYERS, TOKENS, "opaque", PLANE, PLANE,
                                 order="opaque"), dims="LBPD"))
    pinned = pinned_mib()
    if not all(is_made(tier, block) for block in ids):
        group.save(b"".join(ids), range(len(ids))).wait(60)
        loader.close()
        return
    for _ in range(2):
        times.append(time.monotonic())
        group.load(b"".join(ids), range(len(ids))).wait(60)
        times.append(time.monotonic())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([1000 * (times[1] - times[0]),
                      1000 * (times[3] - times[2]),
                      1000 * (times[5] - times[4]),
                      1000 * (usage.ru_stime + usage.ru_utime), pinned]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tier")
    parser.add_argument("--library", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if not args.library:
        one_run(args.tier)
        return
    runs: dict = {library: [] for library in args.library}
    for _ in range(args.rounds):
        for library, found in runs.items():
            out = subprocess.run(
                [sys.executable, __file__, args.tier], check=True, text=True,
                stdout=subprocess.PIPE,
                env=dict(os.environ, UCMFS_LIBRARY=library)).stdout
            found.append(json.loads(out))
    for library, found in runs.items():
        print(library)
        for i, what in enumerate(WHAT):
            values = sorted(run[i] for run in found)
            print(f"  {what:12} {statistics.median(values):9.2f}"
                  f"  ({values[len(values) // 4]:.2f} to"
                  f" {values[-1 - len(values) // 4]:.2f})")


if __name__ == "__main__":
    main()
