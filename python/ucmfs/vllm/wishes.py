# SPDX-License-Identifier: Apache-2.0
"""What a request asks for, beside its tokens: in its kv_transfer_params,

    {"ucmfs": {"load": false, "save": false, "pin": true, "report": true,
               "wait": {"tokens": 4096, "space": "NAME", "seconds": 2},
               "prefetch": true, "ttl": 600, "session": "NAME", "end": true,
               "priority": 1}}

Parameters that cannot be understood are a warning, and the request is treated
as if it had none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, NamedTuple

KEY = "ucmfs"
WAIT_SECONDS, WAIT_MOST = 5.0, 60.0
TTL_MOST = 3600.0


@dataclass(frozen=True)
class Wait:
    """For blocks that another engine saves: those of the first tokens, under
    the names of this space. seconds: from when the engine has the request."""

    tokens: int
    space: str
    seconds: float = WAIT_SECONDS


@dataclass(frozen=True)
class Wishes:
    """load: what the store has of it is loaded. save: its blocks are saved.
    pin: those that are there when it has ended are not evicted until somebody
    unpins them (ucm pin --off). report: the answer says what another engine
    may wait for. prefetch: what the store has of it is copied to the fastest
    tier while it waits. ttl: seconds, from its end, in which other blocks are
    evicted first. end: the session ends with it, and its blocks are evicted
    first. session: for people; the last request of one has all its blocks.
    priority: below 0 is end, above 0 the longest ttl, unless given."""

    load: bool = True
    save: bool = True
    pin: bool = False
    report: bool = False
    wait: Wait | None = None
    prefetch: bool = False
    ttl: float = 0.0
    end: bool = False
    session: str = ""
    priority: int = 0

    @property
    def of_blocks(self) -> bool:
        """Is something to be done with its blocks when it has ended?"""
        return self.pin or self.end or self.ttl > 0


USUAL = Wishes()


class _Needed(NamedTuple):
    good: Callable[[Any], bool]
    what: str


_BOOL = _Needed(lambda value: isinstance(value, bool), "true or false")
_NEEDS = {
    "ttl": _Needed(lambda value: type(value) in (int, float)
                   and 0 <= value <= TTL_MOST, f"0 to {TTL_MOST:g} seconds"),
    "session": _Needed(lambda value: isinstance(value, str), "a string"),
    "priority": _Needed(lambda value: type(value) is int, "a whole number"),
}


def wishes_of(params: Any, teller: Any) -> Wishes:
    """Of a request's kv_transfer_params, or None. teller: see mount.Teller."""
    if params is None:  # nearly always; the rest costs a while
        return USUAL
    given = params.get(KEY) if isinstance(params, Mapping) else None
    if given is None:
        return USUAL
    if not isinstance(given, Mapping):
        teller.warn("kv_transfer_params", "%s is %r: a mapping is needed",
                    KEY, given)
        return USUAL
    known = {field.name for field in fields(Wishes)}
    good = {}
    for name, value in given.items():
        if name not in known:
            teller.warn("kv_transfer_params", "%s.%s: not known; %s are", KEY,
                        name, ", ".join(sorted(known)))
        elif name == "wait":
            good[name] = _wait_of(value, teller)
        elif _NEEDS.get(name, _BOOL).good(value):
            good[name] = value
        else:
            teller.warn("kv_transfer_params", "%s.%s is %r: %s is needed", KEY,
                        name, value, _NEEDS.get(name, _BOOL).what)
    priority = good.get("priority", 0)
    if priority > 0:
        good.setdefault("ttl", TTL_MOST)
    elif priority < 0:
        good.setdefault("end", True)
    return Wishes(**good)


def _wait_of(given: Any, teller: Any) -> Wait | None:
    types: dict[str, Any] = {"tokens": int, "space": str,
                             "seconds": (int, float)}
    if isinstance(given, Mapping) \
            and {"tokens", "space"} <= set(given) <= set(types) \
            and all(isinstance(value, types[name])
                    and not isinstance(value, bool)
                    for name, value in given.items()) \
            and 0 <= given.get("seconds", 0) <= WAIT_MOST:
        return Wait(**given)
    teller.warn("kv_transfer_params", '%s.wait is %r: {"tokens": N, "space": '
                'NAME} is needed; "seconds" may be up to %g', KEY, given,
                WAIT_MOST)
    return None
