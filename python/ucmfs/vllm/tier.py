# SPDX-License-Identifier: Apache-2.0
"""UcmfsTier: a secondary tier of vLLM's OffloadingConnector.

offloading.py has the connector that it stands below, and a configuration.

vLLM moves KV between the device and a shared memory of slots; a tier moves it
between the slots and storage. All calls come from the scheduler and must not
wait: see slots.py for how. Here is what vLLM's types ask for, versions 0.31 to
0.33; what a version has and another has not is looked for, not assumed.

What a request has found is expected until it is loaded (expected.py).

vLLM does not tell a tier of a reset, but it lets nobody else than a reset wait
for all jobs: drain_jobs() stands for it. A request that runs on over it is
stored again from its start: if the weights are others then, it is left out
until it has ended. It may be preempted and computed anew before, but stores of
its former blocks may still be on their way then.

Nor does vLLM tell of adapters: the request is asked (engine.py), and its keys
get others in the store, by what the adapter is. Where nobody can say, the
request's blocks are not kept.

vLLM 0.33 has a thread that looks up keys for other engines between steps. It
must not call the workers, whom the engine's thread may be calling: what would
have to be asked for is a MISS there.

A load counts as a use of its block, and so does touch(): what vLLM finds in
its own memory is in use as well. What the mount does not want is not saved.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import Any, ClassVar, Iterable, Mapping, Sequence

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality, LookupResult, Medium, OffloadingCounterMetadata,
    OffloadingEvent, OffloadingGaugeMetadata, OffloadingHistogramMetadata,
    OffloadingMetricMetadata, OffloadKey, RequestOffloadingContext)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from ucmfs.errors import ConfigError

from .adapters import Adapters
from .engine import Engine
from .epochs import Epochs
from .events import CHECKED, MOST, TURN_SECONDS
from .expected import AGAIN_SECONDS
from .fingerprint import (EngineConfigs, Overrides, digest, engine_configs,
                          engine_manifest, hashes, plain, refuse_counted_media)
from .metrics import BUCKETS, SHARED, by_cause
from .mount import Teller, cause_of, log
from .options import TierOptions, parse
from .shares import Layers, layers_of
from .slots import GROUP_BYTES, Finished, Memory, SlotStore, geometry_of
from .spaces import space_name
from .wishes import KEY, USUAL, wishes_of

# Memory that hanging reads may write to, when its tier has ended.
_lent: list[Any] = []

BATCH_FIRST = 64    # keys of a request that are looked up at once, and
BATCH_MOST = 4096   # at most, as long as they are found


# ---- the namespace ----

def tier_manifest(spec: Any, slot_bytes: int, config: TierOptions,
                  configs: EngineConfigs,
                  stages: Sequence[Layers] = ()) -> dict[str, Any]:
    """The manifest of the space of a tier's blocks. stages: of a pipeline, the
    layers of each rank.

    A block is a slot: a chunk of tokens, all layers of a group, all ranks one
    behind the other.
    """
    offload = spec.config
    refuse_counted_media(configs.vllm)
    if config.namespace:
        engine: dict[str, Any] = {
            "engine": {"name": "vllm", "declared": config.namespace},
            "hash": hashes(configs.vllm, offload.cache.tokens_per_hash),
            "tenant": config.tenant, "epoch": config.epoch}
    else:
        engine = engine_manifest(
            configs, hash_block_size=offload.cache.tokens_per_hash,
            overrides=Overrides.of(config))
    portable = _is_portable(offload)
    if portable:
        engine = _without_ranks(engine)
    chunk = offload.cache.blocks_per_chunk
    tokens = [group.tokens_per_block for group in offload.groups]
    return {
        **engine,
        "use": "tier",
        "chunk": {
            "blocks": chunk, "bytes": slot_bytes, "tokens_per_block": tokens,
            "group_ids": [plain(getattr(group, "group_id", i))
                          for i, group in enumerate(offload.groups)],
            "model": str(offload.model.name) if config.namespace else "",
            "dtype": offload.model.dtype,
            **({"portable": True} if portable else _ranks(offload)),
            "replicated": bool(getattr(spec, "replicated_layout", False)),
            "canonical": bool(getattr(offload, "canonical_layout", False)),
            "layout": plain(getattr(offload, "kv_cache_layout", None)),
            **({"stages": digest(stages)} if stages else {}),
        },
        "geometry": geometry_of(slot_bytes, max(tokens) * chunk).to_json(),
    }


def _is_portable(offload: Any) -> bool:
    """Whether the bytes of a chunk are the same for every number of ranks, as
    vLLM says and sees to: --kv-connector-extra-config's canonical_layout."""
    return bool(getattr(offload, "canonical_layout", False)
                and offload.parallel.is_parallelism_agnostic
                and offload.parallel.pp_size == 1)


