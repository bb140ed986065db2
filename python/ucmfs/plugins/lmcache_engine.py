# SPDX-License-Identifier: Apache-2.0
"""LMCache in the engine on ucmfs: a storage plug-in.

    storage_plugins: ["ucmfs"]
    extra_config:
      storage_plugin.ucmfs.module_path: ucmfs.plugins.lmcache_engine
      storage_plugin.ucmfs.class_name: UcmfsBackend
      ucmfs.mount: /mnt/kv

Chunks are moved as those of LMCache's server (ucmfs.plugins.lmcache), whose
groups are here shapes, types and a format of memory: a space has chunks of one
of them, and says which. So another process knows them, without an index of its
own. LMCache (0.5.6) waits in most of these calls; each ends at its deadline.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import Future
from typing import Any, Callable, Sequence

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

from ..errors import InvalidArgument, UcmfsError
from ..vllm.mount import Teller, log
from . import work
from .lmcache import ENGINE, LOOK_SECONDS, Completion, UcmfsClient

PREFIX = "ucmfs."  # of our keys in extra_config
SHAPES_MOST = 16   # of a model: those of chunks that are not full, too


def _shape_of(group: Any) -> tuple[Any, Any, MemoryFormat] | None:
    """What LocalCPUBackend.allocate() takes, from a group's name; None: it is
    of others."""
    try:
        shapes, dtypes, fmt = json.loads(group)
        return ([torch.Size(shape) for shape in shapes],
                [getattr(torch, name) for name in dtypes], MemoryFormat(fmt))
    except (TypeError, ValueError, AttributeError):
        return None


def _group_of(obj: MemoryObj) -> str:
    return json.dumps([[list(shape) for shape in obj.get_shapes()],
                       [str(dtype).rpartition(".")[2]
                        for dtype in obj.get_dtypes()],
                       obj.meta.fmt.value])


def _name(key: Any, group: str) -> str:
    """Of a chunk, as ucmfs.plugins.lmcache takes it apart."""
    model, world, worker, rest = key.to_string().split("@", 3)
    return f"{model}@{world}.{worker}@{group}@{rest}"


def prefix_of(objs: list[MemoryObj | None]) -> list[MemoryObj]:
    """Those before the first that is not there; the others are let go of."""
    whole = [*objs, None].index(None)
    for obj in objs[whole:]:
        if obj is not None:
            obj.ref_count_down()
    return objs[:whole]


class _Client(UcmfsClient):
    """Requests end as futures."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._futures: dict[int, Future[Completion]] = {}
        # by model: its groups, and when they were looked for
        self._groups: dict[str, list[str]] = {}
        self._looked: dict[str, float] = {}
        self._seconds = options.get("deadline_ms", work.DEADLINE_MS) / 1000

    def _promise(self, number: int,
                 finish: Callable[[list[int]], Completion]) -> work.Request:
        future = self._futures[number] = Future()
        return self._worker.promise(
            lambda request: future.set_result(finish(request.errors)))

    def call(self, submit: Callable[..., int], *args: Any,
             ) -> Future[Completion]:
        return self._futures.pop(submit(*args))

    def groups(self, model: str, again: bool) -> list[str]:
        """Those of a model's spaces. again: of other processes' too, made
        since."""
        known = self._groups.setdefault(model, [])
        now = time.monotonic()
        if model in self._looked and not (
                again and now - self._looked[model] > LOOK_SECONDS):
            return list(known)
        looked = threading.Event()

        def look() -> None:
            try:
                self._look_for(model, known)
            except UcmfsError as error:
                log.warning("ucmfs: %s: spaces of %s: %s", self._where, model,
                            error)
            looked.set()

        self._looked[model] = now
        self._worker.chores.add(look)
        looked.wait(self._seconds)
        return list(known)

    def _look_for(self, model: str, known: list[str]) -> None:
        for _, manifest in work.manifests_of(self._where, ENGINE, model):
            group = manifest.get("group")
            if manifest.get("model") == model and _shape_of(group) and \
                    group not in known:
                known.append(group)

    def add_group(self, model: str, group: str) -> bool:
        """False: there are too many."""
        if group in self.groups(model, False):
            return True
        known = self._groups[model]
        if len(known) < SHAPES_MOST:
            known.append(group)
        return group in known


