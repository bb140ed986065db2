# SPDX-License-Identifier: Apache-2.0
"""libucm by ctypes: its structs, its functions, and where it is found.

One table has the prototypes of all that the package calls (a test compares it
with the headers), so that an argument of a wrong type is refused before it
gets to C. ctypes.CDLL gives up the GIL for the time of each call.

The library is loaded at the first use of lib(), not by an import:
$UCMFS_LIBRARY (the path of libucm.so), or else the one that the wheel has
brought along, or what the system knows as ucm.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import threading
from ctypes import (POINTER, Structure, c_bool, c_char, c_char_p, c_int,
                    c_int32, c_int64, c_size_t, c_uint, c_uint8, c_uint16,
                    c_uint32, c_uint64, c_void_p)
from typing import Dict, Iterator, Optional, Sequence, Tuple

from . import _bundled
from .errors import InvalidArgument, LibraryMissing, from_errno

ID_BYTES = 16

SONAME = "libucm.so.0"

DTYPES = ("opaque", "float16", "bfloat16", "float32", "float8_e4m3",
          "float8_e5m2", "int8", "uint8")
ORDERS = ("NHD", "HND", "opaque")
PLANES = ("k", "v", "both")
SCHEMES = ("ucm", "chain", "prefix", "hexchain", "sha256", "external")
VERIFY = ("full", "header", "none", "once")
FAULT_PLANE = 11
HASH_PARTIAL = 1


# ---- structs: error.h, block.h, load.h ----

class Error(Structure):
    """The line that a C function gives with its error."""

    _fields_ = [("text", c_char * 1024)]

    def check(self, err: int, what: str) -> None:
        """Raise what a result below zero says, with the line."""
        if err < 0:
            raise from_errno(err, what, self.text.decode(errors="replace"))


class Geometry(Structure):
    _fields_ = [("num_layers", c_uint32), ("block_size", c_uint32),
                ("dtype", c_uint32), ("k_bytes", c_uint32),
                ("v_bytes", c_uint32), ("num_kv_heads", c_uint16),
                ("head_dim", c_uint16), ("order", c_uint32)]


class Region(Structure):
    _fields_ = [("base", c_uint64), ("page_stride", c_int64),
                ("run_bytes", c_uint64), ("n0", c_uint32), ("n1", c_uint32),
                ("s0", c_int64), ("s1", c_int64), ("offset", c_uint64),
                ("layer", c_uint32)]


class Tensor(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p),
                ("data", c_uint64), ("dims", c_char_p),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("item_bytes", c_uint32), ("layer", c_uint32),
                ("plane", c_uint32), ("kernel_blocks_per_page", c_uint32)]


class LoaderOptions(Structure):
    _fields_ = [("size", c_size_t), ("mount", c_char_p), ("tiers", c_char_p),
                ("copy", c_int), ("io", c_int), ("threads", c_uint),
                ("staging_bytes", c_uint64), ("window_bytes", c_uint64),
                ("save_budget_bytes", c_uint64), ("read_bytes", c_uint32),
                ("open_files", c_uint), ("device", c_int),
                ("stream", c_void_p), ("ctas", c_uint),
                ("lease_ms", c_uint32), ("numa", c_uint32),
                ("in_mount", c_uint8), ("write_buffer_bytes", c_uint64),
                ("budget", c_uint64), ("inflight", c_uint64)]


class Request(Structure):
    _fields_ = [("size", c_size_t), ("group", c_uint),
                ("first_layer", c_uint32), ("num_layers", c_uint32),
                ("blocks", c_void_p), ("num_blocks", c_size_t),
                ("addresses", c_void_p), ("verify", c_int), ("order", c_int),
                ("group_layers", c_uint32), ("parents", c_void_p),
                ("deadline_ms", c_uint32), ("eventfd", c_int),
                ("on_done", c_void_p), ("arg", c_void_p), ("hold", c_uint8),
                ("may_refuse", c_uint8), ("completions", c_void_p),
                ("priority", c_int), ("unused", c_uint32), ("lend", c_int),
                ("tell_copied", c_uint8), ("after", c_void_p)]


class Outcome(Structure):
    _fields_ = [("err", c_int), ("fault", c_uint16), ("skipped", c_uint8),
                ("refused", c_uint8), ("plane", c_uint32)]


class LesseeStats(Structure):
    _fields_ = [(name, c_uint64) for name in (
        "holds", "blocks", "leased", "absent", "refused", "calls", "failed")]


class LoaderStats(Structure):
    _fields_ = [(name, c_uint64) for name in (
        "loads", "load_bytes", "load_absent", "load_damaged", "load_failed",
        "saves", "save_bytes", "save_skipped", "save_dropped", "save_failed",
        "reads", "short_reads", "opens", "open_hits", "mapped_bytes",
        "window_bytes", "direct_bytes", "save_refused", "located",
        "save_buffered_bytes", "load_buffered_bytes",
        "save_direct_bytes", "unsummed_bytes")]


# ---- structs: hash.h ----

class HashItem(Structure):
    _fields_ = [("hash", c_uint8 * 32), ("position", c_uint64),
                ("length", c_uint64)]


class HashExtras(Structure):
    _fields_ = [("salt", c_char_p), ("lora", c_char_p),
                ("lora_digest", c_char_p), ("items", POINTER(HashItem)),
                ("num_items", c_size_t)]


class HashMeta(Structure):
    _fields_ = [("scheme", c_uint32), ("block_size", c_uint32),
                ("world_size", c_uint32), ("rank", c_uint32),
                ("mla", c_uint32), ("model", c_char_p), ("dtype", c_char_p),
                ("space_id", c_char_p), ("extras", HashExtras)]


class HashState(Structure):
    _fields_ = [("parent", c_uint8 * 16), ("tokens", c_uint64),
                ("md5", c_uint32 * 4), ("rest", c_uint8 * 64)]


class HashRequest(Structure):
    _fields_ = [("tokens", c_void_p), ("num_tokens", c_size_t),
                ("flags", c_uint32), ("ids", c_void_p), ("room", c_size_t),
                ("extras", POINTER(HashExtras)),
                ("state", POINTER(HashState))]


# ---- structs: index.h, store.h ----

class IndexEntry(Structure):
    _fields_ = [("size", c_uint64), ("generation", c_uint64),
                ("flags", c_uint32), ("tier", c_int32),
                ("tier_name", c_char * 40)]


class IndexInfo(Structure):
    _fields_ = [("backend", c_char_p), ("why", c_char_p),
                ("blocks", c_uint64), ("complete", c_int)]


class ControlPlace(Structure):
    _fields_ = [("result", c_int32), ("tier", c_uint8),
                ("directory", c_uint8), ("flags", c_uint16),
                ("size", c_uint64), ("mtime_ns", c_int64),
                ("generation", c_uint32), ("crc32c", c_uint32),
                ("uses", c_uint32), ("atime_s", c_uint32)]


class ControlStatistics(Structure):
    _fields_ = [("version", c_uint32), ("scanned", c_uint32),
                *((name, c_uint64) for name in (
                    "blocks", "bytes", "total_bytes", "free_bytes", "lookups",
                    "hits", "misses", "opens", "commits", "removed",
                    "quarantined", "io_errors"))]


class StoreConfig(Structure):
    _fields_ = [("size", c_size_t), ("tensor_size", c_uint64),
                ("shard_size", c_uint64), ("block_size", c_uint64),
                ("num_layers", c_uint32), ("geometry", POINTER(Geometry)),
                ("space", c_char_p), ("verify", c_int),
                ("deadline_ms", c_uint32), ("may_refuse", c_uint8)]


class StoreShape(Structure):
    _fields_ = [("tensor_size", c_uint64), ("shard_size", c_uint64),
                ("block_size", c_uint64), ("layer_size", c_uint64),
                ("num_layers", c_uint32), ("num_shards", c_uint32),
                ("tensors_per_shard", c_uint32)]


class Span(Structure):
    _fields_ = [("address", c_uint64), ("bytes", c_uint64)]


# The C names, for the test that compares sizes and offsets.
STRUCTS = {
    "ucm_error": Error,
    "ucm_geometry": Geometry, "ucm_region": Region, "ucm_tensor": Tensor,
    "ucm_loader_options": LoaderOptions, "ucm_request": Request,
    "ucm_outcome": Outcome, "ucm_loader_stats": LoaderStats,
    "ucm_hash_item": HashItem, "ucm_hash_extras": HashExtras,
    "ucm_hash_meta": HashMeta, "ucm_hash_state": HashState,
    "ucm_hash_request": HashRequest,
    "ucm_index_entry": IndexEntry, "ucm_index_info": IndexInfo,
    "ucm_control_place": ControlPlace,
    "ucm_control_statistics": ControlStatistics,
    "ucm_lessee_stats": LesseeStats,
    "ucm_shards_config": StoreConfig, "ucm_shards_shape": StoreShape,
    "ucm_span": Span,
}


# ---- functions ----

# Ids, moves, outcomes and other arrays are plain bytes on this side: void *.
_ptr = c_void_p
_out = POINTER(c_void_p)
_error = POINTER(Error)
_blocks = (c_int, (c_void_p, c_char_p, c_void_p, c_size_t, c_void_p))

PROTOTYPES: Dict[str, Tuple[object, Sequence[object]]] = {
    "ucm_fault_text": (c_char_p, (c_int,)),
    "ucm_block_payload_bytes": (c_uint64, (POINTER(Geometry),)),
    "ucm_crc32c": (c_uint32, (c_uint32, _ptr, c_size_t)),

    "ucm_layout_new": (c_int, (POINTER(Geometry), c_uint64, _out, _error)),
    "ucm_layout_free": (None, (_ptr,)),
    "ucm_layout_add_region": (c_int, (_ptr, POINTER(Region), _error)),
    "ucm_layout_add_tensor": (c_int, (_ptr, POINTER(Tensor), _error)),
    "ucm_layout_seal": (c_int, (_ptr, _error)),
    "ucm_layout_set_direct": (c_int, (_ptr, _error)),
    "ucm_layout_set_layer_bytes": (
        c_int, (_ptr, c_uint32, c_uint32, c_uint32, _error)),
    "ucm_layout_num_regions": (c_size_t, (_ptr,)),
    "ucm_layout_regions": (POINTER(Region), (_ptr,)),
    "ucm_layout_runs": (c_uint64, (_ptr,)),

    "ucm_loader_open": (c_int, (POINTER(LoaderOptions), _out, _error)),
    "ucm_loader_close": (None, (_ptr,)),
    "ucm_loader_add_group": (c_int, (_ptr, _ptr, c_char_p, POINTER(c_uint),
                                     _error)),
    "ucm_loader_remove_group": (c_int, (_ptr, c_uint, _error)),
    "ucm_loader_lookup": (c_int, (_ptr, c_uint, _ptr, c_size_t, _ptr)),
    "ucm_loader_prefix": (c_int, (_ptr, c_uint, _ptr, c_size_t,
                                  POINTER(c_size_t))),
    "ucm_loader_prefetch": (None, (_ptr, c_uint, _ptr, c_size_t)),
    "ucm_loader_remove": (c_int, (_ptr, c_uint, _ptr, c_size_t, _ptr)),
    "ucm_loader_get_stats": (None, (_ptr, POINTER(LoaderStats), c_size_t)),
    "ucm_loader_describe": (None, (_ptr, c_char_p, c_size_t)),
    "ucm_load_submit": (c_int, (_ptr, POINTER(Request), _out, _error)),
    "ucm_save_submit": (c_int, (_ptr, POINTER(Request), _out, _error)),
    "ucm_save_commit": (c_int, (_ptr, POINTER(Request), _out, _error)),
    "ucm_save_abandon": (None, (_ptr, c_uint, _ptr, c_size_t)),

    "ucm_outcome_text": (None, (POINTER(Outcome), c_char_p, c_size_t)),
    "ucm_task_done": (c_bool, (_ptr,)),
    "ucm_task_wait": (c_int, (_ptr, c_int)),
    "ucm_task_wait_layer": (c_int, (_ptr, c_uint32, c_int)),
    "ucm_task_wait_stream": (c_int, (_ptr, c_uint32, _ptr, c_int)),
    "ucm_task_wait_copied": (c_int, (_ptr, c_int)),
    "ucm_task_wait_returned": (c_int, (_ptr, c_int)),
    "ucm_task_num_lent": (c_size_t, (_ptr,)),
    "ucm_task_is_lent": (c_bool, (_ptr, c_size_t)),
    "ucm_task_cancel": (None, (_ptr,)),
    "ucm_task_outcomes": (_ptr, (_ptr,)),
    "ucm_task_num_failed": (c_size_t, (_ptr,)),
    "ucm_task_free": (None, (_ptr,)),
    "ucm_completions_new": (c_int, (_out,)),
    "ucm_completions_free": (None, (_ptr,)),
    "ucm_completions_fd": (c_int, (_ptr,)),
    "ucm_completions_take": (c_size_t, (_ptr, _ptr, c_size_t, c_int)),

    "ucm_log_redirect": (c_int, (_ptr, _ptr)),
    "ucm_log_to_socket": (None, (_ptr, c_int, c_char_p)),

    "ucm_index_open": (c_int, (c_char_p, c_char_p, _out)),
    "ucm_index_close": (None, (_ptr,)),
    "ucm_index_lookup": (c_int, (_ptr, _ptr, c_size_t, _ptr, _ptr)),
    "ucm_index_prefix": (c_int, (_ptr, _ptr, c_size_t, POINTER(c_size_t),
                                 POINTER(c_int))),
    "ucm_index_entry": (c_int, (_ptr, _ptr, POINTER(IndexEntry))),
    "ucm_index_info": (c_int, (_ptr, POINTER(IndexInfo))),

    "ucm_blocks_open": (c_int, (c_char_p, _out)),
    "ucm_blocks_close": (None, (_ptr,)),
    "ucm_blocks_lookup": _blocks,
    "ucm_blocks_touch": _blocks,
    "ucm_blocks_pin": _blocks,
    "ucm_blocks_unpin": _blocks,
    "ucm_blocks_evict": _blocks,
    "ucm_blocks_warm": _blocks,
    "ucm_blocks_remove": _blocks,
    "ucm_blocks_flush": (c_int, (_ptr,)),
    "ucm_blocks_rescan": (c_int, (_ptr,)),
    "ucm_blocks_drain": (c_int, (_ptr, c_char_p, c_uint32, _ptr)),
    "ucm_blocks_scrub_start": (
        c_int, (_ptr, c_char_p, c_uint32, c_uint64, _ptr)),
    "ucm_blocks_scrub_stop": (c_int, (_ptr, _ptr)),
    "ucm_blocks_scrub_status": (c_int, (_ptr, _ptr)),
    "ucm_blocks_checkpoint": (c_int, (_ptr,)),
    "ucm_blocks_locate": (c_int, (_ptr, c_char_p, _ptr, c_size_t, c_uint32,
                                  c_uint32, _ptr)),
    "ucm_blocks_lease": (c_int, (_ptr, c_char_p, _ptr, c_size_t, c_uint32,
                                 c_uint32, _ptr)),
    "ucm_blocks_offer": (c_int, (c_void_p, c_char_p, c_void_p, c_void_p,
                                 c_size_t, c_uint64, c_void_p)),
    "ucm_blocks_path": (c_int, (_ptr, c_char_p, _ptr, c_char_p)),
    "ucm_blocks_statistics": (c_int, (_ptr, POINTER(ControlStatistics))),

    "ucm_lessee_open": (c_int, (c_char_p, c_uint32, _out)),
    "ucm_lessee_close": (None, (_ptr,)),
    "ucm_lessee_hold": (c_uint64, (_ptr, c_char_p, c_char_p, c_size_t,
                                   c_uint32)),
    "ucm_lessee_release": (None, (_ptr, c_uint64)),
    "ucm_lessee_get_stats": (None, (_ptr, POINTER(LesseeStats))),

    "ucm_space_make": (c_int, (c_char_p, c_char_p, c_char_p, c_char_p,
                               c_char_p, _error)),
    "ucm_space_manifest": (c_int, (c_char_p, c_char_p, c_char_p, c_char_p,
                                   _error)),
    "ucm_space_remove": (c_int, (c_char_p, c_char_p, _error)),
    "ucm_tiers_make": (c_int, (c_char_p, _error)),

    "ucm_hasher_open": (c_int, (POINTER(HashMeta), _out, _error)),
    "ucm_hasher_close": (None, (_ptr,)),
    "ucm_hash_count": (c_size_t, (_ptr, c_size_t, c_uint32)),
    "ucm_hash_request": (c_int, (_ptr, POINTER(HashRequest), _error)),
    "ucm_hash_batch": (c_int, (_ptr, POINTER(HashRequest), c_size_t,
                               _error)),
    "ucm_hash_start": (c_int, (_ptr, POINTER(HashExtras),
                               POINTER(HashState), _error)),
    "ucm_hash_resume": (c_int, (_ptr, _ptr, c_uint64, POINTER(HashState))),
    "ucm_hash_rank_ids": (c_int, (_ptr, c_uint32, _ptr, c_size_t, _ptr)),
    "ucm_hash_external": (c_int, (_ptr, c_uint32, _ptr, c_size_t, c_size_t,
                                  _ptr)),

    "ucm_shards_open": (c_int, (_ptr, POINTER(StoreConfig), _out, _error)),
    "ucm_shards_close": (None, (_ptr,)),
    "ucm_shards_get_shape": (None, (_ptr, POINTER(StoreShape))),
    "ucm_shards_lookup": (c_int, (_ptr, _ptr, c_size_t, _ptr)),
    "ucm_shards_lookup_on_prefix": (c_int, (_ptr, _ptr, c_size_t,
                                           POINTER(c_int64))),
    "ucm_shards_prefetch": (c_int, (_ptr, _ptr, c_size_t)),
    "ucm_shards_set_parents": (None, (_ptr, _ptr, _ptr, c_size_t)),
    "ucm_shards_wait": (c_int, (_ptr, c_uint64, c_int, _ptr, c_size_t)),
    "ucm_shards_check": (c_int, (_ptr, c_uint64, _ptr, c_size_t)),
    "ucm_shards_notify": (c_int, (_ptr, c_uint64, c_int)),
    "ucm_shards_cancel": (c_int, (_ptr, c_uint64)),
    "ucm_shards_load": (c_int, (_ptr, _ptr, _ptr, c_size_t, _ptr,
                               POINTER(c_uint64), _error)),
    "ucm_shards_dump": (c_int, (_ptr, _ptr, _ptr, c_size_t, _ptr,
                               POINTER(c_uint64), _error)),
    "ucm_shards_load_data": (c_int, (_ptr, _ptr, _ptr, c_size_t, _ptr,
                                    c_size_t, POINTER(c_uint64), _error)),
    "ucm_shards_dump_data": (c_int, (_ptr, _ptr, _ptr, c_size_t, _ptr,
                                    c_size_t, POINTER(c_uint64), _error)),
    "ucm_shards_create": (c_int, (_ptr, _ptr, c_size_t, _ptr)),
    "ucm_shards_load_at": (c_int, (_ptr, _ptr, _ptr, _ptr, c_size_t,
                                  POINTER(c_uint64), _error)),
    "ucm_shards_dump_at": (c_int, (_ptr, _ptr, _ptr, _ptr, c_size_t,
                                  POINTER(c_uint64), _error)),
    "ucm_shards_commit": (c_int, (_ptr, _ptr, _ptr, c_size_t,
                                 POINTER(c_uint64), _error)),
}


# Those that call back.
SPACE_NAME = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p)

CALLING: Dict[str, Tuple[object, Sequence[object]]] = {
    "ucm_space_list": (c_int, (c_char_p, c_char_p, SPACE_NAME, _ptr,
                               _error)),
}


# ---- the library ----

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None


def _known(soname: str) -> Iterator[Optional[str]]:
    """Where it may be. find_library() starts programs, so it is last."""
    yield _bundled.path(soname)
    yield soname
    yield ctypes.util.find_library(soname[3:].partition(".")[0])


def open_library(soname: str) -> ctypes.CDLL:
    """A library of ucmfs, beside $UCMFS_LIBRARY if that is set.
    LibraryMissing."""
    asked = os.environ.get("UCMFS_LIBRARY")
    if asked and soname != SONAME:
        asked = os.path.join(os.path.dirname(asked), soname)
    causes = []
    for name in [asked] if asked else _known(soname):
        if not name:
            continue
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            causes.append(str(error))
    whence = "$UCMFS_LIBRARY" if asked else "the system"
    raise LibraryMissing(
        f"{soname.partition('.')[0]} is not there by {whence} "
        f"({'; '.join(causes)}): install ucmfs ('make install', then "
        "ldconfig) or a wheel that has it ('make wheel-binary'), or set "
        "UCMFS_LIBRARY to the path of libucm.so")


def bind(library: ctypes.CDLL, prototypes: Dict[str, Tuple[
        object, Sequence[object]]]) -> ctypes.CDLL:
    """Give functions of the library their types. LibraryMissing."""
    for name, (result, arguments) in prototypes.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LibraryMissing(
                f"{library._name} has no {name}: it is older than this "
                "package; install both from one version") from None
        function.restype = result
        function.argtypes = arguments
    return library


def lib() -> ctypes.CDLL:
    """libucm, loaded once. LibraryMissing. Any thread."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = bind(open_library(SONAME),
                                {**PROTOTYPES, **CALLING})
    return _library


def path_bytes(path: object, name: str = "path") -> Optional[bytes]:
    """A path (str, bytes or PathLike) for C; None stays."""
    return None if path is None else _whole_text(os.fsencode(path), name)


def text_bytes(text: Optional[str], name: str = "space") -> Optional[bytes]:
    return None if text is None else _whole_text(text.encode(), name)


def _whole_text(text: bytes, name: str) -> bytes:
    """C would see what is before a NUL."""
    if b"\0" in text:
        raise InvalidArgument(f"{name} has a NUL: {text!r}")
    return text
