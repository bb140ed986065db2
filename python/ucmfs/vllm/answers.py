# SPDX-License-Identifier: Apache-2.0
"""Answers for a scheduler that must not wait, where a look-up has to.

Where the index is not mapped a look asks the daemon, which may take its time,
or hang. So a thread looks, and the scheduler is told what is known. A block is

  unknown  the thread has been told to look; the caller asks again
  fresh    for FRESH_SECONDS after the look, the answer
  stale    until KEPT_SECONDS, still the answer, and looked for again: others
           may have saved the block, or removed it
  (and then forgotten: unknown)

What is stale is no reason to wait, or who looks for many blocks of a slow
daemon would never have all answers at once. A block that has gone is a load
that fails, and never a wrong byte; learn() has that from whoever loads, as it
has what this process saves, so that both are known at once.

Where the oldest question has waited for longer than LATE seconds the thread
hangs, or has too much to do: until it is back, what is not known is absent,
and not asked for.

A look is an answer only for those ids that are still in _asked with the token
that they were asked with: what was learned meanwhile is newer. The lock guards
all of it, and no look is made under it. What is known is kept in two halves;
when the young one is full the old one is dropped, so that what is asked for
stays.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Callable, NamedTuple

from ..errors import UcmfsError
from .mount import Chores, log

ID = 16
FRESH_SECONDS = 5.0
KEPT_SECONDS = 60.0
LATE_SECONDS = 10.0
KNOWN_MOST = 200_000  # blocks, of 100 to 200 bytes
ASKED_MOST = 50_000
PIECE = 256           # blocks of one look

Look = Callable[[bytes], tuple[bytes, bytes]]


class _Answer(NamedTuple):
    """Of all blocks of a look; one object for those that are there, one for
    the others."""

    there: bool
    when: float


class _Question(NamedTuple):
    """Also the token of its ids."""

    when: float
    ids: list[bytes]


class Answers:
    """Stands for an index. look: lookup() of that, which may wait; it is
    called in the asker's thread. who: for the log."""

    def __init__(self, who: str, look: Look, asker: Chores,
                 late_seconds: float = LATE_SECONDS,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._who = who
        self._look = look
        self._asker = asker
        self._late_seconds = late_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._young: dict[bytes, _Answer] = {}
        self._old: dict[bytes, _Answer] = {}
        self._asked: dict[bytes, _Question] = {}
        self._questions: deque[_Question] = deque()  # the first is looked for
        self._looking = False  # a chore is to, or does
        self._ended = False
        self._was_late = False
        self._error: UcmfsError | None = None

    # ---- questions ----

    def lookup(self, ids: bytes) -> tuple[bytes, bytes]:
        """Of each block whether it is there, and whether nobody knows yet.
        Never waits. UcmfsError: of a look, since the last call."""
        now = self._clock()
        num = len(ids) // ID
        found, unknown = bytearray(num), bytearray(num)
        wanted: list[bytes] = []
        with self._lock:
            self._raise()
            late = self._is_late(now)
            may_ask = not late and len(self._asked) < ASKED_MOST
            for i in range(num):
                id = ids[i * ID:i * ID + ID]
                answer = self._young.get(id) or self._from_old(id)
                age = now - answer.when if answer else KEPT_SECONDS
                if answer and age < KEPT_SECONDS:
                    found[i] = answer.there
                else:
                    unknown[i] = may_ask or not late and id in self._asked
                if age >= FRESH_SECONDS and id not in self._asked:
                    wanted.append(id)
            if wanted and may_ask:
                self._ask(_Question(now, wanted))
        return bytes(found), bytes(unknown)

    def prefix(self, ids: bytes) -> tuple[int, bool]:
        """How many are there in a row, and whether nobody knows of the next
        one."""
        found, unknown = self.lookup(ids)
        count = (found + b"\0").index(0)
        return count, count < len(unknown) and bool(unknown[count])

    def learn(self, id: bytes, there: bool) -> None:
        """Somebody has found out otherwise."""
        with self._lock:
            self._asked.pop(id, None)
            self._keep(id, _Answer(there, self._clock()))

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _is_late(self, now: float) -> bool:
        late = bool(self._questions) and \
            now - self._questions[0].when > self._late_seconds
        if late and not self._was_late:
            log.warning("ucmfs: %s: look-ups have waited for %g s; what is "
                        "not known is a miss until there are answers",
                        self._who, self._late_seconds)
        self._was_late = late
        return late

    # ---- what is known ----

    def _from_old(self, id: bytes) -> _Answer | None:
        answer = self._old.pop(id, None)
        if answer is not None:
            self._keep(id, answer)
        return answer

    def _keep(self, id: bytes, answer: _Answer) -> None:
        self._young[id] = answer
        if len(self._young) >= KNOWN_MOST // 2:
            self._old, self._young = self._young, {}

    # ---- the thread ----

    def _ask(self, question: _Question) -> None:
        self._asked.update(dict.fromkeys(question.ids, question))
        self._questions.append(question)
        if not self._looking:
            self._looking = True
            self._asker.add(self._look_for_all)

    def _look_for_all(self) -> None:
        question = self._next()
        while question is not None:
            try:
                for at in range(0, len(question.ids), PIECE):
                    self._look_for(question, question.ids[at:at + PIECE])
            except UcmfsError as error:
                self._give_up(error)
            question = self._next(question)

    def _next(self, done: _Question | None = None) -> _Question | None:
        with self._lock:
            if done is not None and self._questions:
                self._questions.popleft()
            self._looking = bool(self._questions) and not self._ended
            return self._questions[0] if self._looking else None

    def _look_for(self, question: _Question, ids: list[bytes]) -> None:
        """Those that are still asked for. What a daemon does not know yet
        counts as absent."""
        if self._ended:
            return
        with self._lock:
            ids = [id for id in ids if self._asked.get(id) is question]
        when = self._clock()
        found = self._look(b"".join(ids))[0] if ids else b""
        answers = _Answer(False, when), _Answer(True, when)
        with self._lock:
            for id, there in zip(ids, found):
                if self._asked.get(id) is question:
                    del self._asked[id]
                    self._keep(id, answers[there])

    def _give_up(self, error: UcmfsError) -> None:
        with self._lock:
            self._error = error
            self._asked.clear()
            self._questions = deque(list(self._questions)[:1])

    def end(self) -> None:
        """Nobody asks any more; a look that hangs goes on."""
        self._ended = True
