# SPDX-License-Identifier: Apache-2.0
"""What _lib.py is for the loader, for sparse retrieval: the structs and
functions of <ucm/sparse.h>, <ucm/position.h>, <ucm/retrieve.h>, <ucm/repr.h>
and <ucm/repr_load.h>. libucmsparse is loaded by the first lib() here."""

from __future__ import annotations

import ctypes
import functools
from ctypes import (POINTER, Structure, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64,
                    c_void_p)
from typing import Dict, List, Sequence, Tuple

from . import _lib

SONAME = "libucmsparse.so.0"

# In the order of the C enumerations.
KINDS = ("mean", "max", "normed", "minmax")
FILE_KINDS = {16: "codes", 17: "channels"}  # enum ucm_repr_file_kind
PERS = ("head", "group", "block")
DISTANCE = 4
REDUCTIONS = ("mean", "sum", "max")
FORMS = ("tokens", "counts")
MEASURES = ("hamming", "estimate")
OVERS = ("best", "sum", "each")
PAIRINGS = ("neox", "gptj")
SCALINGS = ("none", "linear", "yarn", "llama3")
CHUNKS = ("none", "partial", "full")
RULES = ("ratio", "threshold", "quantile")
EVICT = ("lru", "score", "hybrid")
ROLES = ("chooses", "dense", "reuses")
METHODS = ("ESA", "GSA", "GSAOnDevice", "KVStarMultiStep", "Blend", "ReRoPE")
KEEPS = ("repr", "codes", "channels", "nothing")
COMPUTE_MAX = 64
LAYERS_MAX = 256
REPR_HEADER_BYTES = 4096


def _words(names: str) -> List[Tuple[str, type]]:
    return [(name, c_uint32) for name in names.split()]


# ---- structs: sparse.h ----

class ReprSpec(Structure):
    _fields_ = _words("kind dtype num_heads head_dim block_size")


class Slab(Structure):
    _fields_ = [("base", c_void_p), ("num_slots", c_uint64),
                ("stride_bytes", c_uint64)]


class Keys(Structure):
    _fields_ = [("base", c_void_p), ("dtype", c_uint32),
                ("num_blocks", c_uint64), ("stride_block", c_int64),
                ("stride_token", c_int64), ("stride_head", c_int64)]


class Query(Structure):
    _fields_ = [("base", c_void_p), ("dtype", c_uint32),
                ("num_heads", c_uint32), ("stride_head", c_int64)]


class ScoreRequest(Structure):
    _fields_ = [("query", c_void_p), ("num_heads", c_uint32),
                ("per", c_uint32), ("slab", POINTER(Slab)),
                ("slots", c_void_p), ("first_slot", c_uint64),
                ("num", c_size_t), ("scores", c_void_p),
                ("stride", c_size_t)]


class StarSpec(Structure):
    _fields_ = [*_words("dtype num_heads head_dim block_size merge_tokens "
                        "kept"), ("channels", c_void_p)]


class StarRequest(Structure):
    _fields_ = [("query", c_void_p),
                *_words("num_queries num_heads per"),
                ("slab", POINTER(Slab)), ("slots", c_void_p),
                ("first_slot", c_uint64), ("num", c_size_t),
                ("scores", c_void_p), ("weights", c_void_p),
                ("stride", c_size_t), ("scale", c_float)]


class CodeSpec(Structure):
    _fields_ = [*_words("form num_heads head_dim rope_dim bits rope_bits "
                        "block_size norms"), ("seed", c_uint64)]


class CodeMethod(Structure):
    _fields_ = _words("measure over per num_heads merged_heads")


class CodeRequest(Structure):
    _fields_ = [("query", c_void_p), ("slab", POINTER(Slab)),
                ("slots", c_void_p), ("first_slot", c_uint64),
                ("num", c_size_t), ("scores", c_void_p),
                ("stride", c_size_t)]


