# SPDX-License-Identifier: Apache-2.0
"""UCM's names of stores, on ucmfs.

Each takes a ucm_connector_config (ucmfs.config says what of it counts), with
tensor_size at least, as UCM's own do. What they had of their own (layouts on
disk, pools of threads, shared memory) is not here: all of them keep blocks of
the one format, and find each other's.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from .config import validate_config
from .errors import ConfigError
from .store import Store, StoreV0

# UCM's stores give up after so long, if not told otherwise.
TIMEOUT_MS = 30000


def arguments_of(config: Mapping[str, Any]) -> Dict[str, Any]:
    """Of Store(), for a ucm_connector_config; ConfigError."""
    found = validate_config(config)
    if "tensor_size" not in found.store_options:
        why = [note for note in found.notes if "_size" in note]
        raise ConfigError("tensor_size", why[0] if why else "it is missing")
    place: Dict[str, Any] = {"mount": found.mount}
    if found.mount is None:
        place = {"tiers": found.tiers}
    return {"deadline_ms": TIMEOUT_MS, **found.loader_options,
            **found.store_options, **place}


class _V1(Store):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(**arguments_of(config))


class _V0(StoreV0):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(**arguments_of(config))


class UcmPipelineStore(_V1):
    """"Cache|Posix" and the like: the stages are the mount's tiers."""


class UcmPosixStore(_V1):
    """A mount, or directories of a local file system."""


class UcmNfsStore(_V1):
    """A mount over a network's directory, or that directory."""


class UcmPcStore(_V1):
    """What UcmNfsStore stands for in UCM: here the same."""


class UcmCacheStore(_V1):
    """A cache in front of a backend: here the backend."""


class UcmDs3fsStore(_V1):
    """3FS, where it is mounted."""


class UcmPipelineStoreV0(_V0):
    """UcmPipelineStore, by offsets."""


class UcmPosixStoreV0(_V0):
    """UcmPosixStore, by offsets."""


class UcmNfsStoreV0(_V0):
    """UcmNfsStore, by offsets."""


class UcmPcStoreV0(_V0):
    """UcmPcStore, by offsets."""


class UcmCacheStoreV0(_V0):
    """UcmCacheStore, by offsets."""


class UcmDs3fsStoreV0(_V0):
    """UcmDs3fsStore, by offsets."""
