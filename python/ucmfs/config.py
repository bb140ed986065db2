# SPDX-License-Identifier: Apache-2.0
"""Configurations of UCM's connectors, read for what they mean to ucmfs.

Every key that UCM's documents and stores know is in a table: it is mapped to
an option, or accepted and told to be without effect, with the reason, or
refused by name. A key that nobody knows is refused with the nearest one that
is known: an option that is misspelt must not be silently ignored.

UCM's documents write one thing in several ways: a file of ucm_connectors, the
same keys inline, maps of a stage each, a list of stages, sections `storage`,
`sparse` and `vllm`, or all of what vLLM is given. All of them are read.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Union

from ._lib import METHODS
from .errors import ConfigError
from .factory import NO_MOONCAKE, check_name

ENVIRONMENT = "UCM_CONFIG_FILE"
FILE_KEYS = (ENVIRONMENT, "ucm_config_path")
# Those that say where blocks are, which UCM also takes from there.
NOT_READ = ("UCM_STORAGE_PATH", "UCM_STORAGE_BACKEND")
DEFAULT_CONNECTOR = "UcmPipelineStore"

Source = Union[Mapping[str, Any], str, "os.PathLike[str]", None]


@dataclass
class Config:
    """What a configuration says.

    connector: the store's name, and module_path, where it is none of ours.
    Where blocks are: mount (or a daemon's socket), or else tiers; or
    measuring, "Empty" or "Fake", where none are kept (ucmfs.measuring).
    Options by who takes them: loader_options (Loader), store_options (Store),
    engine_options (the connector of an engine). notes: what was accepted and
    has no effect, and why; a line each. connector_config: as it was given, for
    other modules.
    """

    connector: str = DEFAULT_CONNECTOR
    module_path: str | None = None
    mount: str | None = None
    tiers: list[str] = field(default_factory=list)
    measuring: str | None = None
    loader_options: dict[str, Any] = field(default_factory=dict)
    store_options: dict[str, Any] = field(default_factory=dict)
    engine_options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    connector_config: dict[str, Any] = field(default_factory=dict)


# ---- kinds of values: each checks one, or raises ValueError ----

def check_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


def check_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number, 0 or above, is needed")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text is needed")
    return value


def _path(value: Any) -> str | os.PathLike[str]:
    return value if isinstance(value, os.PathLike) else _text(value)


def one_of(*names: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)} is needed")
        return value
    return check


def _io_engine(value: Any) -> str:
    engines = {"psync": "threads", "aio": "auto", "io_uring": "uring"}
    if not isinstance(value, str) or value not in engines:
        raise ValueError(f"one of {', '.join(engines)} is needed")
    return engines[value]


def _hash(value: Any) -> str:
    return {"md5": "ucm"}.get(value, value) if _text(value) else value


def checked(check: Callable[[Any], Any], key: str, value: Any) -> Any:
    """The value, or a ConfigError that names the key."""
    try:
        return check(value)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(key, f"{error}, not {value!r}") from None


def unknown(key: str, name: object, known: Iterable[str]) -> ConfigError:
    """For a name that is none of the known ones."""
    near = difflib.get_close_matches(str(name), list(known), 1, 0.5)
    return ConfigError(key, f"unknown; did you mean {near[0]}?" if near else
                       f"unknown; there are {', '.join(sorted(known))}")


# ---- what becomes of a key ----

class Map(NamedTuple):
    """It is an option of `part`."""

    part: str  # "loader", "store" or "engine"
    name: str
    check: Callable[[Any], Any]


class Note(NamedTuple):
    """It is accepted, and has no effect."""

    why: str


class Refuse(NamedTuple):
    why: str


class Off(NamedTuple):
    """It may be false, and is refused otherwise."""

    why: str


class Special(NamedTuple):
    """There is a function for it, below."""


Rule = Union[Map, Note, Refuse, Off, Special]

_EVICTION = Note("ucmfs has no collector in the connector: what a tier may "
                 "hold is its limit (option limit of ucmfs(8))")
_THREADS = Note("the loader has as many threads as there are CPUs; "
                "`threads` sets them")
_LOOKUPS = Note("look-ups read the index, without a request for each block")
_BUFFERS = Note("the loader's memory is set by `staging_bytes`")
_CACHE = Note("there is no cache in this process; it is a tier of the mount "
              "(mem@SIZE, or a pipeline in its configuration file); without a "
              "mount there is none")
_QUEUES = Note("requests queue without a limit; saves may wait with four "
               "times `staging_bytes`")
_3FS = Note("there is no client of 3FS here: its files are read through "
            "where it is mounted")
_BLEND = Refuse("UcmfsConnector reuses prefixes and nothing else; "
                "UcmfsBlendConnector reuses text anywhere in a prompt")
_SPARSE = Note("the store is the same with any; sparse attention under vLLM "
               "reads it, and ucmfs.methods")
_MOONCAKE = Refuse(NO_MOONCAKE)
_HEALTH = Note("always on: a transfer ends after deadline_ms, and after one "
               "that did everything is a miss for a while, longer each time; "
               "the daemon does so for each directory (option deadline of "
               "ucmfs(8))")
_COPIES = Note("the loader chooses how it copies")
_GROUPS = Note("the connector decides which blocks of a group are moved")
_LOSSY = "blocks are stored as they are; it would change them"
_NO_SERVICE = ("there is no client of it here: use a tier mem@SIZE, or a "
               "directory that all machines mount")
_PRETENDS = Refuse("it is of a connector that only pretends hits")
_SWITCHES = Note("these are vLLM's, and given to it: --kv-transfer-config, "
                 "--enable-prefix-caching")
_ENGINE_KNOWS = Note("the engine's own configuration says it")

# Options of the loader that are gone, and what to do instead.
REMOVED = {
    "window_bytes": "leave it out; the loader finds it by trying",
    "read_bytes": "leave it out; a read has 4 MiB at most",
    "save_budget_bytes": "give staging_bytes; saves may wait with four times "
                         "as many bytes",
}


def _all(rule: Rule, names: str) -> dict[str, Rule]:
    """The same rule for keys with blanks between."""
    return dict.fromkeys(names.split(), rule)


# Of ucm_connector_config; UCM's first, then ours.
CONNECTOR_KEYS: dict[str, Rule] = {
    **_all(Special(), "storage_backends backend store_pipeline pipeline "
           "tensor_size shard_size block_size device device_id"),
    "timeout_ms": Map("store", "deadline_ms", check_count),
    "posix_io_engine": Map("loader", "io", _io_engine),
    "io_direct": Note("the loader reads with O_DIRECT wherever the file "
                      "system can"),
    "storage_policy": Note("placement is the mount's, see "
                           "PLACEMENT in ucmfs(8)"),
    "data_dir_shard_bytes": Note("a space has 256 buckets"),
    "cpu_affinity_cores": Note("the loader's threads run where the process "
                               "may (taskset(1))"),
    **_all(_THREADS, "posix_data_trans_concurrency stream_number "
           "cache_stream_number posix_open_concurrency "
           "posix_commit_concurrency"),
    "posix_lookup_concurrency": _LOOKUPS,
    **_all(_EVICTION, "posix_capacity_gb posix_gc_enable "
           "posix_gc_trigger_threshold_ratio posix_gc_recycle_percent "
           "posix_gc_concurrency posix_gc_check_interval_sec "
           "posix_gc_shard_sample_ratio posix_gc_max_recycle_count_per_shard "
           "posix_gc_precise_mode posix_gc_candidate_extra_percent "
           "posix_gc_cross_instance_lock posix_gc_heartbeat_interval_sec "
           "posix_gc_stale_threshold_sec posix_gc_task_timeout_ms"),
    **_all(_HEALTH, "store_health health_check_interval_s "
           "health_check_timeout_s health_window_size passive_enabled "
           "passive_failure_threshold passive_window_s initial_cooldown_s "
           "max_cooldown_s backoff_factor"),
    **_all(_COPIES, "cache_io_aggregation cache_sdma_direct use_gdr"),
    "cache_load_backend_only": _CACHE,
    **_all(Refuse(_LOSSY), "compress_ratio decompress_thread_num"),
    **_all(Refuse(_NO_SERVICE), "yuanrong_host yuanrong_port"),
    "unique_id": Note("nothing is shared by name: the mount is what processes "
                      "share"),
    "share_buffer_enable": Note("blocks are shared through the mount"),
    **_all(_BUFFERS, "cache_buffer_capacity_gb cache_size buffer_number "
           "buffer_size enable_memory_pool "
           "cache_load_exclusive_buffer_number"),
    **_all(_QUEUES, "waiting_queue_depth running_queue_depth"),
    "local_rank_size": Note("ranks share blocks through the mount"),
    "scatter_gather_enable": Note("the loader always scatters and gathers"),
    "enable_event_sync": Note("a save begins when the engine's stream has "
                              "reached it"),
    **_all(_3FS, "ior_entries ior_depth numa_id"),
    "tensor_size_list": Refuse(
        "a store has tensors of one size; a layout (ucmfs.regions_of) or the "
        "engine's connector takes several"),
    "store_backend": Refuse("it is an address of a running process"),
    **_all(_MOONCAKE, "global_segment_size local_buffer_size protocol "
           "local_hostname metadata_server"),
    "buffer_pool": Refuse("pools of buffers cannot be handed in"),

    **_all(Special(), "storage_backend storage_path nfs_path"),
    "enable_distributed": Note("engines that use one mount, or mounts of one "
                               "shared directory, find each other's blocks"),
    **_all(Special(), "cache posix nfs pc ds3fs"),
    "gpu_memory_utilization": Refuse(
        "it is vLLM's: --gpu-memory-utilization"),
    "kv_cache_dtype": Refuse("it is vLLM's: --kv-cache-dtype"),
    "preallocate_kv_cache": Note("vLLM takes the memory of its KV cache at "
                                 "the start"),

    **_all(Special(), "mount socket tiers"),
    "space": Map("store", "space", _text),
    "verify": Map("store", "verify", one_of(
        "always", "once", "header", "none", "full")),
    **{name: Map("store", name, check_count)
       for name in ("deadline_ms", "num_layers")},
    "copy": Map("loader", "copy", one_of("host", "cuda")),
    "io": Map("loader", "io", one_of("auto", "uring", "threads")),
    **{name: Map("loader", name, check_count) for name in (
        "threads", "staging_bytes", "open_files")},
    **{name: Refuse(why) for name, why in REMOVED.items()},
}

# Beside ucm_connectors, or inline in kv_connector_extra_config.
TOP_KEYS: dict[str, Rule] = {
    **dict.fromkeys(FILE_KEYS, Special()),
    **_all(Special(),
           "ucm_connectors storage kv_connector kv_connector_extra_config"),
    **_all(_SWITCHES, "vllm kv_connector_module_path kv_role"),
    "use_layerwise": Map("engine", "layerwise", check_bool),
    "enable_prefix_cache": Map("engine", "prefix_cache", check_bool),
    "hash_method": Map("engine", "hash", _hash),
    "load_only_first_rank": Note("ranks that hold the same (MLA) share "
                                 "blocks, and no others"),
    "enable_event_sync": CONNECTOR_KEYS["enable_event_sync"],
    **{name: Map("engine", name, check_count) for name in (
        "persist_token_threshold", "load_tokens_threshold")},
    "use_request_async_load": Note("loads are asynchronous, but with "
                                   "use_layerwise"),
    "use_consistency_manager": Note("a block is there when all ranks have it"),
    **_all(_GROUPS, "wa_dump_block_wise hybrid_linear_attention_layerwise "
           "hybrid_layerwise_prefetch_rows"),
    "enable_record_traces": Note("ucm trace records what a mount is asked "
                                 "for"),
    "use_lite": Off("it keeps no data; record what a mount is asked for (ucm "
                    "trace), and ucm replay says what would be hit"),
    **_all(Note("metrics are those of the mount (.ucmfs/metrics) and of the "
                "engine"), "metrics_config_path enable_metrics"),
    "use_inference_duration_monitor": Off("the engine's metrics have times"),
    **_all(_SPARSE, "sparse ucm_sparse_method ucm_sparse_config sparse_type"),
    **{name: _BLEND if name == "Blend" else _SPARSE for name in METHODS},
    **_all(_PRETENDS, "hit_ratio inference_duration_monitor_fake_hit_ratio"),
    **_all(_ENGINE_KNOWS, "num_kv_heads head_dim rope_theta"),
    **_all(_BLEND, "blend_chunk_size min_match_ratio position_correction "
           "recompute_boundary"),
}

# One of these is needed, where no key of a store stands inline.
STORE_KEYS = ("ucm_connectors", "storage", "kv_connector_extra_config")

# Of an entry of ucm_connectors.
ENTRY_KEYS = ("ucm_connector_name", "ucm_connector_module_path",
              "ucm_connector_config")

PIPELINE_STAGES = {
    "Posix": None, "Nfs": None, "Pc": None, "Ds3fs": None, "Cache": None,
    "Empty": None, "Fake": None, "Mooncake": NO_MOONCAKE, "Compress": _LOSSY,
    **dict.fromkeys(("YuanRong", "Dram", "ASU", "Delegator"), _NO_SERVICE)}
# As a type, or a storage_backend.
KINDS = ("cache", "posix", "nfs", "pc", "ds3fs")
_ADDRESS = re.compile(r"[^/:]+:/")  # of a server's directory
_TIER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}=")  # in SOURCE of ucmfs(8)
# What a directory that becomes a tier may have in it: a file system's own, and
# what is left of a try that was interrupted.
_EMPTY = ("lost+found", ".ucmfs")
NO_MOUNT = "no mount of ucmfs: used by a private daemon, or one that has it"


# They keep no data, and are no part of a mount.
MEASURING = ("Empty", "Fake")


# ---- reading ----

def validate_config(source: Source = None, *,
                    check_paths: bool = True) -> Config:
    """Read a configuration, and say what it means here.

    source: a dict (the file's content, an engine's extra_config, inline or
    with UCM_CONFIG_FILE or ucm_config_path, or what that engine is given as a
    whole), a path (YAML, or JSON), or None: the path in $UCM_CONFIG_FILE.
    check_paths: look which paths are mounts of ucmfs, and whether the others
    are tiers or may become some; without, all but `mount` are taken for
    directories. ConfigError names the key.
    """
    reader = _Reader(check_paths)
    reader.top(content(source), "")
    reader.finish()
    return reader.out


def content(source: Source) -> Mapping[str, Any]:
    """What a source of validate_config() has, with its file's keys."""
    if source is None:
        source = os.environ.get(ENVIRONMENT)
        if not source:
            others = [f"${name}" for name in NOT_READ if os.environ.get(name)]
            raise ConfigError("", f"no configuration is given, and "
                              f"${ENVIRONMENT} is not set" + "".join(
                                  f"; {name} is not read" for name in others))
    if not isinstance(source, Mapping):
        return read_file(source)
    files = [key for key in FILE_KEYS if key in source]
    if len(files) > 1:
        raise ConfigError(files[1], f"{files[0]} names a file already")
    if files:
        rest = {k: v for k, v in source.items() if k not in files}
        path = checked(_path, files[0], source[files[0]])
        return {**read_file(path), **rest}
    return source


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A file of JSON or YAML; ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError, TypeError) as error:
        raise ConfigError("", f"configuration {path}: {error}") from None
    try:
        value = _parse(text)
    except ValueError as error:
        raise ConfigError("", f"configuration {path}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("", f"configuration {path}: no mapping of keys")
    return value


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if text.lstrip().startswith("{"):
            raise
    try:
        import yaml
    except ImportError:
        raise ValueError(
            "it is no JSON, and YAML needs PyYAML (python3-yaml, or "
            "pip install 'ucmfs[yaml]')") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


class _Reader:
    """One configuration; fills `out`."""

    def __init__(self, check_paths: bool) -> None:
        self.out = Config()
        self.check_paths = check_paths
        self.paths: list[tuple[str, str]] = []  # key, path
        self.sizes: dict[str, int] = {}
        self.stages: list[str] = []  # of the pipeline
        self.stage_maps: list[tuple[str, str]] = []  # key, stage

    # ---- levels ----

    def top(self, content: Mapping[str, Any], where: str) -> None:
        inline = {}
        for name, value in content.items():
            key = _under(where, name)
            if name in TOP_KEYS:
                self.apply(TOP_KEYS[name], key, name, value)
            elif name in CONNECTOR_KEYS:
                inline[name] = value
            else:
                raise unknown(key, name, [*TOP_KEYS, *CONNECTOR_KEYS])
        if inline and "ucm_connectors" in content:
            raise ConfigError(_under(where, next(iter(inline))),
                              "it belongs in ucm_connector_config")
        if inline:
            self.out.connector_config = dict(inline)
            self.store(inline, where)
        elif not any(name in content for name in STORE_KEYS):
            raise ConfigError(_under(where, "ucm_connectors"), "it is missing")

    def set_ucm_config_path(self, key: str, _value: Any) -> None:
        raise ConfigError(key, "a configuration file cannot name another one")

    set_UCM_CONFIG_FILE = set_ucm_config_path

    def set_kv_connector_extra_config(self, key: str, value: Any) -> None:
        """Of all that vLLM is given, the part that is a connector's."""
        self.top(content(mapping_of(key, value)), key)

    def set_kv_connector(self, key: str, value: Any) -> None:
        if value == "BlendConnector":
            raise ConfigError(key, f"{value} cannot be had: {_BLEND.why}")
        self.note(key, value, _SWITCHES.why)

    def set_storage(self, key: str, value: Any) -> None:
        """{backend, path}, and keys of a store."""
        rest = dict(mapping_of(key, value))
        for name, function in (("backend", self.set_storage_backend),
                               ("path", self.set_storage_path)):
            if name in rest:
                function(f"{key}.{name}", rest.pop(name))
        self.store(rest, key)

    def set_ucm_connectors(self, key: str, entries: Any) -> None:
        if not isinstance(entries, (list, tuple)) or not entries:
            raise ConfigError(key, "a list of one is needed")
        at = self.chosen(entries, key)
        key = f"{key}[{at}]"
        entry = entries[at]
        for name in entry:
            if name not in ENTRY_KEYS:
                raise unknown(f"{key}.{name}", name, ENTRY_KEYS)
        for name in ENTRY_KEYS[::2]:
            if name not in entry:
                raise ConfigError(f"{key}.{name}", "it is missing")
        name = entry["ucm_connector_name"]
        config = entry["ucm_connector_config"] or {}
        self.out.connector = checked(_text, f"{key}.ucm_connector_name", name)
        if not isinstance(config, Mapping):
            raise ConfigError(f"{key}.ucm_connector_config",
                              "a mapping is needed")
        self.out.connector_config = dict(config)
        module = entry.get("ucm_connector_module_path")
        if module is not None:
            self.out.module_path = checked(
                _text, f"{key}.ucm_connector_module_path", module)
            return  # its keys are the module's
        check_name(name, f"{key}.ucm_connector_name")
        for kind in MEASURING:
            if name == f"Ucm{kind}Store":
                self.out.measuring = kind
        self.store(config, f"{key}.ucm_connector_config")

    def chosen(self, entries: Any, key: str) -> int:
        """Of several connectors the first whose directories are there, or
        the first."""
        for i, entry in enumerate(entries):
            if not isinstance(entry, Mapping):
                raise ConfigError(f"{key}[{i}]", "a mapping is needed")
        if len(entries) == 1:
            return 0
        paths = [_paths_of(entry.get("ucm_connector_config"))
                 for entry in entries]
        there = [i for i, each in enumerate(paths)
                 if each and all(map(os.path.isdir, each))]
        found = there[0] if there else 0
        self.out.notes.append(
            f"{key}: of {len(entries)} number {found} is used, the first"
            + (" whose directories are there" if there else
               "; none has its directories"))
        return found

    def store(self, config: Mapping[str, Any], where: str) -> None:
        for name, value in config.items():
            key = _under(where, name)
            rule = CONNECTOR_KEYS.get(name)
            if rule is None:
                raise unknown(key, name, CONNECTOR_KEYS)
            self.apply(rule, key, name, value)

    # ---- keys ----

    def apply(self, rule: Rule, key: str, name: str, value: Any) -> None:
        if isinstance(rule, Refuse) or isinstance(rule, Off) and value:
            raise ConfigError(key, f"it cannot be had: {rule.why}")
        if isinstance(rule, Special):
            getattr(self, f"set_{name}")(key, value)
        elif isinstance(rule, (Note, Off)):
            self.note(key, value, rule.why)
        else:
            part = getattr(self.out, f"{rule.part}_options")
            wanted = checked(rule.check, key, value)
            if part.setdefault(rule.name, wanted) != wanted:
                raise ConfigError(key, f"{wanted}, and {part[rule.name]} "
                                  "elsewhere: there is one for all stages")

    def note(self, key: str, value: Any, why: str) -> None:
        shown = "" if isinstance(value, (dict, list)) else f" {value}"
        self.out.notes.append(f"{key}{shown}: no effect: {why}")

    def set_storage_backends(self, key: str, value: Any) -> None:
        paths = _split(value)
        if not paths:
            raise ConfigError(key, f"a path, or several with ':' between, is "
                              f"needed, not {value!r}")
        self.paths += [(key, path) for path in paths]

    def set_mount(self, key: str, value: Any) -> None:
        """A mount point, or a daemon's socket."""
        place = checked(_text, key, value)
        if self.out.mount not in (None, place):
            raise ConfigError(key, f"{place}, and {self.out.mount} elsewhere; "
                              "one of mount, socket and tiers says where "
                              "blocks are")
        self.out.mount = place

    set_socket = set_mount

    set_tiers = set_storage_backends

    def set_storage_path(self, key: str, value: Any) -> None:
        if _ADDRESS.match(checked(_text, key, value)) and \
                not value.startswith("mem@"):
            raise ConfigError(
                key, f"{value} is an address: mount it (mount -t nfs {value} "
                "DIRECTORY), make it a tier (ucmfs nfs=DIRECTORY MOUNT), and "
                "give MOUNT")
        self.set_storage_backends(key, value)

    set_nfs_path = set_storage_path

    def set_storage_backend(self, key: str, value: Any) -> None:
        """The kind of a store, and no path."""
        if isinstance(value, str) and "/" in value:
            raise ConfigError(key, "unknown; did you mean storage_backends?")
        self.kind(key, value)
        self.note(key, value, "a directory shows what it stands on")

    def kind(self, key: str, value: Any) -> str:
        """One of KINDS; ConfigError."""
        if isinstance(value, str) and value.lower() == "mooncake":
            raise ConfigError(key, f"{value} cannot be had: {NO_MOONCAKE}")
        if value not in KINDS:
            raise unknown(key, value, KINDS)
        return value

    def set_cache(self, key: str, value: Any) -> None:
        """What is for one stage of a pipeline."""
        self.stage_maps.append((key, key.rpartition(".")[2]))
        self.store(mapping_of(key, value), key)

    set_posix = set_nfs = set_pc = set_ds3fs = set_cache

    def set_backend(self, key: str, value: Any) -> None:
        """Of UcmCacheStore: the store behind, {name, config}."""
        if not isinstance(value, Mapping) or set(value) - {"name", "config"} \
                or not isinstance(value.get("config"), Mapping):
            raise ConfigError(key, "a name and a config are needed")
        check_name(value.get("name"), f"{key}.name")
        self.store(value["config"], f"{key}.config")

    def set_store_pipeline(self, key: str, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            if not all(isinstance(stage, str) for stage in value) or not value:
                self.stage_list(key, value)
                return
            value = "|".join(value)
        stages = checked(_text, key, value).split("|")
        self.stages = [stage.lower() for stage in stages]
        for stage in stages:
            if stage not in PIPELINE_STAGES:
                raise unknown(key, stage, PIPELINE_STAGES)
            why = PIPELINE_STAGES[stage]
            if why:
                raise ConfigError(key, f"{stage} cannot be had: {why}")
        if stages[-1] in MEASURING:
            if len(stages) > 1:
                raise ConfigError(key, f"{value}: the cache is a tier of a "
                                  "mount (ucmfs mem@SIZE MOUNT): give that "
                                  "mount, and the pipeline Cache")
            self.out.measuring = stages[0]
        elif "Cache" in stages:
            self.note(key, value, _CACHE.why)

    set_pipeline = set_store_pipeline

    def stage_list(self, key: str, stages: Any) -> None:
        """Of {type, path}, or {type: cache, size_gb}, fast to slow."""
        if not stages:
            raise ConfigError(key, "a stage is needed")
        for i, stage in enumerate(stages):
            where = f"{key}[{i}]"
            rest = dict(mapping_of(where, stage))
            kind = rest.pop("type", None)
            if isinstance(kind, str) and kind.lower() in KINDS:
                kind = kind.lower()  # in a text it is a capital
            kind = self.kind(f"{where}.type", kind)
            self.stages.append(kind)
            if kind == "cache":
                size = checked(check_count, f"{where}.size_gb",
                               rest.pop("size_gb", 0))
                self.note(where, f"cache {size} GiB", _CACHE.why)
            elif "path" in rest:
                self.set_storage_path(f"{where}.path", rest.pop("path"))
            self.store(rest, where)

    def set_device(self, key: str, value: Any) -> None:
        if value == -1:
            self.note(key, value, "a loader is opened when it is needed")
        else:
            self.out.loader_options["device"] = checked(check_count, key,
                                                        value)

    set_device_id = set_device

    def set_tensor_size(self, key: str, value: Any) -> None:
        name = key.rpartition(".")[2]
        size = checked(check_count, key, value)
        for other, told in self.sizes.items():
            if other.rpartition(".")[2] == name and told != size:
                raise ConfigError(key, f"{size}, and {told} in {other}: there "
                                  "is one for all stages")
        self.sizes[key] = size

    set_shard_size = set_block_size = set_tensor_size

    # ---- the whole ----

    def finish(self) -> None:
        for key, stage in self.stage_maps:
            if stage not in self.stages:
                raise ConfigError(key, "the pipeline has no such stage")
        self.places()
        self.check_sizes()

    def check_sizes(self) -> None:
        """Each must divide the next; 0 is not told. UCM's documents also have
        block_size in tokens; its connector puts the right sizes in."""
        sizes = {key.rpartition(".")[2]: size
                 for key, size in self.sizes.items()}
        told = [s for s in (sizes.get(f"{part}_size", 0)
                            for part in ("tensor", "shard", "block")) if s]
        fit = all(b % a == 0 for a, b in zip(told, told[1:]))
        if fit and sizes.get("tensor_size"):
            self.out.store_options.update(
                {name: size for name, size in sizes.items() if size})
            return
        why = "without tensor_size it says nothing of bytes" if fit else \
            "tensor_size, shard_size and block_size do not divide each other"
        for key, size in self.sizes.items():
            self.note(key, size, f"{why}; the engine's tensors decide")

    def places(self) -> None:
        """mount, or tiers, from the paths."""
        out = self.out
        tiers: list[str] = []
        for key, path in self.paths:
            if path.startswith("mem@"):
                tiers.append(path)  # its place is found
                continue
            found = find_mount(path) if self.check_paths else None
            if found is None:
                if self.check_paths:
                    check_tiers(key, path)
                tiers.append(path)
            elif out.mount not in (None, found[0]):
                raise ConfigError(key, f"{found[0]} and {out.mount} are two "
                                  "mounts; one can be used")
            else:
                out.mount = found[0]
                self.within(key, path, found[1])
        if out.mount is not None and tiers:
            raise ConfigError(self.paths[0][0], f"{tiers[0]} is no mount of "
                              f"ucmfs, and {out.mount} is given as well; one "
                              "of mount, socket and tiers says where blocks "
                              "are")
        if out.measuring is not None and (out.mount or tiers):
            self.note("storage_backends", ":".join(tiers) or out.mount,
                      f"{out.measuring} keeps nothing there")
            out.mount, tiers = None, []
        elif out.mount is None and not tiers and out.module_path is None \
                and out.measuring is None:
            raise ConfigError("storage_backends", "it is missing")
        out.tiers = tiers

    def within(self, key: str, path: str, rest: str) -> None:
        """What of a mount a path names: the whole, or a space."""
        first, _, name = rest.partition("/")
        if first == "spaces" and name and "/" not in name:
            self.out.store_options["space"] = name
        elif rest not in ("", "blocks"):
            raise ConfigError(key, f"{path} is in the mount {self.out.mount}, "
                              "and no space of it")


def _under(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def mapping_of(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(key, "a mapping is needed")
    return value


def _split(value: Any) -> list[str]:
    """Paths from "a:b" or a list; none where it is something else."""
    if isinstance(value, str):
        return [path for path in value.split(":") if path]
    if isinstance(value, (list, tuple)) and \
            all(isinstance(path, str) and path for path in value):
        return list(value)
    return []


def _paths_of(config: Any) -> list[str]:
    """The directories of a connector, also those in a list of stages."""
    if not isinstance(config, Mapping):
        return []
    stages = config.get("pipeline", config.get("store_pipeline"))
    return [path for name in ("storage_backends", "storage_path", "nfs_path")
            for path in _split(config.get(name))] + [
        path for stage in (stages if isinstance(stages, (list, tuple)) else ())
        if isinstance(stage, Mapping) for path in _split(stage.get("path"))]


def check_tiers(key: str, source: str) -> None:
    """ConfigError: of the directories that a part of SOURCE names one is no
    tier, and cannot become one."""
    if ":" in source:
        raise ConfigError(key, f"{source}: a tier's directory has no colon in "
                          "its path")
    for path in _TIER_NAME.sub("", source, count=1).split(","):
        try:
            foreign = None if _is_tier(path) else _foreign(path)
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(key, f"{path}: no such directory") from None
        except OSError as error:
            raise ConfigError(key, f"{path}: {error.strerror}") from None
        if foreign is not None:
            raise ConfigError(
                key, f"{path} is no tier of ucmfs and has {foreign} in it: "
                f"give an empty directory, or mount this one (ucmfs {path} "
                "MOUNTPOINT), and give MOUNTPOINT")


def _is_tier(path: str) -> bool:
    return os.path.exists(os.path.join(path, ".ucmfs", "id"))


def _foreign(path: str) -> str | None:
    """Something in a directory that is not its file system's."""
    with os.scandir(path) as entries:
        return next((entry.name for entry in entries
                     if entry.name not in _EMPTY), None)


def find_mount(path: str) -> tuple[str, str] | None:
    """(mount point, rest of the path) where a path lies in a mount of ucmfs;
    else None."""
    root, rest = os.path.abspath(path), ""
    while True:
        try:
            if os.path.ismount(root):
                metrics = os.path.join(root, ".ucmfs", "metrics")
                return (root, rest) if os.path.exists(metrics) else None
        except OSError as error:
            raise ConfigError("storage_backends", f"{root}: "
                              f"{error.strerror}") from None
        root, name = os.path.split(root)
        rest = os.path.join(name, rest) if rest else name
        if not name:
            return None
