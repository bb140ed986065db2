# SPDX-License-Identifier: Apache-2.0
"""LMCache in the engine on ucmfs, for configurations with remote plug-ins:

    remote_storage_plugins: ["ucmfs"]
    remote_serde: "naive"
    extra_config:
      remote_storage_plugin.ucmfs.module_path: ucmfs.plugins.lmcache_remote
      remote_storage_plugin.ucmfs.class_name: UcmfsRemote
      ucmfs.mount: /mnt/kv

The same chunks as those of UcmfsBackend, which is the better way: LMCache
(0.5.6) calls a store by a remote plug-in complete even if it has failed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Sequence

from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from .lmcache_engine import UcmfsBackend, prefix_of


class UcmfsRemote(RemoteConnector):

    def __init__(self, loop: Any, local_cpu_backend: Any,
                 config: Any) -> None:
        self._backend = UcmfsBackend(config, None, local_cpu_backend, loop)

    async def exists(self, key: Any) -> bool:
        return await asyncio.to_thread(self._backend.contains, key)

    def exists_sync(self, key: Any) -> bool:
        return self._backend.contains(key)

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        return self._backend.batched_contains(keys)

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any],
                                     pin: bool = False) -> int:
        return await self._backend.batched_async_contains(lookup_id, keys, pin)

    async def put(self, key: Any, memory_obj: MemoryObj) -> None:
        futures = await asyncio.to_thread(
            self._backend.batched_submit_put_task, [key], [memory_obj])
        if not futures:  # the log says why
            raise RuntimeError("not stored")
        _, well, why, _ = await asyncio.wrap_future(futures[0])
        if not well:
            raise RuntimeError(why)

    async def get(self, key: Any) -> MemoryObj | None:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: Sequence[Any],
                          ) -> list[MemoryObj | None]:
        return await asyncio.to_thread(self._backend.batched_get_blocking,
                                       keys)

    async def batched_get_non_blocking(self, lookup_id: str,
                                       keys: Sequence[Any],
                                       ) -> list[MemoryObj]:
        return prefix_of(await self.batched_get(keys))

    def remove_sync(self, key: Any) -> bool:
        return self._backend.remove(key)

    async def list(self) -> list[str]:
        raise NotImplementedError("names are hashed")

    async def close(self) -> None:
        await asyncio.to_thread(self._backend.close)
