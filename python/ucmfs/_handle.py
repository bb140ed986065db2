# SPDX-License-Identifier: Apache-2.0
"""What libucm has opened for Python."""

from __future__ import annotations

import ctypes
import os
from typing import Any, TypeVar

from . import _lib
from .errors import InvalidArgument, from_errno

Self = TypeVar("Self", bound="Handle")


class Handle:
    """Open until close(), the end of a with, or of the last reference.

    A child that was forked has no threads of the library: what its parent has
    opened is not closed there.
    """

    _CLOSE = ""  # the function that does
    _CLOSED: type[Exception] = InvalidArgument  # for a call after that

    def __init__(self, what: str, library: ctypes.CDLL | None = None) -> None:
        self._what = what
        self._pid = os.getpid()
        self._handle = ctypes.c_void_p()
        self._lib = library or _lib.lib()

    def _open(self) -> ctypes.c_void_p:
        if not self._handle:
            raise self._CLOSED(f"{self._what}: it is closed")
        return self._handle

    def _check(self, err: int, what: str = "") -> None:
        if err:
            raise from_errno(err, what or self._what)

    def _is_ours(self) -> bool:
        """It is open, and by this process."""
        if self._pid != os.getpid():
            self._handle = ctypes.c_void_p()
        return bool(self._handle)

    def close(self) -> None:
        """Again: nothing."""
        if self._is_ours():
            handle, self._handle = self._handle, ctypes.c_void_p()
            getattr(self._lib, self._CLOSE)(handle)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
