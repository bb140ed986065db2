# SPDX-License-Identifier: Apache-2.0
"""Ids, pages and addresses of callers as the arrays that C takes.

Work goes by slices of buffers, never element by element in Python: a request
of many blocks must not cost more here than in the library.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import sys
from array import array
from typing import Any, Mapping, Sequence, TypeVar, Union

from .errors import InvalidArgument

ID_BYTES = 16
MOVE_WORDS = 5  # struct ucm_move: an id and a page, 32 bits each

Ids = Union[bytes, bytearray, memoryview, Sequence[bytes]]
Numbers = Union[Sequence[int], memoryview]  # or whatever has a buffer


def pack_ids(ids: Ids, what: str = "ids") -> bytes:
    """Ids one after the other. bytes are taken as they are."""
    if isinstance(ids, bytes):
        packed = ids
    elif isinstance(ids, (list, tuple)):
        try:
            packed = b"".join(ids)
        except TypeError as error:
            raise InvalidArgument(f"{what}: {error}") from None
        # 16 numbers of 64 bits are no id, nor are 15 bytes and 17
        if len(packed) != ID_BYTES * len(ids) or \
                any(len(i) != ID_BYTES for i in ids):
            raise InvalidArgument(
                f"{what}: an id has {ID_BYTES} bytes, and one here has not")
        return packed
    else:
        try:
            packed = bytes(memoryview(ids))
        except TypeError:
            return pack_ids(tuple(ids), what)
    if len(packed) % ID_BYTES:
        raise InvalidArgument(
            f"{what}: {len(packed)} bytes are no whole number of ids "
            f"of {ID_BYTES}")
    return packed


def count_ids(ids: Ids, what: str = "ids") -> tuple[bytes, int]:
    """Ids one after the other, and how many."""
    packed = pack_ids(ids, what)
    return packed, len(packed) // ID_BYTES


def pack_parents(what: str, parents: Ids, num: int) -> bytes:
    """An id for each of num blocks."""
    packed, many = count_ids(parents, "parents")
    if many != num:
        raise InvalidArgument(f"{what}: {many} parents for {num} blocks")
    return packed


def split_ids(packed: bytes) -> list:
    return [packed[at:at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)]


def pack_numbers(values: Numbers, kind: str, what: str) -> array:
    """An array of typecode kind from a buffer of integers or a sequence.

    A flat buffer of the same width is copied as it is. InvalidArgument: a
    value that does not fit, or none at all.
    """
    if isinstance(values, array) and values.typecode == kind:
        return values
    out = array(kind)
    try:
        view = _view(values)
        if view is not None and view.itemsize == out.itemsize \
                and view.format.lstrip(NATIVE) in _SAME[kind]:
            out.frombytes(view.cast("B"))
        else:
            out.extend(values if view is None else view.tolist())
    # NotImplementedError: the other byte order
    except (NotImplementedError, OverflowError, TypeError) as error:
        raise InvalidArgument(f"{what}: {error}") from None
    return out


# What formats of this machine's byte order may begin with.
NATIVE = "@=<" if sys.byteorder == "little" else "@=>"
# Formats of the same width that may be taken bit by bit.
_SAME = {"i": ("i", "l"), "I": ("I", "L"), "Q": ("Q", "L"), "q": ("q", "l"),
         "f": ("f",), "H": ("H",)}


def _view(values: object) -> memoryview | None:
    """A flat view, of a buffer, if there is one."""
    if isinstance(values, (list, tuple, range)):
        return None
    try:
        view = memoryview(values)  # type: ignore[arg-type]
    except TypeError:
        return None
    if view.ndim != 1 or not view.c_contiguous or view.format == "?":
        raise TypeError(f"{view.ndim} dimensions, or gaps, or a mask, where "
                        "a flat array of numbers is needed")
    return view


def pack_moves(ids: bytes, pages: array) -> array:
    """struct ucm_move[]: ids and pages interleaved."""
    words = array("I")
    words.frombytes(ids)
    moves = array("I", bytes(4 * MOVE_WORDS * len(pages)))
    for i in range(4):
        moves[i::MOVE_WORDS] = words[i::4]
    moves[4::MOVE_WORDS] = pages
    return moves


def address_of(values: array) -> int:
    return values.buffer_info()[0]


Struct = TypeVar("Struct", bound=ctypes.Structure)
_WHOLE = {ctypes.c_uint8: (8, 0), ctypes.c_uint16: (16, 0),
          ctypes.c_uint32: (32, 0), ctypes.c_uint64: (64, 0),
          ctypes.c_int32: (32, 1), ctypes.c_int64: (64, 1)}


def whole(what: str, name: str, value: Any, kind: Any) -> int:
    """A number for an argument or a field of that type, which ctypes would
    cut to its bits."""
    bits, signed = _WHOLE[kind]
    least, end = (-(1 << bits - 1), 1 << bits - 1) if signed else \
        (0, 1 << bits)
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < end:
        raise InvalidArgument(f"{what}: {name} {value!r} is not between "
                              f"{least} and {end - 1}")
    return number


def u32(what: str, name: str, value: Any) -> int:
    return whole(what, name, value, ctypes.c_uint32)


def u64(what: str, name: str, value: Any) -> int:
    return whole(what, name, value, ctypes.c_uint64)


def below(what: str, name: str, value: Any, end: int) -> int:
    """The number of one of end things."""
    number = u64(what, name, value)
    if number >= end:
        raise InvalidArgument(f"{what}: {name} {number}, there are {end}")
    return number


@functools.lru_cache(maxsize=None)
def _kinds_of(struct: Any) -> Mapping[str, Any]:
    return dict(struct._fields_)


def dict_of(struct: ctypes.Structure) -> dict[str, int]:
    return {name: getattr(struct, name) for name, _ in struct._fields_}


def fill(struct: Struct, what: str, values: Mapping[str, Any]) -> Struct:
    """Set fields that are numbers. InvalidArgument: one that does not fit."""
    kinds = _kinds_of(type(struct))
    for name, value in values.items():
        if kinds[name] in _WHOLE:
            value = whole(what, name, value, kinds[name])
        try:
            setattr(struct, name, value)
        except TypeError as error:
            raise InvalidArgument(f"{what}: {name}: {error}") from None
    return struct
