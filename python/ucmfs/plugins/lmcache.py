# SPDX-License-Identifier: Apache-2.0
"""LMCache's server on ucmfs: a connector for its native_plugin adapter.

    --l2-adapter '{"type": "native_plugin",
                   "module_path": "ucmfs.plugins.lmcache",
                   "class_name": "UcmfsClient",
                   "adapter_params": {"mount": "/mnt/kv"}}'

LMCache (0.5.6) calls this under a lock, so nothing here waits: each call is a
request with a number, whose end adds 1 to a descriptor.

A key is MODEL@RANK@GROUP@HASH[@SALT]. Blocks of a model, a group and a size
are a space; the whole key, rank and salt too, makes the block's id. LMCache
does not say how large the objects are that it looks for, so they are looked
for in all spaces of their model and group, those of an earlier process too.
Nor does it say which type and weights a model of that name has: `weights` and
`namespace` do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections import deque
from typing import Any, Callable, Iterable, Sequence

from ..errors import UcmfsError
from ..task import new_eventfd
from ..vllm.mount import Space, log
from . import work
from .work import FIND, LOAD, REMOVE, SAVE, Request, Want, Worker

ENGINE = "lmcache"
LOOK_SECONDS = 1.0  # between looks for spaces that others have made
_GONE = (0, errno.ENOENT)

Completion = tuple[int, bool, str, "list[bool] | None"]
Kind = tuple[str, str]  # model, group


class _Known:
    """Of a model and a group: what stands for the weights, and the spaces, by
    the size of an object."""

    def __init__(self, weights: str) -> None:
        self.weights = weights
        self.spaces: dict[int, Space] = {}
        self.looked = 0.0  # when


class UcmfsClient:
    """mount, socket or tiers: where the store is, as of ucmfs.vllm. weights,
    namespace: what objects must have in common to be shared, and their keys do
    not say; see weights_of(). deadline_ms: of each request. The others are
    the loader's."""

    def __init__(self, mount: str = "", socket: str = "",
                 tiers: str | Sequence[str] = "", weights: str = "",
                 namespace: str = "", **options: Any) -> None:
        self._where = work.where_of(mount, socket, tiers)
        self._weights = weights
        self._namespace = namespace
        self._known: dict[Kind, _Known] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._ended: deque[Completion] = deque()
        self._fd = new_eventfd()
        self._worker = Worker(self._where, **options)

    # ---- what LMCache calls ----

    def event_fd(self) -> int:
        return self._fd

    def submit_batch_get(self, keys: Sequence[str],
                         buffers: Sequence[Any]) -> int:
        def done(number: int, errors: list[int]) -> Completion:
            well = [not err for err in errors] or [False] * len(keys)
            return number, all(well), "", well

        return self._move(LOAD, keys, buffers, done)

    def submit_batch_set(self, keys: Sequence[str],
                         buffers: Sequence[Any]) -> int:
        def done(number: int, errors: list[int]) -> Completion:
            errors = errors or [errno.ETIMEDOUT] * len(keys)
            bad = [err for err in errors if err]
            text = f"{len(bad)} of {len(keys)} objects are not stored: " \
                f"{os.strerror(bad[0])}" if bad else ""
            return number, not bad, text, None

        return self._move(SAVE, keys, buffers, done)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        return self._look(FIND, keys, any)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        return self._look(REMOVE, keys, all)

    def drain_completions(self) -> list[Completion]:
        work.silence(self._fd)
        out = []
        while self._ended:
            out.append(self._ended.popleft())
        return out

    def close(self) -> None:
        """Buffers are not touched any more. Again: nothing."""
        self._worker.close()
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # ---- requests ----

    def _number(self) -> int:
        with self._lock:
            self._next += 1
            return self._next

    def _promise(self, number: int,
                 finish: Callable[[list[int]], Completion]) -> Request:
        def done(request: Request) -> None:
            self._ended.append(finish(request.errors))
            work.ring(self._fd)

        return self._worker.promise(done)

    def _move(self, what: str, keys: Sequence[str], buffers: Sequence[Any],
              finish: Callable[[int, list[int]], Completion]) -> int:
        number = self._number()
        request = self._promise(number, lambda errors: finish(number, errors))
        request.keep = places = [_place(buffer, what) for buffer in buffers]

        def begin() -> None:
            wants = []
            for key, (address, size, _) in zip(keys, places):
                space = self._space(_kind_of(key), size)
                geometry = work.Geometry.from_json(space.manifest["geometry"])
                wants.append(Want(space, work.key_of(key), work.rows_of(
                    geometry, [address], [size])))
            self._worker.begin(request, what, wants)

        self._when_known(keys, begin, False)
        return number

    def _look(self, what: str, keys: Sequence[str],
              over: Callable[[Iterable[bool]], bool]) -> int:
        """over: all spaces in which a key may be."""
        number = self._number()
        wants: list[list[Want]] = []

        def done(errors: list[int]) -> Completion:
            if len(wants) < len(keys) or \
                    len(errors) < sum(len(each) for each in wants):
                return number, False, "no answer in time", [False] * len(keys)
            well = iter([err in _GONE if what == REMOVE else not err
                         for err in errors])
            return number, True, "", [over([next(well) for _ in each])
                                      for each in wants]

        request = self._promise(number, done)

        def begin() -> None:
            wants.extend([
                Want(space, work.key_of(key)) for space
                in list(self._known[_kind_of(key)].spaces.values())]
                for key in keys)
            self._worker.begin(request, what,
                               [want for each in wants for want in each])

        self._when_known(keys, begin, what == FIND)
        return number

    # ---- spaces ----

    def _when_known(self, keys: Iterable[str], begin: Callable[[], None],
                    look: bool) -> None:
        """Call it, here or by the thread that may wait for the mount, where a
        model or its spaces are not known yet. look: for new ones too."""
        now = time.monotonic()
        kinds = {_kind_of(key) for key in keys}
        new = [kind for kind in kinds if kind not in self._known or (
            look and not self._known[kind].spaces
            and now - self._known[kind].looked > LOOK_SECONDS)]

        def learn() -> None:
            for kind in new:
                self._learn(kind)
            begin()

        if new:
            self._worker.chores.add(learn)
        else:
            begin()

    def _learn(self, kind: Kind) -> None:
        known = self._known.get(kind) or _Known(
            work.weights_of(kind[0], self._weights))
        try:
            for name, manifest in work.manifests_of(self._where, ENGINE,
                                                    kind[0]):
                size = manifest.get("bytes")
                if type(size) is not int or size <= 0:
                    continue
                space = self._made(kind, known, size)
                if space.name == name:  # else it is of others
                    known.spaces[size] = space
            known.looked = time.monotonic()
        except UcmfsError as error:
            log.warning("ucmfs: %s: spaces of %s: %s", self._where, kind[0],
                        error)
        self._known[kind] = known

    def _space(self, kind: Kind, size: int) -> Space:
        known = self._known[kind]
        space = known.spaces.get(size)
        if not space:
            space = known.spaces[size] = self._made(kind, known, size)
        return space

    def _made(self, kind: Kind, known: _Known, size: int) -> Space:
        model, group = kind
        return work.space_of(ENGINE, model, work.geometry_of([size]), {
            "weights": known.weights, "namespace": self._namespace,
            "group": group, "bytes": size})


def _kind_of(key: str) -> Kind:
    parts = key.split("@")
    return parts[0], parts[2] if len(parts) > 2 else ""


def _place(buffer: Any, what: str) -> tuple[int, int, Any]:
    """Address, size, and what keeps the memory."""
    view = memoryview(buffer).cast("B")
    if view.readonly and what == SAVE:
        view = memoryview(bytearray(view))
    if not view.nbytes:
        return 0, 0, view
    held = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(held), view.nbytes, held
