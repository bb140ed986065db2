# SPDX-License-Identifier: Apache-2.0
"""Exceptions, named after causes.

All of them are OSErrors with an errno; the message names the object and the
cause. `from_errno` picks the class that belongs to an error of the C library.
"""

from __future__ import annotations

import errno
import os


class UcmfsError(OSError):
    """Something failed; .errno says why, the message what and why."""


class NotFound(UcmfsError):
    """There is no such block, space or mount (ENOENT)."""


class NotConnected(UcmfsError):
    """The daemon is gone, and its mount with it (ENOTCONN); or a dead one has
    left its socket (ECONNREFUSED)."""


class Timeout(UcmfsError, TimeoutError):
    """A time limit has passed (ETIMEDOUT)."""


class NoSpace(UcmfsError):
    """No room is left (ENOSPC)."""


class Dropped(UcmfsError):
    """A save over the budget of saves that wait (ENOBUFS)."""


class Cancelled(UcmfsError):
    """It was cancelled (ECANCELED)."""


class Busy(UcmfsError):
    """Somebody else is at it (EBUSY)."""


class InvalidArgument(UcmfsError, ValueError):
    """An argument that cannot be right (EINVAL)."""

    def __init__(self, *args: object) -> None:
        if len(args) == 1:
            args = (errno.EINVAL, *args)
        super().__init__(*args)


class ConfigError(InvalidArgument):
    """A configuration that cannot be right; names the key.

    key: of the configuration, "ucm_connectors[0].ucm_connector_name" say.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(errno.EINVAL, f"{key}: {why}" if key else why)
        self.key = key
        self.why = why

    def __reduce__(self):
        return type(self), (self.key, self.why)


class NamespaceMismatch(InvalidArgument):
    """A space exists, and is for something else.

    key: the first that differs, "geometry.num_layers" say; "": it has blocks
    and no manifest. here: what the space has; wanted: what was asked for
    (None: not there).
    """

    def __init__(self, name: str, key: str = "", here: object = None,
                 wanted: object = None) -> None:
        why = "it has blocks and no manifest, so their use is not known"
        if key:
            why = (f"{key} is {_shown(here)} there, and {_shown(wanted)} here")
        super().__init__(errno.EINVAL, f"space {name}: {why}")
        self.name = name
        self.key = key
        self.here = here
        self.wanted = wanted

    def __reduce__(self):
        return type(self), (self.name, self.key, self.here, self.wanted)


class LibraryMissing(UcmfsError):
    """libucm cannot be loaded (ELIBACC); says what to do.

    It is no ImportError, as an OSError cannot be one (the two have layouts of
    their own), and as nothing is loaded by an import.
    """

    def __init__(self, why: str) -> None:
        super().__init__(errno.ELIBACC, why)
        self.why = why

    def __reduce__(self):
        return type(self), (self.why,)


class BlockDamaged(UcmfsError):
    """A file is no block, torn or damaged (EBADMSG).

    block: its id, 16 bytes. fault: in words. plane: the one whose checksum
    differs, 2 * layer, + 1 for V; None if it is another fault.
    """

    def __init__(self, block: bytes, fault: str,
                 plane: int | None = None) -> None:
        where = ""
        if plane is not None:
            where = f"layer {plane // 2} {'V' if plane & 1 else 'K'}: "
        super().__init__(errno.EBADMSG, f"block {block.hex()}: {where}{fault}")
        self.block = block
        self.fault = fault
        self.plane = plane

    def __reduce__(self):
        return type(self), (self.block, self.fault, self.plane)


def _shown(value: object) -> str:
    return "not set" if value is None else repr(value)


_BY_ERRNO: dict[int, type[UcmfsError]] = {
    errno.ENOENT: NotFound,
    errno.ENOTCONN: NotConnected,
    errno.ECONNREFUSED: NotConnected,
    errno.ETIMEDOUT: Timeout,
    errno.ENOSPC: NoSpace,
    errno.ENOBUFS: Dropped,
    errno.ECANCELED: Cancelled,
    errno.EBUSY: Busy,
    errno.EINVAL: InvalidArgument,
}


def from_errno(err: int, what: str, why: str = "") -> UcmfsError:
    """The exception for an errno (of either sign): "what: why".

    why: what the library has said; by default the errno in words.
    """
    err = abs(err)
    kind = _BY_ERRNO.get(err, UcmfsError)
    return kind(err, f"{what}: {why or os.strerror(err)}")
