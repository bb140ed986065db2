# SPDX-License-Identifier: Apache-2.0
"""UCM's names of stores, on ucmfs.

Each takes a ucm_connector_config (ucmfs.config says what of it counts), with
tensor_size at least, as UCM's own do. What they had of their own (layouts on
disk, pools of threads, shared memory) is not here: all of them keep blocks of
the one format, and find each other's.
"""

from __future__ import annotations

import logging
from typing import Any, Mapping

from .config import NO_MOUNT, Config, validate_config
from .errors import ConfigError
from .measuring import EmptyStore, EmptyStoreV0, FakeStore, FakeStoreV0
from .store import Store, StoreV0

log = logging.getLogger("ucmfs")

# UCM's stores give up after so long, if not told otherwise.
TIMEOUT_MS = 30000


def arguments_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of Store(), for a ucm_connector_config; ConfigError."""
    found = validate_config(config)
    if found.measuring is not None:
        raise ConfigError("pipeline", f"{found.measuring} is a store of its "
                          "own, and this one is another")
    return _options_of(found)


def _open_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same for a store that is opened now."""
    arguments = arguments_of(config)
    if "tiers" in arguments:
        log.info("ucmfs: %s: %s", ":".join(arguments["tiers"]), NO_MOUNT)
    return arguments


def _options_of(found: Config) -> dict[str, Any]:
    if "tensor_size" not in found.store_options:
        why = [note for note in found.notes if "_size" in note]
        raise ConfigError("tensor_size", why[0] if why else "it is missing")
    place: dict[str, Any] = {"mount": found.mount}
    if found.measuring is not None:
        place = {"unique_id": found.connector_config.get("unique_id")}
    elif found.mount is None:
        place = {"tiers": found.tiers}
    return {"deadline_ms": TIMEOUT_MS, **found.loader_options,
            **found.store_options, **place}


class _V1(Store):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(may_refuse=True, **_open_arguments(config))


class _V0(StoreV0):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(may_refuse=True, **_open_arguments(config))


def _pretending(config: Mapping[str, Any], kinds: Mapping[str, Any],
                kind: str | None = None) -> Any:
    """What an Empty or a Fake stands for; None: neither is asked for. kind:
    the store's name says so itself."""
    named = {} if kind is None else {"pipeline": kind}
    found = validate_config({**config, **named})
    if found.measuring is None:
        return None
    return kinds[found.measuring](**_options_of(found))


_KINDS = {"Empty": EmptyStore, "Fake": FakeStore}
_KINDS_V0 = {"Empty": EmptyStoreV0, "Fake": FakeStoreV0}


def UcmEmptyStore(config: Mapping[str, Any]) -> EmptyStore:
    """Keeps nothing; see ucmfs.measuring."""
    return _pretending(config, _KINDS, "Empty")


def UcmFakeStore(config: Mapping[str, Any]) -> FakeStore:
    """Moves no bytes; see ucmfs.measuring."""
    return _pretending(config, _KINDS, "Fake")


def UcmEmptyStoreV0(config: Mapping[str, Any]) -> EmptyStoreV0:
    """UcmEmptyStore, by offsets."""
    return _pretending(config, _KINDS_V0, "Empty")


def UcmFakeStoreV0(config: Mapping[str, Any]) -> FakeStoreV0:
    """UcmFakeStore, by offsets."""
    return _pretending(config, _KINDS_V0, "Fake")


class UcmPipelineStore(_V1):
    """"Cache|Posix" and the like: the stages are the mount's tiers. "Empty"
    and "Fake" make a store of theirs."""

    def __new__(cls, config: Mapping[str, Any]) -> Any:
        return _pretending(config, _KINDS) or super().__new__(cls)


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

    def __new__(cls, config: Mapping[str, Any]) -> Any:
        return _pretending(config, _KINDS_V0) or super().__new__(cls)


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
