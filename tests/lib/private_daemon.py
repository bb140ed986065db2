# SPDX-License-Identifier: Apache-2.0
"""Directories that a private daemon has, which ends a moment after its last
client."""

import contextlib
import fcntl
import glob
import os
import struct
import tempfile
import time
from typing import Iterator

FLOCK = "hhqqi4x"  # struct flock


def pid_of(path: str) -> int:
    """Of the private daemon that has this directory."""
    name = os.path.basename(os.readlink(os.path.join(path, ".ucmfs/socket")))
    return int(name[len("private-"):-len(".sock")])


def _is_free(lock: str) -> bool:
    with open(lock, "rb") as file:
        asked = struct.pack(FLOCK, fcntl.F_RDLCK, 0, 0, 0, 0)
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
        return struct.unpack(FLOCK, found)[0] == fcntl.F_UNLCK


def wait_free(path: str, limit: float = 20.0) -> None:
    """Until no daemon has this directory, or one in it."""
    end = time.monotonic() + limit
    for lock in [lock for pattern in (".ucmfs/lock", "*/.ucmfs/lock")
                 for lock in glob.glob(os.path.join(path, pattern))]:
        while not _is_free(lock):
            assert time.monotonic() < end, f"{lock} is held"
            time.sleep(0.01)


@contextlib.contextmanager
def directory() -> Iterator[str]:
    """A new one, which is removed when no daemon has it any more."""
    with tempfile.TemporaryDirectory(prefix="ucmfs.") as path:
        yield path
        wait_free(path)


def directory_of(case) -> str:
    """For one test."""
    work = directory()
    case.addCleanup(work.__exit__, None, None, None)
    return work.__enter__()