def _ranks(offload: Any) -> dict[str, Any]:
    parallel = offload.parallel
    return {"worker_bytes": offload.worker_kv_bytes_per_block,
            "world_size": parallel.world_size,
            "tp": parallel.tp_size, "pp": parallel.pp_size,
            "dcp": parallel.dcp_size, "pcp": parallel.pcp_size}


# Of a group: how its pages are in one rank. Types and heads of the model are
# in other parts of the manifest.
_OF_A_RANK = frozenset(("page_bytes", "spec"))


def _without_ranks(engine: dict[str, Any]) -> dict[str, Any]:
    out = {key: value for key, value in engine.items() if key != "parallel"}
    if "groups" in out:
        out["groups"] = [{key: value for key, value in group.items()
                          if key not in _OF_A_RANK} for group in out["groups"]]
    return out


# ---- metrics ----

_PREFIX = "vllm:ucmfs_tier_"
_MOUNT = ("mount",)
_COUNTERS = (
    ("lookups", "Keys looked up."),
    ("lookup_hits", "Keys looked up whose blocks were there."),
    *SHARED,
)
_HISTOGRAMS = ("load_seconds", "save_seconds")


def _metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    out: dict[str, OffloadingMetricMetadata] = {
        _PREFIX + name: OffloadingCounterMetadata(
            documentation=text,
            labelnames=(*_MOUNT, "cause") if by_cause(text) else _MOUNT)
        for name, text in _COUNTERS}
    for name in _HISTOGRAMS:
        out[_PREFIX + name] = OffloadingHistogramMetadata(
            documentation="From the submission of a job until its end was "
            "seen, in seconds.", labelnames=_MOUNT, buckets=BUCKETS)
    out[_PREFIX + "connected"] = OffloadingGaugeMetadata(
        documentation="1 while the mount answers, else 0.", labelnames=_MOUNT)
    return out


# ---- look-ups of a request ----

def _group_of(key: bytes) -> int:
    return int.from_bytes(key[-GROUP_BYTES:], "big")