class UcmfsBackend(StoragePluginInterface):
    """Keys of extra_config, after "ucmfs.": those of UcmfsClient."""

    def __init__(self, config: Any = None, metadata: Any = None,
                 local_cpu_backend: Any = None, loop: Any = None,
                 dst_device: str = "cpu") -> None:
        super().__init__(dst_device=dst_device, config=config,
                         metadata=metadata, loop=loop,
                         local_cpu_backend=local_cpu_backend)
        extra = (config and config.extra_config) or {}
        options = {key[len(PREFIX):]: value for key, value in extra.items()
                   if key.startswith(PREFIX)}
        self._client = _Client(**options)
        self._teller = Teller(self._client._where)
        self._lock = threading.Lock()
        self._putting: set[Any] = set()

    def __str__(self) -> str:
        return "UcmfsBackend"

    # ---- looking ----

    def _find(self, keys: Sequence[Any]) -> list[str | None]:
        """The group of each that is there."""
        found: list[str | None] = [None] * len(keys)
        if not keys:
            return found
        asked: set[str] = set()
        for again in (False, True):
            groups = self._client.groups(keys[0].model_name, again)
            answers = [(group, self._client.call(
                self._client.submit_batch_exists,
                [_name(key, group) for key in keys]))
                for group in groups if group not in asked]
            for group, answer in answers:
                asked.add(group)
                for i, there in enumerate(answer.result()[3] or ()):
                    if there:
                        found[i] = group
            if None not in found:
                break
        return found

    def contains(self, key: Any, pin: bool = False) -> bool:
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: Sequence[Any], pin: bool = False) -> int:
        """What is found is expected, and evicted after what is not: also
        without `pin`."""
        try:
            return [*self._find(keys), None].index(None)
        except UcmfsError as error:
            self._teller.warn("contains", "%s", error)
            return 0

    async def batched_async_contains(self, lookup_id: str,
                                     keys: Sequence[Any],
                                     pin: bool = False) -> int:
        return await asyncio.to_thread(self.batched_contains, keys, pin)

    def pin(self, key: Any) -> bool:
        return self.contains(key)

    def unpin(self, key: Any) -> bool:
        return True

    def touch_cache(self) -> None:
        """Loads are reported to the mount."""

    # ---- storing ----

    def exists_in_put_tasks(self, key: Any) -> bool:
        return key in self._putting

    def batched_submit_put_task(self, keys: Sequence[Any],
                                objs: Sequence[MemoryObj],
                                transfer_spec: Any = None,
                                on_complete_callback: Any = None,
                                ) -> list[Future] | None:
        """The futures' results have what came of it, as Completion; what is
        not stored is in the log as well."""
        futures = []
        for key, obj in zip(keys, objs):
            with self._lock:
                if key in self._putting:
                    continue
                self._putting.add(key)
            obj.ref_count_up()
            try:
                future = self._put(key, obj)
            except UcmfsError as error:
                self._ended(key, obj, str(error))
                continue
            future.add_done_callback(
                lambda done, key=key, obj=obj: self._ended(
                    key, obj, done.result()[2], on_complete_callback))
            futures.append(future)
        return futures or None

    def _put(self, key: Any, obj: MemoryObj) -> Future:
        group = _group_of(obj)
        if not self._client.add_group(key.model_name, group):
            raise InvalidArgument(f"over {SHAPES_MOST} shapes of chunks; "
                                  f"{group} is not stored")
        return self._client.call(self._client.submit_batch_set,
                                 [_name(key, group)], [obj.byte_array])

    def _ended(self, key: Any, obj: MemoryObj, wrong: str,
               callback: Any = None) -> None:
        with self._lock:
            self._putting.discard(key)
        obj.ref_count_down()
        if wrong:
            self._teller.warn("put", "%s", wrong)
        elif callback is not None:
            try:
                callback(key)
            except Exception as error:
                self._teller.warn("callback", "%s", error)

    # ---- loading ----

    def get_blocking(self, key: Any) -> MemoryObj | None:
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: Sequence[Any],
                             ) -> list[MemoryObj | None]:
        out: list[MemoryObj | None] = [None] * len(keys)
        try:
            found = self._find(keys)
            for i, group in enumerate(found):
                if group is not None:
                    out[i] = self.local_cpu_backend.allocate(
                        *_shape_of(group))
            wanted = [i for i, obj in enumerate(out) if obj is not None]
            loaded = self._client.call(
                self._client.submit_batch_get,
                [_name(keys[i], found[i]) for i in wanted],
                [out[i].byte_array for i in wanted]).result()[3]
        except UcmfsError as error:
            self._teller.warn("get", "%s", error)
            wanted, loaded = list(range(len(keys))), [False] * len(keys)
        for i, well in zip(wanted, loaded):
            if not well and out[i] is not None:
                out[i].ref_count_down()
                out[i] = None
        return out

    async def batched_get_non_blocking(self, lookup_id: str,
                                       keys: Sequence[Any],
                                       transfer_spec: Any = None,
                                       ) -> list[MemoryObj]:
        """Those before the first that is not there."""
        return prefix_of(await asyncio.to_thread(
            self.batched_get_blocking, keys))

    # ---- the rest ----

    def remove(self, key: Any, force: bool = True) -> bool:
        try:
            group = self._find([key])[0]
            return group is not None and self._client.call(
                self._client.submit_batch_delete,
                [_name(key, group)]).result()[1]
        except UcmfsError as error:
            self._teller.warn("remove", "%s", error)
            return False

    def get_allocator_backend(self) -> Any:
        return self.local_cpu_backend

    def close(self) -> None:
        self._client.close()
