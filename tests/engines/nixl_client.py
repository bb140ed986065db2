# SPDX-License-Identifier: Apache-2.0
"""NIXL's POSIX plugin: memory to files and back.

    nixl_client.py write|read|pool ROOT FILES API...    API: see APIS

"write" puts bytes that follow from their numbers into files, in a folder for
each API; "read" reads them into memory that held other bytes, and compares;
"pool" does both on files without names, as KVBM makes them for its disk. A JSON
object on stdout says for each API how many files were right.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import sys
import time
from typing import Any, List

from nixl_cu12 import nixl_agent, nixl_agent_config

SIZE = 2 << 20
TIMEOUT_S = 60.0
APIS = {
    "aio": {"use_aio": "true"},
    "uring": {"use_uring": "true"},
    "posix_aio": {"use_posix_aio": "true"},
}


def content(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest() * (SIZE // 32)


class Transfers:
    """Files and as much memory, in the same order."""

    def __init__(self, api: str, paths: List[str], flags: int,
                 unlinked: bool = False) -> None:
        name = api.split("-")[0]
        self.agent: Any = nixl_agent(api, nixl_agent_config(backends=[]))
        self.agent.create_backend("POSIX", APIS[name])
        self.name = api
        self.memory = mmap.mmap(-1, len(paths) * SIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        direct = os.O_DIRECT if api.endswith("-direct") else 0
        self.fds = [os.open(path, flags | (0 if unlinked else direct), 0o644)
                    for path in paths]
        for path, fd in zip(paths, self.fds if unlinked else ()):
            os.posix_fallocate(fd, 0, SIZE)
            os.unlink(path)
            fcntl.fcntl(fd, fcntl.F_SETFL,
                        fcntl.fcntl(fd, fcntl.F_GETFL) | direct)
        self.registered = [
            self.agent.register_memory(
                [(base, len(self.memory), 0, "memory")], "DRAM"),
            self.agent.register_memory(
                [(0, SIZE, fd, str(fd)) for fd in self.fds], "FILE")]
        self.parts = self.agent.get_xfer_descs(
            [(base + i * SIZE, SIZE, 0) for i in range(len(paths))], "DRAM")
        self.files = self.agent.get_xfer_descs(
            [(0, SIZE, fd) for fd in self.fds], "FILE")

    def run(self, operation: str) -> None:
        handle = self.agent.initialize_xfer(operation, self.parts, self.files,
                                            self.name)
        end = time.monotonic() + TIMEOUT_S
        state = self.agent.transfer(handle)
        while state == "PROC":
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name}: {operation} does not end")
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise OSError(f"{self.name}: {operation}: {state}")

    def close(self) -> None:
        for each in self.registered:
            self.agent.deregister_memory(each)
        for fd in self.fds:
            os.close(fd)


def write(api: str, paths: List[str]) -> int:
    transfers = Transfers(api, paths, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    for i in range(len(paths)):
        transfers.memory[i * SIZE:(i + 1) * SIZE] = content(i)
    transfers.run("WRITE")
    transfers.close()
    return len(paths)


def check(transfers: Transfers) -> int:
    num = len(transfers.fds)
    transfers.memory[:] = b"\xaa" * len(transfers.memory)
    transfers.run("READ")
    transfers.close()
    return sum(transfers.memory[i * SIZE:(i + 1) * SIZE] == content(i)
               for i in range(num))


def read(api: str, paths: List[str]) -> int:
    return check(Transfers(api, paths, os.O_RDONLY))


def pool(api: str, paths: List[str]) -> int:
    transfers = Transfers(api, paths, os.O_RDWR | os.O_CREAT | os.O_EXCL, True)
    for i in range(len(paths)):
        transfers.memory[i * SIZE:(i + 1) * SIZE] = content(i)
    transfers.run("WRITE")
    return check(transfers)


def main() -> None:
    what, root, num = sys.argv[1:4]
    seen = {}
    for api in sys.argv[4:]:
        folder = os.path.join(root, api)
        os.makedirs(folder, exist_ok=True)
        paths = [os.path.join(folder, f"{i:04}.bin") for i in range(int(num))]
        seen[api] = {"write": write, "read": read, "pool": pool}[what](
            api, paths)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