class _Known:
    """The keys of a request, as far as vLLM tells them, and how far they have
    been asked for. They are asked for mostly in order, one by one."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.next = 0
        self.size = BATCH_FIRST
        self.found: list[bytes] = []  # keys, in this step
        # Keys that were reported to the mount, and when they are again.
        self.expected: set[bytes] = set()
        self.expect_at = 0.0
        self.wishes = USUAL
        # what was found, if something is wanted of it at the end
        self.to_settle: dict[bytes, None] = {}
        self.request: Any = None  # vLLM's
        self.adapter: bytes | None = None  # what that is; None: not asked
        self.left_out = False  # nobody can say, or it has become another
        self._renamed: dict[bytes, int] = {}
        self._ends: dict[tuple[int, int], bytes] = {}  # by group and token
        self._taken = 0

    def names(self, keys: Iterable[bytes]) -> list[bytes]:
        """What the keys are called in the store."""
        if not self.adapter:
            return list(keys)
        return [hashlib.sha256(self.adapter + key[:-GROUP_BYTES]).digest()
                [:len(key) - GROUP_BYTES] + key[-GROUP_BYTES:] for key in keys]

    def positions(self, context: Any) -> Any:
        """Where chunks end, by what they are called; from 0.32 on. They only
        become more."""
        given = getattr(context, "_offload_key_positions", None)
        if not given or not self.adapter:
            return given
        new = list(itertools.islice(given, len(self._renamed), None))
        self._renamed.update(zip(self.names(new), map(given.get, new)))
        return self._renamed

    def before(self, keys: Sequence[bytes], positions: Any,
               chunk_tokens: Mapping[int, int]) -> dict[bytes, bytes]:
        """From a key to that of the chunk before it, where vLLM tells where
        the chunks end (positions; from 0.32 on). They only become more."""
        if not positions:
            return {}
        for key, end in itertools.islice(positions.items(), self._taken, None):
            self._ends[_group_of(key), end] = key
        self._taken = len(positions)
        out = {}
        for key in keys:
            group = _group_of(key)
            if key in positions and group in chunk_tokens:
                found = self._ends.get(
                    (group, positions[key] - chunk_tokens[group]))
                if found is not None:
                    out[key] = found
        return out

    def batch(self, key: bytes, positions: Any) -> list[bytes]:
        """The key and those that will be asked for behind it."""
        if not positions:
            return [key]
        if len(positions) != len(self.keys):
            self.keys = list(positions)
        try:
            at = self.keys.index(key, self.next)
        except ValueError:  # from the end backwards, as sliding windows are
            return [key]
        end = min(at + self.size, len(self.keys))
        self.next = end
        self.size = min(4 * self.size, BATCH_MOST)
        return self.keys[at:end]

    def rewind(self) -> None:
        self.next = 0
        self.size = BATCH_FIRST


class UcmfsTier(SecondaryTierManager):
    """Blocks of KV cache in a space of a mount of ucmfs.

    A look-up is answered HIT or MISS from the daemon's shared memory, or, of a
    private space, by the daemon; what nobody can say yet is a MISS. A block
    that fails to load fails alone; it is a MISS for a while, and removed if it
    is damaged. While the daemon is gone all is a MISS and stores are dropped.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview,
                 tier_type: str, backpressure_detector: Any = None,
                 **config: Any) -> None:
        """config: see TierOptions; ConfigError, or what the mount says."""
        super().__init__(offloading_spec, primary_kv_view, tier_type,
                         backpressure_detector)
        self.config = parse(TierOptions, config)
        self.locality = Locality(self.config.locality) \
            if self.config.locality else None
        self._spec, self._configs = offloading_spec, engine_configs()
        self._thread = threading.get_ident()  # the engine's
        self._engine = Engine(self._configs.vllm)
        self._epochs = Epochs(self.config, self._engine.weigh)
        self._adapters = Adapters(self.config.lora, self._engine.adapter)
        self._asks = self.config.lora != "name" and self._engine.has_adapters
        self._manifest = tier_manifest(
            offloading_spec, self.block_size_bytes, self.config,
            self._configs, self._stages())
        self.space, manifest = self._space_now()
        offload = offloading_spec.config
        self._chunk_tokens = {
            int(getattr(group, "group_id", i)):
                group.tokens_per_block * offload.cache.blocks_per_chunk
            for i, group in enumerate(offload.groups)}
        self._events: list[OffloadingEvent] | None = None
        # Keys by name, first what was looked up longest ago.
        self._reported: OrderedDict[bytes, bytes] = OrderedDict()
        self._look_at = 0.0
        if self.config.enable_kv_events:
            self._events = self._event_list(offloading_spec)
        self._verdicts: dict[bytes, int] = {}  # of this step
        self._requests: dict[str, _Known] = {}
        self._doubtful: set[str] = set()  # had KV at the last reset
        self._stale: set[str] = set()     # have KV of other weights
        self._to_settle: dict[int, Any] = {}  # jobs, and what is wanted
        self._keys: dict[int, dict[bytes, bytes]] = {}  # of jobs, by name
        self._teller = Teller(self.config.mount)
        self._stats: Any = None
        self._lookups = self._hits = 0
        self._told_connected: bool | None = None
        self._mount_label = (self.config.mount,)
        self._store = SlotStore(
            _memory_of(primary_kv_view), mount=self.config.mount,
            space=self.space, manifest=manifest, verify=self.config.verify,
            deadline_ms=self.config.deadline_ms,
            direct=self.config.direct,
            may_miss=self.config.on_missing == "run", **self.config.loader)
        log.info("ucmfs: tier on %s, space %s; %s", self.config.mount,
                 self.space, self._store.describe())

    def _event_list(self, spec: Any) -> list[OffloadingEvent] | None:
        if spec.kv_events_config.enable_kv_cache_events:
            return []
        log.warning("ucmfs: enable_kv_events is set, and vLLM publishes no "
                    "KV cache events: none are made")
        return None

    # ---- whose blocks ----

    def _stages(self) -> Sequence[Layers]:
        """Of a pipeline, the layers of each rank; ConfigError if vLLM cannot
        keep them."""
        offload = self._spec.config
        if offload.parallel.pp_size == 1:
            return ()
        return layers_of(self._engine.shares(), offload.parallel.world_size,
                         offload.worker_kv_bytes_per_block)

    def _space_now(self) -> tuple[str, dict[str, Any]]:
        """The name of the space, and its manifest."""
        manifest = self._epochs.in_force(self._manifest)
        return space_name(self.config.space, self._spec.config.model.name,
                          manifest, self._epochs), manifest

    def _settle(self) -> None:
        """Find out which space is this engine's, if that is in doubt."""
        if not self._epochs.unsure:
            return
        doubtful, self._doubtful = self._doubtful, set()
        if not self._epochs.settle():
            return
        self._stale |= doubtful
        self._verdicts.clear()
        if self._reported:  # of no use to this engine any more
            self._report([*self._reported.values()], removed=True)
            self._reported.clear()
        for known in self._requests.values():
            known.expected.clear()
            known.found = []
            known.to_settle.clear()
        self.space, manifest = self._space_now()
        self._store.move(self.space, manifest, self._epochs.now.private)
        log.info("ucmfs: blocks go to %s", self.space)

    def _may_ask(self) -> bool:
        """The workers, who are the engine's thread's to call."""
        return threading.get_ident() == self._thread

    def _is_kept(self, known: _Known, name: str, late: bool = False) -> bool:
        """See Adapters.keep()."""
        if known.request is None:
            known.request = self._engine.request(name)
            if known.request is None:
                return False
        lora = known.request.lora_request
        if not self._may_ask() and not self._adapters.knows(lora, late):
            return False
        return self._adapters.keep(known, lora, late)

    # ---- look-ups ----

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        if self._epochs.unsure and not self._may_ask():
            return LookupResult.MISS
        self._settle()
        if self._asks:
            known = self._known(req_context)
            if not self._is_kept(known, req_context.req_id):
                return LookupResult.MISS
            key, = known.names([key])
        found: int | None = 0
        if self._wishes(req_context).load:
            found = self._verdicts.get(key)
        if found is None:
            found = self._ask(key, req_context)
        self._lookups += 1
        self._hits += found
        return LookupResult.HIT if found else LookupResult.MISS

    def _ask(self, key: bytes, req_context: Any) -> int:
        known = self._known(req_context)
        keys = known.batch(key, known.positions(req_context))
        verdicts = self._store.lookup(keys)
        self._verdicts.update(zip(keys, verdicts))
        found = keys if 0 not in verdicts else list(
            itertools.compress(keys, verdicts))
        self._found(known, found)
        if len(keys) > 1:
            self._expect(known, found)
        return self._verdicts[key]

    @staticmethod
    def _found(known: _Known, keys: list[bytes]) -> None:
        known.found += keys
        if known.wishes.of_blocks:
            known.to_settle.update(dict.fromkeys(keys))

    def _expect(self, known: _Known, found: list[bytes]) -> None:
        """Let others be evicted before what a request has found. At once,
        where it is asked for together: on a store that is full the end of the
        step may be too late."""
        now = time.monotonic()
        if now >= known.expect_at:
            known.expected.clear()
            known.expect_at = now + AGAIN_SECONDS
        if known.expected.issuperset(found):
            return
        self._store.expect([key for key in found
                            if key not in known.expected])
        known.expected.update(found)

    def on_schedule_end(self, context: Any) -> None:
        """Answers hold for one step."""
        self._thread = threading.get_ident()  # it may have been made elsewhere
        if self._asks:
            for name in getattr(context, "new_req_ids", ()):
                self._ask_of_new(name)
        self._adapters.end_step()
        if self._verdicts:
            self._verdicts.clear()
            for known in self._requests.values():
                known.rewind()
                if known.found:
                    self._expect(known, known.found)
                    known.found = []

    def _ask_of_new(self, name: str) -> None:
        """What a request will be computed with, in the step that comes: not
        all are looked up."""
        known = self._requests.get(name)
        if known is not None and known.adapter is None:
            self._is_kept(known, name)

    def _known(self, context: Any) -> _Known:
        known = self._requests.get(context.req_id)
        if known is None:
            known = self._requests[context.req_id] = _Known()
            known.wishes = self._told_by(context)
        return known

    def _wishes(self, context: Any) -> Any:
        """Of a request that may have ended: it is not remembered for that."""
        known = self._requests.get(getattr(context, "req_id", ""))
        return self._told_by(context) if known is None else known.wishes

    def _told_by(self, context: Any) -> Any:
        """From 0.32 on blocks are known by what they follow: without that, an
        end would be that of all prefixes."""
        wanted = wishes_of(getattr(context, "kv_transfer_params", None),
                           self._teller)
        if not wanted.end or hasattr(context, "_offload_key_positions"):
            return wanted
        self._teller.warn("kv_transfer_params",
                          "%s.end is ignored: it needs vLLM 0.32", KEY)
        return replace(wanted, end=False)

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._forget(req_context.req_id)  # another may have been called so
        if self._asks:
            self._meet(req_context)
        return RequestOffloadingContext()

    def _meet(self, context: Any) -> None:
        """Its stores may come when the engine has forgotten it. The workers
        are asked later: what waits for long would have its adapter brought,
        and that of one that runs taken away."""
        request = self._engine.request(context.req_id)
        if request is not None:
            known = self._known(context)
            known.request = request
            if request.lora_request is None:
                known.adapter = self._adapters.digest_of(None)

    def _forget(self, name: str) -> None:
        self._doubtful.discard(name)
        self._stale.discard(name)

    def on_request_finished(self, req_context: Any) -> None:
        self._forget(req_context.req_id)
        known = self._requests.pop(req_context.req_id, None)
        if known is not None:
            if known.to_settle:
                self._store.settle(list(known.to_settle), known.wishes)

    def touch(self, keys: Any, req_context: Any) -> None:
        keys = list(keys)
        known = self._requests.get(req_context.req_id)
        if self._asks and (known is None or known.adapter is None):
            return
        if known is not None:
            keys = known.names(keys)
            if known.wishes.of_blocks:
                known.to_settle.update(dict.fromkeys(keys))
        self._store.touch(keys)

    # ---- jobs ----

    def submit_store(self, job_metadata: Any) -> None:
        self._settle()
        keys = list(job_metadata.keys)
        context = getattr(job_metadata, "req_context", None)
        wanted = self._wishes(context)
        if not wanted.save or not self._may_save(context):
            self._store.leave(job_metadata.job_id, keys)
            return
        if wanted.of_blocks:
            self._to_settle[job_metadata.job_id] = wanted
        known = self._requests.get(getattr(context, "req_id", "")) or _Known()
        keys = self._named(known, job_metadata.job_id, keys)
        self._store.save(
            job_metadata.job_id, keys, job_metadata.chunk_ids,
            known.before(keys, known.positions(context), self._chunk_tokens))

    def _may_save(self, context: Any) -> bool:
        """Its KV may be of other weights, and its adapter another one than
        when it was looked up."""
        name = getattr(context, "req_id", "")
        if name in self._stale:
            return False
        if not self._asks:
            return True
        known = self._requests.get(name)
        if known is None or known.adapter is None:
            return False  # nobody has asked what it is computed with
        return self._is_kept(known, name, late=True)

    def _named(self, known: _Known, job: int,
               keys: list[bytes]) -> list[bytes]:
        """What a job's keys are called."""
        if not known.adapter:
            return keys
        names = known.names(keys)
        self._keys[job] = dict(zip(names, keys))
        return names

    def submit_load(self, job_metadata: Any) -> None:
        context = getattr(job_metadata, "req_context", None)
        keys = list(job_metadata.keys)
        known = self._requests.get(getattr(context, "req_id", ""))
        if self._asks and (known is None or known.adapter is None):
            self._store.refuse(job_metadata.job_id, keys)  # what is it called?
            return
        if known is not None:
            keys = self._named(known, job_metadata.job_id, keys)
        self._store.load(job_metadata.job_id, keys, job_metadata.chunk_ids)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        if not self._store.busy:
            return ()
        return [self._result(one) for one in self._store.finished()]

    def _result(self, one: Finished) -> JobResult:
        self._count(one)
        if one.is_load:
            for key in one.failed:
                self._verdicts.pop(key, None)
        elif one.job in self._to_settle:
            self._store.settle(one.present, self._to_settle.pop(one.job))
        if not one.is_load and self._events is not None and one.present:
            self._report(self._keys_of(one), removed=False)
            self._reported.update(zip(one.present, self._keys_of(one)))
            if len(self._reported) > MOST:  # a miss to routers from now on
                self._report([self._reported.popitem(last=False)[1]
                              for _ in one.present], removed=True)
        partly = one.is_load and one.failed and one.present
        present = tuple(self._keys_of(one)) if partly else None
        self._keys.pop(one.job, None)
        return JobResult(job_id=one.job, success=not one.failed,
                         successful_keys=present,
                         transfer_time=one.seconds, transfer_bytes=one.moved)

    def _keys_of(self, one: Finished) -> list[bytes]:
        """Of the blocks that are present, as vLLM knows them."""
        keys = self._keys.get(one.job)
        return [keys[name] for name in one.present] if keys \
            else list(one.present)

    def has_pending_work(self) -> bool:
        return self._store.busy

    def drain_jobs(self) -> None:
        self._store.drain()
        self._doubtful.update(self._engine.computed())
        self._epochs.reset()
        self._adapters.reset()

    def _report(self, keys: list[bytes], removed: bool) -> None:
        assert self._events is not None
        self._events.append(OffloadingEvent(
            keys=[*map(OffloadKey, keys)], medium=self.medium, removed=removed,
            locality=self.locality))

    def _look(self) -> None:
        """A turn; see events.py."""
        self._look_at = time.monotonic() + TURN_SECONDS
        names = list(itertools.islice(self._reported, CHECKED))
        for name in names:
            self._reported.move_to_end(name)
        gone = [self._reported.pop(name) for name in self._store.gone(names)]
        if gone:
            self._report(gone, removed=True)

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._reported and time.monotonic() >= self._look_at:
            self._look()
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    def shutdown(self) -> None:
        if not self._store.close():
            _lent.append(self._primary_kv_view.obj)
        # the region is unmapped behind us, which a view of it would prevent
        self._primary_kv_view = memoryview(b"")

    # ---- figures ----

    @classmethod
    def build_metric_definitions(
            cls, extra_config: Any) -> dict[str, OffloadingMetricMetadata]:
        return _metric_definitions()

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:
        """vLLM 0.33: labels of its series of facts."""
        return ("ucmfs_mount", "ucmfs_space")

    def config_info(self) -> dict[str, Any]:
        return {"ucmfs_mount": self.config.mount, "ucmfs_space": self.space}

    def _count(self, one: Finished) -> None:
        what = "load" if one.is_load else "save"
        blocks = one.moved // self.block_size_bytes
        done = "loaded" if one.is_load else "saved"
        if blocks:
            self._add(f"{done}_blocks", blocks)
            self._add(f"{done}_bytes", one.moved)
            self._stats_now().observe_histogram(
                f"{_PREFIX}{what}_seconds", one.seconds, self._mount_label)
        if one.skipped:
            self._add("save_skipped_blocks", one.skipped)
        if one.refused:
            self._add("save_refused_blocks", one.refused)
        for err in one.failed.values():
            self._add(f"{what}_failed_blocks", 1, cause_of(err))

    def _add(self, name: str, amount: int, *cause: str) -> None:
        self._stats_now().increase_counter(_PREFIX + name, amount,
                                           (*self._mount_label, *cause))

    def _stats_now(self) -> Any:
        if self._stats is None:
            from vllm.distributed.kv_transfer.kv_connector.v1.offloading \
                .metrics import OffloadingConnectorStats
            self._stats = OffloadingConnectorStats()
        return self._stats

    def get_stats(self) -> Any:
        connected = self._store.connected
        if not self._lookups and self._stats is None \
                and connected == self._told_connected:
            return None
        stats = self._stats_now()
        if self._lookups:
            self._add("lookups", self._lookups)
            self._add("lookup_hits", self._hits)
            self._lookups = self._hits = 0
        stats.set_gauge(_PREFIX + "connected", int(connected),
                        self._mount_label)
        self._told_connected = connected
        self._stats = None
        return stats


def _memory_of(view: memoryview) -> Memory:
    """Where the slots are. Nothing of the view is kept: it has to be released
    when the engine ends, and what holds a buffer of it prevents that."""
    if view.ndim != 2 or not view.c_contiguous:
        raise ConfigError("", f"the primary tier's view has {view.ndim} "
                          "dimensions or gaps; slots in a row are needed")
    array = np.asarray(view)
    return Memory(array.ctypes.data, view.strides[0], view.shape[0])
