# SPDX-License-Identifier: Apache-2.0
"""Where blocks are kept: by a daemon, or in directories without one.

All else here says "mount" and gets a text: the path of a mount point or of a
daemon's socket, which are the same to libucm; or Directories, which is SOURCE
of ucmfs(8). Nothing but this file asks which.

Without a daemon nobody has an index: a look-up asks the file systems. Nothing
is evicted or pinned. Any number of processes save and read at the same
time; while one that saves lives no daemon can have the directories. Beside a
tier of memory one saves, the first that does, until it ends (others that try
fail with EBUSY, and read on).
"""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import Any

from .._pack import split_ids
from ..layout import Geometry, Layout, Region

ID = 16
AVOID_SECONDS = 30.0  # what failed is not offered again for so long
AVOID_MOST = 100_000
_WHY = "directories without a daemon: their file systems are asked"


class Directories(str):
    """Of tiers, as SOURCE of ucmfs(8)."""

    @classmethod
    def of(cls, tiers: Any) -> Directories:
        """From one text, or several."""
        return cls(tiers if isinstance(tiers, str) else ":".join(tiers))

    @property
    def one_saves(self) -> bool:
        """A tier of memory has no limit but what somebody counts."""
        return any(tier.split("=", 1)[-1].startswith("mem@")
                   for tier in self.split(":"))


def source(place: str) -> dict[str, Any]:
    """What a Loader is given, and what asks for a space."""
    if isinstance(place, Directories):
        return {"mount": None, "tiers": str(place)}
    return {"mount": place, "tiers": None}


def make_space(place: str, name: str, manifest: dict[str, Any]) -> bytes:
    """See ensure_space(). Directories may be new."""
    from ..namespace import ensure_space, make_tiers

    if isinstance(place, Directories):
        make_tiers(str(place))
    return ensure_space(name=name, manifest=manifest, **source(place))


def manifest_of(place: str, name: str) -> dict[str, Any] | None:
    """See read_manifest()."""
    from ..namespace import read_manifest

    return read_manifest(name=name, **source(place))


def open_index(place: str, name: str) -> Any:
    """An Index, or what stands for one."""
    from ..index import Index

    return Looks(place, name) if isinstance(place, Directories) \
        else Index(place, name)


class Avoided(dict[bytes, float]):
    """Ids of blocks that are absent for a while: until when."""

    def add(self, id: bytes, seconds: float) -> None:
        if len(self) >= AVOID_MOST:
            self.clear()
        self[id] = time.monotonic() + seconds

    def has_now(self, id: bytes) -> bool:
        until = self.get(id)
        if until is None or time.monotonic() < until:
            return until is not None
        self.pop(id, None)
        return False


class Looks:
    """As an Index, of a space in directories: each answer is a look at them.
    avoid(): blocks that failed to load are absent for a while; where nobody
    removes them, they would be found and fail again and again."""

    def __init__(self, place: Directories, space: str) -> None:
        from ..loader import Loader

        self._avoided = Avoided()
        # A loader wants a layout. Nothing is read, so any will do.
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        geometry = Geometry(num_layers=1, block_size=1,
                            k_bytes=mmap.PAGESIZE, order="opaque")
        layout = Layout(geometry, 1)
        layout.add_region(Region(
            base=ctypes.addressof(ctypes.c_char.from_buffer(self._memory)),
            page_stride=mmap.PAGESIZE, run_bytes=mmap.PAGESIZE, offset=0,
            layer=0))
        self._loader = Loader(**source(place), io="threads", threads=1)
        try:
            self._group = self._loader.add_group(layout.seal(), space)
        except BaseException:
            self._loader.close()
            raise

    def lookup(self, ids: bytes) -> tuple[bytes, bytes]:
        found = bytearray(self._group.lookup(ids))
        for i in range(len(found) if self._avoided else 0):
            found[i] &= not self._avoided.has_now(ids[i * ID:(i + 1) * ID])
        return bytes(found), bytes(len(found))

    def prefix(self, ids: bytes) -> tuple[int, bool]:
        count = self._group.prefix(ids)
        for i in range(count if self._avoided else 0):
            if self._avoided.has_now(ids[i * ID:(i + 1) * ID]):
                return i, False
        return count, False

    def info(self) -> dict[str, Any]:
        return {"backend": "stat", "why": _WHY, "blocks": 0, "complete": True}

    def avoid(self, ids: bytes) -> None:
        """Any thread."""
        for id in split_ids(ids):
            self._avoided.add(id, AVOID_SECONDS)

    def close(self) -> None:
        self._loader.close()


def avoid(index: Any, ids: bytes) -> None:
    """Of a mount the workers remove them."""
    if isinstance(index, Looks):
        index.avoid(ids)
