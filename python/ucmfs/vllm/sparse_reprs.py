# SPDX-License-Identifier: Apache-2.0
"""What stands for blocks, kept beside them: as blocks of the same names in the
space NAME.repr (ucm-repr(5)).

It is copied from the slabs when the blocks are saved, and written by a thread
that no step waits for. One that is absent, damaged, or of another method is
not loaded: its block must be, and then it is made of the block's keys, and
written again.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Any, Mapping, Sequence

import numpy as np

from .. import repr_space
from ..errors import UcmfsError
from ..layout import Geometry
from ..repr_load import Reprs
from ..sparse import Slab
from .mount import Chores, Teller, remove_blocks
from .sparse_pages import Pages

MOST = 64  # lists that wait to be written


class Kept:
    """Of a worker. layers: all that its blocks have, by their rows."""

    def __init__(self, mount: str, geometry: Geometry,
                 layers: Mapping[int, Pages]) -> None:
        self._mount, self._geometry, self._layers = mount, geometry, layers
        self._chores = Chores("ucmfs-repr", MOST)
        self._teller = Teller("representations in the store")
        self._spaces: dict[str, Reprs] = {}  # the thread's

    def _open(self, space: str) -> Reprs:
        if space not in self._spaces:
            self._spaces[space] = Reprs(
                self._mount, blocks=space, make=True,
                like=repr_space.of_blocks(self._geometry,
                                          self._layers[0].spec))
        return self._spaces[space]

    def save(self, space: str, ids: bytes, pages: Sequence[int]) -> None:
        """Of blocks in these pages, those that all layers have."""
        layers = [self._layers[row] for row in sorted(self._layers)]
        slots = np.asarray(pages, np.int64)
        if len(layers) < self._geometry.num_layers or not all(
                layer.rows for layer in layers):
            return
        built = np.logical_and.reduce(
            [layer.built[slots] != 0 for layer in layers])
        if not built.any():
            return
        slabs = [_slab_of(_slots(layer.slab)[slots[built]])
                 for layer in layers]
        names = those(ids, built)
        self._chores.add(lambda: self._write(space, names, slabs))

    def _write(self, space: str, ids: bytes, slabs: Sequence[Slab]) -> None:
        try:
            self._open(space).save(ids, slabs, partial=True)
        except UcmfsError as error:
            self._failed(space, "saved", error)

    def _failed(self, space: str, what: str, error: UcmfsError) -> None:
        """It may have been made again."""
        self._teller.warn(what, "of %s: not %s: %s", space, what, error)
        if space in self._spaces:
            self._spaces.pop(space).close()

    def load(self, space: str, ids: bytes, seconds: float) -> Loaded | None:
        """None: none of them, or not within that time."""
        try:
            return self._chores.ask(lambda: self._read(space, ids), seconds)
        except UcmfsError as error:
            self._teller.warn("loaded", "of %s: not loaded: %s", space, error)
        return None

    def _read(self, space: str, ids: bytes) -> Loaded | None:
        try:
            reprs = self._open(space)
            found = reprs.load(ids, range(self._geometry.num_layers),
                               partial=True)
        except UcmfsError as error:
            self._failed(space, "loaded", error)
            return None
        bad = [ids[16 * i:16 * i + 16] for i, err in enumerate(found.errors)
               if err == errno.EBADMSG]
        if bad:
            remove_blocks(self._mount, repr_space.name_of(space), bad)
        return Loaded([err == 0 for err in found.errors],
                      [_slots(slab) for slab in found.slabs])

    def remove(self, space: str, ids: Sequence[bytes]) -> None:
        """Damaged ones."""
        self._chores.add(lambda: remove_blocks(self._mount, space, ids))

    def end(self) -> bool:
        """False: the thread hangs."""
        idle = self._chores.end()
        for space in list(self._spaces) if idle else ():
            self._spaces.pop(space).close()
        return idle


class Loaded:
    """there: of each block, whether it was. Its bytes are not in slabs yet."""

    def __init__(self, there: Sequence[bool],
                 layers: Sequence[np.ndarray]) -> None:
        self.there, self._layers = there, layers

    def put(self, layers: Mapping[int, Pages], which: Sequence[int],
            pages: Sequence[int]) -> None:
        """They stand for these pages from now on."""
        for row, layer in layers.items():
            layer.open()
            _slots(layer.slab)[pages] = self._layers[row][which]
            layer.built[pages] = 1


def those(ids: bytes, which: np.ndarray) -> bytes:
    """Of 16 bytes each."""
    return np.frombuffer(ids, "V16")[which].tobytes()


def _slots(slab: Slab) -> Any:
    """[slot, byte]."""
    num = slab.num_slots * slab.slot_bytes
    there = (ctypes.c_uint8 * num).from_address(slab.address_of(0))
    there.slab = slab  # a view of it keeps the memory
    return np.frombuffer(there, np.uint8).reshape(slab.num_slots, -1)


def _slab_of(slots: np.ndarray) -> Slab:
    return Slab(*slots.shape, memory=slots)
