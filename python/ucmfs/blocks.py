# SPDX-License-Identifier: Apache-2.0
"""What can be done to the blocks of a mount by their ids: ucm_blocks(3)."""

from __future__ import annotations

import ctypes
import errno
import math
import os
from typing import Any, NamedTuple

from . import _c, _lib, _log, _pack
from ._handle import Handle
from .errors import InvalidArgument

_FLAGS = (_c.UCM_PLACE_PINNED, _c.UCM_PLACE_OPEN, _c.UCM_PLACE_WRITTEN)


class Place(NamedTuple):
    """Where a block lies: tier (0 is the fastest), directory (from 0, over
    all tiers in order), size of its file in bytes, uses since the mount,
    pinned, open, written (its writer has it open yet)."""

    tier: int
    directory: int
    size: int
    uses: int
    pinned: bool
    open: bool
    written: bool

    @property
    def held(self) -> bool:
        """It is not evicted now, although it is not pinned."""
        return self.open or self.written


class Blocks(Handle):
    """The blocks of a mount, of a daemon's socket, or of "tiers=SOURCE" (see
    Loader).

    space: None for the default one.
    Calls that have a result for each block return a list: 0, or the errno of
    the block. Any thread. NotFound: no mount of ucmfs, or no such space.
    NotConnected: the daemon is gone: close this, and open another.
    """

    _CLOSE = "ucm_blocks_close"

    def __init__(self, mount: str | bytes | os.PathLike[str]) -> None:
        super().__init__(f"blocks of {os.fsdecode(mount)}")
        _log.start()
        self._check(self._lib.ucm_blocks_open(
            _lib.path_bytes(mount, "mount"), self._handle))

    def _results(self, function: str, ids: _pack.Ids, space: str | None,
                 *more: Any, kind: Any = ctypes.c_int32) -> list[Any]:
        packed, num = _pack.count_ids(ids)
        results = (kind * max(num, 1))()
        self._check(getattr(self._lib, function)(
            self._open(), _lib.text_bytes(space), packed, num, *more, results))
        return results[:num]

    def _call(self, *arguments: Any) -> list[int]:
        return [-result for result in self._results(*arguments)]

    def touch(self, ids: _pack.Ids, space: str | None = None, *,
              expected: bool = False) -> list[int]:
        """Count a use, as an open does. expected: they are about to be opened,
        which counts then: for 20 s others are evicted first."""
        return self._call("ucm_blocks_expect", ids, space, 0) if expected \
            else self._call("ucm_blocks_touch", ids, space)

    def keep(self, ids: _pack.Ids, space: str | None = None, *,
             seconds: float) -> list[int]:
        """Others are evicted first for this time, an hour at most."""
        if not 0 < seconds * 1000 <= _c.UCM_EXPECTED_MOST_MS:
            raise InvalidArgument(f"{self._what}: {seconds} seconds: above 0, "
                                  "an hour at most")
        return self._call("ucm_blocks_expect", ids, space,
                          math.ceil(seconds * 1000))

    def end(self, ids: _pack.Ids, space: str | None = None) -> list[int]:
        """Chains whose last blocks these are have ended: they are evicted
        first, as far as no other chain has their blocks."""
        return self._call("ucm_blocks_expect", ids, space,
                          _c.UCM_EXPECTED_NO_MORE)

    def pin(self, ids: _pack.Ids, space: str | None = None) -> list[int]:
        """Keep them from being evicted, until they are unpinned."""
        return self._call("ucm_blocks_pin", ids, space)

    def unpin(self, ids: _pack.Ids, space: str | None = None) -> list[int]:
        """Let them be evicted again."""
        return self._call("ucm_blocks_unpin", ids, space)

    def evict(self, ids: _pack.Ids, space: str | None = None) -> list[int]:
        """Remove them from every tier. EPERM: pinned; EBUSY: open or being
        written."""
        return self._call("ucm_blocks_evict", ids, space)

    def warm(self, ids: _pack.Ids, space: str | None = None) -> list[int]:
        """Have them copied to the fastest tier, in the background. EAGAIN:
        too many are waiting."""
        return self._call("ucm_blocks_warm", ids, space)

    def offer(self, ids: _pack.Ids, space: str | None = None, *,
              parents: _pack.Ids | None = None,
              block_bytes: int = 0) -> list[bool]:
        """Which of these are worth saving: those of a chain in their order.
        parents: an id for each. block_bytes: of a file; 0: as others of the
        space."""
        packed, num = _pack.count_ids(ids)
        above = None if parents is None else _pack.pack_parents(
            self._what, parents, num)
        results = (ctypes.c_int32 * max(num, 1))()
        self._check(self._lib.ucm_blocks_offer(
            self._open(), _lib.text_bytes(space), packed, above, num,
            _pack.u64(self._what, "block_bytes", block_bytes), results))
        return [result == 1 for result in results[:num]]

    def remove(self, ids: _pack.Ids, space: str | None = None) -> list[int]:
        """Unlink them, pinned ones too."""
        return self._call("ucm_blocks_remove", ids, space)

    def locate(self, ids: _pack.Ids, space: str | None = None,
               ) -> list[Place | None]:
        """Where they lie; None: absent, or it could not be learned."""
        places = self._results("ucm_blocks_locate", ids, space,
                               _c.UCM_LOCATE_PEEK, kind=_c.ControlPlace)
        return [None if at.result else Place(
            at.tier, at.directory, at.size, at.uses,
            *(bool(at.flags & flag) for flag in _FLAGS)) for at in places]

    def path(self, id: bytes, space: str | None = None) -> str:
        """The path of a block's file in its tier."""
        path = ctypes.create_string_buffer(_c.UCM_BLOCKS_PATH_MAX)
        self._check(self._lib.ucm_blocks_path(
            self._open(), _lib.text_bytes(space), _pack.pack_ids([id]), path))
        return os.fsdecode(path.value)

    def flush(self) -> None:
        """Sync all tiers; others can go on meanwhile."""
        self._check(self._lib.ucm_blocks_flush(self._open()))

    def rescan(self) -> None:
        """Look for blocks that were put into the directories by hand."""
        err = -errno.EINTR
        # a signal whose handler raises ends it; others, and what io_uring
        # sends to a thread in the kernel, only make it begin again
        while err == -errno.EINTR:
            err = self._lib.ucm_blocks_rescan(self._open())
        self._check(err)

    def checkpoint(self) -> None:
        """Flush, and note in each directory that all is on disk. EAGAIN: one
        has not been read to its end, or has blocks in doubt."""
        self._check(self._lib.ucm_blocks_checkpoint(self._open()))
