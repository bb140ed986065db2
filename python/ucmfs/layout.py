# SPDX-License-Identifier: Apache-2.0
"""Which bytes of a page are which bytes of a block: geometries and layouts.

Tensors are taken as they are: torch.Tensor, numpy arrays, whatever has
__array_interface__ or __cuda_array_interface__, and Raw. None of these
packages is imported; what is read of a tensor is where it lies, its shape and
its strides. ucm_load(3) has the rules.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, Mapping, NamedTuple, Sequence, Union

from . import _c, _lib, _pack
from ._handle import Handle
from .errors import InvalidArgument

_CPU, _CUDA = "cpu", "cuda"


@dataclass(frozen=True)
class Geometry:
    """What every block of a space has in common.

    num_layers; block_size in tokens; dtype by name (see ucm-block(5));
    k_bytes and v_bytes of one layer's planes (v_bytes 0: K and V are one, as
    in MLA); num_kv_heads and head_dim (0: not told); order of the elements in
    a plane: "NHD", "HND", or "opaque".
    """

    num_layers: int
    block_size: int
    dtype: str = "opaque"
    k_bytes: int = 0
    v_bytes: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    order: str = "NHD"

    @property
    def payload_bytes(self) -> int:
        return self.num_layers * (self.k_bytes + self.v_bytes)

    def to_json(self) -> dict[str, int | str]:
        """The object "geometry" of space.json."""
        return {name: getattr(self, name)
                for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Geometry:
        known = cls.__dataclass_fields__
        for name in value:
            if name not in known:
                raise InvalidArgument(f"geometry: {name} is unknown")
        try:
            return cls(**value)
        except TypeError as error:
            raise InvalidArgument(f"geometry: {error}") from None

    def _c(self) -> _c.Geometry:
        fields = self.to_json()
        for name, names in (("dtype", _c.DTYPE), ("order", _lib.ORDERS)):
            fields[name] = _number_of(name, fields[name], names)
        return _pack.fill(_c.Geometry(), "geometry", fields)


def _number_of(what: str, value: object, names: Sequence[str]) -> int:
    try:
        return names.index(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidArgument(
            f"{what} {value!r} is none of {', '.join(names)}") from None


def _verify_of(value: object) -> int:
    """enum ucm_verify; "always" is what "full" is."""
    return _number_of("verify", "full" if value == "always" else value,
                      _c.VERIFY)


class Region(NamedTuple):
    """A piece of a layer and where it lies in every page.

    The page p has n1 * n0 runs; run (i1, i0) is at base + p * page_stride +
    i1 * s1 + i0 * s0, and holds run_bytes of the payload from offset +
    (i1 * n0 + i0) * run_bytes on. All in bytes.
    """

    base: int
    page_stride: int
    run_bytes: int
    n0: int = 1
    s0: int = 0
    n1: int = 1
    s1: int = 0
    offset: int = 0
    layer: int = 0


@dataclass(frozen=True)
class Raw:
    """A tensor by hand.

    pointer: address of element 0; strides in elements; item_bytes of an
    element; device: "cpu" or "cuda", None: not told. owner: whatever keeps
    the memory alive.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    device: str | None = None
    owner: Any = field(default=None, compare=False, repr=False)


def raw_of(tensor: Any, name: str = "tensor", *, writable: bool = True) -> Raw:
    """Where a tensor lies. InvalidArgument: it is none, or read-only and to
    be writable."""
    if isinstance(tensor, Raw):
        return _checked(tensor, name)
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "element_size"):
        device = getattr(getattr(tensor, "device", None), "type", None)
        return Raw(tensor.data_ptr(), tuple(tensor.shape),
                   tuple(tensor.stride()), tensor.element_size(), device,
                   tensor)
    for attribute, device in (("__cuda_array_interface__", _CUDA),
                              ("__array_interface__", _CPU)):
        interface = getattr(tensor, attribute, None)
        if interface is not None:
            if writable and interface["data"][1]:
                raise InvalidArgument(f"{name}: it is read-only")
            return _raw_of_interface(tensor, interface, device, name)
    raise InvalidArgument(
        f"{name}: {type(tensor).__name__} is no tensor: one of torch or "
        "numpy, or ucmfs.Raw, is needed")


