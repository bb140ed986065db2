# SPDX-License-Identifier: Apache-2.0
"""What a vLLM knows of ucmfs without a configuration: the entry point
"ucmfs" of vllm.general_plugins.

Every process of an engine calls register(), before there is a configuration.
So it leaves names alone, which are looked up when a configuration asks:

  tier       {"type": "ucmfs"} is UcmfsTier
  connector  those of CONNECTORS need no kv_connector_module_path
  attention  on a CPU, a backend's name leads to this module, where
             __getattr__() answers with ours if the configuration of the
             engine whose layers are being made has sparse_type, and with
             vLLM's own class otherwise

vLLM 0.31 and 0.32 have the hooks. Where a version lacks one, a line says
which, and the engine runs as if ucmfs were not installed. Nothing is raised,
and neither libucm nor ucmfs.vllm.sparse is loaded.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Mapping

log = logging.getLogger("vllm.ucmfs")

TIER = "ucmfs"
CONNECTORS = ("UcmfsConnector", "UcmfsBlendConnector",
              "UcmfsOffloadingConnector")
ATTENTION = "CPU_ATTN"
# Backends of a CPU: ours, and those that are refused by name.
BACKENDS = (ATTENTION, "CPU_MLA", "AMX_MLA")
# Beside sparse_type: where the blocks of a prompt are until they are chosen.
RETRIEVAL = "retrieval"
# UCM's keys of sparse attention, beside ours.
UCMS = ("sparse", "ucm_sparse_method", "ucm_sparse_config")


def register() -> dict[str, str]:
    """Called by vLLM, any number of times. What cannot be had, and why, for
    ucm doctor."""
    lacking: dict[str, str] = {}
    for what, hook in (("the tier \"ucmfs\"", _register_tier),
                       ("connectors by name", _register_connectors),
                       ("sparse attention", _register_backends)):
        try:
            hook()
        except Exception as error:  # whatever it is, vLLM runs without it
            log.info("ucmfs: vLLM %s lacks a hook, so %s cannot be had: %s",
                     _version(), what, error)
            lacking[what] = str(error)
    return lacking


def _version() -> str:
    import vllm

    return str(getattr(vllm, "__version__", "of no version"))


def _register_tier() -> None:
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    if TIER not in getattr(SecondaryTierFactory, "_registry", ()):
        SecondaryTierFactory.register_tier(TIER, "ucmfs.vllm.tier",
                                           "UcmfsTier")


def _register_connectors() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import (
        KVConnectorFactory)

    for name in CONNECTORS:
        if name not in getattr(KVConnectorFactory, "_registry", ()):
            KVConnectorFactory.register_connector(name, "ucmfs.vllm", name)


def _register_backends() -> None:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.attention.backends.registry import (
        AttentionBackendEnum, register_backend)

    for name in BACKENDS:
        backend = AttentionBackendEnum.__members__.get(name)
        if backend is not None and not backend.is_overridden():
            register_backend(backend, f"{__name__}.{name}")


def __getattr__(name: str) -> Any:
    """A backend, by the configuration that is being built."""
    if name not in BACKENDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.config import get_current_vllm_config_or_none
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    wanted = asked(get_current_vllm_config_or_none())
    if wanted is not None and name == ATTENTION:
        from .sparse import CpuBackend

        return CpuBackend
    if wanted is not None:
        log.warning("ucmfs: sparse_type %s: no effect: %s is MLA, which stays "
                    "dense", wanted["sparse_type"], name)
    return resolve_obj_by_qualname(AttentionBackendEnum[name].value)


def _ours(given: Mapping[str, Any]) -> dict[str, Any]:
    """sparse_type, and beside it RETRIEVAL and dictionaries under methods'
    names. (Blend is no attention.)"""
    from .._lib import METHODS

    return {key: given[key] for key in given if given.get("sparse_type")
            and (key in ("sparse_type", RETRIEVAL)
                 or (key in METHODS and key != "Blend"))}


def split(wanted: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Of asked(): the method's keys, and whether blocks stay in the store
    until they are chosen."""
    from ..config import checked, one_of

    method = dict(wanted)
    where = checked(one_of("memory", "storage"), RETRIEVAL,
                    method.pop(RETRIEVAL, "memory"))
    return method, where == "storage"


def rest_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """A connector's configuration without what it says of sparse attention."""
    drop = {*UCMS, *_ours(extra)}
    return {key: extra[key] for key in extra if key not in drop}


def asked(vllm_config: Any) -> dict[str, Any] | None:
    """What an engine's configuration says of sparse attention: in its
    connector's extra configuration, or under "ucmfs" in its additional one,
    which an engine without a connector has too. Both come along to all
    workers, which a variable of the environment need not. None: nothing.
    ConfigError: it names a file of UCM's that cannot be read."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    more = getattr(vllm_config, "additional_config", None)
    for place in (getattr(transfer, "kv_connector_extra_config", None),
                  more.get("ucmfs") if isinstance(more, Mapping) else None):
        found = _said(place) if isinstance(place, Mapping) else None
        if found:
            return found
    return None


def _said(place: Mapping[str, Any]) -> dict[str, Any] | None:
    from .._lib import METHODS
    from ..config import content, mapping_of

    given = content(place)
    if given.get("sparse_type"):
        return _ours(given)
    section, theirs = (mapping_of(key, given.get(key) or {})
                       for key in ("sparse", "ucm_sparse_config"))
    if section.get("enabled", True) and section.get("type"):
        return {"sparse_type": section["type"],
                section["type"]: section.get("config") or {}}
    named = [name for name in METHODS if name in theirs]
    name = given.get("ucm_sparse_method") or theirs.get("sparse_type") \
        or "/".join(named)
    return {"sparse_type": name, **{key: theirs[key] for key in named
                                    if key == name}} if name else None


def warn_if_dense(vllm_config: Any) -> None:
    """Of a worker that has its layers."""
    wanted = asked(vllm_config)
    if wanted is not None and f"{__package__}.sparse" not in sys.modules:
        log.warning("ucmfs: sparse_type %s: no effect: no layer has the "
                    "attention of a CPU by the entry point ucmfs of "
                    "vllm.general_plugins", wanted["sparse_type"])
