# SPDX-License-Identifier: Apache-2.0
"""Spaces and their manifests: who may share blocks with whom.

A manifest (space.json) holds everything that decides about the content of
blocks and that their ids do not cover. Its canonical form and space_id are
described in ucmfs(8), "Spaces".
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import tempfile
from typing import (Any, Dict, Iterator, List, Mapping, Optional, Sequence,
                    Tuple, Union)

from .errors import (InvalidArgument, NamespaceMismatch, NotFound,
                     from_errno)

NAME_MAX = 128
MANIFEST_MAX = 65536
_CONTROL = re.compile("[\x00-\x1f\x7f]")

Manifest = Mapping[str, Any]


# ---- the canonical form ----

def canonical(manifest: Manifest) -> bytes:
    """Keys sorted, no white space, UTF-8. InvalidArgument: no geometry, or
    what has no one spelling (fractions, control characters, keys that are no
    text), or too long."""
    _check(manifest, "")
    if not isinstance(manifest.get("geometry"), Mapping):
        raise InvalidArgument("manifest: geometry is missing")
    try:
        text = json.dumps(_plain(manifest), sort_keys=True,
                          separators=(",", ":"), ensure_ascii=False).encode()
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


def _plain(value: Any) -> Any:
    """Mappings as dicts, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


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


def ensure_space(mount: Optional[Paths], name: str, manifest: Manifest, *,
                 tiers: Optional[Sequence[Paths]] = None) -> bytes:
    """Make the space `name` for a manifest, if it is not there.

    On a mount, or with tiers (and no mount) in the directories themselves:
    the manifest is then in the first, and in the others if it is there
    already. Several processes may do so at once. Returns the space_id.
    NamespaceMismatch: it exists, and its manifest says something else, or
    there is none and blocks are in it. NotFound: no mount, or no directory.
    """
    text = canonical(manifest)
    check_name(name)
    if (mount is None) == (not tiers):
        raise InvalidArgument("ensure_space: a mount, or tiers, is needed")
    if mount is not None:
        root = os.fspath(mount)
        _ensure(root, name, text, _write_through_mount, [root])
    else:
        _ensure_tiers([os.fspath(tier) for tier in tiers or ()], name, text)
    return hashlib.sha256(text).digest()


def read_manifest(mount: Paths, name: str) -> Optional[Dict[str, Any]]:
    """Of a space; None: it has none, or there is no such space."""
    return _read(os.path.join(os.fspath(mount), "spaces", name))


def _ensure(root: str, name: str, text: bytes, write: Any,
            roots: Sequence[str]) -> None:
    """roots: where blocks of the space may be."""
    folder = os.path.join(root, "spaces", name)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        # A manifest can be replaced as long as there are no blocks: whoever
        # writes one holds the lock and has looked.
        with _locked(folder):
            here = _read(folder)
            if here is None:
                if any(_has_blocks(os.path.join(r, "spaces", name))
                       for r in roots):
                    raise NamespaceMismatch(name)
                write(folder, text)
                here = _read(folder)
    except OSError as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _explained(error, root, folder) from error
    _compare(name, here or {}, json.loads(text))


def _ensure_tiers(tiers: List[str], name: str, text: bytes) -> None:
    for tier in tiers:
        if not os.path.isdir(tier):
            raise NotFound(2, f"tier {tier}: no such directory")
    there = [t for t in tiers
             if _read(os.path.join(t, "spaces", name)) is not None]
    for tier in there or tiers[:1]:
        os.makedirs(os.path.join(tier, "spaces"), exist_ok=True)
        _ensure(tier, name, text, _write_beside, tiers)


def _has_blocks(folder: str) -> bool:
    if not os.path.isdir(folder):
        return False
    with os.scandir(folder) as buckets:
        return any(name.endswith(".bin") for bucket in buckets
                   if bucket.is_dir() for name in os.listdir(bucket.path))


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(folder: str) -> Optional[Dict[str, Any]]:
    try:
        with open(os.path.join(folder, "space.json"), "rb") as file:
            value = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise InvalidArgument(
            f"{folder}/space.json: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{folder}/space.json: no JSON object")
    return value


def _write_through_mount(folder: str, text: bytes) -> None:
    """The daemon checks it, and takes it whole, at the close."""
    path = os.path.join(folder, "space.json")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, text)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)


def _write_beside(folder: str, text: bytes) -> None:
    """Whole, or not there, for who does not lock; the first one stays."""
    fd, temporary = tempfile.mkstemp(prefix=".space.json.", dir=folder)
    try:
        with open(fd, "wb") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, os.path.join(folder, "space.json"))
    finally:
        os.unlink(temporary)


def _explained(error: OSError, root: str, folder: str) -> Exception:
    why = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        why = f"{root} has no spaces/: is ucmfs mounted there?"
    elif error.errno == 22:
        why += " (blocks of another geometry, or a manifest that ucmfs " \
               "refuses; its log says which)"
    return from_errno(error.errno or 5, folder, why)


# ---- comparing ----

def _compare(name: str, here: Manifest, wanted: Manifest) -> None:
    difference = _difference(here, wanted, "")
    if difference is not None:
        raise NamespaceMismatch(name, *difference)


def _difference(here: Any, wanted: Any, where: str,
                ) -> Optional[Tuple[str, Any, Any]]:
    """The first key that differs: (key, here, wanted)."""
    if isinstance(here, Mapping) and isinstance(wanted, Mapping):
        for key in sorted({*here, *wanted}):
            path = f"{where}.{key}" if where else key
            if key not in here or key not in wanted:
                return path, here.get(key), wanted.get(key)
            found = _difference(here[key], wanted[key], path)
            if found is not None:
                return found
        return None
    # 1 and true are one number in Python, and two values in JSON
    if type(here) is not type(wanted) or here != wanted:
        return where, here, wanted
    return None
