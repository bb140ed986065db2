# SPDX-License-Identifier: Apache-2.0
"""What decides about a KV block's bytes and is not in vLLM's block hash.

The hash of a block covers its tokens, those before it, LoRA's name and path,
images, the salt and embeddings of the prompt. Everything else that the bytes
depend on makes up the manifest of the space they are stored in: model and
weights, types, layout, groups, ranks, how hashes are made. Two engines share
blocks if and only if their manifests are equal, so whatever is in doubt goes
in: that costs a cold cache, and leaving it out would cost wrong tokens.

Manifests hold no fractions (a space's manifest may not) and no None.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
import re
import struct
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Iterable, Iterator, NamedTuple

from ucmfs.errors import ConfigError

from . import settings
from .plugin import asked

FULL = "full"  # as a name of weights: read all of them
SAMPLES = 2048  # pieces of a model's files that are read, at most
SAMPLE_BYTES = 512
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".tensors")
_TEXTS = ("config.json", ".index.json", ".py", "quantize_config.json",
          "quant_config.json", "params.json")
_HEADER_MOST = 1 << 28  # bytes of a safetensors header that are believed
# of a configuration from the model hub: where it came from, not what it says
_NOT_THE_MODEL = frozenset(
    ("_name_or_path", "_commit_hash", "transformers_version"))


class Overrides(NamedTuple):
    """What a user says about the namespace; the empty text: nothing."""

    # FULL, or what stands for the weights, instead of a look at them
    weights: str = ""
    tenant: str = ""
    epoch: str = ""
    era: str = ""  # of vLLM's layouts and kernels, instead of its version

    @classmethod
    def of(cls, options: Any) -> Overrides:
        return cls(*(getattr(options, name) for name in cls._fields))


class EngineConfigs(NamedTuple):
    """vLLM's own descriptions of an engine."""

    vllm: Any  # vllm.config.VllmConfig
    kv_cache: Any  # vllm.v1.kv_cache_interface.KVCacheConfig, or None


def digest(value: Any) -> str:
    """SHA-256 of a plain value's JSON, in hex."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """A value as JSON without fractions; what has no text of its own is its
    type's name, as an address in memory would differ each time."""
    if value is None:
        return ""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(v) for v in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"": type(value).__name__,
                **{f.name: plain(getattr(value, f.name))
                   for f in dataclasses.fields(value)}}
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text


# ---- the configuration of the engine that is being built ----

_built: ContextVar[EngineConfigs | None] = ContextVar("ucmfs_engine",
                                                         default=None)


@contextmanager
def handed_down(configs: EngineConfigs) -> Iterator[None]:
    """What is built in here belongs to that engine."""
    before = _built.set(configs)
    try:
        yield
    finally:
        _built.reset(before)


def engine_configs() -> EngineConfigs:
    """The engine that is being built; ConfigError where nobody says so."""
    configs = _built.get()
    if configs is None:
        raise ConfigError(
            "kv_connector", "vLLM's OffloadingConnector does not tell a tier "
            "which engine it is for; UcmfsTier needs \"kv_connector\": "
            "\"UcmfsOffloadingConnector\", \"kv_connector_module_path\": "
            "\"ucmfs.vllm\", and all else as it is")
    return configs


# ---- hashes ----

def refuse_counted_media(config: Any) -> None:
    """ConfigError where vLLM names images by a count instead of what is in
    them: it begins anew in each process, and another image would be found
    under the same name. See _process_mm_uuids() in vllm/renderers/base.py."""
    model = getattr(config, "model_config", None)
    media = getattr(model, "multimodal_config", None)
    if (media is not None
            and getattr(media, "mm_processor_cache_gb", None) == 0
            and not config.cache_config.enable_prefix_caching
            and not getattr(media, "language_model_only", False)):
        raise ConfigError(
            "mm_processor_cache_gb", "0, and no prefix caching: vLLM then "
            "counts images instead of hashing them, and the KV of another "
            "image would be loaded; leave --mm-processor-cache-gb above 0, or "
            "prefix caching on")



