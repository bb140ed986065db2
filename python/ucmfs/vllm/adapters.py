# SPDX-License-Identifier: Apache-2.0
"""Which adapter (LoRA) a request's blocks were computed with.

vLLM's block hashes have an adapter's name and path. What lies there may be
another one after a training, so a digest of the adapter goes into the ids. Not
of its files: what an engine computes with is what it has in memory, whatever
has become of the files since. The workers are asked (see weights.py) when a
request is looked up, and again before its blocks are saved.

The engine's own prefix cache has the name and path alone, too. Once there were
two adapters of one name and path, nobody knows of which its blocks are, so
requests with it are left out until that cache is reset.

An answer holds as long as the engine does nothing else in between: for one
step's look-ups, and for the saves that go with them or that its outputs bring.
All requests of an adapter cost one question then.
"""

from __future__ import annotations

from typing import Any, Callable

from .mount import log

NONE = b""  # no adapter


def _key(lora: Any, late: bool) -> tuple[Any, ...]:
    return (late, getattr(lora, "lora_int_id", 0), lora.lora_name,
            lora.lora_path)


class Adapters:
    """mode: the option lora. ask: see Engine.adapter."""

    def __init__(self, mode: str, ask: Callable[[Any], str]) -> None:
        self._mode = mode
        self._ask = ask
        self._seen: dict[tuple[str, str], str] = {}
        self._told: set[tuple[str, str]] = set()
        self._known: dict[tuple[Any, ...], str] = {}  # of this step

    def reset(self) -> None:
        """The engine's own cache is empty."""
        self._seen.clear()
        self.end_step()

    def end_step(self) -> None:
        """Adapters may be others from now on."""
        self._known.clear()

    def digest_of(self, lora: Any, late: bool = False) -> bytes | None:
        """What goes into the ids of a request with this adapter (a
        LoRARequest, or None); None: it is left out. late: asked when the step
        has run, which is the next one's to end."""
        if lora is None or self._mode == "name":
            return NONE
        if self._mode == "skip":
            return None
        name = lora.lora_name, lora.lora_path
        if getattr(lora, "load_inplace", False):
            return self._leave_out(name, "it is loaded again at each step")
        digest = self._ask_once(lora, late)
        if not digest:
            return self._leave_out(name, "the workers cannot say what it is")
        if self._seen.setdefault(name, digest) != digest:
            self._seen[name] = "several"
            return self._leave_out(
                name, "it is another one than before, and the engine's own "
                "cache may have blocks of both until it is reset")
        return bytes.fromhex(digest)

    def keep(self, known: Any, lora: Any, late: bool = False) -> bool:
        """Whether a request is kept: what it is computed with is known, and
        the same as before. known: its .adapter (None: not asked yet) and
        .left_out are set."""
        if not known.left_out:
            now = self.digest_of(lora, late)
            if known.adapter is None:
                known.adapter = now
            known.left_out = now is None or now != known.adapter
        return not known.left_out

    def knows(self, lora: Any, late: bool = False) -> bool:
        """Whether nobody has to be asked for that."""
        return (lora is None or self._mode in ("name", "skip")
                or _key(lora, late) in self._known)

    def _ask_once(self, lora: Any, late: bool) -> str:
        key = _key(lora, late)
        if key not in self._known:
            self._known[key] = self._ask(lora)
        return self._known[key]

    def _leave_out(self, name: tuple[str, str], why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            log.warning("ucmfs: requests with the adapter %s of %s are left "
                        "out: %s", *name, why)
