# SPDX-License-Identifier: Apache-2.0
"""The files of blocks' representations: ucm-repr(5), ucm_repr(3).

To read a layer of one:

    with open(path, "rb") as file:
        header = file.read(repr_file.HEADER_BYTES)
        known = repr_file.parse(header)
        file.seek(known.layer_offset(layer))
        file.readinto(slab.slot(i))
    known.check_layer(layer, slab.slot(i))

To make one beside its block, as "ucm sparse repr build" does, with the keys at
hand:

    known = repr_file.of_block(block_header, spec)
    layers = sparse.Slab(num_layers, known.layer_bytes)
    for layer in range(num_layers):
        spec.build(keys[layer], layers, slots=[layer])  # [1, token, ...]
    known.write(path, layers)

spec is that of ucmfs.sparse, codes or star.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from array import array
from typing import Any, Optional, Sequence, Union

from . import _c, _lib, _pack, _tensor, codes, sparse, star
from .errors import InvalidArgument
from .layout import Geometry

HEADER_BYTES = _c.UCM_REPR_FILE_HEADER_BYTES
_FILE_KINDS = {_c.UCM_REPR_FILE_CODES: "codes",
               _c.UCM_REPR_FILE_CHANNELS: "channels"}
_DIGEST = slice(32, 64)  # of params, where a kind has one
_FAULT_NONE = 0

Spec = Union[sparse.Spec, codes.Spec, star.Spec]


class ReprFile:
    """What a header says; of parse(), verify() or of_block().

    id: the block's, 16 bytes. space_id: 32. geometry: the block's. kind, and
    spec of each layer, which takes layer_bytes: that of star has no channels,
    see star_spec(). size: of the file.
    """

    def __init__(self, c: _c.ReprFile,
                 header: Optional[bytes]) -> None:
        self._c = c
        self._header = header
        self._lib = _lib.sparse()
        self.id = bytes(c.id)
        self.space_id = bytes(c.space_id)
        self.layer_bytes = c.layer_bytes
        self.size = self._lib.ucm_repr_file_size(c)
        self.kind = _FILE_KINDS.get(c.spec.kind) or \
            _c.REPR_KIND[c.spec.kind]
        self.spec = self._spec()
        fields = {name: getattr(c.geometry, name)
                  for name in Geometry.__dataclass_fields__}
        fields["dtype"] = _c.DTYPE[fields["dtype"]]
        fields["order"] = _lib.ORDERS[fields["order"]]
        self.geometry = Geometry(**fields)

    def _call(self, name: str, *arguments: Any) -> None:
        _lib.call(getattr(self._lib, f"ucm_repr_file_{name}"), self._what,
                  self._c, *arguments)

    def _spec(self) -> Spec:
        if self.kind == "codes":
            code = _c.CodeSpec()
            self._call("codes", code)
            return codes.Spec.of(code)
        if self.kind == "channels":
            merged = _c.StarSpec()
            self._call("channels", merged)
            return star.Spec.of(merged)
        return sparse.Spec.of(self._c.spec)

    @property
    def digest(self) -> Optional[bytes]:
        """SHA-256 of the centers of its codes, or of the channels that it
        keeps; None: there are none, or all are kept."""
        if self.kind not in _FILE_KINDS.values():
            return None
        digest = bytes(self._c.params)[_DIGEST]
        return digest if any(digest) else None

    def check_centers(self, centers: Any = None) -> None:
        """Were its codes made with these, [layer, head, channel] of float32;
        None: with none? InvalidArgument: with others."""
        found = _centers_of(centers, self.geometry.num_layers, self.spec)
        self._call("check_centers", found and found.pointer)

    def check_channels(
            self, channels: Optional[Sequence[Sequence[int]]] = None) -> None:
        """Does it keep these, those of each layer as of star.Spec.choose();
        None: all? InvalidArgument: it keeps others."""
        packed = _channels_of(channels, self.geometry.num_layers, self.spec)
        self._call("check_channels",
                   None if packed is None else _pack.address_of(packed))

    def star_spec(self, channels: Optional[Sequence[int]] = None
                  ) -> star.Spec:
        """The spec of a layer that keeps these channels."""
        if self.kind != "channels":
            raise InvalidArgument(f"{self._what}: kind {self.kind}: not "
                                  "channels")
        return dataclasses.replace(
            self.spec, channels=None if channels is None
            else tuple(channels))

    def check_block(self, header: Any, size: int = 0) -> None:
        """Is it that of the block whose file begins so? size: of the file,
        where its form is bare. InvalidArgument: of another one."""
        self._call("check_block", _block_of(header, size))

    def layer_offset(self, layer: int) -> int:
        """Where a layer starts in the file; they lie one after the other."""
        return self._lib.ucm_repr_file_layer_offset(self._c,
                                                    self._layer(layer))

    def _layer(self, layer: int) -> int:
        return _pack.below("representations", "layer", layer,
                           self.geometry.num_layers)

    def check_layer(self, layer: int, data: Any) -> None:
        """Compare a layer's bytes with its checksum. UcmfsError with EBADMSG:
        they differ."""
        found = _bytes_of(data, "data")
        if found.shape[0] < self.layer_bytes:
            raise InvalidArgument(
                f"data: {found.shape[0]} bytes, where a layer has "
                f"{self.layer_bytes}")
        if self._header is None:
            raise InvalidArgument(f"{self._what}: nothing of it was read")
        self._call("check_layer", self._header, self._layer(layer),
                   found.pointer)

    def encode(self, layers: sparse.Slab) -> memoryview:
        """The bytes of the file: slot i of layers is layer i."""
        num, stride = self.geometry.num_layers, layers._c.stride_bytes
        if (layers.num_slots, layers.slot_bytes, stride) != (
                num, self.layer_bytes, self.layer_bytes):
            raise InvalidArgument(
                f"layers: {layers.num_slots} slots of {layers.slot_bytes} "
                f"bytes, {stride} apart, where {num} of {self.layer_bytes} "
                "are needed")
        memory = _tensor.Memory(self.size)
        self._call("encode", layers._c.base, memory.address, self.size)
        return memory.view()[:self.size]

    def write(self, path: Union[str, os.PathLike],
              layers: sparse.Slab) -> None:
        """Make the file of path, BLOCK.repr beside BLOCK.bin. It has another
        name until all of it is there. OSError."""
        data = self.encode(layers)
        temporary = f"{os.fspath(path)}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
        except OSError:
            try:
                os.unlink(temporary)
            except OSError:
                pass  # it was not made
            raise

    @property
    def _what(self) -> str:
        return f"representations of {self.id.hex()}"


def _block_of(header: Any, size: int) -> _c.Block:
    found = _bytes_of(header, "header")
    lib, out = _lib.sparse(), _c.Block()
    fault = lib.ucm_block_parse(
        found.pointer, found.shape[0],
        _pack.u64("header", "size", size), out)
    if fault != _FAULT_NONE:
        raise InvalidArgument(
            f"header: {_lib.lib().ucm_fault_text(fault).decode()}")
    return out


def _centers_of(centers: Any, num_layers: int,
                spec: Spec) -> Optional[_tensor.Array]:
    """They, one behind the other."""
    if centers is None:
        return None
    shape = num_layers, spec.num_heads, spec.head_dim
    found = _tensor.array_of(centers, "centers", tuple(zip(
        ("layer", "head", "channel"), shape)), ("float32",))
    for step, size, inner in zip(found.strides, shape, (
            shape[1] * shape[2], shape[2])):
        if size > 1 and step != inner:
            raise InvalidArgument(f"centers: strides {found.strides}, where "
                                  "no gaps may be")
    return found


def _channels_of(channels: Optional[Sequence[Sequence[int]]],
                 num_layers: int, spec: Spec) -> Optional[array]:
    if channels is None:
        return None
    each = spec.num_heads * getattr(spec, "kept", 0)
    if len(channels) != num_layers or any(
            len(layer) != each for layer in channels):
        raise InvalidArgument(f"channels: {num_layers} layers of {each} are "
                              "needed")
    return _pack.pack_numbers([c for layer in channels for c in layer], "H",
                              "channels")


def of_block(header: Any, spec: Spec, *, centers: Any = None,
             channels: Optional[Sequence[Sequence[int]]] = None,
             size: int = 0) -> ReprFile:
    """What the file of a block says in which there is what spec says.

    header: the first bytes of the block's file, 128 or more; size: of that
    file, where its form is bare. centers: of codes' keys, [layer, head,
    channel] of float32. channels: of star, those of each layer, if not all
    are kept.
    """
    block, out = _block_of(header, size), _c.ReprFile()
    lib, what = _lib.sparse(), "representations"
    layers = block.geometry.num_layers
    if isinstance(spec, codes.Spec):
        found = _centers_of(centers, layers, spec)
        _lib.call(lib.ucm_repr_file_init_codes, what, block, spec._c,
                  found and found.pointer, out)
    elif isinstance(spec, star.Spec):
        packed = _channels_of(channels, layers, spec)
        like = spec if channels is None else dataclasses.replace(
            spec, channels=tuple(channels[0]))
        _lib.call(lib.ucm_repr_file_init_channels, what, block, like._c,
                  None if packed is None else _pack.address_of(packed), out)
    else:
        _lib.call(lib.ucm_repr_file_init, what, block, spec._c, out)
    return ReprFile(out, None)


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
    out = _c.ReprFile()
    _lib.call(_lib.sparse().ucm_repr_file_parse, "representations", text,
              len(text), out)
    return ReprFile(out, text)


def verify(data: Any) -> ReprFile:
    """Decode a whole file, and compare all of it with its checksums."""
    found = _bytes_of(data, "data")
    out = _c.ReprFile()
    _lib.call(_lib.sparse().ucm_repr_file_verify, "representations",
              found.pointer, found.shape[0], out)
    return ReprFile(out, _header_of(data))
