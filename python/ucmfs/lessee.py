# SPDX-License-Identifier: Apache-2.0
"""Keeping blocks from being evicted while a request wants them: ucm_lessee(3).
"""

from __future__ import annotations

import os

from . import _c, _lib, _log, _pack
from ._handle import Handle
from .task import milliseconds

FOR_EVER = 600.0  # seconds; the daemon gives no lease for longer, by default


class Lessee(Handle):
    """Leases on the blocks of a mount, taken, renewed and given back by a
    thread of its own: no call waits for the mount, which may come later.

    lease_ms: of one lease, and what those of a process that was killed take to
    run out; 0: 20 s. Any thread. A lease is a hint: stats() says what was had.
    What is held is given back when it is closed.
    """

    _CLOSE = "ucm_lessee_close"

    def __init__(self, mount: str | bytes | os.PathLike[str],
                 lease_ms: int = 0) -> None:
        super().__init__(f"leases of {os.fsdecode(mount)}, {lease_ms} ms")
        _log.start()
        self._check(self._lib.ucm_lessee_open(
            _lib.path_bytes(mount, "mount"),
            _pack.u32("leases", "lease_ms", lease_ms), self._handle))

    def hold(self, ids: _pack.Ids, space: str | None = None,
             seconds: float = FOR_EVER) -> int:
        """Hold blocks until they are released, or the seconds are over. A
        number for release(); 0: none are held."""
        if not self._is_ours():
            return 0
        packed = ids if type(ids) is bytes and not len(ids) % _pack.ID_BYTES \
            else _pack.pack_ids(ids)
        return self._lib.ucm_lessee_hold(
            self._handle, _lib.text_bytes(space), packed,
            len(packed) // _pack.ID_BYTES, milliseconds(seconds))

    def release(self, hold: int) -> None:
        """The request has loaded them, or has ended. 0: nothing."""
        if hold and self._is_ours():
            self._lib.ucm_lessee_release(self._handle, hold)

    def counted(self) -> _c.LesseeStats:
        """stats() as a struct, which costs less."""
        out = _c.LesseeStats()
        if self._handle:
            self._lib.ucm_lessee_get_stats(self._handle, out)
        return out

    def stats(self) -> dict[str, int]:
        """holds and blocks (now), leased, absent, refused (blocks), calls and
        failed (calls): see ucm_lessee(3)."""
        out = self.counted()
        return _pack.dict_of(out)
