# SPDX-License-Identifier: Apache-2.0
"""Keeping blocks from being evicted while a request wants them: ucm_lessee(3).
"""

from __future__ import annotations

import ctypes
import os
from typing import Dict, Optional, Union

from . import _c, _lib, _log, _pack
from .errors import from_errno
from .task import milliseconds

FOR_EVER = 600.0  # seconds; the daemon gives no lease for longer, by default


class Lessee:
    """Leases on the blocks of a mount, taken, renewed and given back by a
    thread of its own: no call waits for the mount, which may come later.

    lease_ms: of one lease, and what those of a process that was killed take to
    run out; 0: 20 s. Any thread. A lease is a hint: stats() says what was had.
    """

    def __init__(self, mount: Union[str, bytes, "os.PathLike[str]"],
                 lease_ms: int = 0) -> None:
        self._pid = os.getpid()
        self._handle = ctypes.c_void_p()
        self._lib = _lib.lib()
        _log.start()
        err = self._lib.ucm_lessee_open(
            _lib.path_bytes(mount, "mount"),
            _pack.u32("leases", "lease_ms", lease_ms), self._handle)
        if err:
            raise from_errno(err, f"leases of {os.fsdecode(mount)}, "
                             f"{lease_ms} ms")

    def hold(self, ids: _pack.Ids, space: Optional[str] = None,
             seconds: float = FOR_EVER) -> int:
        """Hold blocks until they are released, or the seconds are over. A
        number for release(); 0: none are held."""
        if not self._handle or self._pid != os.getpid():
            return 0
        packed = ids if type(ids) is bytes and not len(ids) % _pack.ID_BYTES \
            else _pack.pack_ids(ids)
        return self._lib.ucm_lessee_hold(
            self._handle, _lib.text_bytes(space), packed,
            len(packed) // _pack.ID_BYTES, milliseconds(seconds))

    def release(self, hold: int) -> None:
        """The request has loaded them, or has ended. 0: nothing."""
        if hold and self._handle and self._pid == os.getpid():
            self._lib.ucm_lessee_release(self._handle, hold)

    def counted(self) -> _c.LesseeStats:
        """stats() as a struct, which costs less."""
        out = _c.LesseeStats()
        if self._handle:
            self._lib.ucm_lessee_get_stats(self._handle, out)
        return out

    def stats(self) -> Dict[str, int]:
        """holds and blocks (now), leased, absent, refused (blocks), calls and
        failed (calls): see ucm_lessee(3)."""
        out = self.counted()
        return {name: getattr(out, name) for name, _ in out._fields_}

    def close(self) -> None:
        """Give back what is held. Again: nothing."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle and self._pid == os.getpid():
            self._lib.ucm_lessee_close(handle)

    def __enter__(self) -> Lessee:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
