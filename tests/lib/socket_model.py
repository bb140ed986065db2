# SPDX-License-Identifier: Apache-2.0
"""socket_model.py - clients of a daemon's socket, against a map kept outside of it.

usage: socket_model.py UCMFS WORK OPERATIONS

Processes of a few threads, each with a connection, make every request that reads or
changes blocks. The daemon and they are killed again and again: a process at each kind
of message, before it is sent, before its answer is read, and after; with drafts and
descriptors. In between, when no client is left:

  - each block of the map is there, and reads as what was committed; no other is;
  - no file of a draft is left, no connection, nothing beside the socket; the daemon
    has nothing in /dev/shm, which it would leave. After one that was killed so it is
    before the first client comes back;
  - descriptors that were opened before read as they did.

The map is memory that all processes share, so that it has what a killed one has
written. Each thread has its own blocks: of these it knows what every request must
answer. Before a request that changes a block, the map says what may become of it; when
the answer has come, what has. A block whose answer never came is left alone until the
clients have ended. All threads share a few other blocks, of which the map knows which
contents were ever committed.

Blocks move from tier to tier all the time (write: fast:back).
"""
from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
import time
from typing import Callable, Dict, List, Optional, Tuple

from socket_clients import (
    DEADLY, POINTS, WAIT_S, die_with_parent, numbers, run_process)
from socket_facts import (
    ABSENT, BYTES, KEYS, NONE, PROCESSES, SHARED, SLOTS, SPACES, UNKNOWN,
    Content, Map, content_of, make_bytes, number_of, space_of)
from seed import SEED
from control import Peer, VERBS
import soak_blocks


# ---- the daemon, and what is left ----

class Daemon:
    def __init__(self, ucmfs: str, work: str) -> None:
        self.ucmfs, self.work = ucmfs, work
        self.socket = f"{work}/socket/store"
        self.tiers = [f"{work}/fast", f"{work}/slow"]
        for folder in (f"{work}/socket", *self.tiers):
            os.mkdir(folder)
        with open(f"{work}/ucmfs.conf", "w") as out:
            out.write("write: fast:back\ncheckpoint: 0\n")
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.start()

    def start(self) -> None:
        ready, ours = os.pipe()
        with open(f"{self.work}/log", "ab") as log:
            self.process = subprocess.Popen(
                [self.ucmfs, "serve",
                 f"fast={self.tiers[0]}:slow={self.tiers[1]}", "--socket",
                 self.socket, "-f", "-o",
                 f"ready-fd={ours},config={self.work}/ucmfs.conf"],
                pass_fds=(ours,), stderr=log, preexec_fn=die_with_parent)
        os.close(ours)
        said = os.read(ready, 64)
        os.close(ready)
        assert said.strip() == b"READY=1", "the daemon does not start"

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        assert self.process
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0, self.process.returncode
        assert not os.listdir(f"{self.work}/socket")

    def peers(self) -> int:
        assert self.process
        num, tasks = 0, f"/proc/{self.process.pid}/task"
        for task in os.listdir(tasks):
            try:
                with open(f"{tasks}/{task}/comm") as comm:
                    num += comm.read() == "ucm-peer\n"
            except (FileNotFoundError, ProcessLookupError):
                pass
        return num

    def temps(self) -> List[str]:
        return [f"{folder}/{name}" for tier in self.tiers
                for folder, _, names in os.walk(f"{tier}/.ucmfs/tmp")
                for name in names]

    def files(self) -> List[str]:
        """Names of all blocks, in all directories."""
        return [name for tier in self.tiers
                for _, _, names in os.walk(tier) for name in names
                if name.endswith(".bin")]

    def has_nothing_beside(self) -> None:
        assert os.listdir(f"{self.work}/socket") == ["store"]
        assert self.process
        fds = f"/proc/{self.process.pid}/fd"
        for fd in os.listdir(fds):
            try:
                path = os.readlink(f"{fds}/{fd}")
            except FileNotFoundError:
                continue
            assert not path.startswith("/dev/shm/") or \
                path.startswith(self.work), path


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < ends, f"in vain: {what}"
        time.sleep(0.005)


# ---- between the rounds ----

