# SPDX-License-Identifier: Apache-2.0
"""Representations of many blocks at once, between their space and slabs that
are scored: ucm_repr_load(3).

    known = repr_space.of_blocks(geometry, spec)
    with repr_load.Reprs("/mnt/kv", like=known, make=True) as reprs:
        reprs.save(ids, slabs)  # one for each layer
        slabs = reprs.load(ids, [5]).slabs
    scores = spec.query(q).score(slabs[0])
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple, Sequence

from . import _c, _lib, _log, _pack, _tensor
from ._handle import Handle
from ._tensor import Ids
from .errors import InvalidArgument, UcmfsError
from .layout import _number_of
from .repr_space import ReprSpace
from .sparse import Slab

_UNTOUCHED = -0x7fffffff


class Loaded(NamedTuple):
    """slabs: one for each layer. errors: of each block 0, or the errno with
    which it was not moved: ENOENT, it has no representation (attend to it
    densely)."""

    slabs: list[Slab]
    errors: list[int]


class Reprs(Handle):
    """A space of representations, in a mount of ucmfs or the directories of
    its tiers. Any thread.

    blocks: the space of the blocks ("": the default one). space: that of the
    representations, if it is not its sibling (repr_space.name_of()). like:
    what it must hold; make: make it, if there is none. holds: what it does.
    NotFound: there is no such space.
    """

    _CLOSE = "ucm_reprs_close"

    def __init__(self, mount: str | os.PathLike | None = None, *,
                 tiers: str | None = None, blocks: str = "",
                 space: str | None = None, like: ReprSpace | None = None,
                 make: bool = False, io: str = "auto") -> None:
        super().__init__("representations", _lib.sparse())
        _log.start()
        options = _pack.fill(_c.ReprsOptions(), self._what, {
            "io": _number_of("io", io, _c.IO_KIND), "make": bool(make)})
        options.size = ctypes.sizeof(options)
        options.mount = _lib.path_bytes(mount, "mount")
        options.tiers = _lib.path_bytes(tiers, "tiers")
        options.blocks = _lib.path_bytes(blocks, "blocks")
        options.space = _lib.path_bytes(space, "space")
        if like is not None:
            options.like = ctypes.pointer(like._c)
        _lib.call(self._lib.ucm_reprs_open, self._what, options, self._handle)
        self.holds = ReprSpace(_c.ReprSpace.from_buffer_copy(
            self._lib.ucm_reprs_space(self._handle).contents))

    def load(self, ids: Any, layers: Sequence[int], *,
             slabs: Sequence[Slab] | None = None, slots: Ids = None,
             partial: bool = False) -> Loaded:
        """Some layers, one after the other, of blocks, into slots (0, 1, ...)
        of slabs, one for each layer; new ones if none are given.

        partial: blocks that cannot be loaded are told by errors; else the
        first of them is raised (NotFound, UcmfsError with EBADMSG, ...), and
        the others are loaded.
        """
        packed, num = _pack.count_ids(ids)
        first, num_layers = _layers_of(layers)
        if slabs is None:
            slabs = [Slab(max(num, 1), self.holds.layer_bytes)
                     for _ in range(num_layers)]
        if len(slabs) != num_layers:
            raise InvalidArgument(f"slabs: {len(slabs)}, where {num_layers} "
                                  "layers are asked for")
        if len({slab._c.base for slab in slabs}) != num_layers:
            raise InvalidArgument("slabs: one is there twice")
        return self._move(self._lib.ucm_reprs_load, packed, num, first, slabs,
                          slots, partial)

    def save(self, ids: Any, slabs: Sequence[Slab], *, slots: Ids = None,
             partial: bool = False) -> list[int]:
        """All layers of blocks, from slots of slabs, one for each layer.
        Those that are there stay as they are. errors, as of load()."""
        return self._move(self._lib.ucm_reprs_save, *_pack.count_ids(ids), 0,
                          slabs, slots, partial).errors

    def _move(self, call: Any, packed: bytes, num: int, first: int,
              slabs: Sequence[Slab], slots: Ids, partial: bool) -> Loaded:
        many = (_c.ReprSlab * len(slabs))(*(
            slab.need(self.holds.layer_bytes) for slab in slabs))
        where = _tensor.ids_of(slots, "slots", num, distinct=True)
        results = (ctypes.c_int32 * max(num, 1))(*([_UNTOUCHED] * num))
        request = _c.ReprsRequest(
            ctypes.sizeof(_c.ReprsRequest),
            ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p), num,
            first, len(slabs), many, where[0], ctypes.addressof(results))
        try:
            _lib.call(call, self._what, self._open(), request,
                      ctypes.byref(ctypes.c_size_t()))
        except UcmfsError:
            if not partial or not num or _UNTOUCHED in results[:num]:
                raise
        return Loaded(list(slabs), [-result for result in results[:num]])


def _layers_of(layers: Sequence[int]) -> list[int]:
    """The first, and how many."""
    found = [_pack.u32("layers", "layer", layer) for layer in layers]
    if not found or found != list(range(found[0], found[0] + len(found))):
        raise InvalidArgument(f"layers: {found}, where one after the other "
                              "are needed")
    return [found[0], len(found)]