def is_dense(raw: Any) -> bool:
    """Its elements are one after the other."""
    step = 1
    for size, stride in zip(reversed(raw.shape), reversed(raw.strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _checked(raw: Raw, name: str) -> Raw:
    if len(raw.shape) != len(raw.strides):
        raise InvalidArgument(f"{name}: shape {raw.shape} and strides "
                              f"{raw.strides}: of as many dimensions")
    for part, values, kind in (
            ("pointer", (raw.pointer,), ctypes.c_uint64),
            ("item_bytes", (raw.item_bytes,), ctypes.c_uint32),
            ("shape", raw.shape, ctypes.c_uint64),
            ("strides", raw.strides, ctypes.c_int64)):
        for value in values:
            _pack.whole(name, part, value, kind)
    return raw


def _raw_of_interface(tensor: Any, interface: Mapping[str, Any],
                      device: str, name: str) -> Raw:
    pointer = interface["data"][0]
    shape = tuple(interface["shape"])
    item = int(interface["typestr"][2:])
    strides = interface.get("strides")
    if strides is None:
        strides, step = [], item
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
    if item == 0 or any(s % item for s in strides):
        raise InvalidArgument(
            f"{name}: strides of {tuple(strides)} bytes are no multiples of "
            f"its elements of {item}")
    return Raw(pointer, shape, tuple(s // item for s in strides), item,
               device, tensor)


class Layout(Handle):
    """A geometry, a number of pages, and tensors or regions; then sealed.

    Keeps the tensors alive. One thread at a time until it is sealed, then
    any.
    """

    _CLOSE = "ucm_layout_free"

    def __init__(self, geometry: Geometry, num_pages: int) -> None:
        super().__init__("layout")
        self.geometry = geometry
        self.num_pages = num_pages
        self.sealed = False
        self.devices: set = set()
        self._keep: list[Any] = []
        self._layers: list[int] | None = None  # of the sealed regions
        _lib.call(self._lib.ucm_layout_new, "layout", geometry._c(),
                  _pack.u64("layout", "num_pages", num_pages), self._handle)

    def set_layer_bytes(self, layer: int, k_bytes: int,
                        v_bytes: int = 0) -> None:
        """A layer has less than the geometry's planes, which are those of
        the largest; the rest is zero in files. Before add_tensor() and
        add_region(). InvalidArgument: it has more, or no K."""
        _lib.call(self._lib.ucm_layout_set_layer_bytes, "layout", self._open(),
                  _pack.u32("layout", "layer", layer),
                  _pack.u32("layout", "k_bytes", k_bytes),
                  _pack.u32("layout", "v_bytes", v_bytes))

    def add_tensor(self, tensor: Any, dims: str, *, name: str = "",
                   layer: int = 0, plane: str = "both",
                   kernel_blocks_per_page: int = 1) -> None:
        """Add a tensor, with a letter of BLPNHDC for each dimension.

        layer: of the tensor, or of its first one (L). plane: "k", "v" or
        "both", what it holds if it has neither P nor C.
        kernel_blocks_per_page: how many steps of B make a page.
        InvalidArgument names tensor, shape and strides.
        """
        name = name or f"tensor {len(self._keep)}"
        raw = raw_of(tensor, name)
        if len(dims) != len(raw.shape) or len(dims) != len(raw.strides):
            raise InvalidArgument(
                f"{name}: {len(raw.shape)} dimensions, shape {raw.shape}, "
                f"strides {raw.strides}, where {dims!r} has {len(dims)}")
        many = ctypes.c_int64 * len(dims)
        _lib.call(
            self._lib.ucm_layout_add_tensor, "layout", self._open(),
            _pack.fill(
                _c.Tensor(size=ctypes.sizeof(_c.Tensor), data=raw.pointer,
                          name=_lib.text_bytes(name, "name"),
                          dims=_lib.text_bytes(dims, f"{name}: dims"),
                          shape=ctypes.cast(many(*raw.shape), ctypes.c_void_p),
                          strides=ctypes.cast(many(*raw.strides),
                                              ctypes.c_void_p),
                          item_bytes=raw.item_bytes,
                          plane=_number_of("plane", plane, _lib.PLANES)), name,
                {"layer": layer,
                 "kernel_blocks_per_page": kernel_blocks_per_page}))
        self._keep.append(raw)
        if raw.device is not None:
            self.devices.add(raw.device)

    def add_region(self, region: Region) -> None:
        """Add a region. InvalidArgument: it is not inside of the payload, or
        of more than one layer, or has impossible addresses."""
        _lib.call(self._lib.ucm_layout_add_region, "layout", self._open(),
                  _pack.fill(_c.Region(), "region", region._asdict()))

    def seal(self) -> Layout:
        """Check that each byte of the payload is there exactly once, and that
        nothing overlaps in memory; returns self."""
        _lib.call(self._lib.ucm_layout_seal, "layout", self._open())
        self.sealed = True
        return self

    def set_direct(self) -> Layout:
        """Let loads read into the pages themselves; returns self.

        Of a sealed layout, before it is added to loaders, which pin the
        memory of all pages for as long as they are open. What it takes and
        changes: ucm_load(3), "Reading into pages". InvalidArgument: a page is
        more than one run.
        """
        _lib.call(self._lib.ucm_layout_set_direct, "layout", self._open())
        return self

    def regions(self) -> list[Region]:
        """Of a sealed layout, in the order of the payload."""
        num = self._lib.ucm_layout_num_regions(self._open())
        regions = self._lib.ucm_layout_regions(self._open())
        return [Region(**{name: getattr(regions[i], name)
                          for name in Region._fields}) for i in range(num)]

    def regions_of_layers(self, first: int, end: int) -> int:
        """How many regions the layers from first to before end have."""
        if self._layers is None:
            self._layers = [r.layer for r in self.regions()]
        return sum(first <= layer < end for layer in self._layers)

    @property
    def runs(self) -> int:
        """How many pieces in a row a block is in memory, at best."""
        return self._lib.ucm_layout_runs(self._open())


Tensors = Union[Mapping[str, Any], Sequence[Any]]


def regions_of(tensors: Tensors, geometry: Geometry, *, dims: str,
               num_pages: int | None = None, first_layer: int = 0,
               kernel_blocks_per_page: int = 1) -> Layout:
    """A sealed layout of an engine's tensors.

    tensors: in the order of layers, a dict by name or a sequence; each of one
    layer, or of as many as its L is long. A pair (k, v) is a layer whose
    planes lie in tensors of their own. dims: a letter for each dimension (see
    Layout.add_tensor), the same for all. num_pages: by default what B of the
    first tensor says.
    """
    named = list(tensors.items()) if isinstance(tensors, Mapping) else \
        [(f"tensor {i}", t) for i, t in enumerate(tensors)]
    if not named:
        raise InvalidArgument("layout: no tensors")
    if num_pages is None:
        num_pages = _pages_of(named[0], dims, kernel_blocks_per_page)
    layout = Layout(geometry, num_pages)
    layer = first_layer
    for name, tensor in named:
        pair = isinstance(tensor, (tuple, list))
        for plane, part in zip("kv", tensor) if pair else [("both", tensor)]:
            layout.add_tensor(part, dims, layer=layer, plane=plane,
                              name=f"{name} {plane}" if pair else name,
                              kernel_blocks_per_page=kernel_blocks_per_page)
        layer += _layers_of(tensor[0] if pair else tensor, dims)
    return layout.seal()


def _pages_of(named: tuple[str, Any], dims: str,
              kernel_blocks_per_page: int) -> int:
    name, tensor = named
    if isinstance(tensor, (tuple, list)):
        tensor = tensor[0]
    at = dims.find("B")
    shape = raw_of(tensor, name).shape
    if not 0 <= at < len(shape):
        raise InvalidArgument(f"{name}: shape {tuple(shape)} and {dims!r} "
                              "say nothing of the number of pages (B)")
    return shape[at] // max(kernel_blocks_per_page, 1)


def _layers_of(tensor: Any, dims: str) -> int:
    at = dims.find("L")
    return 1 if at < 0 else raw_of(tensor).shape[at]
