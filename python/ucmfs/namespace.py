# SPDX-License-Identifier: Apache-2.0
"""Spaces and their manifests: who may share blocks with whom.

A manifest (space.json) holds everything that decides about the content of
blocks and that their ids do not cover. Its canonical form and space_id are
described in ucmfs(8), "Spaces".
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
from typing import Any, Iterator, Mapping, Sequence, Union

from . import _lib
from .errors import InvalidArgument, NamespaceMismatch, NotFound, UcmfsError
from .loader import source_of

NAME_MAX = 128
MANIFEST_MAX = 65536
_CONTROL = re.compile("[\x00-\x1f\x7f]")

Manifest = Mapping[str, Any]


# ---- the canonical form ----

def canonical(manifest: Manifest) -> bytes:
    """Keys sorted, no white space, UTF-8; without "quota", which says nothing
    of the blocks. InvalidArgument: no geometry, or
    what has no one spelling (fractions, control characters, keys that are no
    text), or too long."""
    _check(manifest, "")
    if not isinstance(manifest.get("geometry"), Mapping):
        raise InvalidArgument("manifest: geometry is missing")
    try:
        text = json.dumps(
            _without_quota(manifest), sort_keys=True, ensure_ascii=False,
            separators=(",", ":"), default=dict).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"manifest: {error}") from None
    if len(text) >= MANIFEST_MAX:
        raise InvalidArgument(
            f"manifest: {len(text)} bytes, where {MANIFEST_MAX - 1} are the "
            "most")
    return text


def space_id(manifest: Manifest) -> bytes:
    """32 bytes: the SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(manifest)).digest()


def default_name(prefix: str, manifest: Manifest) -> str:
    """PREFIX-0123456789ab: a name for the space of a manifest."""
    return check_name(f"{prefix}-{space_id(manifest).hex()[:12]}")


def check_name(name: str) -> str:
    """The name, if a space can have it; else InvalidArgument."""
    if not 1 <= len(os.fsencode(name)) <= NAME_MAX or name[0] == "." \
            or "/" in name or _CONTROL.search(name):
        raise InvalidArgument(f"{name!r} is no name of a space: 1 to "
                              f"{NAME_MAX} bytes without a slash or control "
                              "character, not beginning with '.'")
    return name


def _without_quota(manifest: Manifest) -> dict[str, Any]:
    return {key: item for key, item in manifest.items() if key != "quota"}


def _check(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidArgument(
                    f"manifest: the key {key!r} of {where or 'it'} is no text")
            _check_text(key, where)
            _check(item, f"{where}.{key}" if where else key)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check(item, f"{where}[{i}]")
    elif isinstance(value, str):
        _check_text(value, where)
    elif isinstance(value, int):
        if not -1 << 63 <= value < 1 << 63:
            raise InvalidArgument(f"manifest: {where} {value} is too large")
    elif value is not None:
        raise InvalidArgument(
            f"manifest: {where} is {value!r}; text, whole numbers, true, "
            "false, null, lists and objects of these can be in it")


def _check_text(text: str, where: str) -> None:
    if _CONTROL.search(text):
        raise InvalidArgument(
            f"manifest: a control character in {where or repr(text)}")


# ---- spaces ----

Paths = Union[str, "os.PathLike[str]"]


def ensure_space(mount: Paths | None, name: str, manifest: Manifest, *,
                 tiers: Paths | Sequence[Paths] | None = None) -> bytes:
    """Make the space `name` for a manifest, if it is not there.

    mount: a mount point, or the path of a daemon's socket: of it a new space
    is this user's, and private if the umask keeps others out. tiers (and no
    mount): directories; if no daemon has them, a private one is started.
    Several processes may do so at once. Returns the space_id.
    NamespaceMismatch: it exists, and its manifest says something else, or
    there is none and blocks are in it. NotFound: no mount, or no directory.
    """
    text = canonical(manifest)
    check_name(name)
    if (mount is None) == (not tiers):
        raise InvalidArgument("ensure_space: a mount, or tiers, is needed")
    there = ctypes.create_string_buffer(MANIFEST_MAX)
    try:
        _lib.call(_lib.lib().ucm_space_make, f"space {name}",
                  _lib.path_bytes(mount), source_of(tiers or None),
                  _lib.path_bytes(name, "space"), text, there)
    except UcmfsError as error:
        if error.errno == errno.EEXIST:
            here = _without_quota(_parse(name, there.value))
            for difference in _differences(here, json.loads(text), ""):
                raise NamespaceMismatch(name, *difference)
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise NamespaceMismatch(name) from None
        raise
    return hashlib.sha256(text).digest()


def read_manifest(mount: Paths | None, name: str, *,
                  tiers: Paths | Sequence[Paths] | None = None,
                  ) -> dict[str, Any] | None:
    """Of a space, of a mount or socket or of tiers, as ensure_space(); None:
    it has none, or there is no such space."""
    text = ctypes.create_string_buffer(MANIFEST_MAX)
    try:
        _lib.call(_lib.lib().ucm_space_manifest, f"space {name}",
                  _lib.path_bytes(mount), source_of(tiers or None),
                  _lib.path_bytes(name, "space"), text)
    except NotFound:
        return None
    return _parse(name, text.value)


def remove_space(mount: Paths, name: str) -> None:
    """A space of a mount or socket, with its blocks. NotFound: there is none.
    Other errors, as while blocks are being saved to it, leave some of it."""
    _lib.call(_lib.lib().ucm_space_remove, f"space {name}",
              _lib.path_bytes(mount), _lib.path_bytes(name, "space"))


def _parse(name: str, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(
            f"space {name}: its manifest is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"space {name}: its manifest is no JSON object")
    return value


# ---- comparing ----

Difference = tuple[str, Any, Any]  # key, here, wanted


def _differences(here: Any, wanted: Any, where: str) -> Iterator[Difference]:
    if isinstance(here, Mapping) and isinstance(wanted, Mapping):
        for key in sorted({*here, *wanted}):
            path = f"{where}.{key}" if where else key
            if key not in here or key not in wanted:
                yield path, here.get(key), wanted.get(key)
            else:
                yield from _differences(here[key], wanted[key], path)
    # 1 and true are one number in Python, and two values in JSON
    elif type(here) is not type(wanted) or here != wanted:
        yield where, here, wanted


def spaces(mount: Paths) -> list[str]:
    """The names of all of a mount's or socket's but the default one."""
    names: list[str] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
    def each(_: object, name: bytes) -> int:
        names.append(os.fsdecode(name))
        return 0

    _lib.call(_lib.lib().ucm_space_list, "spaces", _lib.path_bytes(mount),
              None, each, None)
    return names


def nearest(mount: Paths, prefix: str, name: str, manifest: Manifest,
            ) -> tuple[str, list[Difference]] | None:
    """Of the other spaces of a mount or socket whose names begin so, the one
    whose manifest differs in the fewest keys, and these; None: there is no
    other. What cannot be read is left out."""
    best: tuple[str, list[Difference]] | None = None
    wanted = json.loads(canonical(manifest))
    for other in sorted(spaces(mount)):
        if other == name or not other.startswith(prefix):
            continue
        try:
            here = read_manifest(mount, other)
        except OSError:
            continue
        found = list(_differences(_without_quota(here or {}), wanted, ""))
        if best is None or len(found) < len(best[1]):
            best = other, found
    return best
