# SPDX-License-Identifier: Apache-2.0
"""Stores of others, for bench/engines --section peers: LMCache's file adapters
and NIXL's POSIX plugin. Each loads files that it has written itself into as
much memory; files are opened in each turn, with O_DIRECT; none has checksums.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any, List

import torch
from nixl_cu12 import nixl_agent, nixl_agent_config

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "tests", "engines"))
import lmcache_client  # noqa: E402
import nixl_client  # noqa: E402

NAMES = ("LMCache, fs", "LMCache, fs_native", "NIXL, uring", "NIXL, aio")
CHECKED = 8


class Lmcache:
    """An adapter of its server, loading into the server's kind of memory."""

    def __init__(self, slots: Any, kind: str, folder: str) -> None:
        lmcache_client.SHAPE = torch.Size([slots.bytes // slots.num // 2])
        lmcache_client.MEMORY = slots.bytes + (64 << 20)
        self.slots = slots
        self.store = lmcache_client.AdapterStore(folder, f"{kind}-direct")
        self.keys = self.store.keys(list(range(slots.num)))
        self.objects = self.store.objects(slots.num)
        self._put()

    def _expected(self, block: int) -> torch.Tensor:
        return torch.from_numpy(
            self.slots.expected(block).view("int16")).view(torch.bfloat16)

    def _put(self) -> None:
        for block, object_ in enumerate(self.objects):
            object_.tensor.copy_(self._expected(block))
        adapter = self.store.adapter
        task = adapter.submit_store_task(self.keys, self.objects)
        done: dict = {}

        def result() -> Any:
            done.update(adapter.pop_completed_store_tasks())
            return done.get(task)

        stored = self.store.wait(adapter.get_store_event_fd(), result)
        if not stored.is_successful():
            sys.exit("peers: LMCache did not store the blocks")

    def clear(self) -> None:
        for object_ in self.objects:
            object_.tensor[:64].zero_()

    def load(self) -> None:
        adapter = self.store.adapter
        task = adapter.submit_load_task(self.keys, self.objects)
        loaded = self.store.wait(adapter.get_load_event_fd(),
                                 lambda: adapter.query_load_result(task))
        if not all(loaded.test(i) for i in range(self.slots.num)):
            sys.exit("peers: LMCache did not load all blocks")

    def check(self) -> None:
        for block in random.sample(range(self.slots.num), CHECKED):
            if not torch.equal(
                    lmcache_client.bits(self.objects[block].tensor),
                    lmcache_client.bits(self._expected(block))):
                sys.exit(f"peers: LMCache: block {block} has other bytes")

    def close(self) -> None:
        for object_ in self.objects:
            object_.ref_count_down()
        self.store.close()


class Nixl:
    """Files to the slots, in one transfer."""

    def __init__(self, slots: Any, api: str, folder: str) -> None:
        self.slots = slots
        self.size = slots.bytes // slots.num
        os.makedirs(folder)
        self.paths = [f"{folder}/{block}" for block in range(slots.num)]
        for block, path in enumerate(self.paths):
            with open(path, "wb") as file:
                file.write(slots.expected(block).tobytes())
                os.fsync(file.fileno())
        self.api = api
        self.agent: Any = nixl_agent(api, nixl_agent_config(backends=[]))
        self.agent.create_backend("POSIX", nixl_client.APIS[api])
        self.base = slots.array.ctypes.data
        self.memory = self.agent.register_memory(
            [(self.base, slots.bytes, 0, "memory")], "DRAM")

    def clear(self) -> None:
        self.slots.move_on()

    def load(self) -> None:
        fds = [os.open(path, os.O_RDONLY | os.O_DIRECT)
               for path in self.paths]
        files = self.agent.register_memory(
            [(0, self.size, fd, str(fd)) for fd in fds], "FILE")
        self._transfer(fds)
        self.agent.deregister_memory(files)
        for fd in fds:
            os.close(fd)

    def _transfer(self, fds: List[int]) -> None:
        there = self.agent.get_xfer_descs(
            [(self.base + self.slots.slot_of(i) * self.size, self.size, 0)
             for i in range(self.slots.num)], "DRAM")
        here = self.agent.get_xfer_descs([(0, self.size, fd) for fd in fds],
                                         "FILE")
        handle = self.agent.initialize_xfer("READ", there, here, self.api)
        state = self.agent.transfer(handle)
        while state == "PROC":
            time.sleep(0.0005)
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            sys.exit(f"peers: NIXL: {state}")

    def check(self) -> None:
        self.slots.check(False)

    def close(self) -> None:
        self.agent.deregister_memory(self.memory)


def open_peer(slots: Any, name: str, folder: str) -> Any:
    whose, kind = name.split(", ")
    make = Lmcache if whose == "LMCache" else Nixl
    return make(slots, kind, f"{folder}-{kind}")
