# SPDX-License-Identifier: Apache-2.0
"""The engine around a scheduler's half or a tier: its workers, its requests.

vLLM hands neither of them its executor or its scheduler, but both live in the
same process, and are found among its objects: while they are made, as vLLM
hides all that has been made from the collector later (gc.freeze). What is
called here is what vLLM calls itself, between steps. It is to be called from
the same thread: an executor has one queue of messages, and no lock.
"""

from __future__ import annotations

import gc
import hashlib
import sys
import weakref
from typing import Any, Callable, Sequence

from .mount import log
from .shares import Share, share_of
from .weights import digest_of_adapter, digest_of_model

_EXECUTOR = ("vllm.v1.executor.abstract", "Executor")
_SCHEDULER = ("vllm.v1.core.sched.scheduler", "Scheduler")


class Engine:
    """config: the VllmConfig, or None: the only engine of the process."""

    def __init__(self, config: Any = None) -> None:
        self._config = config
        self._executor, self._scheduler = _found(
            (_EXECUTOR, _SCHEDULER), config)

    # ---- workers ----

    def weigh(self, whole: bool) -> str:
        """A digest of all workers' weights, as they are now; "": nobody can
        say."""
        return self._digest(digest_of_model, whole)

    def adapter(self, lora: Any) -> str:
        """A digest of an adapter as the workers have it; the same for "". """
        return self._digest(digest_of_adapter, lora, same=True)

    def shares(self) -> list[Share | None]:
        """Of each rank; none: nobody can say."""
        return self._ask(share_of)

    def _digest(self, function: Callable[..., str], *args: Any,
                same: bool = False) -> str:
        """Of what all workers say. same: it must be the same."""
        found = self._ask(function, *args)
        if not found or not all(found):
            return ""
        if same:
            return found[0] if len(set(found)) == 1 else ""
        return hashlib.sha256(" ".join(found).encode()).hexdigest()

    def _ask(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        executor = self._executor and self._executor()
        if executor is None:
            return []
        try:
            return executor.collective_rpc(function, args=args)
        except Exception as error:  # of any kind of executor
            log.warning("ucmfs: the workers cannot be asked: %s", error)
            return []

    # ---- requests ----

    @property
    def has_adapters(self) -> bool:
        """Requests may name some."""
        config = self._config or getattr(
            self._executor and self._executor(), "vllm_config", None)
        return getattr(config, "lora_config", None) is not None

    def request(self, name: str) -> Any:
        """One that the engine has, or None."""
        scheduler = self._scheduler and self._scheduler()
        return scheduler and scheduler.requests.get(name)

    def computed(self) -> list[str]:
        """Names of the requests that have KV."""
        scheduler = self._scheduler and self._scheduler()
        return [name for name, one in scheduler.requests.items()
                if one.num_computed_tokens] if scheduler else []


def _found(kinds: Sequence[tuple[str, str]], config: Any) -> list[Any]:
    """A reference to the object of each class that an engine of this
    configuration has, or None. Of a module that nobody has imported there is
    none."""
    classes = [getattr(sys.modules.get(module), name, None)
               for module, name in kinds]
    wanted = tuple(each for each in classes if each is not None)
    # type(): isinstance() may run code of objects that only pretend
    found = [each for each in gc.get_objects()
             if issubclass(type(each), wanted)] if wanted else []
    return [_only([each for each in found if kind and isinstance(each, kind)],
                  config) for kind in classes]


def _only(found: list[Any], config: Any) -> Any:
    mine = [each for each in found if _is_of(each, config)]
    if config is None:
        mine = found
    return weakref.ref(mine[0]) if len(mine) == 1 else None


def _is_of(each: Any, config: Any) -> bool:
    """Configurations may be copied, with the same parts in them."""
    theirs = getattr(each, "vllm_config", None)
    return theirs is not None and config is not None and (
        theirs is config or getattr(theirs, "model_config", None)
        is getattr(config, "model_config", theirs))
