# SPDX-License-Identifier: Apache-2.0
"""Which blocks are an engine's, from its start over resets of its cache.

vLLM resets a cache when it sleeps, pauses, releases memory, or is told to: the
weights may be others afterwards, or not. Nothing is found or saved until that
is known. They are looked at when the first request needs it, not at the reset:
between the two they are changed, and nothing runs. The same is done once after
the start, as some trainers start an engine with no weights at all and hand
them over before its first request.

Weights as at the start have the usual spaces, others have spaces of their own
that say so ("weights": "tensors:..."), which an engine with the same ones
shares. If nobody can say, or the operator wants it (reset: epoch), each reset
makes a private epoch, of which nobody else knows; its spaces are to be removed
by whoever leaves them.

The manifest is made once, when the engine starts. Later only what has changed
is replaced: the model's files may be others by then, or gone, and say nothing
of what the engine computes with.
"""

from __future__ import annotations

import uuid
from typing import Any, Callable, NamedTuple

from .fingerprint import FULL
from .mount import log

TENSORS = "tensors:"


class Epoch(NamedTuple):
    """Parts of the namespace; private: nobody else has them."""

    epoch: str
    weights: str
    private: bool = False


class Epochs:
    """options: epoch, weights and reset. weigh: see Engine.weigh."""

    def __init__(self, options: Any, weigh: Callable[[bool], str]) -> None:
        self.usual = self.now = Epoch(options.epoch, options.weights)
        self._always = options.reset == "epoch"
        self._weigh = lambda: weigh(options.weights == FULL)
        self._first = self._weigh()
        self._was_reset = False
        self.unsure = True

    def reset(self) -> None:
        self.unsure = self._was_reset = True

    def settle(self) -> bool:
        """What it is now; True: it is another one than before."""
        before, was_reset = self.now, self._was_reset
        self.unsure = self._was_reset = False
        self.now = self._find(was_reset)
        return self.now != before

    def in_force(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest of the start, as it is now."""
        if self.now == self.usual:
            return manifest
        out = {**manifest, "epoch": self.now.epoch}
        if self.now.weights == self.usual.weights:
            return out
        if "model" in out:
            out["model"] = {**out["model"], "weights": self.now.weights}
        else:  # a namespace that was declared
            out["weights"] = self.now.weights
        return out

    def _find(self, was_reset: bool) -> Epoch:
        if was_reset and self._always:
            return self._private()
        digest = self._weigh()
        if digest and digest == self._first:
            return self.usual
        if digest and (self._first or was_reset):
            log.info("ucmfs: the weights are not those of the start")
            return Epoch(self.usual.epoch, TENSORS + digest)
        if not was_reset and not self._first:
            return self.now  # as ever: nobody could say at the start, either
        log.warning("ucmfs: the weights cannot be looked at, and may be "
                    "others since the cache was reset: nothing that is stored "
                    "is used, and what is stored now is of use to nobody else")
        return self._private()

    def _private(self) -> Epoch:
        return Epoch(f"{self.usual.epoch}+{uuid.uuid4().hex}",
                     self.usual.weights, True)
