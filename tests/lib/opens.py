#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks up and opens blocks from each processor in turns, until a file is there,
and prints how long the slowest took, in ms, and how many there were.

    opens.py UNTIL PATH...
"""
import os
import sys
import time

until, paths = sys.argv[1], sys.argv[2:]
cpus = sorted(os.sched_getaffinity(0))
slowest = 0.0
num = 0
while not os.path.exists(until) or num < 100:
    os.sched_setaffinity(0, {cpus[num % len(cpus)]})
    began = time.monotonic()
    fd = os.open(paths[num // len(cpus) % len(paths)], os.O_RDONLY)
    slowest = max(slowest, time.monotonic() - began)
    if not os.read(fd, 1):
        sys.exit("an empty block")
    os.close(fd)
    num += 1
print(f"{1000 * slowest:.0f} {num}")
