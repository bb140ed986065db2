# SPDX-License-Identifier: Apache-2.0
"""Huge pages under memory that somebody else has made and filled.

What is read into them goes to the device in few pieces, and pinning them takes
a tenth of the time. The kernel copies what is there into huge pages
(MADV_COLLAPSE, Linux 6.1), or says that it may not: of shared memory that is
how its tmpfs is mounted (huge=), and what somebody has pinned stays where it
is.
"""

from __future__ import annotations

import ctypes
import os
import time

_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
HUGE = 2 << 20
# So much at a time, and no more once it has taken so long: an engine waits.
_STEP = 256 << 20
COLLAPSE_SECONDS = 60.0


def _madvise(address: int, num_bytes: int, advice: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return ctypes.get_errno() if call(address, num_bytes, advice) else 0


def use_huge_pages(address: int, num_bytes: int) -> str:
    """Have memory lie in huge pages, but for less than one at either end:
    "", or why it does not. What is in it stays. Before it is pinned."""
    at = -(-address // HUGE) * HUGE
    end = (address + num_bytes) // HUGE * HUGE
    if at >= end:
        return f"{num_bytes} bytes have no room for one"
    stop = time.monotonic() + COLLAPSE_SECONDS
    _madvise(at, end - at, _MADV_HUGEPAGE)  # for what is not touched yet
    while at < end:
        if time.monotonic() > stop:
            return f"it takes more than {COLLAPSE_SECONDS:g} s"
        err = _madvise(at, min(_STEP, end - at), _MADV_COLLAPSE)
        if err:
            return os.strerror(err)
        at += _STEP
    return ""
