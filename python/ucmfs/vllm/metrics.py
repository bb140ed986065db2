# SPDX-License-Identifier: Apache-2.0
"""What both ways count, and the connector's counters for vLLM.

Names are those of Prometheus behind vllm:ucmfs_ (connector) or
vllm:ucmfs_tier_ (tier). Both roles of the connector count into a Stats of
their own; vLLM takes them each step, adds them up, and hands them to the
process that logs and exports. The tier counts into vLLM's own.
"""

from __future__ import annotations

from typing import Any, Iterable

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics, KVConnectorStats)

from .mount import cause_of

# Counters: name, what it counts. Those that end in "by cause" are told apart
# by a label, with the words of mount.cause_of().
SHARED: tuple[tuple[str, str], ...] = (
    ("loaded_blocks", "Blocks loaded."),
    ("loaded_bytes", "Bytes loaded."),
    ("load_failed_blocks", "Blocks that could not be loaded, by cause"),
    ("saved_blocks", "Blocks saved."),
    ("saved_bytes", "Bytes saved."),
    ("save_skipped_blocks", "Blocks not saved because they were there, or "
     "were being saved."),
    ("save_refused_blocks", "Blocks not saved because the mount did not want "
     "them."),
    ("save_failed_blocks", "Blocks that could not be saved, by cause"),
)
COUNTERS: tuple[tuple[str, str], ...] = (
    ("lookups", "Requests whose blocks were looked up."),
    ("lookup_hits", "Lookups that found more than the engine has."),
    ("lookup_cut", "Lookups that ran out of their time."),
    ("lookup_seconds", "Time of the scheduler that lookups took."),
    ("promised_tokens", "Tokens that were promised to be loaded."),
    ("skipped_loads", "Loads that computing was expected to beat."),
    ("loads", "Loads that have ended, of all ranks."),
    *SHARED,
    ("save_dropped_blocks", "Blocks of ended requests for which there was "
     "never room to pin."),
    ("save_distrusted_blocks", "Blocks not saved as what they were computed "
     "from could not be loaded."),
    ("mount_losses", "Times the mount has ended."),
    ("resets", "Times the cache was reset."),
    ("sparse_attended_blocks", "Blocks that rows which decode attended to, "
     "summed over steps, layers and ranks."),
    ("sparse_blocks", "Blocks that these rows had."),
    ("blended_tokens", "Tokens of spans with text that was cached elsewhere."),
    ("blend_computed_tokens", "Tokens of these that were computed."),
    ("sparse_left_blocks", "Blocks of prompts left in the store until they "
     "are chosen, summed over layers and ranks."),
    ("sparse_retrieved_blocks", "Of these, those that were loaded since."),
)
GAUGES: tuple[tuple[str, str], ...] = (
    ("pinned_blocks", "Blocks kept from reuse until they are copied."),
)
HISTOGRAMS = {
    "load_seconds": "Time of a load, from its start to its end.",
    "save_seconds": "Time of a save, from its start to its end.",
}
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
           10, 30)
_MOST = 256  # observations kept between two collections


def by_cause(text: str) -> bool:
    """Whether a counter is told apart, from its text."""
    return text.endswith("by cause")


class UcmfsStats(KVConnectorStats):
    """data: counters ("NAME", or "NAME CAUSE") and gauges, where not 0;
    histograms: lists."""

    def reset(self) -> None:
        self.data = {}

    def is_empty(self) -> bool:
        return not self.data

    def add(self, name: str, amount: float = 1) -> None:
        if amount:
            self.data[name] = self.data.get(name, 0) + amount

    def add_failed(self, name: str, errors: Iterable[int]) -> None:
        """Of each block an errno, or 0: it is well."""
        for err in errors:
            if err:
                self.add(f"{name} {cause_of(err)}")

    def set(self, name: str, value: float) -> None:
        self.data[name] = value

    def observe(self, name: str, seconds: float) -> None:
        seen = self.data.setdefault(name, [])
        if len(seen) < _MOST:
            seen.append(seconds)

    def take(self) -> UcmfsStats:
        """What there is, and begin anew."""
        taken = UcmfsStats(data=self.data)
        self.data = {}
        return taken

    def aggregate(self, other: KVConnectorStats) -> UcmfsStats:
        gauges = {name for name, _ in GAUGES}
        for name, value in other.data.items():
            if name in HISTOGRAMS:
                self.data.setdefault(name, []).extend(value)
            elif name in gauges:
                self.data[name] = value
            else:
                self.add(name, value)
        return self

    def reduce(self) -> dict[str, Any]:
        """For the log: what is not 0, and rates that a reader wants."""
        data = self.data
        out: dict[str, Any] = {}
        for name, value in data.items():
            if value and name not in HISTOGRAMS:
                out[f"ucmfs {name.replace('_', ' ')}"] = (
                    round(value, 4) if isinstance(value, float) else value)
        seconds = data.get("load_seconds")
        if seconds:
            total = sum(seconds)
            out["ucmfs load ms"] = round(1000 * total / len(seconds), 2)
            if total > 0:
                out["ucmfs load GB/s"] = round(
                    data.get("loaded_bytes", 0) / total / 1e9, 3)
        blocks = data.get("sparse_blocks")
        if blocks:
            out["ucmfs sparse ratio"] = round(
                data.get("sparse_attended_blocks", 0) / blocks, 4)
        return out


class UcmfsPromMetrics(KVConnectorPromMetrics):
    """The same for Prometheus."""

    def __init__(self, vllm_config: Any, metric_types: dict[Any, Any],
                 labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames,
                         per_engine_labelvalues)
        self._made: dict[str, Any] = {}
        for name, text in COUNTERS:
            self._make(self._counter_cls, name, text)
        for name, text in GAUGES:
            self._make(self._gauge_cls, name, text)
        for name, text in HISTOGRAMS.items():
            self._make(self._histogram_cls, name, text, buckets=list(BUCKETS))

    def _make(self, kind: Any, name: str, text: str, **more: Any) -> None:
        labels = [*self._labelnames, *(["cause"] if by_cause(text) else [])]
        self._made[name] = kind(name=f"vllm:ucmfs_{name}", documentation=text,
                                labelnames=labels, **more)

    def observe(self, transfer_stats_data: dict[str, Any],
                engine_idx: int = 0) -> None:
        gauges = {name for name, _ in GAUGES}
        for key, value in (transfer_stats_data or {}).items():
            name, *cause = key.split(" ", 1)
            values = self.per_engine_labelvalues.get(engine_idx)
            if name not in self._made or values is None:
                continue
            metric = self._made[name].labels(*values, *cause)
            if name in HISTOGRAMS:
                for one in value:
                    metric.observe(one)
            elif name in gauges:
                metric.set(value)
            else:
                metric.inc(value)
