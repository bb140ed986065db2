# SPDX-License-Identifier: Apache-2.0
"""The scheduler's hold on a mount: an index and a hasher for each space.

The mount may go at any time. Then lookups miss, and a thread of its own tries
to get it back, at most once a second, so that nothing that hangs there holds
the scheduler.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ..errors import UcmfsError

log = logging.getLogger("ucmfs.vllm")

RETRY_SECONDS = 1.0


class Space(NamedTuple):
    """A space and what it is for."""

    name: str
    manifest: Dict[str, Any]


class Question:
    """Something that a thread finds out."""

    def __init__(self, find: Callable[[], Any], now: float) -> None:
        self._find = find
        self.asked = now
        self.done = threading.Event()
        self.answer: Any = None
        self.error: Optional[Exception] = None

    def find(self) -> None:
        try:
            self.answer = self._find()
        except Exception as error:  # told to whoever asked
            self.error = error
        self.done.set()


class Asker:
    """A thread that questions go to, one after the other."""

    def __init__(self) -> None:
        self._questions: "queue.SimpleQueue[Optional[Question]]" = \
            queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True,
                         name="ucmfs-lookup").start()

    def ask(self, find: Callable[[], Any], now: float = 0.0) -> Question:
        question = Question(find, now)
        self._questions.put(question)
        return question

    def end(self) -> None:
        self._questions.put(None)

    def _run(self) -> None:
        while True:
            question = self._questions.get()
            if question is None:
                return
            question.find()


class Open:
    """Spaces that are open: of each its name, id, index and hasher.

    asker: None where the index is mapped and answers from memory. Else a
    lookup is a call to the daemon, which may hang: only the asker's thread
    may use the indexes.
    """

    def __init__(self, mount: str, spaces: List[Space], ranks: int) -> None:
        from ..hash import Hasher
        from ..index import Index
        from ..namespace import ensure_space

        self.names = [space.name for space in spaces]
        self.ids: List[bytes] = []
        self.hashers: List[Any] = []
        self.indexes: List[Any] = []
        self.asker: Optional[Asker] = None
        try:
            for name, manifest in spaces:
                space_id = ensure_space(mount, name, manifest)
                self.ids.append(space_id)
                self.hashers.append(Hasher(
                    "external", space_id=space_id, world_size=ranks,
                    block_size=manifest["geometry"]["block_size"]))
                self.indexes.append(Index(mount, name))
            if any(i.info()["backend"] != "map" for i in self.indexes):
                self.asker = Asker()
        except BaseException:
            self.close()
            raise

    @property
    def told(self) -> List[Tuple[str, bytes]]:
        """What workers need to know: names and ids."""
        return list(zip(self.names, self.ids))

    def close(self) -> None:
        if self.asker is not None:
            self.asker.ask(self._close_indexes)
            self.asker.end()
        else:
            self._close_indexes()

    def _close_indexes(self) -> None:
        for index in self.indexes:
            index.close()


class Link:
    """open() connects or raises; afterwards now is what is open, or None.
    One thread at a time."""

    def __init__(self, mount: str, ranks: int,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._mount = mount
        self._ranks = ranks
        self._clock = clock
        self._spaces: List[Space] = []
        self._open: Optional[Open] = None
        self._tried = -RETRY_SECONDS
        self._attempt: Optional[_Attempt] = None
        self.losses = 0

    def open(self, spaces: List[Space]) -> None:
        self._spaces = spaces
        self._open = Open(self._mount, spaces, self._ranks)

    @property
    def now(self) -> Optional[Open]:
        """What is open. If nothing is, one attempt is under way."""
        if self._open is None:
            self._retry()
        return self._open

    def lost(self, error: BaseException) -> None:
        """What was open is of no use any more."""
        if self._open is None:
            return
        log.warning("ucmfs: %s: %s; going on without it", self._mount, error)
        self.losses += 1
        self._leave()

    def move(self, spaces: List[Space], timeout: float) -> bool:
        """Leave the spaces for others: False if these are not open by then,
        which goes on being tried."""
        self._leave()
        self._spaces = spaces
        if self._attempt is not None:
            self._attempt.give_up()
            self._attempt = None
        self._tried = -RETRY_SECONDS
        end = time.monotonic() + timeout
        while self.now is None and time.monotonic() < end:
            if self._attempt is None:
                time.sleep(0.01)
            else:
                self._attempt.thread.join(max(0.0, end - time.monotonic()))
        return self._open is not None

    def _leave(self) -> None:
        """In a thread, as to close a file may hang as well."""
        if self._open is not None:
            threading.Thread(target=self._open.close, daemon=True,
                             name="ucmfs-close").start()
            self._open = None

    def _retry(self) -> None:
        if self._attempt is not None:
            if self._attempt.thread.is_alive():
                return
            attempt, self._attempt = self._attempt, None
            if attempt.result is not None:
                log.info("ucmfs: %s is there again", self._mount)
                self._open = attempt.result
                return
        if self._clock() - self._tried < RETRY_SECONDS:
            return
        self._tried = self._clock()
        self._attempt = _Attempt(self._mount, self._spaces, self._ranks)

    def close(self) -> None:
        if self._attempt is not None:
            self._attempt.give_up()
        self._leave()


class _Attempt:
    """To open, in a thread."""

    def __init__(self, mount: str, spaces: List[Space], ranks: int) -> None:
        self.result: Optional[Open] = None
        self._args = (mount, spaces, ranks)
        self._lock = threading.Lock()
        self._unwanted = False
        self.thread = threading.Thread(target=self._run, daemon=True,
                                       name="ucmfs-reopen")
        self.thread.start()

    def _run(self) -> None:
        try:
            result = Open(*self._args)
        except (UcmfsError, OSError) as error:
            log.debug("ucmfs: %s: %s", self._args[0], error)
            return
        with self._lock:
            if not self._unwanted:
                self.result = result
                return
        result.close()

    def give_up(self) -> None:
        """Nobody wants what it opens."""
        with self._lock:
            self._unwanted = True
            result, self.result = self.result, None
        if result is not None:
            result.close()
