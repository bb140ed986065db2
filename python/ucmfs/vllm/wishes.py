# SPDX-License-Identifier: Apache-2.0
"""What a request asks for, beside its tokens: in its kv_transfer_params,

    {"ucmfs": {"load": false, "save": false, "pin": true, "report": true,
               "wait": {"tokens": 4096, "space": "NAME", "seconds": 2}}}

Parameters that cannot be understood are a warning, and the request is treated
as if it had none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping

KEY = "ucmfs"
WAIT_SECONDS, WAIT_MOST = 5.0, 60.0


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
    may wait for."""

    load: bool = True
    save: bool = True
    pin: bool = False
    report: bool = False
    wait: Wait | None = None


USUAL = Wishes()


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
        elif not isinstance(value, bool):
            teller.warn("kv_transfer_params", "%s.%s is %r: true or false is "
                        "needed", KEY, name, value)
        else:
            good[name] = value
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
