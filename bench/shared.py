#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shared.py - what a shared tier costs, beside one that is not and beside plain
access to the same directory.

    bench/shared.py [--rounds N] [--hearts N] DIR
    bench/shared.py --hung FAULTFS DIR

DIR: a directory, on the file system to be measured. Two daemons share it, as
two hosts would if each had a client of its server. Needs root or fusermount3,
numpy, and ucmfs as the tests do ($UCMFS_LIBRARY, $UCMFS_PROGRAM).

--hung: loads and saves on a tier, while the server of the shared one below it
answers and while it hangs; FAULTFS is tests/lib/faultfs of the build.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Iterator

import numpy as np

import ucmfs

IDS = 8192
BUCKETS = 256


def within(seconds: float, holds: Callable[[], Any]) -> float:
    """How long it took."""
    began = time.perf_counter()
    while not holds():
        if time.perf_counter() - began > seconds:
            raise SystemExit(f"not within {seconds:g} s")
        time.sleep(0.001)
    return time.perf_counter() - began


@contextlib.contextmanager
def mounted(source: str, options: str = "deadline=0",
            ) -> Iterator[tuple[pathlib.Path, int]]:
    """Where, and the daemon's number."""
    mount = pathlib.Path(tempfile.mkdtemp(prefix="ucmfs-bench."))
    daemon = subprocess.Popen([os.environ.get("UCMFS_PROGRAM", "ucmfs"), "-f",
                               "-o", options, source, str(mount)])
    try:
        within(30, (mount / ".ucmfs" / "stats.json").exists)
        yield mount, daemon.pid
    finally:
        daemon.terminate()
        daemon.wait()
        mount.rmdir()


class Writer:
    """Saves blocks of 16 KiB."""

    def __init__(self, mount: pathlib.Path) -> None:
        geometry = ucmfs.Geometry(
            num_layers=1, block_size=16, dtype="float16", k_bytes=8192,
            v_bytes=8192, num_kv_heads=2, head_dim=128)
        manifest = {"model": "bench", "geometry": geometry.to_json()}
        self.space = ucmfs.default_name("bench", manifest)
        ucmfs.ensure_space(str(mount), self.space, manifest)
        caches = [np.ones((2, 1, 16, 2, 128), np.float16)]
        self._loader = ucmfs.Loader(str(mount))
        self._group = self._loader.add_group(
            ucmfs.regions_of(caches, geometry, dims="PBNHD"), self.space)

    def save(self, name: bytes) -> None:
        self._group.save(name, [0]).wait()

    def load(self, name: bytes) -> None:
        self._group.load(name, [0]).wait()

    def close(self) -> None:
        self._loader.close()


def per_second(pid: int, seconds: float) -> float:
    """Processor time."""
    def used() -> int:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return sum(map(int, stat.rpartition(")")[2].split()[11:13]))

    before = used()
    time.sleep(seconds)
    return (used() - before) / os.sysconf("SC_CLK_TCK") / seconds


def of_misses(mount: pathlib.Path, space: str, rounds: int,
              ) -> tuple[float, float]:
    """Milliseconds for IDS unknown names: when the folders are due, and right
    after that."""
    due, fresh = [], []
    with ucmfs.Blocks(str(mount)) as blocks:
        for _ in range(rounds):
            time.sleep(2.5)
            for times in due, fresh:
                names = secrets.token_bytes(16 * IDS)
                began = time.perf_counter()
                if any(blocks.locate(names, space)):
                    raise SystemExit("a name that nobody made is there")
                times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(due), statistics.median(fresh)


