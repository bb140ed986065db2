# SPDX-License-Identifier: Apache-2.0
"""LMCache's file stores, called as its engine calls them, without an engine.

    lmcache_client.py store|load ROOT CHUNKS STORE...

STORE: connector, connector-direct (FSConnector behind a RemoteBackend), disk,
disk-direct (LocalDiskBackend), fs, fs-direct, fs_native, fs_native-direct (L2
adapters); each in a folder of its name below ROOT. CHUNKS: how many, or FIRST:END, by their numbers. "store" puts chunks whose
bytes follow from their numbers; "load" looks all of them up, loads them and
compares. A JSON object on stdout says for each store what came of it. Each run
is a process of its own: nothing but the files connects them.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.config import (
    get_l2_adapter_config_class,
)
from lmcache.v1.distributed.l2_adapters.factory import (
    create_l2_adapter_from_registry,
)
from lmcache.v1.memory_allocators.tensor_memory_allocator import (
    TensorMemoryAllocator,
)
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend

MODEL = "org/tiny-model"
LAYERS, CHUNK, HEADS, HEAD_DIM = 4, 256, 2, 64
SHAPE = torch.Size([2, LAYERS, CHUNK, HEADS * HEAD_DIM])  # 512 KiB of bf16
MEMORY = 256 << 20
TIMEOUT_S = 60.0


def chunk_of(number: int) -> torch.Tensor:
    """The bytes of a chunk: of a random generator, so none is like another."""
    generator = torch.Generator().manual_seed(number)
    words = torch.randint(-(1 << 15), 1 << 15, SHAPE, dtype=torch.int16,
                          generator=generator)
    return words.view(torch.bfloat16)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """To compare: NaN is not equal to itself."""
    return tensor.reshape(-1).view(torch.int16)


def memory() -> TensorMemoryAllocator:
    """On a page, as O_DIRECT wants it."""
    pool = torch.empty(MEMORY + 4096, dtype=torch.uint8)
    start = -pool.data_ptr() % 4096
    return TensorMemoryAllocator(pool[start:start + MEMORY])


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("LMCache did not come to an end")
        time.sleep(0.002)


class EngineStore:
    """A backend of the in-process engine, with its loop and its memory."""

    def __init__(self, root: str, kind: str) -> None:
        direct = kind.endswith("-direct")
        disk = kind.startswith("disk")
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK, local_cpu=False, max_local_cpu_size=1,
            remote_storage_plugins=None if disk else ["fs"],
            local_disk=root if disk else None, max_local_disk_size=1,
            extra_config={"remote_storage_plugin.fs.base_path": root,
                          "save_chunk_meta": not direct,
                          "fs_connector_use_odirect": direct,
                          "use_odirect": direct})
        metadata = LMCacheMetadata(
            model_name=MODEL, world_size=1, local_world_size=1, worker_id=0,
            local_worker_id=0, kv_dtype=torch.bfloat16, chunk_size=CHUNK,
            kv_shape=(LAYERS, 2, CHUNK, HEADS, HEAD_DIM))
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.memory = LocalCPUBackend(
            config, metadata, memory_allocator=memory())
        make = LocalDiskBackend if disk else RemoteBackend
        self.backend: Any = (
            make(config, self.loop, self.memory, "cpu", metadata=metadata)
            if disk else make(config, metadata, self.loop, self.memory, "cpu",
                              plugin_name="fs"))
        if not disk and self.backend.connection is None:
            raise ConnectionError(f"{root}: no connection")

    @staticmethod
    def key(number: int) -> CacheEngineKey:
        return CacheEngineKey(MODEL, 1, 0, number << 40 | 0xabcdef,
                              torch.bfloat16)

    def put(self, numbers: List[int]) -> bool:
        for number in numbers:
            object_ = self.memory.memory_allocator.allocate(
                SHAPE, torch.bfloat16, MemoryFormat.KV_2LTD)
            object_.tensor.copy_(chunk_of(number))
            key = self.key(number)
            self.backend.submit_put_task(key, object_)
            wait_until(lambda k=key: not self.backend.exists_in_put_tasks(k))
            object_.ref_count_down()
        return not getattr(self.backend, "put_failed_count", 0)

    def has(self, numbers: List[int]) -> List[bool]:
        return [self.backend.contains(self.key(n)) for n in numbers]

    def get(self, numbers: List[int]) -> List[Optional[torch.Tensor]]:
        found = []
        for number in numbers:
            object_ = self.backend.get_blocking(self.key(number))
            found.append(None if object_ is None else object_.tensor.clone())
            if object_ is not None:
                object_.ref_count_down()
        return found

    def close(self) -> None:
        self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class AdapterStore:
    """An L2 adapter of the multi-process server."""

    def __init__(self, root: str, kind: str) -> None:
        name, _, direct = kind.partition("-")
        config = get_l2_adapter_config_class(name).from_dict(
            {"type": name, "base_path": root, "use_odirect": bool(direct)})
        self.adapter = create_l2_adapter_from_registry(config)
        self.memory = memory()

    @staticmethod
    def keys(numbers: List[int]) -> List[ObjectKey]:
        rank = ObjectKey.ComputeKVRank(1, 0, 1, 0)
        return [ObjectKey(n.to_bytes(32, "big"), MODEL, rank)
                for n in numbers]

    def objects(self, num: int) -> List[MemoryObj]:
        return [self.memory.allocate(SHAPE, torch.bfloat16)
                for _ in range(num)]

    @staticmethod
    def wait(fd: int, result: Callable[[], Any]) -> Any:
        end = time.monotonic() + TIMEOUT_S
        while True:
            answer = result()
            if answer is not None:
                return answer
            if time.monotonic() > end:
                raise TimeoutError("LMCache did not come to an end")
            if select.select([fd], [], [], 1)[0]:
                os.read(fd, 8)

    def put(self, numbers: List[int]) -> bool:
        objects = self.objects(len(numbers))
        for number, object_ in zip(numbers, objects):
            object_.tensor.copy_(chunk_of(number))
        task = self.adapter.submit_store_task(self.keys(numbers), objects)
        done: Dict[int, Any] = {}

        def result() -> Any:
            done.update(self.adapter.pop_completed_store_tasks())
            return done.get(task)

        stored = self.wait(self.adapter.get_store_event_fd(), result)
        for object_ in objects:
            object_.ref_count_down()
        return stored.is_successful()

    def has(self, numbers: List[int]) -> List[bool]:
        task = self.adapter.submit_lookup_and_lock_task(self.keys(numbers), {})
        found = self.wait(
            self.adapter.get_lookup_and_lock_event_fd(),
            lambda: self.adapter.query_lookup_and_lock_result(task))
        self.adapter.submit_unlock(self.keys(numbers))
        return [found.test(i) for i in range(len(numbers))]

    def get(self, numbers: List[int]) -> List[Optional[torch.Tensor]]:
        objects = self.objects(len(numbers))
        for object_ in objects:
            object_.tensor.zero_()
        task = self.adapter.submit_load_task(self.keys(numbers), objects)
        loaded = self.wait(self.adapter.get_load_event_fd(),
                           lambda: self.adapter.query_load_result(task))
        found = [object_.tensor.clone() if loaded.test(i) else None
                 for i, object_ in enumerate(objects)]
        for object_ in objects:
            object_.ref_count_down()
        return found

    def close(self) -> None:
        self.adapter.close()


def open_store(kind: str, root: str) -> Any:
    if kind.startswith(("connector", "disk")):
        return EngineStore(root, kind)
    return AdapterStore(root, kind)


def load(store: Any, numbers: List[int]) -> Dict[str, int]:
    absent = [n + (1 << 20) for n in numbers]
    found = store.get(numbers)
    return {
        "found": sum(store.has(numbers)),
        "absent_found": sum(store.has(absent)),
        "loaded": sum(tensor is not None for tensor in found),
        "right": sum(tensor is not None and
                     torch.equal(bits(tensor), bits(chunk_of(n)))
                     for n, tensor in zip(numbers, found)),
    }


def run(what: str, root: str, numbers: List[int], kind: str) -> Dict[str, int]:
    store = open_store(kind, root)
    try:
        if what == "store":
            return {"stored": store.put(numbers)}
        if kind.startswith("disk"):  # knows what it has stored itself only
            store.put(numbers)
        return load(store, numbers)
    finally:
        store.close()


def main() -> None:
    what, root, chunks = sys.argv[1:4]
    first, _, end = chunks.rpartition(":")
    numbers = list(range(int(first or 0), int(end)))
    seen = {}
    for kind in sys.argv[4:]:
        folder = os.path.join(root, kind)
        os.makedirs(folder, exist_ok=True)
        seen[kind] = run(what, folder, numbers, kind)
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
