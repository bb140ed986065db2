# SPDX-License-Identifier: Apache-2.0
"""Stores by name, as configurations of UCM's connectors name them.

A name stands for a module and a class that is imported when it is first asked
for. Ours are presets of Store and StoreV0 (ucmfs.presets); others are found
by a module path, or registered.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any, Mapping

from .errors import ConfigError

# What there is not, and why.
NO_MOONCAKE = ("Mooncake is not here: memory of a machine is a tier mem@SIZE "
               "of its mount, and what machines share is a directory that all "
               "of them mount")
REFUSED = {"UcmMooncakeStore": NO_MOONCAKE}

_PRESETS = ("UcmPipelineStore", "UcmPosixStore", "UcmNfsStore", "UcmPcStore",
            "UcmCacheStore", "UcmDs3fsStore", "UcmEmptyStore", "UcmFakeStore")


class UcmConnectorFactoryV1:
    """Stores with shards by index (ucmfs.Store)."""

    _registry: dict[str, tuple[str, str]] = {
        name: ("ucmfs.presets", name) for name in _PRESETS}

    @classmethod
    def names(cls) -> list:
        return sorted(cls._registry)

    @classmethod
    def register_connector(cls, name: str, module_path: str,
                           class_name: str) -> None:
        """Add a name. ConfigError: it is taken by something else."""
        place = (module_path, class_name)
        if cls._registry.setdefault(name, place) != place:
            raise ConfigError("ucm_connector_name", f"{name} is registered "
                              "already, for something else")

    @classmethod
    def create_connector(cls, connector_name: str, config: Mapping[str, Any],
                         module_path: str | None = None) -> Any:
        """The class's object for a ucm_connector_config. module_path: of a
        class of that name which is not registered. ConfigError: an unknown
        name, with those that are known."""
        place = (module_path, connector_name) if module_path \
            else cls._registry.get(connector_name)
        if place is None:
            raise unknown(connector_name, "ucm_connector_name", cls.names())
        try:
            kind = getattr(importlib.import_module(place[0]), place[1])
        except (ImportError, AttributeError) as error:
            raise ConfigError("ucm_connector_module_path",
                              f"{'.'.join(place)}: {error}") from error
        return kind(config)


class UcmConnectorFactory(UcmConnectorFactoryV1):
    """The older form: stores with offsets (ucmfs.StoreV0)."""

    _registry = {name: ("ucmfs.presets", f"{name}V0") for name in _PRESETS}


def unknown(name: object, key: str, names: Any) -> ConfigError:
    """For a name that is not registered."""
    if name in REFUSED:
        return ConfigError(key, f"{name} cannot be had: {REFUSED[name]}")
    near = difflib.get_close_matches(str(name), names, 1, 0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return ConfigError(key, f"{name!r} is unknown{hint}; there are "
                       f"{', '.join(names)}; others need "
                       "ucm_connector_module_path")


def check_name(name: object, key: str) -> None:
    """ConfigError: no store of that name."""
    names = UcmConnectorFactoryV1.names()
    if name not in names:
        raise unknown(name, key, names)
