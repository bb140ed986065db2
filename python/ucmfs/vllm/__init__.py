# SPDX-License-Identifier: Apache-2.0
"""vLLM keeps its KV cache in ucmfs: UcmfsConnector; or UcmfsTier, below
UcmfsOffloadingConnector.

vLLM imports this package by the module path in its configuration, in processes
that only want a name from it. So nothing is loaded before a class is asked
for: neither vLLM nor libucm nor numpy.
"""

from __future__ import annotations

import importlib
from typing import Any

_CLASSES = {
    "UcmfsTier": "ucmfs.vllm.tier",
    "UcmfsConnector": "ucmfs.vllm.connector",
    "UcmfsBlendConnector": "ucmfs.vllm.blend_connector",
    "UcmfsOffloadingConnector": "ucmfs.vllm.offloading",
}

__all__ = list(_CLASSES)


def __getattr__(name: str) -> Any:
    module = _CLASSES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_CLASSES))