class Account:
    """Nobody is connected: what is there, is it what must be?"""

    def __init__(self, facts: Map, daemon: Daemon) -> None:
        self.map, self.daemon = facts, daemon
        self.held: List[Tuple[int, Content]] = []

    def open(self, peer: Peer, number: int) -> Optional[int]:
        data, fds = peer.request("open", soak_blocks.id_of(number), 1,
                                 space=space_of(number))
        result = struct.unpack_from("<i", data)[0]
        assert result in (0, -errno.ENOENT), f"block {number}: {result}"
        return fds[0] if fds else None

    def look(self, peer: Peer, number: int) -> int:
        """Which content it has now."""
        data, _ = peer.request("lookup", soak_blocks.id_of(number), 1,
                               space=space_of(number))
        fd = self.open(peer, number)
        assert numbers(data) == [int(fd is not None)], \
            f"block {number}: a look-up says {numbers(data)}"
        if fd is None:
            return ABSENT
        content = content_of(number, os.pread(fd, 2 * soak_blocks.BYTES, 0))
        self.held.append((fd, (number, content)))
        return content

    def is_pinned(self, peer: Peer, number: int) -> int:
        data, _ = peer.request("locate", soak_blocks.id_of(number), 1,
                               space=space_of(number))
        result, _, _, flags = struct.unpack_from("<iBBH", data)
        return 0 if result else flags & 1

    def settle_row(self, peer: Peer, slot: int, key: int) -> int:
        row, number = self.map.row(slot, key), number_of(slot, key)
        content = self.look(peer, number)
        may = {row.content} | ({row.maybe} - {NONE})
        assert content in may, \
            f"block {number} {row}: {content}"
        pinned = self.is_pinned(peer, number)
        # a pin ends with its block
        assert row.pinned in (pinned, UNKNOWN) or not content, \
            f"block {number}: pinned {pinned}, not {row.pinned}"
        row.settle(content, pinned)
        row.note("F" if content else "A")
        return content

    def settle(self) -> None:
        self.reread()
        self.daemon.has_nothing_beside()
        wait_until("connections end", lambda: self.daemon.peers() == 0)
        there = set()
        with Peer(self.daemon.socket) as peer:
            for slot in range(SLOTS):
                for key in range(KEYS):
                    if self.settle_row(peer, slot, key):
                        there.add(number_of(slot, key))
            for key in range(SHARED):
                number = number_of(SLOTS, key)
                content = self.look(peer, number)
                assert not content or self.map.begun[key * 256 + content], \
                    f"block {number}: {content} was never committed"
                if content:
                    there.add(number)
            data, _ = peer.request("statistics")
            blocks = struct.unpack_from("<Q", data, 8)[0]
            assert blocks == len(there), f"{blocks}, not {len(there)} blocks"
            peer.request("flush")
        wait_until("drafts are dropped", lambda: not self.daemon.temps())
        names = {soak_blocks.id_of(number).hex() + ".bin" for number in there}
        assert set(self.daemon.files()) == names, "other files"

    def reread(self) -> None:
        for fd, content in self.held:
            assert os.pread(fd, 2 * soak_blocks.BYTES, 0) == BYTES[content], \
                f"block {content}: a descriptor has other bytes"
            os.close(fd)
        self.held.clear()


class Round:
    """Clients, each of which is replaced when it has been killed."""

    def __init__(self, facts: Map, daemon: Daemon, lives: int) -> None:
        self.map, self.daemon, self.lives = facts, daemon, lives
        self.pids: Dict[int, int] = {}

    def start(self, process: int) -> None:
        self.lives += 1
        pid = os.fork()
        if not pid:
            run_process(self.map, self.daemon.socket, process, self.lives - 1)
        self.pids[pid] = process

    def reap(self, again: bool) -> None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid not in self.pids:
            time.sleep(0.002)
            return
        process = self.pids.pop(pid)
        assert status in (0, signal.SIGKILL), f"a client failed: {status}"
        if again:
            self.start(process)

    def kill_daemon(self) -> None:
        self.map.held = True
        self.daemon.kill()
        self.daemon.start()
        wait_until("drafts of the last daemon are removed",
                   lambda: not self.daemon.temps())
        self.daemon.has_nothing_beside()
        self.map.held = False

    def run(self, operations: int, kill_at: int) -> None:
        first = self.map.total()
        killed = False
        for process in range(PROCESSES):
            self.start(process)
        while (done := self.map.total() - first) < operations:
            if done >= kill_at and not killed:
                self.kill_daemon()
                killed = True
            self.reap(True)
        self.map.ends = True
        while self.pids:
            self.reap(False)
        self.map.ends = False

    def end(self) -> None:
        for pid in self.pids:
            try:  # it may have been waited for a moment ago
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        self.pids.clear()


def main() -> int:
    ucmfs, work, operations = sys.argv[1], sys.argv[2], int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rounds = max(3, operations // 25000)
    chance = random.Random(f"{SEED} rounds")
    make_bytes()
    facts, daemon = Map(), Daemon(ucmfs, work)
    account, lives = Account(facts, daemon), 0
    round_now = None
    try:
        with Peer(daemon.socket) as peer:
            peer.request("mkspace", space=SPACES[1], argument=0o755)
        for number in range(rounds):
            round_now = Round(facts, daemon, lives)
            part = operations // rounds
            round_now.run(part, chance.randrange(part))
            lives = round_now.lives
            account.settle()
            print(f"# round {number + 1} of {rounds}: {facts.total()} "
                  f"operations, {lives} processes", flush=True)
        daemon.end()
        account.reread()
    except BaseException:
        if round_now:
            round_now.end()
        assert daemon.process
        daemon.process.kill()
        daemon.process.wait()
        with open(f"{work}/log") as log:
            lines = [line for line in log if "not committed" not in line]
        print("".join(lines[-30:]))
        raise
    assert lives >= len(DEADLY) * len(POINTS), f"{lives} lives"
    return 0


if __name__ == "__main__":
    assert set(DEADLY) <= set(VERBS)
    sys.exit(main())
