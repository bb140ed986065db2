#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks up and opens blocks from each processor in turns, until a file is there,
and prints how long the slowest took, in ms, how many there were, and how long
the slowest change of a file in DIRECTORY took meanwhile: what the disk, and a
machine with much to do, are to blame for.

    opens.py UNTIL DIRECTORY PATH...
"""
import os
import sys
import threading
import time


class Slowest:
    def __init__(self):
        self.seconds = 0.0
        self.num = 0

    def time(self, call):
        began = time.monotonic()
        result = call()
        self.seconds = max(self.seconds, time.monotonic() - began)
        self.num += 1
        return result


def change_file(path, slowest, over):
    with open(path, "w", encoding="ascii"):
        pass
    while not over.is_set():
        slowest.time(lambda: os.utime(path))
        time.sleep(0.01)
    os.unlink(path)


def open_blocks(until, paths, opens):
    cpus = sorted(os.sched_getaffinity(0))
    while not os.path.exists(until) or opens.num < 100:
        os.sched_setaffinity(0, {cpus[opens.num % len(cpus)]})
        path = paths[opens.num // len(cpus) % len(paths)]
        fd = opens.time(lambda: os.open(path, os.O_RDONLY))
        if not os.read(fd, 1):
            sys.exit("an empty block")
        os.close(fd)


def main():
    until, directory, paths = sys.argv[1], sys.argv[2], sys.argv[3:]
    opens, changes, over = Slowest(), Slowest(), threading.Event()
    thread = threading.Thread(target=change_file, args=(
        f"{directory}/changed", changes, over))
    thread.start()
    try:
        open_blocks(until, paths, opens)
    finally:
        over.set()
        thread.join()
    print(f"{1000 * opens.seconds:.0f} {opens.num} "
          f"{1000 * changes.seconds:.0f}")


main()
