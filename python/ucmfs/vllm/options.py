# SPDX-License-Identifier: Apache-2.0
"""The connector's configuration: kv_connector_extra_config, checked.

Unknown keys and values that cannot be right are refused by name. The
configuration of upstream UCM's connectors (UCM_CONFIG_FILE, ucm_connectors,
use_layerwise) is read as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Mapping, Union

from ..errors import ConfigError

log = logging.getLogger("ucmfs.vllm")

LOADS = ("async", "sync", "layerwise")
VERIFY = ("full", "header", "none")
LORA = ("skip", "name")
SEEDS = ("UCM_CONFIG_FILE", "ucm_connectors", "use_layerwise")
# vLLM's own keys in the same dict.
FOREIGN = ("kv_connector_module_path",)


@dataclass(frozen=True)
class Options:
    """mount: where ucmfs is mounted. space: a name to use instead of one
    that tells what it is for.

    load: "async", between steps; "sync", in the step that needs it;
    "layerwise", the same, layer by layer. save_decode: blocks of generated
    tokens too. verify: see ucm_load(3). deadline_ms: for a transfer, beside
    what its size allows it. min_benefit: see ucmfs.vllm.benefit.
    lookup_budget_us: of the scheduler's time for a request's lookup; what has
    not been looked up then counts as absent. save_budget: of the engine's
    blocks, how many may be pinned for saves. lora: what becomes of requests
    with an adapter: "skip", "name" (adapters of a name are the same for
    ever). tenant, epoch, weights, era: parts
    of the namespace, see ucmfs.vllm.fingerprint. debug_log: a line of JSON
    for each request: true, into the log; or the path of a file. layout: the
    KV cache layout to ask vLLM for. loader: options of ucmfs.Loader.
    """

    mount: str
    space: str = ""
    load: str = "async"
    save_decode: bool = False
    verify: str = "full"
    deadline_ms: int = 10000
    min_benefit: Mapping[str, Any] = field(default_factory=dict)
    lookup_budget_us: int = 1000
    save_budget: float = 0.1
    lora: str = "skip"
    tenant: str = ""
    epoch: str = ""
    weights: str = ""
    era: str = ""
    debug_log: Union[bool, str] = False
    layout: str = "auto"
    loader: Mapping[str, Any] = field(default_factory=dict)


_CHOICES = {"load": LOADS, "verify": VERIFY, "lora": LORA}
_NUMBERS = ("deadline_ms", "lookup_budget_us")
_TEXTS = ("mount", "space", "tenant", "epoch", "weights", "era", "layout")
_LOADER = ("io", "threads", "staging_bytes", "window_bytes", "read_bytes",
           "open_files", "save_budget_bytes")
_BENEFIT = {"enabled": bool, "bytes_per_second": (int, float),
            "tokens_per_second": (int, float)}


def options_of(extra: Mapping[str, Any], *,
               check_paths: bool = True) -> Options:
    """From kv_connector_extra_config; ConfigError names the key.

    check_paths: look whether what upstream's keys name are mounts. Without, no
    file system is asked and the mount may be missing.
    """
    given = {k: v for k, v in extra.items() if k not in FOREIGN}
    if any(key in given for key in SEEDS):
        given = _from_seeds(given, check_paths)
    for key in given:
        if key not in _KEYS:
            raise ConfigError(key, "no such key of the connector; it has "
                              + ", ".join(sorted(_KEYS)))
    if check_paths and not given.get("mount"):
        raise ConfigError("mount", "where ucmfs is mounted is needed")
    for key, value in given.items():
        _check(key, value)
    return Options(**{"mount": "", **given})


_KEYS = {f.name for f in fields(Options)}


def _check(key: str, value: Any) -> None:
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ConfigError(key, f"{value!r} is none of "
                          + ", ".join(_CHOICES[key]))
    if key in _NUMBERS and (type(value) is not int or value < 0):
        raise ConfigError(key, f"{value!r} is no number from 0 on")
    if key in _TEXTS and not isinstance(value, str):
        raise ConfigError(key, f"{value!r} is no text")
    if key == "save_decode" and not isinstance(value, bool):
        raise ConfigError(key, f"{value!r} is neither true nor false")
    if key == "debug_log" and not isinstance(value, (bool, str)):
        raise ConfigError(key, f"{value!r} is neither true, false nor a path")
    if key == "save_budget" and not (
            isinstance(value, (int, float)) and 0 <= value <= 1):
        raise ConfigError(key, f"{value!r} is not between 0 and 1")
    if key == "min_benefit":
        _check_benefit(value)
    if key == "loader":
        _check_loader(value)


def _check_benefit(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError("min_benefit", f"{value!r} is no mapping")
    for key, one in value.items():
        if key not in _BENEFIT:
            raise ConfigError(f"min_benefit.{key}", "no such key; there are "
                              + ", ".join(_BENEFIT))
        if not isinstance(one, _BENEFIT[key]) or one < 0:
            raise ConfigError(f"min_benefit.{key}", f"{one!r} cannot be")


def _check_loader(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError("loader", f"{value!r} is no mapping")
    for key in value:
        if key not in _LOADER:
            raise ConfigError(f"loader.{key}", "no such key; there are "
                              + ", ".join(_LOADER))


def _from_seeds(given: Mapping[str, Any],
                check_paths: bool) -> Dict[str, Any]:
    """The same with upstream's keys replaced by ours; ours win."""
    from ..config import validate_config

    ours = {k: v for k, v in given.items() if k in _KEYS}
    seeds = {k: v for k, v in given.items() if k not in _KEYS}
    if set(seeds) == {"use_layerwise"} and "mount" in ours:
        seeds["mount"] = ours["mount"]  # all that is said of a store
    config = validate_config(seeds, check_paths=check_paths)
    if config.module_path is not None:
        raise ConfigError("ucm_connector_module_path", "the connector keeps "
                          "blocks in ucmfs, and in no other store")
    if check_paths and not config.mount and not ours.get("mount"):
        raise ConfigError("storage_backends", "the connector needs a mount of "
                          "ucmfs; directories alone have no index")
    if not config.engine_options.get("prefix_cache", True):
        raise ConfigError("enable_prefix_cache", "false: leave "
                          "--kv-transfer-config away instead")
    theirs: Dict[str, Any] = {k: v for k, v in config.store_options.items()
                              if k in _KEYS}
    theirs["loader"] = {k: v for k, v in config.loader_options.items()
                        if k in _LOADER}
    if isinstance(ours.get("loader"), Mapping):
        ours["loader"] = {**theirs["loader"], **ours["loader"]}
    if config.mount:
        theirs["mount"] = config.mount
    if config.engine_options.get("layerwise"):
        theirs["load"] = "layerwise"
    return _with_notes({**theirs, **ours}, config)


def _with_notes(options: Dict[str, Any], config: Any) -> Dict[str, Any]:
    for note in config.notes:
        log.info("ucmfs: %s", note)
    if "hash" in config.engine_options:
        log.info("ucmfs: hash_method: no effect: blocks are called after "
                 "vLLM's own hashes")
    if config.tiers:
        log.info("ucmfs: storage_backends %s: no effect: the mount %s is used",
                 ":".join(config.tiers), options.get("mount"))
    for name in sorted({*config.loader_options} - {*_LOADER}
                       | {*config.store_options} - _KEYS):
        log.info("ucmfs: %s: no effect: the engine's tensors decide", name)
    return options