def of_folders(space: pathlib.Path, rounds: int) -> float:
    """The same as plain access has it: a stat of each bucket's folder."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for bucket in range(BUCKETS):
            with contextlib.suppress(FileNotFoundError):
                os.stat(space / f"{bucket:02x}")
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def beat(hosts: pathlib.Path, num: int, seconds: float) -> None:
    """Hearts of others that live for so long."""
    hearts = [hosts / f"{n:08x}-{n:08x}-{n:08x}-0" for n in range(1, num + 1)]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for heart in hearts:
            heart.touch()
        time.sleep(2)
    for heart in hearts:
        heart.unlink(missing_ok=True)


def work(writer: Writer, saved: list[bytes], seconds: float,
         ) -> dict[str, list[float]]:
    """Milliseconds of loads and saves, in turns."""
    times: dict[str, list[float]] = {"load": [], "save": []}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        new = secrets.token_bytes(16)
        for what, name in ("load", secrets.choice(saved)), ("save", new):
            began = time.perf_counter()
            getattr(writer, what)(name)
            times[what].append((time.perf_counter() - began) * 1e3)
    return times


def measure_hung(faultfs: str, top: pathlib.Path) -> None:
    for name in "disk", "net", "fast":
        (top / name).mkdir()
    net = str(top / "net")
    subprocess.run([faultfs, str(top / "disk"), net, str(top / "sign")],
                   check=True)
    pid = top / "sign.pid"
    within(10, lambda: pid.exists() and pid.read_text().endswith("\n"))
    server = int(pid.read_text())
    try:
        with mounted(f"fast={top}/fast:shared@{net}", "deadline=2") as (mount, _):
            writer = Writer(mount)
            saved = [secrets.token_bytes(16) for _ in range(256)]
            for name in saved:
                writer.save(name)
            times = [work(writer, saved, 10)]
            os.kill(server, signal.SIGSTOP)
            try:
                times.append(work(writer, saved, 10))
            finally:
                os.kill(server, signal.SIGCONT)
            writer.close()
    finally:
        subprocess.run(["umount", net], check=True)
    for what in "load", "save":
        for name, n in ("median", 50), ("99 of 100", 99):
            well, hung = (statistics.quantiles(t[what], n=100)[n - 1]
                          for t in times)
            say(f"{what}, ms: {name}; while the tier below hangs",
                f"{well:.2f}; {hung:.2f} ({hung / well:.2f} times)")


def say(what: str, text: str) -> None:
    print(f"{what:<62} {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.
                                     RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--hearts", type=int, default=63)
    parser.add_argument("--hung", metavar="FAULTFS")
    parser.add_argument("dir", type=pathlib.Path)
    given = parser.parse_args()
    if given.hung:
        with tempfile.TemporaryDirectory(dir=given.dir) as top:
            measure_hung(os.path.abspath(given.hung), pathlib.Path(top))
        return
    tier, alone = given.dir / "shared", given.dir / "alone"
    for directory in tier, alone:
        directory.mkdir(parents=True)
    try:
        measure(tier, alone, given.rounds, given.hearts)
    finally:
        shutil.rmtree(tier)
        shutil.rmtree(alone)


def measure(tier: pathlib.Path, alone: pathlib.Path, rounds: int,
            hearts: int) -> None:
    with mounted(str(alone)) as (mount, _):
        writer = Writer(mount)
        writer.save(secrets.token_bytes(16))
        base, _ = of_misses(mount, writer.space, rounds)
        writer.close()
    with mounted(f"shared@{tier}") as (here, pid), \
            mounted(f"shared@{tier}") as (there, _):
        writer = Writer(here)
        seen = []
        with ucmfs.Blocks(str(there)) as blocks:
            for _ in range(3 * rounds):
                name = secrets.token_bytes(16)
                blocks.locate(name, writer.space)  # it is absent, for a while
                writer.save(name)
                seen.append(within(20, lambda: blocks.locate(
                    name, writer.space)[0]))
        due, fresh = of_misses(there, writer.space, rounds)
        folders = of_folders(tier / "spaces" / writer.space, rounds)
        idle = per_second(pid, 10)
        child = os.fork()
        if not child:
            beat(tier / ".ucmfs" / "hosts", hearts, 24)
            os._exit(0)
        time.sleep(6)
        busy = per_second(pid, 16)
        os.waitpid(child, 0)
        writer.close()
    say("a commit is seen by one that asked before it, s: median, most",
        f"{statistics.median(seen):.2f}, {max(seen):.2f}")
    say(f"{IDS} unknown names, ms: not shared", f"{base:.1f}")
    say("  shared, folders due", f"{due:.1f} ({due / base:.1f} times)")
    say("  shared, within 2 s of that",
        f"{fresh:.1f} ({fresh / base:.1f} times)")
    say(f"  plain access: stat of {BUCKETS} folders", f"{folders:.2f}")
    say("processor time of a daemon that idles, ms each second",
        f"{1e3 * idle:.1f}")
    say(f"  with {hearts} hearts of others", f"{1e3 * busy:.1f}")


if __name__ == "__main__":
    sys.exit(main())
