# SPDX-License-Identifier: Apache-2.0
"""socket_many.py - very many clients of a daemon at once: all are answered, what each
costs is measured, and the limits refuse as ucm-serve(7) says.

usage: socket_many.py SOCKET PID-OF-THE-DAEMON
"""
from __future__ import annotations

import errno
import os
import resource
import struct
import sys
import time
from typing import Dict, List

from control import Peer, REQUEST, VERBS

MANY = 1000
MOST, MOST_OF_USER = 4096, 1024  # of ucm-serve(7)
USER = 4321
KIB_EACH = 64
WAIT_S = 30


def memory(pid: int) -> Dict[str, int]:
    """KiB."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        fields = dict(line.split(":") for line in rollup if " kB" in line)
    return {name: int(fields[name].split()[0])
            for name in ("Rss", "Private_Dirty")}


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def wait_for_threads(pid: int, num: int) -> None:
    ends = time.monotonic() + WAIT_S
    while threads(pid) > num:
        assert time.monotonic() < ends, f"{threads(pid)} threads, not {num}"
        time.sleep(0.01)


def ask_all(peers: List[Peer], verb: str, num: int) -> None:
    """All ask before the first is answered."""
    message = struct.pack(REQUEST, VERBS[verb], num, 0, 0, 0, b"") + \
        bytes(16 * num)
    for peer in peers:
        peer.send(message)
    for peer in peers:
        _, answered, _, _ = peer.answer()
        assert answered == num, answered


def connect(socket: str, most: int) -> List[Peer]:
    """As many as are served, and one more has been refused if they are fewer."""
    peers: List[Peer] = []
    while len(peers) < most:
        peer = Peer(socket)
        try:
            peer.request("lookup")
        except OSError as error:
            assert error.errno == errno.EMFILE, error
            peer.close()
            break
        peers.append(peer)
    return peers


def close(peers: List[Peer]) -> None:
    for peer in peers:
        peer.close()
    peers.clear()


def report(what: str, pid: int, before: Dict[str, int]) -> int:
    now = memory(pid)
    each = {name: (now[name] - before[name]) / MANY for name in now}
    print(f"# {what}: for each client {each['Rss']:.1f} KiB resident, "
          f"{each['Private_Dirty']:.1f} KiB private", flush=True)
    return int(max(each.values()))


def is_sanitized(pid: int) -> bool:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return "san.so" in maps.read()


def serve_many(socket: str, pid: int) -> None:
    num, before = threads(pid), memory(pid)
    peers = connect(socket, MANY)
    assert len(peers) == MANY, len(peers)
    ask_all(peers, "lookup", 1)
    each = report("a small request", pid, before)
    ask_all(peers, "locate", 1000)
    large = report("the largest answer", pid, before)
    assert threads(pid) == num + MANY, threads(pid)
    close(peers)
    wait_for_threads(pid, num)
    if is_sanitized(pid):
        print("# how much memory that is says nothing with sanitizers")
    else:
        assert each <= KIB_EACH and large <= KIB_EACH, (each, large)


def in_child(uid: int, socket: str, want: int) -> int:
    """Connections of a user, who keeps them: the child. 0: other than these."""
    ready, ours = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            peers = connect(socket, want + 5)
            ask_all(peers, "lookup", 1)
            os.write(ours, b"%d" % len(peers))
            time.sleep(10 * WAIT_S)  # until it is killed
        finally:
            os._exit(1)
    os.close(ours)
    said = os.read(ready, 16)
    os.close(ready)
    assert said == b"%d" % want, f"user {uid} has {said!r}, not {want}"
    return child


def limits(socket: str, pid: int) -> None:
    num = threads(pid)
    child = in_child(USER, socket, MOST_OF_USER)
    peers = connect(socket, MOST)
    assert len(peers) == MOST - MOST_OF_USER, len(peers)
    ask_all(peers, "lookup", 1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    wait_for_threads(pid, num + len(peers))
    more = connect(socket, MOST_OF_USER + 1)
    assert len(more) == MOST_OF_USER, len(more)
    close(peers)
    close(more)
    wait_for_threads(pid, num)


def main() -> int:
    socket, pid = sys.argv[1], int(sys.argv[2])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # the daemon has the same limit, and no more than half of it for connections
    if hard < 2 * MANY + 100:
        print(f"SKIP: {hard} descriptors are too few for {MANY} clients")
        return 77
    serve_many(socket, pid)
    if os.geteuid() != 0 or hard < 2 * MOST:
        print(f"SKIP: the limits need root and {2 * MOST} descriptors")
        return 0
    limits(socket, pid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