class Windows(Structure):
    _fields_ = _words("initial_blocks local_blocks sink_tokens recent_tokens")


class BudgetConfig(Structure):
    _fields_ = [("block_size", c_uint32), ("windows", Windows),
                ("ratio", c_double),
                *_words("budget_tokens min_topk max_topk dense_tokens")]


class Budget(Structure):
    _fields_ = _words("num_blocks first last topk")


# ---- structs: position.h ----

class Rope(Structure):
    _fields_ = [*_words("pairing scaling head_dim rotary_dim"),
                ("base", c_double), ("factor", c_double),
                ("original_length", c_uint32), ("beta_fast", c_double),
                ("beta_slow", c_double), ("low_freq_factor", c_double),
                ("high_freq_factor", c_double),
                ("attention_factor", c_double)]


class KeyRoom(Structure):
    _fields_ = [("base", c_void_p), ("num_blocks", c_uint64),
                ("stride_block", c_int64), ("stride_token", c_int64),
                ("stride_head", c_int64)]


class ShiftRequest(Structure):
    _fields_ = [("from", Keys), ("to", KeyRoom), ("from_blocks", c_void_p),
                ("to_blocks", c_void_p), ("num", c_size_t),
                *_words("num_heads block_size last_tokens"),
                ("deltas", c_void_p), *_words("per_token unrotated unchecked")]


class ChunkConfig(Structure):
    _fields_ = [("chunk_tokens", c_uint32), ("min_match_ratio", c_double),
                *_words("boundary_tokens head_tokens")]


class ChunkSource(Structure):
    _fields_ = [("tokens", c_void_p), *_words("num_tokens position")]


class Chunk(Structure):
    _fields_ = [*_words("begin end kind matched source token"),
                ("delta", c_int32)]


class Range(Structure):
    _fields_ = _words("begin end")


class DeviationRequest(Structure):
    _fields_ = [("cached", Keys), ("fresh", Keys), ("cached_values", Keys),
                ("fresh_values", Keys), ("table", c_void_p),
                *_words("num_tokens num_heads head_dim block_size relative")]


class Attention(Structure):
    _fields_ = [("query", Query), ("keys", Keys), ("values", Keys),
                ("table", c_void_p),
                *_words("num_tokens num_heads head_dim value_dim block_size"),
                ("scale", c_double), ("position", c_uint32),
                ("selected", c_void_p)]


class Rerope(Structure):
    _fields_ = [("rope", Rope), *_words("window training_length")]


# ---- structs: retrieve.h ----

