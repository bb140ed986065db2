# SPDX-License-Identifier: Apache-2.0
"""Reports to a mount which blocks are about to be loaded: those that a request
has found. Between answer and load the mount evicts others first.

A hint, by a thread that no caller waits for; what cannot be reported soon is
left out. What has gone all the same fails to load, as ever.
"""

from __future__ import annotations

from ..blocks import Blocks
from ..errors import UcmfsError
from .mount import Chores, log

AGAIN_SECONDS = 10.0  # a request that waits is reported again; the mount
                      # forgets after 20
MOST = 256            # lists that wait to be reported


class Expected:
    def __init__(self, mount: str) -> None:
        self._mount = mount
        self._chores = Chores("ucmfs-expected", MOST)
        self._blocks: Blocks | None = None
        self._ended = False

    def add(self, ids: bytes, space: str) -> None:
        """ids: one after another, head first."""
        if ids:
            self._chores.add(lambda: self._report(ids, space))

    def _report(self, ids: bytes, space: str) -> None:
        if self._ended:
            return
        try:
            self._blocks = self._blocks or Blocks(self._mount)
            self._blocks.touch(ids, space, expected=True)
        except UcmfsError as error:
            log.debug("ucmfs: expected blocks of %s: unreported: %s", space,
                      error)
            self._disconnect()

    def _disconnect(self) -> None:
        if self._blocks is not None:
            self._blocks.close()
        self._blocks = None

    def close(self) -> None:
        """What is not reported yet is left out."""
        self._ended = True
        if self._chores.end():
            self._disconnect()
