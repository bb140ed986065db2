# SPDX-License-Identifier: Apache-2.0
"""Which blocks a mount has, from memory that the daemon shares: ucm_index(3).

Ids given as bytes make one call in C and no work for each id here.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

from . import _c, _lib, _log, _pack
from ._handle import Handle
from .errors import from_errno

_ENOENT, _EAGAIN = -2, -11
# The digits of a number in base two, as bytes 0 and 1.
_BITS = bytes.maketrans(b"01", b"\0\1")


class Entry(NamedTuple):
    """What is known of a block.

    size of its file in bytes; generation: differs from that of every block
    before and after it, 0: not known; tier: 0 is the fastest, -1: not known;
    tier_name; pinned: exempt from eviction.
    """

    size: int
    generation: int
    tier: int
    tier_name: str
    pinned: bool


class Index(Handle):
    """Looks up ids in a space of a mount or socket (None: the default one).

    An answer is one of three: there, absent, or not known (the daemon has not
    read all of its directories yet, has to check the block first, or is
    changing it). One thread at a time; open one for each.

    NotFound: no mount of ucmfs, or no such space. NotConnected: the daemon is
    gone: close this, and open another. mount: the mount point, the path of
    the daemon's socket, or "tiers=SOURCE" (see Loader).
    """

    _CLOSE = "ucm_index_close"

    def __init__(self, mount: str | bytes | os.PathLike[str],
                 space: str | None = None) -> None:
        super().__init__(f"index of {os.fsdecode(mount)}" + (
            f", space {space}" if space else ""))
        _log.start()
        self._prefix = self._lib.ucm_index_prefix
        self._count = ctypes.c_size_t()
        self._unknown = ctypes.c_int()
        self._found = ctypes.byref(self._count), ctypes.byref(self._unknown)
        self._check(self._lib.ucm_index_open(
            _lib.path_bytes(mount, "mount"), _lib.text_bytes(space),
            self._handle))

    def lookup(self, ids: _pack.Ids) -> tuple[bytes, bytes]:
        """(present, unknown), a byte of 0 or 1 for each id; both 0: it is
        absent."""
        packed, num = _pack.count_ids(ids)
        return self._lookup(self._lib.ucm_index_lookup, packed, num)

    def peek(self, ids: _pack.Ids) -> tuple[bytes, bytes]:
        """The same, which the mount does not count as hits and misses."""
        return self._lookup(self._lib.ucm_index_peek, *_pack.count_ids(ids))

    def _lookup(self, call: Any, packed: Any, num: int) -> tuple[bytes, bytes]:
        words = (num + 63) // 64
        bits = ctypes.create_string_buffer(16 * words or 1)
        half = ctypes.addressof(bits) + 8 * words
        self._check(call(self._open(), packed, num, bits, half))
        return (_bytes_of(bits.raw[:8 * words], num),
                _bytes_of(bits.raw[8 * words:], num))

    def prefix(self, ids: _pack.Ids) -> tuple[int, bool]:
        """How many, from the first on, are there; and whether nobody can say
        of the one behind them."""
        packed = ids if type(ids) is bytes and not len(ids) % 16 \
            else _pack.pack_ids(ids)
        err = self._prefix(self._handle or self._open(), packed,
                           len(packed) // 16, *self._found)
        if err:
            self._check(err)
        return self._count.value, self._unknown.value != 0

    def entry(self, id: bytes) -> Entry | None:
        """None: absent. UcmfsError with EAGAIN: nobody can say."""
        packed = _pack.pack_ids([id])
        out = _c.IndexEntry()
        err = self._lib.ucm_index_entry(self._open(), packed, out)
        if err == _ENOENT:
            return None
        if err == _EAGAIN:
            raise from_errno(err, f"{self._what}: {packed.hex()}",
                             "not known yet whether it is there")
        self._check(err)
        return Entry(out.size, out.generation, out.tier,
                     out.tier_name.decode(),
                     bool(out.flags & _c.UCM_INDEX_PINNED))

    def info(self) -> dict[str, Any]:
        """backend ("map" or "socket"), why it is not "map" (None),
        blocks in the map, complete (what is not there is absent)."""
        out = _c.IndexInfo()
        self._check(self._lib.ucm_index_info(self._open(), out))
        return {"backend": out.backend.decode(),
                "why": out.why.decode() if out.why else None,
                "blocks": out.blocks, "complete": bool(out.complete)}


def _bytes_of(words: bytes, num: int) -> bytes:
    """A byte for each of num bits: bin() does the work. A one above the
    highest bit keeps the zeros; the digits come highest first."""
    value = int.from_bytes(words, "little") | 1 << num
    return bin(value)[:2:-1].encode().translate(_BITS)
