# SPDX-License-Identifier: Apache-2.0
"""Whether loading beats computing.

A load costs its bytes at the bandwidth seen so far, and about two steps until
the request is looked at again; computing costs the tokens at the rate seen so
far. Rates are exponential averages. Nothing is skipped before both have been
measured often enough, or when the last measurement is old: then a load is the
way to learn.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Callable

SAMPLES = 8       # measurements before anything is skipped
FRESH = 30.0      # seconds that a bandwidth counts
TOKENS = 64       # a step of fewer is no prefill


class Rate:
    """An average of amounts by seconds; recent ones weigh more."""

    def __init__(self, given: float = 0.0, weight: float = 0.2) -> None:
        self.value = given
        self.given = given > 0
        self.samples = 0
        self.at = 0.0
        self._weight = weight

    def add(self, amount: float, seconds: float, now: float) -> None:
        if amount <= 0 or seconds <= 0:
            return
        self.samples += 1
        self.at = now
        if not self.given:
            rate = amount / seconds
            self.value += (rate - self.value) * (
                1.0 if self.samples == 1 else self._weight)

    def known(self) -> bool:
        return self.given or self.samples >= SAMPLES


class Benefit:
    """The rule. enabled: else everything is loaded: what a step takes tells
    the cost of computing only on a machine that does nothing else.
    bytes_per_second, tokens_per_second: instead of measured ones, where above
    0."""

    def __init__(self, enabled: bool = False, bytes_per_second: float = 0.0,
                 tokens_per_second: float = 0.0,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.enabled = enabled
        self.bandwidth = Rate(bytes_per_second)
        self.prefill = Rate(tokens_per_second)
        self.step = Rate()
        self._clock = clock
        self._begun: deque[tuple[int, float, int]] = deque(maxlen=16)
        self._ended = 0.0

    def begin_step(self, step: int, tokens: int) -> None:
        """step counts up. Those without tokens tell nothing."""
        if tokens:
            self._begun.append((step, self._clock(), tokens))

    def end_step(self, step: int) -> None:
        """The output of a step that has begun is there."""
        while self._begun and self._begun[0][0] < step:
            self._begun.popleft()
        if not self._begun or self._begun[0][0] != step:
            return
        _, begun, tokens = self._begun.popleft()
        now = self._clock()
        # Steps overlap where the scheduler runs ahead.
        took = now - max(begun, self._ended)
        self._ended = now
        self.step.add(1.0, took, now)
        if tokens >= TOKENS:
            self.prefill.add(tokens, took, now)

    def loaded(self, num_bytes: int, seconds: float) -> None:
        self.bandwidth.add(num_bytes, seconds, self._clock())

    def worth(self, num_bytes: int, tokens: int) -> bool:
        """Whether a load is to be preferred to computing."""
        if not self.enabled:
            return True
        bandwidth, prefill = self.bandwidth, self.prefill
        if not (bandwidth.known() and prefill.known()):
            return True
        if not bandwidth.given and self._clock() - bandwidth.at > FRESH:
            return True
        step = 1.0 / self.step.value if self.step.value else 0.0
        return (num_bytes / bandwidth.value + 2 * step
                <= tokens / prefill.value)