def hash_seed(algorithm: str) -> str:
    """What vLLM's chain of block hashes begins with in this process.

    Raises ConfigError where it is drawn anew in each process: then nothing
    that is stored could ever be found again.
    """
    advice = ("PYTHONHASHSEED", f"vLLM seeds its block hashes ({algorithm}) "
              "at random, and no other process would ever find what this one "
              "stores; set PYTHONHASHSEED=0 in the environment, or use "
              "--prefix-caching-hash-algo sha256_cbor")
    try:
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import resolve_none_hash_seed
    except ImportError:  # before it had a seed of its own: the environment's
        seed = os.environ.get("PYTHONHASHSEED")
        if seed is None:
            raise ConfigError(*advice) from None
        return seed
    function = get_hash_fn_by_name(algorithm)
    seed = resolve_none_hash_seed(function)
    if seed != resolve_none_hash_seed(function):
        raise ConfigError(*advice)
    return seed


# ---- weights ----

def weights(model_config: Any, load_config: Any = None,
            whole: bool = False) -> str:
    """What tells these weights from others: "hub:COMMIT", or the digest of a
    look at the files.

    Of files in a directory are read: the configuration, the index and the
    model's code whole; of the weights names, sizes, times of change, headers
    and SAMPLES pieces, spread over the tensors. whole: they are read as a
    whole, and when they were changed does not matter. Files of the hub's cache
    are called after their content, which says all. Raises ConfigError if there
    is nothing to look at; then the user has to name them.
    """
    if str(getattr(load_config, "load_format", "")).endswith("dummy"):
        return f"dummy:{getattr(model_config, 'seed', 0)}"
    # where a model was given as a store's address, that is its directory
    path = str(getattr(model_config, "model_weights", "") or
               getattr(model_config, "model", ""))
    if os.path.isdir(path):
        return "files:" + _digest_files(_model_files(path), whole)
    if os.path.isfile(path):
        return "file:" + _digest_files([path], whole)
    commit = _hub_commit(path, getattr(model_config, "revision", None))
    if commit:
        return f"hub:{commit}"
    raise ConfigError(
        "weights", f"nothing tells which weights {path!r} has; give them a "
        "name that changes with them")


def _hub_commit(model: str, revision: str | None) -> str:
    """The commit of a model of the hub that is in the local cache, or ""."""
    if revision and re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    try:
        from huggingface_hub import try_to_load_from_cache
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except Exception:  # no name of the hub's, or its client is not there
        return ""
    match = re.search(r"snapshots[/\\]([0-9a-f]{40})[/\\]", str(found))
    return match.group(1) if match else ""


def _model_files(path: str) -> list[str]:
    names = sorted(name for name in os.listdir(path)
                   if name.endswith(_WEIGHTS + _TEXTS))
    if not any(name.endswith(_WEIGHTS) for name in names):
        raise ConfigError("weights", f"{path}: no weights in it")
    return [os.path.join(path, name) for name in names]


