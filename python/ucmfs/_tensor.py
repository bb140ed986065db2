# SPDX-License-Identifier: Apache-2.0
"""Arrays of numbers on their way to C and back.

What is taken is where an array lies, its shape, strides and type: of torch,
of numpy, or of anything with a buffer. What is given back is memory of our
own as memoryviews, which numpy.asarray() and torch.frombuffer() take without
a copy. Each is seen to be large enough before C is given its address.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, NamedTuple, Optional, Sequence, Union

from . import _c, _pack
from .errors import InvalidArgument
from .layout import Raw, _number_of, is_dense, raw_of

KEYS = ("float32", "float16", "bfloat16")
# Sizes of dimensions that are known, by name; None: any.
Dims = Sequence[tuple[str, Optional[int]]]

# Of buffers, and of what has an __array_interface__ and no dtype.
_FORMATS = {"f": "float32", "d": "float64", "e": "float16", "b": "int8",
            "B": "uint8", "H": "uint16", "i": "int32", "I": "uint32",
            "q": "int64", "l": "int64", "Q": "uint64", "L": "uint64",
            "f4": "float32", "f2": "float16", "|u1": "uint8", "u2": "uint16",
            "i4": "int32", "u4": "uint32", "i8": "int64", "u8": "uint64"}
_MOST = 0xffffffff  # C's counts are of 32 bits
_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1,
          "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8}
_DEVICES = {"cpu": "the host's", "cuda": "a CUDA device's"}


class Array(NamedTuple):
    """Where numbers lie; strides in elements. It keeps owner alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    owner: Any

    @property
    def dtype_number(self) -> int:
        return _c.DTYPE.index(self.dtype)


def array_of(values: Any, name: str, dims: Dims, dtypes: Sequence[str], *,
             dtype: str | None = None, writable: bool = False,
             device: str = "cpu") -> Array:
    """Where values lie, if they are what is needed.

    The last dimension has no gaps. dtype: that of values which cannot say it
    (bfloat16 as numpy's uint16, Raw), or which they must have. device: whose
    memory it is, "cpu" or "cuda".
    """
    if dtype is not None:
        _number_of(f"{name}: dtype", dtype, dtypes)
    raw, said = _raw_of(values, name, writable)
    if raw.device not in (None, device):
        raise InvalidArgument(f"{name}: memory of {raw.device}, where "
                              f"{_DEVICES[device]} is needed")
    silent = not said or (said, dtype) == ("uint16", "bfloat16")
    found = dtype if dtype and silent else said
    wanted = (dtype,) if dtype else dtypes
    if found not in wanted or _BYTES[found] != raw.item_bytes:
        raise InvalidArgument(
            f"{name}: {said or 'numbers'} of {raw.item_bytes} bytes, where "
            f"{' or '.join(wanted)} is needed")
    _check_shape(raw, name, dims)
    return Array(raw.pointer, tuple(raw.shape), tuple(raw.strides), found, raw)


def _check_shape(raw: Raw, name: str, dims: Dims) -> None:
    shape = tuple(raw.shape)
    wanted = ", ".join(dim if size is None else f"{dim} {size}"
                       for dim, size in dims)
    if len(shape) != len(dims) or len(raw.strides) != len(dims) or any(
            size not in (None, got) for got, (_, size) in zip(shape, dims)):
        raise InvalidArgument(f"{name}: shape {shape}, where [{wanted}] is "
                              "needed")
    if shape[-1] > 1 and raw.strides[-1] != 1:
        raise InvalidArgument(
            f"{name}: strides {tuple(raw.strides)}, where 1 is needed for "
            f"{dims[-1][0]}")
    if max(shape) > _MOST:
        raise InvalidArgument(f"{name}: shape {shape}, up to {_MOST} each")
    if not raw.pointer and 0 not in shape:  # C: there are none
        raise InvalidArgument(f"{name}: address 0")


