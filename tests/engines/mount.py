# SPDX-License-Identifier: Apache-2.0
"""A mount of ucmfs to test with, from Python.

The daemon serves temporary directories and is ended by its process id, also
when the test fails or is killed: it gets a SIGTERM when the thread that
started it ends. What cannot run here raises unittest.SkipTest with the reason.

    with Mount() as mount:          # or mount = Mount(); case.addCleanup(...)
        use(mount.path)
        mount.crash()               # SIGKILL: the path is a dead mount
        mount.start()               # the same tiers again

The daemon is $UCMFS_DAEMON, or $top_builddir/ucmfs, or the one in PATH.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Dict, Iterable, List, Optional

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import writers  # noqa: E402
from stopping import stop  # noqa: E402

PR_SET_PDEATHSIG = 1
START_SECONDS = 30
END_SECONDS = 30

_libc = ctypes.CDLL(None, use_errno=True)


def daemon_path() -> str:
    """The daemon's program, or SkipTest."""
    named = os.environ.get("UCMFS_DAEMON")
    built = os.path.join(os.environ.get("top_builddir", "."), "ucmfs")
    for path in (named, built, shutil.which("ucmfs")):
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise unittest.SkipTest("no daemon: build ucmfs, or set UCMFS_DAEMON")


def require_fuse() -> None:
    """SkipTest where nothing can be mounted."""
    daemon_path()
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as err:
        raise unittest.SkipTest(f"/dev/fuse: {err.strerror}") from None


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Mount:
    """Temporary tiers and the daemon that serves them at .path.

    tiers: how many, of one directory each. tmpfs: if above 0, each is a tmpfs
    of so many bytes (a tier that can be full). options: as after -o; settings:
    those of ucmfs.conf(5) in the same form. start=False: nothing is mounted yet.
    scanned=False: it may serve before it knows all blocks of before.
    """

    def __init__(self, *, tiers: int = 1, tmpfs: int = 0, options: str = "",
                 settings: str = "", base: Optional[str] = None,
                 start: bool = True, scanned: bool = True) -> None:
        require_fuse()
        self.scanned = scanned
        self.options = options
        self.settings = settings
        self.work = os.path.realpath(tempfile.mkdtemp(
            prefix="ucmfs.", dir=base or os.environ.get("UCMFS_TEST_DIR")))
        self.path = self._make_path()
        self.log = os.path.join(self.work, "log")
        self.tiers: List[str] = []
        self._mounted: List[str] = []
        self._daemon: Optional[subprocess.Popen] = None
        atexit.register(self.close)
        try:
            for i in range(tiers):
                self.make_tier(os.path.join(self.work, f"tier{i}"), tmpfs)
            if start:
                self.start()
        except BaseException:
            self.close()
            raise

    def _make_path(self) -> str:
        path = os.path.join(self.work, "mnt")
        os.mkdir(path)
        return path

    @property
    def where(self) -> Dict[str, str]:
        """What the options of a way into vLLM say of it."""
        return {"mount": self.path}

    def _command(self) -> List[str]:
        return [daemon_path(), "-f", ":".join(self.tiers), self.path]

    def make_tier(self, path: str, tmpfs: int) -> None:
        """One more; before it is mounted."""
        os.mkdir(path)
        if tmpfs:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={tmpfs}", "ucmfs-test",
                 path], check=True)
            self._mounted.append(path)
        self.tiers.append(path)

    @property
    def pid(self) -> int:
        """Of the daemon that runs."""
        assert self._daemon is not None
        return self._daemon.pid

    @property
    def said(self) -> str:
        """All that the daemons have logged."""
        return pathlib.Path(self.log).read_text(errors="replace")

    def start(self) -> None:
        """Mount; the mount serves when this returns."""
        assert self._daemon is None, "it runs already"
        self._release()
        ours, theirs = os.pipe()
        options = f"ready-fd={theirs}"
        options += self._io_uring()
        if self.options:
            options += "," + self.options
        if self.settings:
            options += ",config=" + self._settings_file()
        with open(self.log, "ab") as log:
            self._daemon = subprocess.Popen(
                [*self._command(), "-o", options], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=(theirs,),
                preexec_fn=_die_with_parent)
        os.close(theirs)
        try:
            ready, _, _ = select.select([ours], [], [], START_SECONDS)
            said = os.read(ours, 64) if ready else b""
        finally:
            os.close(ours)
        if not said.startswith(b"READY=1"):
            self.crash()
            raise RuntimeError(f"the daemon did not start: {self.said}")
        if self.scanned:
            self._wait_for_scan()

    def _wait_for_scan(self) -> None:
        """Until then blocks of before may be a miss. Not for a directory that
        does not answer."""
        from ucmfs.index import Index

        with Index(self.path) as index:
            end = time.monotonic() + START_SECONDS
            while not index.info()["complete"] and time.monotonic() < end:
                time.sleep(0.002)

    def _io_uring(self) -> str:
        """auto is what users get."""
        return "" if "io_uring" in self.options else \
            ",io_uring=" + os.environ.get("UCMFS_TEST_URING", "off")

    def _settings_file(self) -> str:
        path = os.path.join(self.work, "ucmfs.conf")
        with open(path, "w", encoding="utf-8") as file:
            for setting in self.settings.split(","):
                print(setting.replace("=", ": ", 1), file=file)
        return path

    def stop(self) -> None:
        """Unmount in order; the daemon must end well."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        daemon.terminate()
        try:
            status = daemon.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
            status = -signal.SIGKILL
        self._release()
        if status:
            raise RuntimeError(f"the daemon ended with {status}: {self.said}")

    def crash(self) -> None:
        """Kill the daemon; what it leaves is a dead mount."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.kill()
            daemon.wait()

    def freeze(self) -> None:
        """Stop the daemon: calls on the mount hang until thaw()."""
        stop(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def is_mounted(self) -> bool:
        with open("/proc/self/mountinfo", encoding="utf-8") as info:
            return any(line.split()[4] == self.path for line in info)

    def _release(self) -> None:
        while self.is_mounted():
            subprocess.run(["umount", "-l", self.path], check=True)

    def set_quota(self, folder: str, size: int, grace_s: int = 0) -> None:
        """Of a folder of files/, by its path in the mount; it is made."""
        os.makedirs(folder, exist_ok=True)
        for name, value in (("quota", size), ("grace", grace_s)):
            os.setxattr(folder, f"user.ucmfs.{name}", str(value).encode())

    def quota_of(self, folder: str) -> Dict[str, int]:
        """What stats.json says of it."""
        path = os.path.join(self.path, ".ucmfs", "stats.json")
        stats = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        (found,) = [quota for quota in stats["quotas"] if quota["folder"] ==
                    os.path.relpath(folder, self.path)]
        return found

    def blocks(self, space: Optional[str] = None) -> Dict[str, str]:
        """Committed blocks in the tiers: hex id to the path of its file."""
        folder = os.path.join("spaces", space) if space else "blocks"
        found = {path.stem: str(path) for tier in self.tiers
                 for path in pathlib.Path(tier, folder).glob("??/*.bin")}
        self.wait_for_writers(found.values())
        return found

    def wait_for_writers(self, paths: Iterable[str]) -> None:
        """What is damaged must not be what is still being written."""
        if self._daemon is not None:
            writers.wait_for_writers(self._daemon.pid, paths)

    def close(self) -> None:
        """End the daemon, unmount and remove everything; never raises for a
        daemon that ended badly."""
        atexit.unregister(self.close)
        if self._daemon is not None:
            os.kill(self.pid, signal.SIGCONT)
        try:
            self.stop()
        except RuntimeError as err:
            print(err)
        self._release()
        while self._mounted:
            subprocess.run(["umount", "-l", self._mounted.pop()], check=False)
        shutil.rmtree(self.work, ignore_errors=True)

    def __enter__(self) -> "Mount":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Served(Mount):
    """The same without a mount: .path is the daemon's socket, alone in a
    folder apart from .work. It takes no options but those of `ucmfs serve`."""

    def _make_path(self) -> str:
        self.folder = tempfile.mkdtemp(prefix="ucmfs-socket.")
        return os.path.join(self.folder, "kv.sock")

    @property
    def where(self) -> Dict[str, str]:
        return {"socket": self.path}

    def _command(self) -> List[str]:
        return [daemon_path(), "serve", ":".join(self.tiers), "--socket",
                self.path, "-f"]

    def _io_uring(self) -> str:
        return ""

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)
