# SPDX-License-Identifier: Apache-2.0
"""Keeps blocks of LLM KV cache in ucmfs: what libucm does, for Python.

    import ucmfs

    geometry = ucmfs.Geometry(num_layers=32, block_size=16, dtype="float16",
                              k_bytes=32768, v_bytes=32768, num_kv_heads=8,
                              head_dim=128)
    layout = ucmfs.regions_of(kv_caches, geometry, dims="PBNHD")
    with ucmfs.Loader("/mnt/kv") as loader:
        group = loader.add_group(layout)
        group.save(ids, pages).wait()
        group.load(ids, pages).wait()

Nothing but the standard library is imported, and libucm is loaded when it is
first used. Its manual pages ucm_load(3), ucm_shards(3), ucm_index(3),
ucm_blocks(3) and ucm_hash(3) say what is promised; the docstrings here, what
Python adds.

Modules that are imported by their names: ucmfs.adapter; and ucmfs.sparse,
codes, star, position, attention, retrieve, retrieval, methods, sparse_base,
repr_space and repr_load, for sparse retrieval.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .errors import (BlockDamaged, Busy, Cancelled, ConfigError, Dropped,
                     InvalidArgument, LibraryMissing, NamespaceMismatch,
                     NoSpace, NotConnected, NotFound, Timeout, UcmfsError)

if TYPE_CHECKING:
    from .blocks import Blocks, Place
    from .config import validate_config
    from .hash import Hasher, HashState, Item, crc32c
    from .index import Entry, Index
    from .layout import Geometry, Layout, Raw, Region, regions_of
    from .loader import Group, Loader
    from .namespace import canonical, default_name, ensure_space, space_id
    from .store import Store, StoreV0
    from .task import Completions, Outcome, Task, TaskType

# What is imported when it is first asked for, and from where.
_LAZY = {
    "Geometry": "layout", "Layout": "layout", "Raw": "layout",
    "Region": "layout", "regions_of": "layout",
    "Loader": "loader", "Group": "loader",
    "Task": "task", "Outcome": "task", "Completions": "task",
    "TaskType": "task",
    "Blocks": "blocks", "Place": "blocks",
    "Index": "index", "Entry": "index",
    "Hasher": "hash", "HashState": "hash", "Item": "hash", "crc32c": "hash",
    "canonical": "namespace", "space_id": "namespace",
    "ensure_space": "namespace", "default_name": "namespace",
    "Store": "store", "StoreV0": "store",
    "validate_config": "config",
}

__all__ = [
    "__version__", "UcmfsError", "NotFound", "NotConnected", "Timeout",
    "BlockDamaged", "NoSpace", "Dropped", "Cancelled", "Busy",
    "InvalidArgument", "LibraryMissing", "ConfigError", "NamespaceMismatch",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
