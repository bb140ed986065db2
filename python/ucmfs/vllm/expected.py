# SPDX-License-Identifier: Apache-2.0
"""Reports to a mount which blocks are about to be loaded: those that a request
has found. Between answer and load the mount evicts others first.

A hint, by a thread that no caller waits for; what cannot be reported soon is
left out. What has gone all the same fails to load, as ever.
"""

from __future__ import annotations

import queue
import threading

from ..blocks import Blocks
from ..errors import UcmfsError
from .mount import apart, log

AGAIN_SECONDS = 10.0  # a request that waits is reported again; the mount
                      # forgets after 20
MOST = 256            # lists that wait to be reported
END_SECONDS = 1.0


class Expected:
    def __init__(self, mount: str) -> None:
        self._mount = mount
        self._todo: queue.Queue[tuple[bytes, str] | None] = queue.Queue(MOST)
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(self, ids: bytes, space: str) -> None:
        """ids: one after another, head first."""
        if self._ended or not ids or not self._put((ids, space)):
            return
        if self._thread is None:
            self._thread = apart("ucmfs-expected", self._run)

    def _put(self, each: tuple[bytes, str] | None) -> bool:
        try:
            self._todo.put_nowait(each)
        except queue.Full:
            return False
        return True

    def _run(self) -> None:
        blocks: Blocks | None = None
        while (each := self._todo.get()) is not None and not self._ended:
            try:
                blocks = blocks or Blocks(self._mount)
                blocks.touch(*each, expected=True)
            except UcmfsError as error:
                log.debug("ucmfs: expected blocks of %s: unreported: %s",
                          each[1], error)
                if blocks is not None:
                    blocks.close()
                blocks = None
        if blocks is not None:
            blocks.close()

    def close(self) -> None:
        """What is not reported yet is left out."""
        self._ended = True
        self._put(None)  # one that is full wakes the thread anyway
        if self._thread is not None:
            self._thread.join(END_SECONDS)
