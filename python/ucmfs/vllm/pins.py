# SPDX-License-Identifier: Apache-2.0
"""Blocks of the engine that must keep their content until they are copied.

A preempted or finished request's blocks are given to others at once. A pin is
a reference on the block in vLLM's pool, as a request's own; it ends when all
ranks have read the block. How many may be pinned is bounded: a save is worth
less than the room to compute in.
"""

from __future__ import annotations

from typing import Any, Sequence


class Pins:
    """pool: vLLM's BlockPool (touch, free_blocks, blocks), or None: nothing
    can be pinned. ranks: reports that end a job. limit: blocks."""

    def __init__(self, ranks: int, limit: int) -> None:
        self.ranks = ranks
        self.limit = limit
        self.blocks = 0
        self._pool: Any = None
        self._jobs: dict[int, list[Any]] = {}  # the pool's blocks
        self._left: dict[int, int] = {}

    def bind(self, pool: Any) -> None:
        self._pool = pool

    @property
    def room(self) -> int:
        """Blocks that may be pinned now."""
        if self._pool is None:
            return 0
        return max(0, self.limit - self.blocks)

    def __len__(self) -> int:
        return len(self._jobs)

    def holds(self, job: int) -> bool:
        """Are there pages pinned for a job?"""
        return job in self._jobs

    def add(self, job: int, pages: Sequence[int]) -> None:
        """Pin the pages for a job."""
        blocks = list(map(self._pool.blocks.__getitem__, pages))
        self._pool.touch(blocks)
        self._jobs[job] = blocks
        self._left[job] = self.ranks
        self.blocks += len(blocks)

    def done(self, job: int, reports: int) -> bool:
        """So many more ranks are done with a job: is it over?"""
        left = self._left.get(job)
        if left is None:
            return False
        left -= reports
        if left > 0:
            self._left[job] = left
            return False
        self.drop(job)
        return True

    def drop(self, job: int) -> None:
        """End a job, whoever is not done with it."""
        blocks = self._jobs.pop(job, None)
        self._left.pop(job, None)
        if blocks is None:
            return
        self.blocks -= len(blocks)
        # The last ones first, as vLLM does: the prefix is kept longest.
        self._pool.free_blocks(blocks[::-1])
