# SPDX-License-Identifier: Apache-2.0
"""Requests of which blocks are to be decided about, now or later.

A step costs what may have changed in it, not what is scheduled. Who has
decided about all blocks that are complete sleeps as many steps as the next
block takes at the request's pace: the tokens that it gets in a step, one where
nothing is guessed. A step that gives it more wakes it. Such steps are known by
their sum, which is above a token for each, and those who get more are looked
for from the end on, where new ones stand, and only until the sum is made up.
Whoever else changes a request wakes it.

A request is in one of three places: awake (it is looked at in each step that
it is scheduled in), asleep until a step, or not here. wakes may name requests
that have been woken or have ended since; asleep says what holds.
"""

from __future__ import annotations

from typing import Mapping


class Undecided:
    def __init__(self) -> None:
        self._awake: dict[str, None] = {}  # in order
        # Until which step, and at which pace.
        self._asleep: dict[str, tuple[int, int]] = {}
        self._wakes: dict[int, list[str]] = {}  # by step
        self._step = 0  # those up to here have woken

    def __contains__(self, request: str) -> bool:
        return request in self._awake or request in self._asleep

    def __len__(self) -> int:
        return len(self._awake) + len(self._asleep)

    def wake(self, request: str) -> None:
        """It is looked at, new or not."""
        self._asleep.pop(request, None)
        self._awake[request] = None

    def rouse(self, request: str) -> None:
        """Wake it if it is asleep."""
        if self._asleep.pop(request, None) is not None:
            self._awake[request] = None

    def sleep(self, request: str, missing: int, pace: int) -> None:
        """After the step that was asked about last: it has nothing to decide
        before it has got so many tokens, and gets no more than pace in a step
        without being woken."""
        steps = -(-missing // pace)
        if steps <= 1:
            return
        self._awake.pop(request, None)
        self._asleep[request] = self._step + steps, pace
        self._wakes.setdefault(self._step + steps, []).append(request)

    def drop(self, request: str) -> None:
        self._awake.pop(request, None)
        self._asleep.pop(request, None)

    def due(self, step: int, scheduled: Mapping[str, int],
            total: int) -> list[str]:
        """Those to look at in a step; to be asked in each. scheduled: tokens
        of each request in it; total: of all."""
        while self._wakes and self._step < step:
            self._step += 1
            for request in self._wakes.pop(self._step, ()):
                if self._asleep.get(request, (0, 0))[0] == self._step:
                    self.rouse(request)
        self._step = step
        if self._asleep and total > len(scheduled):
            self._rouse_fast(scheduled, total - len(scheduled))
        if len(self._awake) < len(scheduled):
            return [each for each in self._awake if each in scheduled]
        return [each for each in scheduled if each in self._awake]

    def _rouse_fast(self, scheduled: Mapping[str, int], beyond: int) -> None:
        """Those that get more than they are used to. beyond: tokens that are
        more than one for each."""
        for request in reversed(scheduled):
            tokens = scheduled[request]
            if tokens > 1:
                if self._asleep.get(request, (0, tokens))[1] < tokens:
                    self.rouse(request)
                beyond -= tokens - 1
                if beyond <= 0:
                    return