def _digest_files(paths: list[str], whole: bool) -> str:
    total = hashlib.sha256()
    num_weights = sum(path.endswith(_WEIGHTS) for path in paths)
    share = max(1, SAMPLES // max(1, num_weights))
    for path in paths:
        total.update(f"{os.path.basename(path)}\0".encode())
        blob = _hub_blob(path)
        if blob:
            total.update(blob.encode())
            continue
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            total.update(struct.pack("<Q", stat.st_size))
            if whole or not path.endswith(_WEIGHTS):
                _read_whole(file, total)
            else:
                total.update(struct.pack("<q", stat.st_mtime_ns))
                _sample(file, stat.st_size, share, total)
    return total.hexdigest()


def _hub_blob(path: str) -> str:
    """The name of a file's content in the hub's cache, which is its hash; ""
    for a file that is not a link into it."""
    if not os.path.islink(path):
        return ""
    folder, name = os.path.split(os.readlink(path))
    if os.path.basename(folder) == "blobs" and re.fullmatch(
            "[0-9a-f]{40}|[0-9a-f]{64}", name):
        return name
    return ""


def _read_whole(file: Any, total: Any) -> None:
    for piece in iter(lambda: file.read(8 << 20), b""):
        total.update(piece)


def _sample(file: Any, size: int, most: int, total: Any) -> None:
    header, places = _places(file, size)
    total.update(header)
    for place in _spread(places, most):
        total.update(os.pread(file.fileno(), SAMPLE_BYTES, place))


def _places(file: Any, size: int) -> tuple[bytes, list[int]]:
    """What stands before the weights, and where to look at them: in the
    middle of each tensor, or all over a file that is not safetensors."""
    even = [i * size // SAMPLES for i in range(SAMPLES)]
    if not file.name.endswith(".safetensors") or size < 8:
        return b"", even
    length = struct.unpack("<Q", os.pread(file.fileno(), 8, 0))[0]
    if length > min(size - 8, _HEADER_MOST):
        return b"", even
    header = os.pread(file.fileno(), length, 8)
    try:
        tensors = json.loads(header)
        spans = [entry["data_offsets"] for name, entry in tensors.items()
                 if name != "__metadata__"]
        middles = sorted(8 + length + (begin + end) // 2
                         for begin, end in spans)
    except (ValueError, KeyError, TypeError, AttributeError):
        return header, even
    return header, middles


def _spread(places: list[int], most: int) -> Iterable[int]:
    if len(places) <= most:
        return places
    return [places[i * len(places) // most] for i in range(most)]


# ---- the parts of a manifest ----

def _get(obj: Any, name: str) -> Any:
    """A field that some versions do not have, as a plain value."""
    return plain(getattr(obj, name, None))


def _weights_of(model: Any, load: Any, named: str) -> str:
    if named and named != FULL:
        return named
    return weights(model, load, whole=named == FULL)


def _model(config: Any, named_weights: str) -> dict[str, Any]:
    model = config.model_config
    hf = getattr(model, "hf_config", None)
    fields = hf.to_dict() if hasattr(hf, "to_dict") else {}
    fields = {k: v for k, v in fields.items() if k not in _NOT_THE_MODEL}
    out = {
        "name": _model_name(_get(model, "model")),
        "weights": _weights_of(
            model, getattr(config, "load_config", None), named_weights),
        "dtype": str(_get(model, "dtype")).replace("torch.", ""),
        "quantization": _get(model, "quantization"),
        "config": digest(fields),  # rope, overrides, quantisation's details
        "revision": _get(model, "revision"),
        "code_revision": _get(model, "code_revision"),
        "disable_sliding_window": _get(model, "disable_sliding_window"),
    }
    if re.search("longrope|dynamic", json.dumps(plain(fields))):
        out["max_model_len"] = _get(model, "max_model_len")
    multimodal = getattr(model, "multimodal_config", None)
    if multimodal is not None:
        out["video_pruning"] = _get(multimodal, "video_pruning_rate")
        out["language_model_only"] = _get(multimodal, "language_model_only")
    return out


def _model_name(name: str) -> str:
    """A model's own name: where its directory lies is no part of it, as the
    weights are looked at."""
    if os.path.exists(name):
        return os.path.basename(os.path.realpath(name))
    return name


# Drafts are taken from the text, or from hidden states: no layer has KV.
_WITHOUT_LAYERS = frozenset(
    ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"))


def _draft(config: Any, whole: bool) -> dict[str, Any]:
    """Speculative decoding, whose layers may be stored too."""
    spec = getattr(config, "speculative_config", None)
    if spec is None or getattr(spec, "method", None) in _WITHOUT_LAYERS:
        return {}
    out = {"method": _get(spec, "method"),
           "tokens": _get(spec, "num_speculative_tokens")}
    draft = getattr(spec, "draft_model_config", None)
    if draft is not None:
        name = str(_get(draft, "model"))
        out["model"] = _model_name(name)
        if name != str(_get(config.model_config, "model")):
            out["weights"] = weights(draft, whole=whole)
    return out


def _cache(config: Any) -> dict[str, Any]:
    cache = config.cache_config
    return {name: _get(cache, name) for name in (
        "block_size", "cache_dtype", "kv_cache_dtype_skip_layers",
        "calculate_kv_scales", "mamba_block_size", "mamba_cache_dtype",
        "mamba_ssm_cache_dtype", "mamba_cache_mode", "use_replayssm",
        "kv_sharing_fast_prefill", "swa_bounded_replay")}


def _attention(config: Any, groups: Iterable[Any]) -> dict[str, Any]:
    attention = getattr(config, "attention_config", None)
    out = {
        "platform": _platform(),
        "layout": _get(config.cache_config, "kv_cache_layout"),
        "backend": _get(attention, "backend"),
        "backend_per_kind": _get(attention, "backend_per_kind"),
        "flash_attn_version": _get(attention, "flash_attn_version"),
        "runner": 2 if _get(config, "use_v2_model_runner") is True else 1,
    }
    for name in ("VLLM_KV_CACHE_LAYOUT", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT",
                 "VLLM_ATTENTION_BACKEND", "VLLM_SSM_CONV_STATE_LAYOUT"):
        if os.environ.get(name):
            out[name] = os.environ[name]
    if out["platform"] == "cpu":
        out["isa"] = _cpu_isas(config, groups)
    return out


def _platform() -> str:
    """"cpu", "cuda 9.0": which kernels are chosen, and with some types how
    they pack, depends on it."""
    from vllm.platforms import current_platform
    capability = current_platform.get_device_capability()
    version = getattr(capability, "as_version_str", str)
    name = current_platform.device_name
    return f"{name} {version()}" if capability is not None else name


def _cpu_isas(config: Any, groups: Iterable[Any]) -> list[str]:
    """vLLM's CPU kernels pack K as suits the machine: one for each group."""
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    except ImportError:
        import platform
        return [platform.machine(), platform.node()]
    return [str(_get_attn_isa(
        config.model_config.dtype, spec.block_size,
        getattr(spec, "head_size", None), config.cache_config.cache_dtype))
        for spec in map(_spec_of, groups)]


def _parallel(config: Any) -> dict[str, Any]:
    parallel = config.parallel_config
    return {short: _get(parallel, name) for short, name in (
        ("tp", "tensor_parallel_size"), ("pp", "pipeline_parallel_size"),
        ("dcp", "decode_context_parallel_size"),
        ("pcp", "prefill_context_parallel_size"),
        ("interleave", "cp_kv_cache_interleave_size"))}


def _spec_of(group: Any) -> Any:
    """As the scheduler has it: one layer's, where layers differ in size."""
    spec = group.kv_cache_spec
    layers = getattr(spec, "kv_cache_specs", None)
    return next(iter(layers.values())) if layers else spec


def group_manifest(group: Any) -> dict[str, Any]:
    """What one KV cache group (a KVCacheGroupSpec) puts into a manifest."""
    spec = _spec_of(group)
    return {
        "kind": type(spec).__name__,
        "block_size": _get(spec, "block_size"),
        "page_bytes": _get(spec, "page_size_bytes"),
        "layers": len(group.layer_names),
        "layer_names": digest(list(group.layer_names)),
        "spec": digest(spec),
        "eagle": bool(getattr(group, "is_eagle_group", False)),
        "role": _get(group, "role"),
    }


def hashes(config: Any, hash_block_size: int) -> dict[str, Any]:
    """How vLLM makes block hashes; ConfigError, if they begin at random."""
    algorithm = getattr(config.cache_config, "prefix_caching_hash_algo",
                        "sha256")
    return {"algorithm": algorithm, "seed": hash_seed(algorithm),
            "block_size": hash_block_size}


def _era(override: str) -> str:
    """Of layouts and kernels: they change with vLLM's minor version, without
    a name that would tell."""
    if override:
        return override
    import vllm
    version = str(vllm.__version__)
    if "dev" in version:  # anything may lie between two of these
        return version
    return ".".join(version.split("+")[0].split(".")[:2])


def _lora(config: Any) -> dict[str, Any]:
    lora = getattr(config, "lora_config", None)
    if lora is None:
        return {}
    return {"dtype": _get(lora, "lora_dtype"),
            "target_modules": _get(lora, "target_modules")}


def engine_manifest(configs: EngineConfigs, *, hash_block_size: int,
                    overrides: Overrides = Overrides()) -> dict[str, Any]:
    """All of the manifest but how its owner lays out blocks ("geometry" and
    what else it adds).

    configs: of the scheduler. A worker's KVCacheConfig names the layers of its
    own pipeline stage alone: where there are several, take the manifest from
    the scheduler. hash_block_size: tokens to a block hash. Raises ConfigError
    for a seed that is random, or weights that cannot be told.
    """
    config = configs.vllm
    groups = list(configs.kv_cache.kv_cache_groups)
    sparse = asked(config)
    refuse_counted_media(config)
    return {
        "engine": {"name": "vllm", "era": _era(overrides.era)},
        "model": _model(config, overrides.weights),
        "draft": _draft(config, overrides.weights == FULL),
        "lora": _lora(config),
        "settings": settings.changed(config, plain),
        "cache": _cache(config),
        "attention": _attention(config, groups),
        "parallel": _parallel(config),
        "groups": [group_manifest(group) for group in groups],
        "hash": hashes(config, hash_block_size),
        "tenant": overrides.tenant,
        "epoch": overrides.epoch,
        **({"sparse": plain(sparse)} if sparse else {}),
    }
