# SPDX-License-Identifier: Apache-2.0
"""files_suite.py - what the tests of other programs on MOUNT/files share.

The programs run in processes of their own, with the Python that has them:
$UCMFS_FILES_VENV/bin/python, made by files-venv.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time
import unittest
from typing import Any, Callable, List

from mount import Mount

HERE = pathlib.Path(__file__).resolve().parent
CLIENT_S = 180.0

ENVIRONMENT = {
    "LMCACHE_LOG_LEVEL": "ERROR",
    "LMCACHE_TRACK_USAGE": "false",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def python() -> str:
    """The Python that has the programs, or SkipTest."""
    venv = os.environ.get("UCMFS_FILES_VENV", "")
    path = os.path.join(venv, "bin", "python")
    if not venv or not os.access(path, os.X_OK):
        raise unittest.SkipTest("UCMFS_FILES_VENV has no Python with LMCache, "
                                "NIXL and SGLang; see files-venv")
    return path


class Client:
    """A program that runs; what it says at its end is JSON."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [python(), str(HERE / program), *arguments], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(os.environ, **ENVIRONMENT))

    def result(self) -> Any:
        try:
            out, err = self.process.communicate(timeout=CLIENT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
        lines = out.splitlines()
        if self.process.returncode or not lines:
            raise AssertionError(f"status {self.process.returncode}\n"
                                 f"{out[-2000:]}\n{err[-4000:]}")
        return json.loads(lines[-1])


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it does not come to that in 30 s")
        time.sleep(0.01)


class OnFiles(unittest.TestCase):
    """self.mount serves two directories; each test has its own folder."""

    SETTINGS = "placement=round_robin"
    OPTIONS = ""

    @classmethod
    def setUpClass(cls) -> None:
        python()
        cls.mount = Mount(tiers=2, settings=cls.SETTINGS,
                          options=cls.OPTIONS)
        cls.addClassCleanup(cls.mount.close)

    def setUp(self) -> None:
        self.root = os.path.join(self.mount.path, "files",
                                 self.id().rsplit(".", 1)[-1])

    def remount(self) -> None:
        self.mount.stop()
        self.mount.start()

    def check_quota(self, size: int) -> None:
        """Files have gone for the quota, and it is kept to: in the tiers, too.
        Nobody was refused a file."""
        wait_until(lambda: self.taken() <= size)
        seen = self.mount.quota_of(self.root)
        self.assertLessEqual(seen["used_bytes"], size)
        self.assertGreater(seen["files_evicted"], 0)
        self.assertEqual(seen["files_refused"], 0)

    def taken(self) -> int:
        """Bytes that files of this test take in the tiers."""
        total = 0
        for path in self.behind("*"):
            try:
                total += path.lstat().st_blocks * 512 * path.is_file()
            except FileNotFoundError:
                pass  # gone since it was listed
        return total

    def behind(self, pattern: str) -> List[pathlib.Path]:
        """Files of this test in the tiers."""
        folder = os.path.relpath(self.root, self.mount.path)
        return [path for tier in self.mount.tiers
                for path in pathlib.Path(tier, folder).rglob(pattern)]
