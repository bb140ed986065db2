# SPDX-License-Identifier: Apache-2.0
"""socket_facts.py - the map of socket_model.py: which blocks there must be, in memory
that all its processes share.
"""
from __future__ import annotations

import mmap
import struct
from typing import Dict, Optional, Tuple

import soak_blocks

PROCESSES, THREADS = 4, 2
SLOTS = PROCESSES * THREADS
KEYS = 24           # of a thread
SHARED = 10         # of all
CONTENTS = 4        # that a block may have: 1 ... CONTENTS
ABSENT, NONE, UNKNOWN = 0, 255, 2
SPACES = (b"", b"other")

Content = Tuple[int, int]  # number of a block, and which of its contents


def number_of(slot: int, key: int) -> int:
    """Of a thread's block; of a shared one, with slot SLOTS."""
    return slot * 1000 + key


def space_of(number: int) -> bytes:
    return SPACES[number % len(SPACES)]


BYTES: Dict[Content, bytes] = {}


def make_bytes() -> None:
    for slot in range(SLOTS + 1):
        for key in range(SHARED if slot == SLOTS else KEYS):
            number = number_of(slot, key)
            for content in range(1, CONTENTS + 1):
                BYTES[number, content] = soak_blocks.block(
                    number, None, number * 100 + content)


def content_of(number: int, data: bytes) -> int:
    for content in range(1, CONTENTS + 1):
        if BYTES[number, content] == data:
            return content
    raise AssertionError(f"block {number}: bytes that no version has")


class Map:
    """What all processes share. A byte is written at once."""

    ROW = 32  # content, what it may be (NONE: no more), pinned; its story

    def __init__(self) -> None:
        self.rows = mmap.mmap(-1, SLOTS * KEYS * self.ROW)
        self.begun = mmap.mmap(-1, SHARED * 256)
        self.counts = mmap.mmap(-1, 8 * (SLOTS + 2))
        for at in range(SLOTS * KEYS):
            self.rows[at * self.ROW + 1] = NONE

    def row(self, slot: int, key: int) -> Row:
        return Row(self.rows, (slot * KEYS + key) * self.ROW)

    def count(self, slot: int) -> int:
        return int(struct.unpack_from("<Q", self.counts, 8 * slot)[0])

    def add(self, slot: int, num: int) -> None:
        struct.pack_into("<Q", self.counts, 8 * slot, self.count(slot) + num)

    def total(self) -> int:
        return sum(self.count(slot) for slot in range(SLOTS))

    @property
    def held(self) -> bool:
        """Clients must not connect now."""
        return self.counts[8 * SLOTS] != 0

    @held.setter
    def held(self, held: bool) -> None:
        self.counts[8 * SLOTS] = held

    @property
    def ends(self) -> bool:
        return self.counts[8 * SLOTS + 8] != 0

    @ends.setter
    def ends(self, ends: bool) -> None:
        self.counts[8 * SLOTS + 8] = ends


class Row:
    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self.memory, self.at = memory, at

    def _field(offset: int) -> property:  # type: ignore
        return property(
            lambda self: self.memory[self.at + offset],
            lambda self, value: self.memory.__setitem__(self.at + offset,
                                                        value))

    content = _field(0)
    maybe = _field(1)
    pinned = _field(2)

    def note(self, what: str) -> None:
        """The latest: Commit (d: it was there), Remove and Evict (in small: refused),
        what was Found or Absent between two rounds."""
        at = self.at + 4
        self.memory[at:at + 28] = self.memory[at + 1:at + 28] + what.encode()

    def __str__(self) -> str:
        story = self.memory[self.at + 4:self.at + 32].strip(b"\0").decode()
        return f"(content {self.content} or {self.maybe}, {story})"

    def is_sure(self) -> bool:
        return self.maybe == NONE and self.pinned != UNKNOWN

    def settle(self, content: int, pinned: Optional[int] = None) -> None:
        self.content = content
        if pinned is not None:
            self.pinned = pinned
        self.maybe = NONE
