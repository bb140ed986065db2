# SPDX-License-Identifier: Apache-2.0
"""The options of both ways into vLLM: one spelling, default and check each.

doc/engines.md has the table for users. Unknown names and values that cannot
be right are refused by name. Of upstream UCM's connectors the configuration
is read as well, where one of the keys SEEDS is there; see ucmfs.config.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import Any, Callable, ClassVar, Mapping, Sequence, TypeVar

from ..config import (NO_MOUNT, REMOVED, TOP_KEYS, Config, check_bool,
                      check_count, checked, one_of, unknown, validate_config)
from ..errors import ConfigError
from .mount import log
from .plugin import rest_of

SEEDS = ("UCM_CONFIG_FILE", "ucm_config_path", "ucm_connectors",
         "use_layerwise", "storage", "storage_backends", "storage_path",
         "nfs_path", "store_pipeline", "pipeline")
PLACES = ("mount", "socket", "tiers")  # one of them says where blocks are
# What somebody might try, and what it is called.
_MEANT = {
    "loader": "its options stand beside the others: io, threads, "
              "staging_bytes, open_files, write_buffer_bytes, budget",
    "save_budget": "pinned_share is a share of the engine's blocks",
    **REMOVED,
    "inflight": "leave it out; the setting inflight of the mount bounds "
                "each loader",
    "timeout_ms": "deadline_ms is meant",
    "use_lite": TOP_KEYS["use_lite"].why,
    "timeout": "deadline_ms is meant, in milliseconds",
}


# ---- kinds of values ----

def _text(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("a text is needed")
    return os.fspath(value)


def _name(value: Any) -> str:
    """Of what may well be a number: epoch 2."""
    return str(value) if type(value) is int else _text(value)


def _paths(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(map(_text, value))
    return _text(value)


def _share(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1 is needed")
    return value


def _rate(value: Any) -> float:
    if type(value) not in (int, float) or value < 0:
        raise ValueError("a number, 0 or above, is needed")
    return value


def _bool_or_path(value: Any) -> bool | str:
    if not isinstance(value, (bool, str)):
        raise ValueError("true, false or a path is needed")
    return value


def _bool_or_auto(value: Any) -> bool | str:
    if not isinstance(value, bool) and value != "auto":
        raise ValueError("true, false or \"auto\" is needed")
    return value


def _option(default: Any, check: Callable[[Any], Any], **more: Any) -> Any:
    return field(default=default, metadata={"check": check}, **more)


# ---- the options ----

@dataclass(frozen=True)
class Options:
    """Of both ways.

    Where blocks are, one of: mount, where ucmfs is mounted; socket, a path
    that its daemon listens on; tiers, directories, as in SOURCE of ucmfs(8):
    if no daemon has them, the engine starts a private one. parse() makes all
    of them mount, which for tiers is "tiers=SOURCE". on_missing: what becomes
    of an engine that starts while they are not there: "run", without them
    until they are; "fail".
    space: a name of the blocks' space, instead
    of one that says what it is for. verify: what a load checks, see
    ucm_load(3). deadline_ms: of a transfer, beside what its size allows it;
    0: none. tenant, epoch, weights, era: parts of the namespace, see
    ucmfs.vllm.fingerprint. reset: what a reset of the engine's cache does to
    the blocks: "keep", as long as the weights are the same; "epoch", they are
    left behind. lora: what becomes of requests with an adapter: "digest", they
    have blocks of their own for each; "skip"; "name" (adapters of a name are
    the same for ever). Those from io on are the loader's, see ucm_load(3).
    """

    # vLLM's own keys in the same place
    FOREIGN: ClassVar[Sequence[str]] = ()

    mount: str = _option("", _text)
    socket: str = _option("", _text)
    tiers: str | tuple[str, ...] = _option("", _paths)
    on_missing: str = _option("run", one_of("run", "fail"))
    space: str = _option("", _text)
    verify: str = _option(
        "always", one_of("always", "once", "header", "none", "full"))
    deadline_ms: int = _option(10_000, check_count)
    tenant: str = _option("", _name)
    epoch: str = _option("", _name)
    weights: str = _option("", _name)
    era: str = _option("", _name)
    reset: str = _option("keep", one_of("keep", "epoch"))
    lora: str = _option("digest", one_of("digest", "skip", "name"))
    io: str = _option("auto", one_of("auto", "uring", "threads"))
    threads: int = _option(0, check_count)
    staging_bytes: int = _option(0, check_count)
    open_files: int = _option(0, check_count)
    write_buffer_bytes: int = _option(0, check_count)
    budget: int = _option(0, check_count)

    @property
    def loader(self) -> dict[str, Any]:
        """What ucmfs.Loader is given."""
        return {name: getattr(self, name) for name in LOADER}


LOADER = ("io", "threads", "staging_bytes", "open_files",
          "write_buffer_bytes", "budget")


@dataclass(frozen=True)
class TierOptions(Options):
    """Of UcmfsTier.

    direct: read into the slots themselves, which are pinned for
    it: less of the processor's time (see "Reading into pages" in
    ucm_load(3)); "auto": if they lie in huge pages, or can be made to.
    namespace: stands for all of the
    engine in the namespace. enable_kv_events: report blocks that are stored,
    if vLLM publishes events; locality: of these.
    """

    FOREIGN = ("type", "module_path", "backpressure")

    direct: bool | str = _option("auto", _bool_or_auto)
    namespace: str = _option("", _text)
    enable_kv_events: bool = _option(False, check_bool)
    locality: str = _option("", one_of("", "LOCAL", "REMOTE"))


_BENEFIT = {"enabled": check_bool, "bytes_per_second": _rate,
            "tokens_per_second": _rate}


def _benefit(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping is needed")
    for key, one in value.items():
        if key not in _BENEFIT:
            raise unknown(f"min_benefit.{key}", key, _BENEFIT)
        checked(_BENEFIT[key], f"min_benefit.{key}", one)
    return value


@dataclass(frozen=True)
class ConnectorOptions(Options):
    """Of UcmfsConnector.

    load: "async", between steps; "sync", in the step that needs it;
    "layerwise", the same, layer by layer. save_decode: blocks of generated
    tokens too. persist_token_threshold: shorter prompts are neither loaded nor
    saved. load_tokens_threshold: a hit of no more tokens is computed, not
    loaded. min_benefit: see ucmfs.vllm.benefit. lookup_budget_us: of the
    scheduler's time for a request's lookup; what has not been looked up then
    counts as absent. pinned_share: of the engine's blocks, how many may be
    pinned for saves. debug_log: a line of JSON for each request: true, into
    the log; or the path of a file. layout: the KV cache layout to ask vLLM
    for.
    """

    FOREIGN = ("kv_connector_module_path",)

    load: str = _option("async", one_of("async", "sync", "layerwise"))
    save_decode: bool = _option(False, check_bool)
    persist_token_threshold: int = _option(0, check_count)
    load_tokens_threshold: int = _option(0, check_count)
    min_benefit: Mapping[str, Any] = field(
        default_factory=dict, metadata={"check": _benefit})
    lookup_budget_us: int = _option(1000, check_count)
    pinned_share: float = _option(0.1, _share)
    debug_log: bool | str = _option(False, _bool_or_path)
    layout: str = _option("auto", _text)


# ---- reading ----

Some = TypeVar("Some", bound=Options)


def parse(kind: type[Some], given: Mapping[str, Any],
          need_mount: bool = True) -> Some:
    """Options from what vLLM was given; ConfigError names the key that is
    wrong. None: as if it were not there."""
    checks = {f.name: f.metadata["check"] for f in fields(kind)}
    for key in given:
        if key not in checks and key not in kind.FOREIGN:
            if key in _MEANT:
                raise ConfigError(key, f"unknown; {_MEANT[key]}")
            raise unknown(key, key, checks)
    named = [key for key in PLACES if given.get(key)]
    if len(named) > 1:
        raise ConfigError(named[1], f"{named[0]} is given as well; one of "
                          "mount, socket and tiers says where blocks are")
    if need_mount and not named:
        raise ConfigError("mount", "one of these is needed: mount, a mount "
                          "point of ucmfs; socket, of its daemon; tiers, "
                          "directories")
    options = kind(**{key: checked(checks[key], key, value)
                      for key, value in given.items()
                      if key in checks and value is not None})
    if options.tiers:
        tiers = options.tiers if isinstance(options.tiers, str) \
            else ":".join(options.tiers)
        return replace(options, mount="tiers=" + tiers, tiers="")
    return replace(options, mount=options.mount or options.socket, socket="")


def connector_options(extra: Mapping[str, Any], *, check_paths: bool = True,
                      kind: type[ConnectorOptions] = ConnectorOptions,
                      ) -> ConnectorOptions:
    """From kv_connector_extra_config, of a kind.

    check_paths: look whether what upstream's keys name are mounts, or may be
    tiers. Without, no file system is asked and both may be missing. Keys of
    sparse attention are not the connector's.
    """
    extra = rest_of(extra)
    if any(key in extra for key in SEEDS):
        extra = _from_seeds(extra, check_paths, kind)
    return parse(kind, extra, check_paths)


def _from_seeds(given: Mapping[str, Any], check_paths: bool,
                kind: type[ConnectorOptions]) -> dict[str, Any]:
    """The same with upstream's keys replaced by ours; ours win."""
    known = {f.name for f in fields(kind)}
    ours = {k: v for k, v in given.items() if k in known and v is not None}
    seeds = {k: v for k, v in given.items() if k not in known
             and k not in ConnectorOptions.FOREIGN}
    if set(seeds) == {"use_layerwise"} and ours.keys() & set(PLACES):
        layerwise = checked(check_bool, *seeds.popitem())
        return {**({"load": "layerwise"} if layerwise else {}), **ours}
    config = validate_config(seeds, check_paths=check_paths)
    if config.module_path is not None:
        raise ConfigError("ucm_connector_module_path", "the connector keeps "
                          "blocks in ucmfs, and in no other store")
    if config.measuring is not None:
        raise ConfigError("store_pipeline", f"{config.measuring} keeps no "
                          "data, and the connector keeps blocks in ucmfs")
    if not config.engine_options.get("prefix_cache", True):
        raise ConfigError("enable_prefix_cache", "false: leave "
                          "--kv-transfer-config away instead")
    theirs = {**config.store_options, **config.loader_options,
              **{name: value for name, value in config.engine_options.items()
                 if name in known}}
    theirs.update(_place_of(config, ours, check_paths))
    if config.engine_options.get("layerwise"):
        theirs["load"] = "layerwise"
    for note in config.notes:
        log.info("ucmfs: %s", note)
    if "hash" in config.engine_options:
        log.info("ucmfs: hash_method: no effect: blocks are called after "
                 "vLLM's own hashes")
    for name in sorted(set(theirs) - known):
        log.info("ucmfs: %s: no effect: the engine's tensors decide", name)
        del theirs[name]
    return {**theirs, **ours}


def _place_of(config: Config, ours: Mapping[str, Any],
              check_paths: bool) -> dict[str, Any]:
    """Where upstream's keys say that blocks are, unless ours do."""
    paths = config.mount or ":".join(config.tiers)
    for key in PLACES:
        if ours.get(key):
            log.info("ucmfs: storage_backends %s: no effect: %s %s is used",
                     paths, key, ours[key])
            return {}
    if config.mount:
        return {"mount": config.mount}
    if check_paths:
        log.warning("ucmfs: %s: %s", paths, NO_MOUNT)
    return {"tiers": tuple(config.tiers)}
