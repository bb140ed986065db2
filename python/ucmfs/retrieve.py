# SPDX-License-Identifier: Apache-2.0
"""When blocks are chosen, and which of them are in memory: ucm_retrieve(3).

    schedule = retrieve.Schedule(stride=16, lead=1, num_layers=32)
    if schedule.step(17, layer).begin & retrieve.Do.COLLECT: ...

    resident = retrieve.Resident(num_blocks=1024, num_slots=256)
    swap = resident.plan(selected, now=step)
    for fill in swap.loads: ...              # load fill.block into fill.slot
        resident.ended(fill.slot, fill.ticket)
    blocks, slots = resident.take(selected)  # attend to these
    resident.release(slots)
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any, Iterable, NamedTuple, Sequence

from . import _c, _lib, _pack, _tensor
from ._tensor import Ids
from .layout import _number_of

_NO_BLOCK = 0xffffffff


# ---- schedules ----

class Do(enum.IntFlag):
    """What is to be done at a step, in this order: enum ucm_do."""

    KEEP_QUERY = 0x01
    SELECT = 0x02
    SUBMIT = 0x04
    BUILD = 0x08
    COLLECT = 0x10
    LOAD = 0x20
    WAIT_LOADS = 0x40


class Step(NamedTuple):
    """role: "chooses", "dense" or "reuses"; source: the layer whose choice is
    used. begin and end: what to do before the layer attends, and after.
    Choices are known by the last step whose query they were made with:
    collects, with Do.COLLECT, and uses."""

    role: str
    source: int
    begin: Do
    end: Do
    collects: int
    uses: int


class Schedule:
    """When the blocks of a request are chosen anew: struct ucm_schedule.

    A choice is used for stride steps; it is made with the queries of so many
    steps, the last of which is lead steps before its first. Layers in dense
    attend to all, those in reuse to what a layer before them has chosen.
    """

    def __init__(self, *, stride: int = 1, lead: int = 0, queries: int = 1,
                 num_layers: int, dense: Iterable[int] = (),
                 reuse: Iterable[int] = ()) -> None:
        self._lib = _lib.sparse()
        self._c = _pack.fill(_c.Schedule(), "schedule", {
            "stride": stride, "lead": lead, "queries": queries,
            "num_layers": num_layers})
        for name, layers in (("dense", dense), ("reuse", reuse)):
            bits = getattr(self._c, name).bits
            for layer in layers:
                layer = _pack.below("schedule", f"{name}: layer", layer,
                                    _c.UCM_LAYERS_MAX)
                bits[layer // 64] |= 1 << layer % 64
        _lib.call(self._lib.ucm_schedule_check, "schedule", self._c)

    def step(self, step: int, layer: int) -> Step:
        """What to do at a step (0: the prefill) in a layer."""
        out = _c.Step()
        _lib.call(self._lib.ucm_schedule_step, "schedule", self._c,
                  _pack.u64("schedule", "step", step),
                  _pack.u32("schedule", "layer", layer), out)
        return step_of(out)


def step_of(c: _c.Step) -> Step:
    return Step(_c.LAYER_ROLE[c.role], c.source, Do(c.begin), Do(c.end),
                c.collects, c.uses)


# ---- residency ----

class Fill(NamedTuple):
    """A load that is to be made, or what was in a slot. Its end is told with
    slot and ticket."""

    block: int
    slot: int
    ticket: int


class Swap(NamedTuple):
    """loads to make; blocks that are no longer there; how many of those
    wanted are there already, are under way from before, and have no slot."""

    loads: list[Fill]
    evicted: list[Fill]
    num_loaded: int
    num_coming: int
    num_left: int


class Resident:
    """The slots of fast memory, and the blocks that are in them. One thread
    at a time.

    evict: what goes first, "lru", "score" (the lowest), or "hybrid": the
    lowest score_weight * score + recency_weight / (age + 1). hysteresis: see
    favour().
    """

    def __init__(self, num_blocks: int, num_slots: int, *,
                 evict: str = "hybrid", score_weight: float = 0.7,
                 recency_weight: float = 0.3, hysteresis: float = 0.0) -> None:
        self._lib = _lib.sparse()
        config = _pack.fill(_c.ResidentConfig(), "residency", {
            "num_blocks": num_blocks, "num_slots": num_slots,
            "evict": _number_of("evict", evict, _c.EVICT),
            "score_weight": score_weight, "recency_weight": recency_weight,
            "hysteresis": hysteresis})
        self.num_blocks, self.num_slots = num_blocks, num_slots
        self._memory = _tensor.Memory(self._lib.ucm_resident_bytes(config))
        self._c = ctypes.c_void_p()
        self._call("begin", self._memory.address, ctypes.byref(self._c),
                   first=config)

    def _call(self, name: str, *arguments: Any, first: Any = None) -> None:
        _lib.call(getattr(self._lib, f"ucm_resident_{name}"), "residency",
                  first or self._c, *arguments)

    def _plan(self, name: str, blocks: Any, scores: Any, now: int) -> Swap:
        want, _keep = _wanted(blocks, scores, now)
        num = want.num
        loads, evicted = ((_c.Fill * max(num, 1))() for _ in range(2))
        out = _c.Swap(loads, evicted, num)
        self._call(name, want, out)
        return Swap(_fills(loads, out.num_loads),
                    _fills(evicted, out.num_evicted), out.num_loaded,
                    out.num_coming, out.num_left)

    def plan(self, blocks: Any, *, now: int, scores: Any = None) -> Swap:
        """Make room for blocks, the first ones first. now: a clock that never
        goes back. scores: of blocks 0, 1, ..., if they have new ones.
        NoSpace: more blocks than slots."""
        return self._plan("plan", blocks, scores, now)

    def plan_ahead(self, blocks: Any, *, now: int, scores: Any = None) -> Swap:
        """The same for what may be wanted later; nothing that is wanted now
        goes for it."""
        return self._plan("plan_ahead", blocks, scores, now)

    def ended(self, slot: int, ticket: int, err: int = 0) -> None:
        """A load has ended; err: an errno, nothing is in the slot. UcmfsError
        with ESTALE: its end has been told before."""
        self._call("ended", _pack.u32("residency", "slot", slot),
                   _pack.u32("residency", "ticket", ticket),
                   _pack.whole("residency", "err", -abs(err), ctypes.c_int32))

    def _loads_of(self, name: str, blocks: Ids) -> list[Fill]:
        address, num, _keep = _tensor.ids_of(blocks, "blocks", kind="I")
        room = self.num_slots if blocks is None else num
        out = (_c.Fill * max(room, 1))()
        have = ctypes.c_size_t()
        self._call(name, address, num, out, ctypes.byref(have))
        return _fills(out, have.value)

    def cancel(self, blocks: Any) -> list[Fill]:
        """Loads of these that are not waited for any more; their ends are
        still to be told."""
        return self._loads_of("cancel", () if blocks is None else blocks)

    def drop(self, blocks: Ids = None) -> list[Fill]:
        """These go, or all; returns the loads to cancel."""
        return self._loads_of("drop", blocks)

    def put(self, block: int, *, now: int) -> tuple[int, int | None]:
        """(slot, block that went for it) for one that is written in place; it
        is pinned. UcmfsError with EEXIST: it is there; ENOBUFS: no block may
        go."""
        slot, evicted = ctypes.c_uint32(), ctypes.c_uint32()
        self._call("put", _pack.u32("residency", "block", block),
                   _pack.u64("residency", "now", now), ctypes.byref(slot),
                   ctypes.byref(evicted))
        return slot.value, None if evicted.value == _NO_BLOCK \
            else evicted.value

    def take(self, blocks: Any) -> tuple[memoryview, memoryview]:
        """(blocks, slots) of those that are loaded; they are pinned until
        they are released."""
        address, num, _keep = _tensor.list_of(blocks, "blocks", "I")
        there, slots = _tensor.Memory(4 * num), _tensor.Memory(4 * num)
        have = ctypes.c_size_t()
        self._call("take", address, num, there.address, slots.address,
                   ctypes.byref(have))
        return there.view("I", have.value), slots.view("I", have.value)

    def release(self, slots: Any) -> None:
        """What take() or put() has pinned is no longer attended to."""
        address, num, _keep = _tensor.list_of(slots, "slots", "I")
        self._call("release", address, num)

    def favour(self, scores: Any) -> None:
        """Add hysteresis to the scores (float32, in place) of blocks that are
        loaded or under way, before they are selected."""
        found = _tensor.floats_of(scores, "scores", writable=True)
        self._call("favour", found.pointer, found.shape[0])

    def stats(self) -> dict[str, int]:
        """Counts since the start, and of slots now."""
        out = _c.ResidentStats()
        self._lib.ucm_resident_get_stats(self._c, out)
        return _pack.dict_of(out)


def _wanted(blocks: Any, scores: Any, now: int) -> tuple[_c.Wanted, Any]:
    """struct ucm_wanted, and what keeps its memory."""
    address, num, keep = _tensor.list_of(blocks, "blocks", "I")
    want = _pack.fill(_c.Wanted(address, num), "residency", {"now": now})
    found = None
    if scores is not None:
        found = _tensor.floats_of(scores, "scores")
        want.scores, want.num_scores = found.pointer, found.shape[0]
    return want, (keep, found)


def _fills(array: Any, num: int) -> list[Fill]:
    return [Fill(f.block, f.slot, f.ticket) for f in array[:num]]


# ---- prefetch ----

class Prefetch:
    """Guesses what the next choices want, and plans loads of it into the
    slots of a residency. At each choice: set(), resident.plan(), run(), and
    then loads(), cancels() and misses(). One thread at a time.

    ahead: for how many choices, 1 or 2; blocks: guessed for each; trend: how
    far scores are expected to go on as they have, 0 to 1.
    """

    def __init__(self, resident: Resident, *, blocks: int, ahead: int = 2,
                 trend: float = 0.5) -> None:
        self.resident = resident
        self._lib = _lib.sparse()
        config = _pack.fill(_c.PrefetchConfig(), "prefetch", {
            "num_blocks": resident.num_blocks, "ahead": ahead,
            "blocks": blocks, "trend": trend})
        self._memory = _tensor.Memory(self._lib.ucm_prefetch_bytes(config))
        self._c = ctypes.c_void_p()
        _lib.call(self._lib.ucm_prefetch_begin, "prefetch", config,
                  self._memory.address, self._c)

    def set(self, blocks: Any, *, step: int, scores: Any = None) -> None:
        """What the choice of a step wants, and the scores it was made by."""
        want, _keep = _wanted(blocks, scores, 0)
        _lib.call(self._lib.ucm_prefetch_set, "prefetch", self._c,
                  self.resident._c, want, _pack.u64("prefetch", "step", step))

    def run(self) -> None:
        """Guess, and plan loads."""
        run_all([self])

    def loads(self) -> tuple[list[Fill], list[Fill]]:
        """Of the last run: for the next choice, and for the one after it;
        for Group.load() with priority="prefetch". resident.ended() is told
        how each has ended."""
        num, near = ctypes.c_size_t(), ctypes.c_size_t()
        fills = self._lib.ucm_prefetch_loads(self._c, ctypes.byref(num),
                                             ctypes.byref(near))
        every = _fills(fills, num.value)
        return every[:near.value], every[near.value:]

    def cancels(self) -> list[Fill]:
        """Loads of earlier runs that are not wanted any more."""
        num = ctypes.c_size_t()
        fills = self._lib.ucm_prefetch_cancels(self._c, ctypes.byref(num))
        return _fills(fills, num.value)

    def misses(self) -> list[int]:
        """Which of set()'s blocks, by their place in the list, were neither
        there nor under way."""
        num = ctypes.c_size_t()
        return self._lib.ucm_prefetch_misses(
            self._c, ctypes.byref(num))[:num.value]

    def stats(self) -> dict[str, int]:
        out = _c.PrefetchStats()
        self._lib.ucm_prefetch_get_stats(self._c, out)
        return _pack.dict_of(out)


def run_all(prefetches: Sequence[Prefetch]) -> None:
    """Prefetch.run() of many, in one call."""
    num = len(prefetches)
    many = ctypes.c_void_p * max(num, 1)
    _lib.call(_lib.sparse().ucm_prefetch_run, "prefetch",
              many(*(p._c.value for p in prefetches)),
              many(*(p.resident._c.value for p in prefetches)), num)