class Layers(Structure):
    _fields_ = [("bits", c_uint64 * (LAYERS_MAX // 64))]


class Schedule(Structure):
    _fields_ = [*_words("stride lead queries num_layers"), ("dense", Layers),
                ("reuse", Layers)]


class Step(Structure):
    _fields_ = [*_words("role source begin end"), ("collects", c_uint64),
                ("uses", c_uint64)]


class ResidentConfig(Structure):
    _fields_ = [*_words("num_blocks num_slots evict"),
                ("score_weight", c_double), ("recency_weight", c_double),
                ("hysteresis", c_double)]


class Fill(Structure):
    _fields_ = _words("block slot ticket")


class Wanted(Structure):
    _fields_ = [("blocks", c_void_p), ("num", c_size_t),
                ("scores", c_void_p), ("num_scores", c_size_t),
                ("now", c_uint64)]


class Swap(Structure):
    _fields_ = [("loads", POINTER(Fill)), ("evicted", POINTER(Fill)),
                *((name, c_size_t) for name in (
                    "room", "num_loads", "num_evicted", "num_loaded",
                    "num_coming", "num_left"))]


class ResidentStats(Structure):
    _fields_ = [*((name, c_uint64) for name in (
        "hits", "loads", "loads_ahead", "evictions", "failed", "cancelled")),
                *_words("num_loaded num_loading num_free")]


class RetrievalOptions(Structure):
    _fields_ = [("size", c_size_t),
                *_words("threads jobs lanes max_blocks query_floats")]


class RetrievalJob(Structure):
    _fields_ = [("lane", c_uint32), ("step", c_uint64),
                ("spec", POINTER(ReprSpec)), ("query", c_void_p),
                ("num_heads", c_uint32), ("slab", POINTER(Slab)),
                ("slots", c_void_p), ("score", c_void_p), ("arg", c_void_p),
                ("budget", Budget), ("deadline_ms", c_uint32),
                ("codes", POINTER(CodeSpec)),
                ("code_method", POINTER(CodeMethod)),
                ("code_query", c_void_p), ("star", POINTER(StarSpec)),
                ("num_queries", c_uint32)]


class RetrievalResult(Structure):
    _fields_ = [("blocks", c_void_p), ("room", c_size_t),
                ("scores", c_void_p), ("num_scores", c_size_t),
                *_words("num num_blocks"), ("newest", c_uint64),
                ("wait_ns", c_uint64), ("run_ns", c_uint64)]


class RetrievalStats(Structure):
    _fields_ = [*((name, c_uint64) for name in (
        "submitted", "taken", "refused", "failed", "late", "cancelled",
        "stale")), *_words("waiting running done")]


class PrefetchConfig(Structure):
    _fields_ = [*_words("num_blocks ahead blocks"), ("trend", c_double)]


class PrefetchStats(Structure):
    _fields_ = [(name, c_uint64) for name in (
        "loads", "used", "late", "missed", "cancelled", "wasted")]


class SparseMethod(Structure):
    _fields_ = [*_words("method keeps"), ("name", c_char_p),
                ("alias", c_char_p)]


class Compute(Structure):
    _fields_ = [("layer", c_uint32), ("ratio", c_double)]


class SparseConfig(Structure):
    _fields_ = [("method", c_uint32), ("budget", BudgetConfig),
                *_words("min_blocks pooling"), ("schedule", Schedule),
                *_words("prefetch_enabled prefetch_ahead prefetch_workers"),
                ("score_weight", c_double), ("recency_weight", c_double),
                *_words("hash_bits hash_reduction_heads"),
                ("kept_channels", c_double),
                *_words("merged_tokens num_compute"),
                ("compute", Compute * COMPUTE_MAX),
                ("hkvd_threshold", c_double), ("min_match_ratio", c_double),
                ("rope_theta", c_double),
                *_words("chunk_tokens recompute_boundary "
                        "position_correction rerope_window training_length")]


class SparseModel(Structure):
    _fields_ = _words("num_heads query_heads head_dim rope_dim dtype") + [
        ("seed", c_uint64)]


class SparseRequest(Structure):
    _fields_ = [("config", POINTER(SparseConfig)),
                *_words("state prompt_tokens tokens dense"),
                ("step", c_uint64), ("budget", Budget),
                ("blocks_attended", c_uint64), ("blocks_in_all", c_uint64)]


# ---- structs: repr.h ----

class Block(Structure):
    _fields_ = [("id", c_uint8 * 16), ("geometry", _lib.Geometry),
                ("form", c_uint32), ("data_offset", c_uint32),
                ("flags", c_uint32), ("payload_crc", c_uint32),
                ("parent", c_uint8 * 16), ("space_id", c_uint8 * 32),
                ("created_ns", c_uint64)]


class ReprFile(Structure):
    _fields_ = [("id", c_uint8 * 16), ("space_id", c_uint8 * 32),
                ("geometry", _lib.Geometry), ("spec", ReprSpec),
                ("layer_bytes", c_uint32), ("params", c_uint8 * 64)]


class ReprsOptions(Structure):
    _fields_ = [("size", c_size_t), ("mount", c_char_p), ("tiers", c_char_p),
                ("space", c_char_p), ("io", c_uint32), ("depth", c_uint32)]


class ReprsRequest(Structure):
    _fields_ = [("size", c_size_t), ("ids", c_void_p), ("num", c_size_t),
                ("like", POINTER(ReprFile)), ("first_layer", c_uint32),
                ("num_layers", c_uint32), ("slabs", POINTER(Slab)),
                ("slots", c_void_p), ("results", c_void_p)]


# The C names, for the test that compares sizes and offsets.
STRUCTS = {
    "ucm_repr_spec": ReprSpec, "ucm_repr_slab": Slab, "ucm_keys": Keys,
    "ucm_query": Query, "ucm_score_request": ScoreRequest,
    "ucm_star_spec": StarSpec, "ucm_star_request": StarRequest,
    "ucm_code_spec": CodeSpec, "ucm_code_method": CodeMethod,
    "ucm_code_request": CodeRequest, "ucm_windows": Windows,
    "ucm_budget_config": BudgetConfig, "ucm_budget": Budget,
    "ucm_rope": Rope, "ucm_key_room": KeyRoom,
    "ucm_shift_request": ShiftRequest, "ucm_chunk_config": ChunkConfig,
    "ucm_chunk_source": ChunkSource, "ucm_chunk": Chunk, "ucm_range": Range,
    "ucm_deviation_request": DeviationRequest, "ucm_attention": Attention,
    "ucm_rerope": Rerope,
    "ucm_layers": Layers, "ucm_schedule": Schedule, "ucm_step": Step,
    "ucm_resident_config": ResidentConfig, "ucm_fill": Fill,
    "ucm_wanted": Wanted, "ucm_swap": Swap,
    "ucm_resident_stats": ResidentStats,
    "ucm_retrieval_options": RetrievalOptions,
    "ucm_retrieval_job": RetrievalJob,
    "ucm_retrieval_result": RetrievalResult,
    "ucm_retrieval_stats": RetrievalStats,
    "ucm_prefetch_config": PrefetchConfig,
    "ucm_prefetch_stats": PrefetchStats,
    "ucm_sparse_method": SparseMethod, "ucm_compute": Compute,
    "ucm_sparse_config": SparseConfig, "ucm_sparse_request": SparseRequest,
    "ucm_sparse_model": SparseModel,
    "ucm_block": Block, "ucm_repr_file": ReprFile,
    "ucm_reprs_options": ReprsOptions, "ucm_reprs_request": ReprsRequest,
}


# ---- functions ----

_ptr = c_void_p
_error = POINTER(_lib.Error)
_num_out = POINTER(c_uint32)
_star = POINTER(StarSpec)
_spec, _slab, _keys = POINTER(ReprSpec), POINTER(Slab), POINTER(Keys)
_config, _request = POINTER(SparseConfig), POINTER(SparseRequest)
_model, _code = POINTER(SparseModel), POINTER(CodeSpec)
_block, _file = POINTER(Block), POINTER(ReprFile)
_plan = (c_int, (_ptr, POINTER(Wanted), POINTER(Swap), _error))
_fills_of = (c_int, (_ptr, _ptr, c_size_t, _ptr, POINTER(c_size_t), _error))

PROTOTYPES: Dict[str, Tuple[object, Sequence[object]]] = {
    "ucm_repr_bytes": (c_size_t, (_spec,)),
    "ucm_repr_build": (c_int, (_spec, _keys, _ptr, c_size_t, c_uint32, _slab,
                               _ptr, _error)),
    "ucm_repr_state_bytes": (c_size_t, (_spec,)),
    "ucm_repr_begin": (c_int, (_spec, _ptr, _error)),
    "ucm_repr_add": (c_int, (_spec, _ptr, _keys, c_uint32, _error)),
    "ucm_repr_write": (c_int, (_spec, _ptr, _ptr, _error)),

    "ucm_query_floats": (c_size_t, (_spec, c_uint32, c_uint32)),
    "ucm_query_prepare": (c_int, (_spec, POINTER(Query), c_uint32, _ptr,
                                  _error)),
    "ucm_score": (c_int, (_spec, POINTER(ScoreRequest), c_size_t, _error)),

    "ucm_score_reduce": (c_int, (_ptr, c_size_t, c_size_t, c_size_t,
                                 c_uint32, _ptr, _error)),

    "ucm_star_kept": (c_uint32, (c_uint32, c_double)),
    "ucm_star_channels": (c_int, (_star, _keys, _ptr, c_size_t, c_uint32,
                                  _ptr, _error)),
    "ucm_star_bytes": (c_size_t, (_star,)),
    "ucm_star_build": (c_int, (_star, _keys, _ptr, c_size_t, c_uint32, _slab,
                               _ptr, _error)),
    "ucm_star_state_bytes": (c_size_t, (_star,)),
    "ucm_star_begin": (c_int, (_star, _ptr, _error)),
    "ucm_star_add": (c_int, (_star, _ptr, _keys, c_uint32, _error)),
    "ucm_star_write": (c_int, (_star, _ptr, _ptr, _error)),
    "ucm_star_query_floats": (c_size_t, (_star, c_uint32, c_uint32)),
    "ucm_star_query_prepare": (c_int, (_star, POINTER(Query), c_uint32, _ptr,
                                       _error)),
    "ucm_star_score": (c_int, (_star, POINTER(StarRequest), c_size_t,
                               _error)),
    "ucm_star_vote": (c_int, (_ptr, _ptr, c_size_t, c_size_t, c_size_t,
                              c_float, _ptr, _error)),

    "ucm_code_bytes": (c_size_t, (POINTER(CodeSpec),)),
    "ucm_code_encoder_bytes": (c_size_t, (POINTER(CodeSpec),)),
    "ucm_code_encoder_make": (c_int, (POINTER(CodeSpec), _ptr, _ptr,
                                      _error)),
    "ucm_code_matrix": (POINTER(c_float), (_ptr, c_int, POINTER(c_size_t))),
    "ucm_code_build": (c_int, (_ptr, _keys, _ptr, c_size_t, c_uint32, _slab,
                               _ptr, _error)),
    "ucm_code_add": (c_int, (_ptr, _keys, c_uint32, c_uint32, _ptr, _error)),
    "ucm_code_query_words": (c_size_t, (POINTER(CodeSpec),
                                        POINTER(CodeMethod))),
    "ucm_code_query_prepare": (c_int, (_ptr, POINTER(CodeMethod),
                                       POINTER(Query), POINTER(Query), _ptr,
                                       _error)),
    "ucm_code_score": (c_int, (POINTER(CodeSpec), POINTER(CodeMethod),
                               POINTER(CodeRequest), c_size_t, _error)),

    "ucm_budget_blocks": (c_int, (POINTER(BudgetConfig), c_uint32,
                                  POINTER(Budget), _error)),
    "ucm_select": (c_int, (_ptr, POINTER(Budget), _ptr, c_size_t, _num_out,
                           _error)),
    "ucm_select_table": (c_int, (_ptr, c_uint32, c_uint32, _ptr, c_uint32,
                                 _ptr, c_size_t, _num_out, _error)),

    "ucm_rope_frequencies": (c_int, (POINTER(Rope), _ptr, c_size_t, _error)),
    "ucm_rope_shift": (c_int, (POINTER(Rope), POINTER(ShiftRequest),
                               _error)),
    "ucm_chunks_find": (c_int, (POINTER(ChunkConfig), _ptr, c_uint32,
                                c_uint32, POINTER(ChunkSource), c_uint32,
                                POINTER(Chunk), c_size_t, _num_out, _error)),
    "ucm_chunks_recompute": (c_int, (POINTER(ChunkConfig), POINTER(Chunk),
                                     c_uint32, POINTER(Range), c_size_t,
                                     _num_out, _error)),
    "ucm_chunks_deltas": (c_int, (POINTER(Chunk), c_uint32, c_uint32, _ptr,
                                  c_size_t, _error)),
    "ucm_ranges_merge": (c_int, (POINTER(Range), c_uint32, _num_out,
                                 _error)),
    "ucm_kv_deviation": (c_int, (POINTER(DeviationRequest), _ptr, _error)),
    "ucm_hkvd_select": (c_int, (_ptr, c_uint32, c_uint32, c_double, _ptr,
                                c_size_t, _num_out, _error)),
    "ucm_attention_reference": (c_int, (POINTER(Attention), _ptr, _ptr,
                                        _error)),
    "ucm_attention_floats": (c_size_t, (POINTER(Attention),)),
    "ucm_attention_decode": (c_int, (POINTER(Attention), _ptr, _ptr, _ptr,
                                     _error)),
    "ucm_rerope_reference": (c_int, (POINTER(Rerope), POINTER(Attention),
                                     _ptr, _ptr, _error)),
    "ucm_rerope_floats": (c_size_t, (POINTER(Rerope), c_uint32)),
    "ucm_rerope_prepare": (c_int, (POINTER(Rerope), c_uint32, _ptr,
                                   _error)),
    "ucm_rerope_decode": (c_int, (POINTER(Rerope), _ptr, POINTER(Attention),
                                  _ptr, _ptr, _ptr, _error)),

    "ucm_schedule_check": (c_int, (POINTER(Schedule), _error)),
    "ucm_schedule_step": (c_int, (POINTER(Schedule), c_uint64, c_uint32,
                                  POINTER(Step), _error)),
    "ucm_resident_bytes": (c_size_t, (POINTER(ResidentConfig),)),
    "ucm_resident_begin": (c_int, (POINTER(ResidentConfig), _ptr,
                                   POINTER(c_void_p), _error)),
    "ucm_resident_plan": _plan,
    "ucm_resident_plan_ahead": _plan,
    "ucm_resident_ended": (c_int, (_ptr, c_uint32, c_uint32, c_int, _error)),
    "ucm_resident_cancel": _fills_of,
    "ucm_resident_drop": _fills_of,
    "ucm_resident_put": (c_int, (_ptr, c_uint32, c_uint64, _num_out,
                                 _num_out, _error)),
    "ucm_resident_take": (c_int, (_ptr, _ptr, c_size_t, _ptr, _ptr,
                                  POINTER(c_size_t), _error)),
    "ucm_resident_release": (c_int, (_ptr, _ptr, c_size_t, _error)),
    "ucm_resident_favour": (c_int, (_ptr, _ptr, c_size_t, _error)),
    "ucm_resident_get_stats": (None, (_ptr, POINTER(ResidentStats))),

    "ucm_retrieval_open": (c_int, (POINTER(RetrievalOptions),
                                   POINTER(c_void_p), _error)),
    "ucm_retrieval_close": (None, (_ptr,)),
    "ucm_retrieval_submit": (c_int, (_ptr, POINTER(RetrievalJob), _error)),
    "ucm_retrieval_take": (c_int, (_ptr, c_uint32, c_uint64, c_int,
                                   POINTER(RetrievalResult), _error)),
    "ucm_retrieval_cancel": (c_int, (_ptr, c_uint32, _error)),
    "ucm_retrieval_get_stats": (None, (_ptr, POINTER(RetrievalStats))),

    "ucm_prefetch_bytes": (c_size_t, (POINTER(PrefetchConfig),)),
    "ucm_prefetch_begin": (c_int, (POINTER(PrefetchConfig), _ptr,
                                   POINTER(c_void_p), _error)),
    "ucm_prefetch_set": (c_int, (_ptr, _ptr, POINTER(Wanted), c_uint64,
                                 _error)),
    "ucm_prefetch_run": (c_int, (POINTER(c_void_p), POINTER(c_void_p),
                                 c_size_t, _error)),
    "ucm_prefetch_loads": (POINTER(Fill), (_ptr, POINTER(c_size_t),
                                           POINTER(c_size_t))),
    "ucm_prefetch_cancels": (POINTER(Fill), (_ptr, POINTER(c_size_t))),
    "ucm_prefetch_misses": (POINTER(c_uint32), (_ptr, POINTER(c_size_t))),
    "ucm_prefetch_get_stats": (None, (_ptr, POINTER(PrefetchStats))),

    "ucm_sparse_find": (POINTER(SparseMethod), (c_char_p,)),
    "ucm_sparse_set": (c_int, (_config, c_char_p, c_char_p, _error)),
    "ucm_sparse_check": (c_int, (_config, _error)),
    "ucm_sparse_parse": (c_int, (c_char_p, c_size_t, c_uint32, c_uint32,
                                 _config, _error)),
    "ucm_sparse_begin": (c_int, (_request, _config, c_uint32, _error)),
    "ucm_sparse_prefill": (c_int, (_request, c_uint32, _num_out, _error)),
    "ucm_sparse_step": (c_int, (_request, c_uint32, _error)),
    "ucm_sparse_layer": (c_int, (_request, c_uint32, POINTER(Step),
                                 _error)),
    "ucm_sparse_finish": (c_int, (_request, _error)),
    "ucm_sparse_abort": (None, (_request,)),
    "ucm_sparse_slots": (c_int, (_config, c_uint32, c_uint32, _num_out,
                                 _error)),
    "ucm_sparse_repr_spec": (c_int, (_config, _model, _spec, _error)),
    "ucm_sparse_code_spec": (c_int, (_config, _model, _code,
                                     POINTER(CodeMethod), _error)),
    "ucm_sparse_star_spec": (c_int, (_config, _model, _ptr, _star, _error)),

    "ucm_block_parse": (c_int, (_ptr, c_size_t, c_uint64, POINTER(Block))),

    "ucm_repr_file_init": (c_int, (_block, _spec, _file, _error)),
    "ucm_repr_file_init_codes": (c_int, (_block, _code, _ptr, _file,
                                         _error)),
    "ucm_repr_file_init_channels": (c_int, (_block, _star, _ptr, _file,
                                            _error)),
    "ucm_repr_file_codes": (c_int, (_file, _code, _error)),
    "ucm_repr_file_channels": (c_int, (_file, _star, _error)),
    "ucm_repr_file_check_centers": (c_int, (_file, _ptr, _error)),
    "ucm_repr_file_check_channels": (c_int, (_file, _ptr, _error)),
    "ucm_repr_file_size": (c_uint64, (_file,)),
    "ucm_repr_file_layer_offset": (c_uint64, (_file, c_uint32)),
    "ucm_repr_file_parse": (c_int, (_ptr, c_size_t, _file, _error)),
    "ucm_repr_file_check_block": (c_int, (_file, _block, _error)),
    "ucm_repr_file_check_layer": (c_int, (_file, _ptr, c_uint32, _ptr,
                                          _error)),
    "ucm_repr_file_verify": (c_int, (_ptr, c_uint64, _file, _error)),
    "ucm_repr_file_encode": (c_int, (_file, _ptr, _ptr, c_uint64, _error)),

    "ucm_reprs_open": (c_int, (POINTER(ReprsOptions), POINTER(c_void_p),
                               _error)),
    "ucm_reprs_close": (None, (_ptr,)),
    "ucm_reprs_header": (c_int, (_ptr, _ptr, _file, _error)),
    "ucm_reprs_load": (c_int, (_ptr, POINTER(ReprsRequest),
                               POINTER(c_size_t), _error)),
}


@functools.lru_cache(maxsize=None)
def lib() -> ctypes.CDLL:
    """libucmsparse, which finds in libucm what is not its own. LibraryMissing.
    Any thread."""
    _lib.lib()  # the one that both use
    return _lib.bind(_lib.open_library(SONAME), PROTOTYPES)
