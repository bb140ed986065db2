# SPDX-License-Identifier: Apache-2.0
"""Representations of many blocks at once, from the files beside them to slabs
that are scored: ucm_repr_load(3).

    with repr_load.Reprs(mount="/mnt/kv") as files:
        like = files.header(ids[0])          # or repr_file.of_block(...)
        slabs = files.load(ids, like, [5]).slabs
    scores = like.spec.query(q).score(slabs[0])
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, List, NamedTuple, Optional, Sequence, Union

from . import _c, _lib, _log, _pack, _tensor
from ._handle import Handle
from ._tensor import Ids
from .errors import InvalidArgument, UcmfsError
from .layout import _number_of
from .repr_file import ReprFile
from .sparse import Slab

_UNTOUCHED = -0x7fffffff


class Loaded(NamedTuple):
    """slabs: one for each layer that was asked for. errors: of each block 0,
    or the errno with which it was not loaded: ENOENT, it has no file."""

    slabs: List[Slab]
    errors: List[int]


class Reprs(Handle):
    """Where files of representations are: a mount of ucmfs, or the
    directories of its tiers. Any thread.

    space: "" is the default one. depth: files that are read at a time.
    """

    _CLOSE = "ucm_reprs_close"

    def __init__(self, mount: Union[str, os.PathLike, None] = None, *,
                 tiers: Optional[str] = None, space: str = "",
                 io: str = "auto", depth: int = 0) -> None:
        super().__init__("representations", _lib.sparse())
        _log.start()
        options = _pack.fill(_c.ReprsOptions(), "representations", {
            "io": _number_of("io", io, _c.IO_KIND), "depth": depth})
        options.size = ctypes.sizeof(options)
        options.mount = _lib.path_bytes(mount, "mount")
        options.tiers = _lib.path_bytes(tiers, "tiers")
        options.space = _lib.path_bytes(space, "space")
        _lib.call(self._lib.ucm_reprs_open, "representations", options,
                  self._handle)

    def header(self, block: bytes) -> ReprFile:
        """What the file of a block says. NotFound: it has none."""
        packed = _pack.pack_ids([block])
        out = _c.ReprFile()
        _lib.call(self._lib.ucm_reprs_header,
                  f"representations of {packed.hex()}", self._open(), packed,
                  out)
        return ReprFile(out, None)

    def load(self, ids: Any, like: ReprFile, layers: Sequence[int], *,
             slabs: Optional[Sequence[Slab]] = None, slots: Ids = None,
             partial: bool = False) -> Loaded:
        """Some layers, one after the other, of blocks, into slots (0, 1, ...)
        of slabs, one for each layer; new ones if none are given.

        like: what all files must say, but for the block. partial: blocks that
        cannot be loaded are told by errors; else the first of them is raised
        (NotFound, UcmfsError with EBADMSG, ...), and the others are loaded.
        """
        packed = _pack.pack_ids(ids)
        num = len(packed) // _pack.ID_BYTES
        first, layers = _layers_of(layers)
        if slabs is None:
            slabs = [Slab(max(num, 1), like.layer_bytes)
                     for _ in range(layers)]
        if len(slabs) != layers:
            raise InvalidArgument(f"slabs: {len(slabs)}, where {layers} "
                                  "layers are asked for")
        if len({slab._c.base for slab in slabs}) != layers:
            raise InvalidArgument("slabs: one is there twice")
        many = (_c.ReprSlab * layers)(*(
            slab.need(like.layer_bytes) for slab in slabs))
        where = _tensor.ids_of(slots, "slots", num, distinct=True)
        results = (ctypes.c_int32 * max(num, 1))(*([_UNTOUCHED] * num))
        request = _c.ReprsRequest(
            ctypes.sizeof(_c.ReprsRequest),
            ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p), num,
            ctypes.pointer(like._c), first, layers, many, where[0],
            ctypes.addressof(results))
        try:
            _lib.call(self._lib.ucm_reprs_load, self._what, self._open(),
                      request, ctypes.byref(ctypes.c_size_t()))
        except UcmfsError:
            if not partial or not num or _UNTOUCHED in results[:num]:
                raise
        return Loaded(list(slabs), [-result for result in results[:num]])


def _layers_of(layers: Sequence[int]) -> List[int]:
    """The first, and how many."""
    found = [_pack.u32("layers", "layer", layer) for layer in layers]
    if not found or found != list(range(found[0], found[0] + len(found))):
        raise InvalidArgument(f"layers: {found}, where one after the other "
                              "are needed")
    return [found[0], len(found)]
