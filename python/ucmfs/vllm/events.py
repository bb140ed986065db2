# SPDX-License-Identifier: Apache-2.0
"""What routers hear of the store, as vLLM's events: blocks that this
engine has stored or comes to, and blocks that are not there any more.

A block is reported as stored once. With steps, reported blocks are looked up
in turn in the index that the daemon shares: one that is absent, evicted
or removed, is reported as removed. What is not known (its directory is still
being read, the mount is gone) counts as there.
So a router's view lacks blocks that others have stored, and may have some that
have been evicted a moment ago.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Any, Callable, Iterable, NamedTuple, Sequence

from vllm.distributed.kv_events import (MEDIUM_STORAGE, BlockRemoved,
                                        BlockStored)
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from .groups import Group, Plan
from .hits import ID, Asked, Ids, all_shards

CHECKED = 512        # shards of blocks that are looked up in a turn
TURN_SECONDS = 0.02  # from one turn to the next
MOST = 1_000_000     # blocks that are looked up again and again


class Stored(NamedTuple):
    """A block that is being saved: its group, and the ids of its shards."""

    group: int
    ids: bytes
    event: BlockStored


class Events:
    """One thread at a time."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self._plan = plan
        self._clock = clock
        self._next_turn = 0.0
        self._new: list[Any] = []
        # Of each group, by ids of all shards, what events call the block;
        # first what was looked up longest ago.
        self._reported: list[OrderedDict[bytes, Any]] = [
            OrderedDict() for _ in plan.groups]
        self._share = max(1, CHECKED // (len(plan.groups) * plan.shards))
        self._most = MOST // (len(plan.groups) * plan.shards)

    def of(self, ids: Ids, request: Any, g: int,
           places: Iterable[int]) -> list[Stored]:
        """To be kept until the blocks are saved."""
        group, lora = self._plan.groups[g], request.lora_request
        return [Stored(g, self._all(ids, g, place), BlockStored(
            block_hashes=[self._name(group, request, place)],
            parent_block_hash=self._name(group, request, place - 1)
            if place else None,
            token_ids=list(request.all_token_ids[
                place * group.block_tokens:(place + 1) * group.block_tokens]),
            block_size=group.block_tokens,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM_STORAGE,
            lora_name=lora.name if lora else None,
            group_idx=group.index)) for place in places]

    def _all(self, ids: Ids, g: int, place: int) -> bytes:
        step = ID * self._plan.shards
        return ids.all[g][place * step:place * step + step]

    def _name(self, group: Group, request: Any, place: int) -> Any:
        each = group.block_tokens // self._plan.hash_tokens
        return maybe_convert_block_hash(
            request.block_hashes[(place + 1) * each - 1])

    def saved(self, blocks: Iterable[Stored]) -> None:
        for block in blocks:
            of_group = self._reported[block.group]
            of_group[block.ids] = block.event.block_hashes[0]
            self._new.append(block.event)
            if len(of_group) > self._most:  # to a router a miss from now on
                self._remove(block.group, [next(iter(of_group))])

    def found(self, ids: Ids, request: Any, g: int,
              places: Iterable[int]) -> None:
        """Blocks that were there before this engine came to them."""
        self.saved(self.of(ids, request, g, [
            place for place in places if place < ids.blocks(g)
            and self._all(ids, g, place) not in self._reported[g]]))

    def damaged(self, ids: Ids, request: Any,
                places: Iterable[tuple[int, int]]) -> None:
        for g, place in sorted(places):
            key = self._all(ids, g, place)
            self._reported[g].setdefault(
                key, self._name(self._plan.groups[g], request, place))
            self._remove(g, [key])

    def _remove(self, g: int, keys: Sequence[bytes]) -> None:
        if keys:
            self._new.append(BlockRemoved(
                block_hashes=[self._reported[g].pop(key) for key in keys],
                medium=MEDIUM_STORAGE, group_idx=self._plan.groups[g].index))

    def forget(self) -> None:
        """No block is of use to this engine any more."""
        for g, of_group in enumerate(self._reported):
            self._remove(g, list(of_group))

    def is_due(self) -> bool:
        return self._clock() >= self._next_turn

    def look(self, indexes: Sequence[Asked]) -> None:
        """A turn. indexes: of each group; UcmfsError: what they raise."""
        self._next_turn = self._clock() + TURN_SECONDS
        for g, of_group in enumerate(self._reported):
            keys = list(islice(of_group, self._share))
            if not keys:
                continue
            present, unknown = indexes[g].lookup(b"".join(keys))
            there = all_shards(bytes(map(max, present, unknown)),
                               self._plan.shards)
            for key in keys:
                of_group.move_to_end(key)
            self._remove(g, [key for key, is_there in zip(keys, there)
                             if not is_there])

    def take(self) -> list[Any]:
        events, self._new = self._new, []
        return events
