# SPDX-License-Identifier: Apache-2.0
"""The files of blocks' representations: ucm-repr(5), ucm_repr(3). "ucm repr
build" makes them.

    with open(path, "rb") as file:
        header = file.read(repr_file.HEADER_BYTES)
        known = repr_file.parse(header)
        file.seek(known.layer_offset(layer))
        file.readinto(slab.slot(i))
    known.check_layer(layer, slab.slot(i))
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import _lib, _lib_sparse, _tensor
from .errors import InvalidArgument
from .layout import Geometry
from .sparse import Spec

HEADER_BYTES = _lib_sparse.REPR_HEADER_BYTES


class ReprFile:
    """What a header says; of parse() or verify().

    id: the block's, 16 bytes. space_id: 32. geometry: the block's. spec: of
    each layer, which takes layer_bytes. size: of the file.
    """

    def __init__(self, c: _lib_sparse.ReprFile, header: bytes) -> None:
        self._c = c
        self._header = header
        self.id = bytes(c.id)
        self.space_id = bytes(c.space_id)
        self.layer_bytes = c.layer_bytes
        self.size = _lib_sparse.lib().ucm_repr_file_size(c)
        self.spec = Spec(_lib_sparse.KINDS[c.spec.kind],
                         _lib.DTYPES[c.spec.dtype], c.spec.num_heads,
                         c.spec.head_dim, c.spec.block_size)
        fields = {name: getattr(c.geometry, name)
                  for name in Geometry.__dataclass_fields__}
        fields["dtype"] = _lib.DTYPES[fields["dtype"]]
        fields["order"] = _lib.ORDERS[fields["order"]]
        self.geometry = Geometry(**fields)

    def layer_offset(self, layer: int) -> int:
        """Where a layer starts in the file; they lie one after the other."""
        return _lib_sparse.lib().ucm_repr_file_layer_offset(
            self._c, self._layer(layer))

    def _layer(self, layer: int) -> int:
        if not 0 <= layer < self.geometry.num_layers:
            raise InvalidArgument(f"representations: layer {layer}, there "
                                  f"are {self.geometry.num_layers}")
        return layer

    def check_layer(self, layer: int, data: Any) -> None:
        """Compare a layer's bytes with its checksum. UcmfsError with EBADMSG:
        they differ."""
        found = _bytes_of(data, "data")
        if found.shape[0] < self.layer_bytes:
            raise InvalidArgument(
                f"data: {found.shape[0]} bytes, where a layer has "
                f"{self.layer_bytes}")
        error = _lib.Error()
        error.check(_lib_sparse.lib().ucm_repr_file_check_layer(
            self._c, self._header, self._layer(layer), found.pointer, error),
                    self._what)

    @property
    def _what(self) -> str:
        return f"representations of {self.id.hex()}"


def _bytes_of(data: Any, name: str) -> _tensor.Array:
    return _tensor.array_of(data, name, (("byte", None),), ("uint8",))


def _header_of(data: Any) -> bytes:
    found = _bytes_of(data, "data")
    return ctypes.string_at(found.pointer,
                            min(found.shape[0], HEADER_BYTES))


def parse(header: Any) -> ReprFile:
    """Decode a file's first HEADER_BYTES. InvalidArgument: not such a file;
    UcmfsError with EBADMSG: its checksum differs."""
    text = _header_of(header)
    out, error = _lib_sparse.ReprFile(), _lib.Error()
    error.check(_lib_sparse.lib().ucm_repr_file_parse(
        text, len(text), out, error), "representations")
    return ReprFile(out, text)


def verify(data: Any) -> ReprFile:
    """Decode a whole file, and compare all of it with its checksums."""
    found = _bytes_of(data, "data")
    out, error = _lib_sparse.ReprFile(), _lib.Error()
    error.check(_lib_sparse.lib().ucm_repr_file_verify(
        found.pointer, found.shape[0], out, error), "representations")
    return ReprFile(out, _header_of(data))
