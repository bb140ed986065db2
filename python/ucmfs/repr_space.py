# SPDX-License-Identifier: Apache-2.0
"""What the representations of a space are: ucm-repr(5), ucm_repr(3).

    known = repr_space.of_blocks(geometry, spec)  # of the blocks

ucmfs.repr_load makes such a space, saves to it and loads from it. spec is that
of ucmfs.sparse, codes or star.
"""

from __future__ import annotations

import ctypes
import dataclasses
from array import array
from typing import Any, Sequence, Union

from . import _c, _lib, _pack, _tensor, codes, sparse, star
from .errors import InvalidArgument
from .layout import Geometry

_KINDS = {_c.UCM_REPR_CODES: "codes", _c.UCM_REPR_CHANNELS: "channels"}
_WHAT = "representations"
_DIGEST = slice(32, 64)  # of params, where a kind has one

Spec = Union[sparse.Spec, codes.Spec, star.Spec]


class ReprSpace:
    """What a space holds; of parse() or of_blocks().

    geometry: of its blocks, whose K planes are representations. kind, and
    spec of each layer, which takes layer_bytes: that of star has no channels,
    see star_spec().
    """

    def __init__(self, c: _c.ReprSpace) -> None:
        self._c = c
        self._lib = _lib.sparse()
        self.layer_bytes = c.geometry.k_bytes
        self.kind = _KINDS.get(c.spec.kind) or _c.REPR_KIND[c.spec.kind]
        self.spec = self._spec()
        fields = {name: getattr(c.geometry, name)
                  for name in Geometry.__dataclass_fields__}
        fields["dtype"] = _c.DTYPE[fields["dtype"]]
        fields["order"] = _lib.ORDERS[fields["order"]]
        self.geometry = Geometry(**fields)

    def _call(self, name: str, *arguments: Any) -> None:
        _lib.call(getattr(self._lib, f"ucm_repr_space_{name}"), _WHAT,
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
    def digest(self) -> bytes | None:
        """SHA-256 of the centers of its codes, or of the channels that it
        keeps; None: there are none, or all are kept."""
        if self.kind not in _KINDS.values():
            return None
        digest = bytes(self._c.params)[_DIGEST]
        return digest if any(digest) else None

    def check_centers(self, centers: Any = None) -> None:
        """Were its codes made with these, [layer, head, channel] of float32;
        None: with none? InvalidArgument: with others."""
        found = _centers_of(centers, self.geometry.num_layers, self.spec)
        self._call("check_centers", found and found.pointer)

    def check_channels(
            self, channels: Sequence[Sequence[int]] | None = None) -> None:
        """Does it keep these, those of each layer as of star.Spec.choose();
        None: all? InvalidArgument: it keeps others."""
        packed = _channels_of(channels, self.geometry.num_layers, self.spec)
        self._call("check_channels",
                   None if packed is None else _pack.address_of(packed))

    def star_spec(self, channels: Sequence[int] | None = None) -> star.Spec:
        """The spec of a layer that keeps these channels."""
        if self.kind != "channels":
            raise InvalidArgument(f"{_WHAT}: kind {self.kind}: not channels")
        return dataclasses.replace(
            self.spec, channels=None if channels is None else tuple(channels))

    def manifest(self) -> str:
        """Its space.json."""
        text = ctypes.create_string_buffer(_c.UCM_REPR_MANIFEST_MAX)
        self._call("manifest", text)
        return text.value.decode()


def _centers_of(centers: Any, num_layers: int,
                spec: Spec) -> _tensor.Array | None:
    """They, one after the other."""
    if centers is None:
        return None
    shape = num_layers, spec.num_heads, spec.head_dim
    return _tensor.dense_of(centers, "centers", tuple(zip(
        ("layer", "head", "channel"), shape)))


def _channels_of(channels: Sequence[Sequence[int]] | None,
                 num_layers: int, spec: Spec) -> array | None:
    if channels is None:
        return None
    each = spec.num_heads * getattr(spec, "kept", 0)
    if len(channels) != num_layers or any(
            len(layer) != each for layer in channels):
        raise InvalidArgument(f"channels: {num_layers} layers of {each} are "
                              "needed")
    return _pack.pack_numbers([c for layer in channels for c in layer], "H",
                              "channels")


def of_blocks(blocks: Geometry, spec: Spec, *, centers: Any = None,
              channels: Sequence[Sequence[int]] | None = None) -> ReprSpace:
    """The space for representations of that spec, of blocks of a geometry.

    centers: of codes' keys, [layer, head, channel] of float32. channels: of
    star, those of each layer, if not all are kept.
    """
    lib = _lib.sparse()
    geometry, out = blocks._c(), _c.ReprSpace()
    layers = blocks.num_layers
    if isinstance(spec, codes.Spec):
        found = _centers_of(centers, layers, spec)
        _lib.call(lib.ucm_repr_space_init_codes, _WHAT, geometry, spec._c,
                  found and found.pointer, out)
    elif isinstance(spec, star.Spec):
        packed = _channels_of(channels, layers, spec)
        like = spec if channels is None else dataclasses.replace(
            spec, channels=tuple(channels[0]))
        _lib.call(lib.ucm_repr_space_init_channels, _WHAT, geometry, like._c,
                  None if packed is None else _pack.address_of(packed), out)
    else:
        _lib.call(lib.ucm_repr_space_init, _WHAT, geometry, spec._c, out)
    return ReprSpace(out)


def parse(manifest: str) -> ReprSpace:
    """What a space.json says. InvalidArgument: not that of
    representations."""
    out = _c.ReprSpace()
    _lib.call(_lib.sparse().ucm_repr_space_parse, _WHAT,
              _lib.text_bytes(manifest), out)
    return ReprSpace(out)


def name_of(blocks: str = "") -> str:
    """The space with the representations of a space's blocks."""
    text = ctypes.create_string_buffer(136)
    _lib.call(_lib.sparse().ucm_repr_space_name, _WHAT,
              _lib.text_bytes(blocks), text)
    return text.value.decode()
