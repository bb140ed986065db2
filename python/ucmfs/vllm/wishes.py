# SPDX-License-Identifier: Apache-2.0
"""What a request asks for, beside its tokens: in its kv_transfer_params,

    {"ucmfs": {"load": false, "save": false, "pin": true}}

Whoever cannot be understood gets what everybody gets, and a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping

KEY = "ucmfs"


@dataclass(frozen=True)
class Wishes:
    """load: what the store has of it is loaded. save: its blocks are saved.
    pin: those that are there when it has ended are not evicted until somebody
    unpins them (ucm pin --off)."""

    load: bool = True
    save: bool = True
    pin: bool = False


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
        elif not isinstance(value, bool):
            teller.warn("kv_transfer_params", "%s.%s is %r: true or false is "
                        "needed", KEY, name, value)
        else:
            good[name] = value
    return Wishes(**good)
