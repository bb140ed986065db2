# SPDX-License-Identifier: Apache-2.0
"""libucm by ctypes: its structs, its functions, and where it is found.

_c.py has structs, constants and prototypes, made of the headers, so that an
argument of a wrong type is refused before it gets to C. ctypes.CDLL gives up
the GIL for the time of each call.

The library is loaded at the first use of lib(), not by an import:
$UCMFS_LIBRARY (the path of libucm.so), or else the one that the wheel has
brought along, or what the system knows as ucm. libucmsparse, of sparse(), is
beside it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import threading
from typing import Any, Iterator, Sequence

from . import _bundled, _c
from .errors import InvalidArgument, LibraryMissing, from_errno

SONAME, SPARSE_SONAME = "libucm.so.0", "libucmsparse.so.0"

# Names that are not those of the headers in small letters.
ORDERS = ("NHD", "HND", "opaque")  # enum ucm_order
PLANES = ("k", "v", "both")  # UCM_PLANE_*
METHODS = ("ESA", "GSA", "GSAOnDevice", "KVStarMultiStep", "Blend", "ReRoPE")


def call(function: Any, what: str, *arguments: Any) -> None:
    """function(arguments..., error). Raise what a result below zero says, with
    the error's line."""
    error = _c.Error()
    err = function(*arguments, error)
    if err < 0:
        raise from_errno(err, what, error.text.decode(errors="replace"))


# ---- the library ----

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def _known(soname: str) -> Iterator[str | None]:
    """Where it may be. find_library() starts programs, so it is last."""
    yield _bundled.path(soname)
    yield soname
    yield ctypes.util.find_library(soname[3:].partition(".")[0])


def open_library(soname: str) -> ctypes.CDLL:
    """A library of ucmfs, beside $UCMFS_LIBRARY if that is set.
    LibraryMissing."""
    asked = os.environ.get("UCMFS_LIBRARY")
    if asked and soname != SONAME:
        asked = os.path.join(os.path.dirname(asked), soname)
    causes = []
    for name in [asked] if asked else _known(soname):
        if not name:
            continue
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            causes.append(str(error))
    whence = "$UCMFS_LIBRARY" if asked else "the system"
    raise LibraryMissing(
        f"{soname.partition('.')[0]} is not there by {whence} "
        f"({'; '.join(causes)}): install ucmfs ('make install', then "
        "ldconfig) or a wheel that has it ('make wheel-binary'), or set "
        "UCMFS_LIBRARY to the path of libucm.so")


def bind(library: ctypes.CDLL,
         prototypes: dict[str, tuple[Any, Sequence[Any]]]) -> ctypes.CDLL:
    """Give functions of the library their types. LibraryMissing."""
    for name, (result, arguments) in prototypes.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LibraryMissing(
                f"{library._name} has no {name}: it is older than this "
                "package; install both from one version") from None
        function.restype = result
        function.argtypes = arguments
    return library


def lib() -> ctypes.CDLL:
    """libucm, loaded once. LibraryMissing. Any thread."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = bind(open_library(SONAME), _c.UCM)
    return _library


@functools.lru_cache(maxsize=None)
def sparse() -> ctypes.CDLL:
    """libucmsparse, through which also libucm is called. LibraryMissing. Any
    thread."""
    lib()  # the one that both use
    return bind(open_library(SPARSE_SONAME), {**_c.UCM, **_c.UCMSPARSE})


def path_bytes(path: object, name: str = "path") -> bytes | None:
    """A path (str, bytes or PathLike) for C; None stays."""
    return None if path is None else _whole_text(os.fsencode(path), name)


def text_bytes(text: str | None, name: str = "space") -> bytes | None:
    return None if text is None else _whole_text(text.encode(), name)


def _whole_text(text: bytes, name: str) -> bytes:
    """C would see what is before a NUL."""
    if b"\0" in text:
        raise InvalidArgument(f"{name} has a NUL: {text!r}")
    return text