def _raw_of(values: Any, name: str, writable: bool) -> tuple[Raw, str]:
    """Where it lies, and of what type it says it is."""
    if isinstance(values, Raw):
        return raw_of(values, name), ""
    if not (hasattr(values, "data_ptr") or
            hasattr(values, "__array_interface__") or
            hasattr(values, "__cuda_array_interface__")):
        try:
            return _raw_of_buffer(memoryview(values), name, writable)
        except TypeError:
            pass  # raw_of() says what it is
    raw = raw_of(values, name, writable=writable)
    # "torch.float32", or numpy's "float32"
    said = str(getattr(values, "dtype", "")).rpartition(".")[2]
    if not said:
        interface = getattr(values, "__cuda_array_interface__", None) or \
            getattr(values, "__array_interface__", None)
        said = _said_of(interface["typestr"]) if interface else ""
    return raw, said


def _raw_of_buffer(view: memoryview, name: str,
                   writable: bool) -> tuple[Raw, str]:
    if writable and view.readonly:
        raise InvalidArgument(f"{name}: it is read-only")
    if not view.c_contiguous:
        raise InvalidArgument(f"{name}: it has gaps")
    flat = view.cast("B") if view.nbytes else memoryview(b"\0")
    owner = (ctypes.c_char * len(flat)).from_buffer_copy(flat) \
        if flat.readonly else ctypes.c_char.from_buffer(flat)
    raw = Raw(ctypes.addressof(owner), tuple(view.shape),
              tuple(step // view.itemsize for step in view.strides),
              view.itemsize, "cpu", owner)
    return raw, _said_of(view.format)


def _said_of(text: str) -> str:
    """What numbers of a format are; the text itself if it is unknown."""
    return _FORMATS.get(text.lstrip(_pack.NATIVE), text)


def floats_of(values: Any, name: str, *, num: int | None = None,
              writable: bool = False) -> Array:
    """As array_of(), of float32, aligned; numbers in a list as well."""
    if isinstance(values, (list, tuple)) and not writable:
        values = _pack.pack_numbers(values, "f", name)
    out = array_of(values, name, (("number", num),), ("float32",),
                   writable=writable)
    _check_aligned(out, name)
    return out


def _check_aligned(found: Array, name: str) -> None:
    if found.pointer % _BYTES[found.dtype]:
        raise InvalidArgument(f"{name}: it is not aligned to "
                              f"{_BYTES[found.dtype]} bytes")


def rows_of(values: Any, name: str, dims: Dims, *, writable: bool = True,
            kind: str = "float32") -> Array:
    """Where floats are to be written, or read: rows that may be apart. kind:
    of numbers that are no floats."""
    out = array_of(values, name, dims, (kind,), writable=writable)
    _check_aligned(out, name)
    if len(out.shape) > 1 and out.shape[0] > 1 and \
            out.strides[0] < out.shape[-1]:
        raise InvalidArgument(f"{name}: strides {out.strides}, where rows "
                              "one after the other are needed")
    return out


def dense_of(values: Any, name: str, dims: Dims) -> Array:
    """Floats that are read, one after the other."""
    out = array_of(values, name, dims, ("float32",))
    _check_aligned(out, name)
    if not is_dense(out):
        raise InvalidArgument(f"{name}: strides {out.strides}, where no gaps "
                              "may be")
    return out


def _check_apart(found: Array, name: str) -> None:
    """Each number that is written has its own place."""
    end = 1
    for step, size in sorted((abs(step), size) for step, size in
                             zip(found.strides, found.shape) if size > 1):
        if step < end:
            raise InvalidArgument(f"{name}: strides {found.strides} overlap")
        end += step * (size - 1)


# ---- keys and queries ----

def keys_of(keys: Any, name: str, dims: Dims, dtype: str | None, *,
            writable: bool = False) -> tuple[_c.Keys, Array]:
    """struct ucm_keys of [block, token, head, channel]; of three dimensions,
    they are block 0."""
    found = array_of(keys, name, dims, KEYS, dtype=dtype, writable=writable)
    if not found.shape[-1]:  # which C may take for a default
        raise InvalidArgument(f"{name}: shape {found.shape} has no channels")
    if writable:
        _check_apart(found, name)
    shape, strides = found.shape, found.strides
    if len(shape) == 3:
        shape, strides = (1, *shape), (0, *strides)
    return _c.Keys(found.pointer, found.dtype_number, shape[0],
                            *strides[:3]), found


def query_of(query: Any, name: str, head_dim: int | None,
             dtype: str | None) -> tuple[_c.Query, Array]:
    """struct ucm_query of [head, channel]."""
    found = array_of(query, name, (("head", None), ("channel", head_dim)),
                     KEYS, dtype=dtype)
    return _c.Query(found.pointer, found.dtype_number,
                             found.shape[0], found.strides[0]), found


# ---- numbers of blocks ----

Ids = Optional[Union[Sequence[int], Any]]


def ids_of(ids: Ids, name: str, num: int | None = None, kind: str = "i",
           distinct: bool = False) -> tuple[int | None, int, Any]:
    """list_of() numbers of blocks; None has no address, and a meaning of its
    own. distinct: no number may be there twice."""
    if ids is None:
        return None, 0, None
    found = list_of(ids, name, kind)
    if num is not None and found[1] != num:
        raise InvalidArgument(f"{name}: {found[1]}, where {num} are needed")
    if distinct and len(set(found[2])) != found[1]:
        twice = next(n for n in found[2] if found[2].count(n) > 1)
        raise InvalidArgument(f"{name}: {twice} is there twice")
    return found


def list_of(ids: Any, name: str, kind: str) -> tuple[int, int, array]:
    """(address, how many, what keeps it) of numbers."""
    packed = _pack.pack_numbers(ids, kind, name)
    if packed is ids:
        packed = array(kind, packed)  # its owner may let it grow meanwhile
    # an empty array has no address, and NULL has a meaning of its own
    return _pack.address_of(packed) or ctypes.addressof(_NONE), \
        len(packed), packed


_NONE = (ctypes.c_char * 64)()
Packed = tuple[Optional[int], int, Any]  # of ids_of()


def moves_of(blocks: Ids, places: Ids, names: tuple[str, str],
             num: int) -> tuple[int, Packed, Packed]:
    """(how many, which blocks, where they go): as many as either says, or
    num; no two to one place."""
    which = ids_of(blocks, names[0])
    where = ids_of(places, names[1], None if blocks is None else which[1],
                   distinct=True)
    for ids, found in ((places, where), (blocks, which)):
        num = num if ids is None else found[1]
    return num, which, where


def table_of(table: Ids, block_size: int,
             tokens: int) -> tuple[int | None, int, Any]:
    """ids_of() a block table, which is long enough for so many tokens."""
    out = ids_of(table, "table")
    if table is not None and block_size > 0 and \
            out[1] < -(-tokens // block_size):
        raise InvalidArgument(f"table: {out[1]} blocks of {block_size}, "
                              f"where there are {tokens} tokens")
    return out


# ---- memory ----

class Memory:
    """Bytes of our own, from a multiple of 64 on; all 0."""

    def __init__(self, num_bytes: int) -> None:
        self._bytes = bytearray(num_bytes + 64)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        self._skip = -start % 64
        self.address = start + self._skip
        self.num_bytes = num_bytes

    def view(self, kind: str = "B", *shape: int) -> memoryview:
        """Its first bytes as numbers of a typecode, in a shape."""
        num = 1
        for size in shape:
            num *= size
        item = array(kind).itemsize
        size = num * item if shape else self.num_bytes // item * item
        flat = memoryview(self._bytes)[self._skip:self._skip + size]
        if len(shape) < 2 or not num:
            return flat.cast(kind)
        return flat.cast(kind, shape)
