# SPDX-License-Identifier: Apache-2.0
"""writers.py - files of a tier that the daemon has written to the end.

A close(2) returns when the block is there; the daemon hears of the last close
(RELEASE) a moment later, and looks once more at what was written through a
descriptor that could also read. Whoever damages a block before that damages one
that is still being written: it is set aside at once, and is absent.
"""

from __future__ import annotations

import os
import time
from typing import Iterable, Set, Tuple

LIMIT_S = 20.0


def _runs(pid: int) -> bool:
    """Neither ended nor stopped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "TtZX"
    except FileNotFoundError:
        return False


def _written(pid: int) -> Set[Tuple[int, int]]:
    """What the process has open for writing, by device and inode."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as info:
                flags = next(int(line.split()[1], 8) for line in info
                             if line.startswith("flags:"))
            seen = os.stat(f"/proc/{pid}/fd/{fd}")
        except (OSError, StopIteration):
            continue  # closed meanwhile
        if flags & os.O_ACCMODE != os.O_RDONLY:
            found.add((seen.st_dev, seen.st_ino))
    return found


def _writes_blocks(pid: int) -> bool:
    """Has it a block, or one in the making, open for writing?"""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
            mode = os.lstat(f"/proc/{pid}/fd/{fd}").st_mode
        except OSError:
            continue  # closed meanwhile
        if mode & 0o200 and ("/.ucmfs/tmp/" in path or "/blocks/" in path):
            return True
    return False


def wait_for_all_writers(pid: int) -> None:
    """Until the daemon writes no block any more, if it runs."""
    end = time.monotonic() + LIMIT_S
    try:
        while _runs(pid) and _writes_blocks(pid):
            if time.monotonic() > end:
                raise AssertionError("the daemon goes on writing a block")
            time.sleep(0.002)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended meanwhile


def wait_for_writers(pid: int, paths: Iterable[str]) -> None:
    """Until the daemon writes none of these files any more, if it runs."""
    wanted = set()
    for path in paths:
        try:
            seen = os.stat(path)
        except FileNotFoundError:
            continue
        wanted.add((seen.st_dev, seen.st_ino))
    end = time.monotonic() + LIMIT_S
    while wanted and _runs(pid) and wanted & _written(pid):
        if time.monotonic() > end:
            raise AssertionError("the daemon goes on writing a block")
        time.sleep(0.002)
