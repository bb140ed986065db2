# SPDX-License-Identifier: Apache-2.0
"""Counters of the connector: for vLLM's log, and for Prometheus.

Both roles count into a Stats of their own; vLLM takes them each step, adds
them up, and hands them to the process that logs and exports. Names there begin
with vllm:ucmfs_.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics, KVConnectorStats)

# Counters: name, what it counts.
COUNTERS: Tuple[Tuple[str, str], ...] = (
    ("lookups", "Requests whose blocks were looked up."),
    ("lookup_hits", "Lookups that found more than the engine has."),
    ("lookup_cut", "Lookups that ran out of their time."),
    ("lookup_seconds", "Time of the scheduler that lookups took."),
    ("promised_tokens", "Tokens that were promised to be loaded."),
    ("skipped_loads", "Loads that computing was expected to beat."),
    ("loads", "Loads that have ended, of all ranks."),
    ("load_bytes", "Bytes loaded into the KV cache, of all ranks."),
    ("load_failed_blocks", "Blocks that could not be loaded."),
    ("load_absent_blocks", "Of these, blocks that were not there."),
    ("load_damaged_blocks", "Of these, blocks that were damaged."),
    ("load_timeouts", "Of these, blocks past their deadline."),
    ("saves", "Blocks saved, of all ranks."),
    ("save_bytes", "Bytes saved, of all ranks."),
    ("save_skipped_blocks", "Saves of blocks that were there."),
    ("save_failed_blocks", "Blocks that could not be saved."),
    ("save_dropped_blocks", "Blocks not saved for want of room to pin."),
    ("save_distrusted_blocks", "Blocks not saved as what they were computed "
     "from could not be loaded."),
    ("mount_losses", "Times the mount has gone."),
    ("resets", "Times the cache was reset."),
)
GAUGES: Tuple[Tuple[str, str], ...] = (
    ("pinned_blocks", "Blocks kept from reuse until they are saved."),
)
# Histogram: the seconds from a load's start to its end.
LOAD_SECONDS = "load_seconds"
_BUCKETS = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
            10.0, 30.0]
_MOST = 256  # observations kept between two collections


class UcmfsStats(KVConnectorStats):
    """data: counters and gauges by name, where not 0; load_seconds: a list."""

    def reset(self) -> None:
        self.data = {}

    def is_empty(self) -> bool:
        return not self.data

    def add(self, name: str, amount: float = 1) -> None:
        if amount:
            self.data[name] = self.data.get(name, 0) + amount

    def set(self, name: str, value: float) -> None:
        self.data[name] = value

    def observe_load(self, seconds: float) -> None:
        seen = self.data.setdefault(LOAD_SECONDS, [])
        if len(seen) < _MOST:
            seen.append(seconds)

    def take(self) -> "UcmfsStats":
        """What there is, and begin anew."""
        taken = UcmfsStats(data=self.data)
        self.data = {}
        return taken

    def aggregate(self, other: KVConnectorStats) -> "UcmfsStats":
        gauges = {name for name, _ in GAUGES}
        for name, value in other.data.items():
            if name == LOAD_SECONDS:
                self.data.setdefault(name, []).extend(value)
            elif name in gauges:
                self.data[name] = value
            else:
                self.add(name, value)
        return self

    def reduce(self) -> Dict[str, Any]:
        """For the log: what is not 0, and rates that a reader wants."""
        data = self.data
        out: Dict[str, Any] = {}
        for name, _ in COUNTERS + GAUGES:
            if data.get(name):
                value = data[name]
                out[f"ucmfs {name.replace('_', ' ')}"] = (
                    round(value, 4) if isinstance(value, float) else value)
        seconds = data.get(LOAD_SECONDS)
        if seconds:
            total = sum(seconds)
            out["ucmfs load ms"] = round(1000 * total / len(seconds), 2)
            if total > 0:
                out["ucmfs load GB/s"] = round(
                    data.get("load_bytes", 0) / total / 1e9, 3)
        return out


class UcmfsPromMetrics(KVConnectorPromMetrics):
    """The same for Prometheus."""

    def __init__(self, vllm_config: Any, metric_types: Dict[Any, Any],
                 labelnames: List[str],
                 per_engine_labelvalues: Dict[int, List[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames,
                         per_engine_labelvalues)
        self._made: Dict[str, Dict[int, Any]] = {}
        for name, text in COUNTERS:
            self._make(self._counter_cls, name, text)
        for name, text in GAUGES:
            self._make(self._gauge_cls, name, text)
        self._make(self._histogram_cls, LOAD_SECONDS,
                   "Time of a load, from its start to its end.",
                   buckets=_BUCKETS)

    def _make(self, kind: Any, name: str, text: str, **more: Any) -> None:
        metric = kind(name=f"vllm:ucmfs_{name}", documentation=text,
                      labelnames=self._labelnames, **more)
        self._made[name] = {
            engine: metric.labels(*values)
            for engine, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: Dict[str, Any],
                engine_idx: int = 0) -> None:
        gauges = {name for name, _ in GAUGES}
        for name, value in (transfer_stats_data or {}).items():
            metric = self._made.get(name, {}).get(engine_idx)
            if metric is None:
                continue
            if name == LOAD_SECONDS:
                for one in value:
                    metric.observe(one)
            elif name in gauges:
                metric.set(value)
            else:
                metric.inc(value)
