# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's half and the workers' halves tell each other each step.

Down: what to load and what to save, as ids and pages in bytes, nothing of
tokens. Up: what has come of it; reports of several ranks, or of several
steps, are added.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata, KVConnectorMetadata,
    KVConnectorWorkerMetadata)

from .groups import Home, Plan

NO_ID = bytes(16)


@dataclass
class UcmfsHandshake(KVConnectorHandshakeMetadata):
    """What a worker of a pipeline's stage tells the scheduler's half once, as
    vLLM tells it of the first stage's layers alone."""

    plan: Plan | None = None


@dataclass
class Part:
    """Blocks of a group: plan.groups[group]; shard 0's ids, 16 bytes each;
    their pages, and their places in the request, as array("I"). parents: of
    saves, shard 0's id of the block before each; NO_ID before the first."""

    group: int
    ids: bytes
    pages: bytes
    places: bytes
    parents: bytes = b""

    @property
    def num(self) -> int:
        return len(self.ids) // 16


@dataclass
class Job:
    """A load or a save of a request's blocks, with its number. tokens: of a
    load, those that the request has in all."""

    job: int
    request: str
    parts: list[Part]
    tokens: int = 0


@dataclass
class UcmfsMetadata(KVConnectorMetadata):
    """step counts up. idle: no tokens are computed. report: the end of the
    step is waited for. space, spaces: a number for, and the names and ids of
    the spaces that the jobs are in; none as long as nobody knows them. A rank
    leaves out what a job has of groups that it has no layers of."""

    step: int = 0
    idle: bool = False
    report: bool = False
    space: int = 0
    spaces: dict[Home, tuple[str, bytes]] = field(default_factory=dict)
    loads: list[Job] = field(default_factory=list)
    saves: list[Job] = field(default_factory=list)


@dataclass
class Loaded:
    """What has come of a load: bytes, seconds, blocks that are well and that
    are not, an errno of these, and how many ranks say so."""

    num_bytes: int = 0
    seconds: float = 0.0
    blocks: int = 0
    failed: int = 0
    errno: int = 0
    ranks: int = 0


@dataclass
class UcmfsWorkerMetadata(KVConnectorWorkerMetadata):
    """steps: how many ranks have ended a step (by its number). copied: how
    many ranks have no use for a job's pages any more. saved: how many are done
    with it; no rank says that before the other. bad_saves: jobs with a block
    that was not saved, or refused, and how many of them; refused: how many of
    these the mount did not want. damaged: of a request, group and place of
    blocks that were removed. loads: of ended loads, by request. sync_failed:
    steps with a load that failed in the step that used it."""

    steps: dict[int, int] = field(default_factory=dict)
    copied: dict[int, int] = field(default_factory=dict)
    saved: dict[int, int] = field(default_factory=dict)
    bad_saves: dict[int, int] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    loads: dict[str, Loaded] = field(default_factory=dict)
    damaged: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    sync_failed: set[int] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata,
                  ) -> UcmfsWorkerMetadata:
        assert isinstance(other, UcmfsWorkerMetadata)
        for name in ("steps", "copied", "saved", "bad_saves", "refused"):
            mine = getattr(self, name)
            for key, num in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + num
        for request, one in other.loads.items():
            both = self.loads.setdefault(request, Loaded())
            both.num_bytes += one.num_bytes
            both.seconds = max(both.seconds, one.seconds)
            both.blocks += one.blocks
            both.failed += one.failed
            both.errno = both.errno or one.errno
            both.ranks += one.ranks
        for request, places in other.damaged.items():
            self.damaged.setdefault(request, set()).update(places)
        self.sync_failed |= other.sync_failed
        return self
