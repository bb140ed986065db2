# SPDX-License-Identifier: Apache-2.0
"""Leases on what a request was told is there, until it has been loaded.

Both ways into vLLM take them: between answer and load the mount is not to
evict the blocks. The answer does not wait for that (ucmfs.lessee) and stands
without: what has gone meanwhile fails to load, as ever.
"""

from __future__ import annotations

from ..lessee import FOR_EVER, Lessee
from .place import Directories

_COUNTED = ("leased_blocks", "lease_refused_blocks", "lease_failures")


class Leases:
    """lease_ms: of one, as in Lessee; 0: none are taken."""

    def __init__(self, mount: str, lease_ms: int) -> None:
        self._lessee = Lessee(mount, lease_ms) \
            if lease_ms and not isinstance(mount, Directories) else None
        self._told = (0, 0, 0)
        self._news = False

    def hold(self, ids: bytes, space: str, seconds: float = FOR_EVER,
             ) -> list[int]:
        """Numbers for release(), if any."""
        if self._lessee is None or not ids:
            return []
        self._news = True
        return [self._lessee.hold(ids, space, seconds)]

    def release(self, holds: list[int]) -> None:
        """And empty the list."""
        if self._lessee is not None:
            for hold in holds:
                self._lessee.release(hold)
        holds.clear()

    def news(self) -> dict[str, int]:
        """What is to be added to the counters since the last time."""
        if self._lessee is None or not self._news:
            return {}
        stats = self._lessee.counted()
        self._news = stats.holds > 0
        now = stats.leased, stats.refused, stats.failed
        before, self._told = self._told, now
        if now == before:
            return {}
        return {name: new - old
                for name, new, old in zip(_COUNTED, now, before)}

    def close(self) -> None:
        if self._lessee is not None:
            self._lessee.close()
