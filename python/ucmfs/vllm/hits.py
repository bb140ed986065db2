# SPDX-License-Identifier: Apache-2.0
"""How much of a request the store has: ids of its blocks, and the hit.

Pure arithmetic over bytes and an index; no engine is needed. The ids of a
request are made once and kept with it, as the scheduler asks again and again.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Protocol, Sequence

from .groups import Group, Home, Plan

ID = 16


class Asked(Protocol):
    """An index of a space; see ucmfs.index.Index."""

    def prefix(self, ids: bytes) -> tuple[int, bool]: ...

    def lookup(self, ids: bytes) -> tuple[bytes, bytes]: ...


class Peek:
    """An index that is looked at without wanting blocks of it."""

    def __init__(self, index: Any) -> None:
        self.lookup = index.peek
        self.prefix = index.prefix


def interleave(parts: Sequence[bytes]) -> bytes:
    """Ids of all shards of a block next to each other: from [a0 a1 ...],
    [b0 b1 ...] to a0 b0 a1 b1 ..."""
    if len(parts) == 1:
        return parts[0]
    step = ID * len(parts)
    out = bytearray(len(parts[0]) * len(parts))
    for i, part in enumerate(parts):
        for k in range(ID):
            out[i * ID + k::step] = part[k::ID]
    return bytes(out)


def of_stage(plan: Plan, ids: bytes, stage: int) -> bytes:
    """Of ids of all shards, block by block, those of a stage."""
    if plan.stages == 1:
        return ids
    whole, own = ID * plan.shards, ID * plan.stage_shards
    return b"".join(ids[at:at + own]
                    for at in range(stage * own, len(ids), whole))


class Stages:
    """The indexes of a pipeline's stages as one, asked for whole blocks: of
    each shard its own stage knows whether it is there. A stage without layers
    of the group (not in indexes) has nothing that a block could lack."""

    def __init__(self, plan: Plan, indexes: Mapping[int, Asked]) -> None:
        self._plan = plan
        self._indexes = indexes

    def prefix(self, ids: bytes) -> tuple[int, bool]:
        each = self._plan.stage_shards
        blocks, unsure = len(ids) // (ID * self._plan.shards), False
        for stage, index in self._indexes.items():
            # No further than the stages before have it.
            count, unknown = index.prefix(of_stage(
                self._plan, ids[:blocks * ID * self._plan.shards], stage))
            if count // each < blocks:
                blocks, unsure = count // each, unknown
        return blocks * self._plan.shards, unsure

    def lookup(self, ids: bytes) -> tuple[bytes, bytes]:
        each = self._plan.stage_shards
        num = len(ids) // (ID * self._plan.stages)
        both = [self._indexes[stage].lookup(of_stage(self._plan, ids, stage))
                if stage in self._indexes else (b"\1" * num, bytes(num))
                for stage in range(self._plan.stages)]
        present, unknown = (
            b"".join(part[at:at + each] for at in range(
                0, num, each) for part in parts)
            for parts in zip(*both))
        return present, unknown


def of_groups(plan: Plan, homes: Sequence[Home],
              indexes: Sequence[Asked]) -> Sequence[Asked]:
    """An index for each group, from those of the homes' spaces."""
    if plan.stages == 1:
        return indexes
    of_group: list[dict[int, Asked]] = [{} for _ in plan.groups]
    for home, index in zip(homes, indexes):
        of_group[home.group][home.stage] = index
    return [Stages(plan, each) for each in of_group]


def ids_of_shards(hasher: Any, hashes: Sequence[bytes], group: int,
                  shards: int) -> tuple[bytes, bytes]:
    """The ids of blocks with these hashes: those that each shard makes its own
    of, and those of all shards, block by block."""
    base = hasher.external(b"".join(hashes), len(hashes[0]), group)
    if shards == 1:
        return base, base
    return base, interleave([hasher.rank_ids(shard, base)
                             for shard in range(shards)])


class Ids:
    """The ids of a request's blocks, group by group.

    base: shard 0's; all: those of all shards, block by block. They grow with
    the request's hashes, and are made again if those have changed.
    """

    def __init__(self, plan: Plan, hashers: Sequence[Any]) -> None:
        self._plan = plan
        self._hashers = hashers
        self._num = 0
        self._last = b""
        self.base: list[bytes] = [b""] * len(plan.groups)
        self.all: list[bytes] = [b""] * len(plan.groups)

    def update(self, hashes: Sequence[bytes]) -> None:
        """Take in the request's hashes as they are now."""
        num = len(hashes)
        if num == self._num and (not num or hashes[-1] == self._last):
            return
        known = self._num
        if known > num or (known and hashes[known - 1] != self._last):
            known = 0
        for g, group in enumerate(self._plan.groups):
            self._extend(g, group, hashes, known)
        self._num = num
        self._last = bytes(hashes[-1]) if num else b""

    def _extend(self, g: int, group: Group, hashes: Sequence[bytes],
                known: int) -> None:
        # A block is called after the last of its hashes: they are a chain.
        each = group.block_tokens // self._plan.hash_tokens
        have = known // each
        more = hashes[have * each + each - 1::each]
        base = self.base[g][:have * ID]
        step = ID * self._plan.shards
        if not more:
            self.base[g], self.all[g] = base, self.all[g][:have * step]
            return
        new, every = ids_of_shards(self._hashers[g], more, group.index,
                                   self._plan.shards)
        self.base[g] = base + new
        self.all[g] = self.all[g][:have * step] + every

    def blocks(self, g: int) -> int:
        return len(self.base[g]) // ID


def longest_hit(plan: Plan, indexes: Sequence[Asked], ids: Ids, local: int,
                limit: int) -> int:
    """The tokens, from the first on and up to limit, that can be gone on
    from: of each group all blocks that are needed and that the engine does
    not have (it has the first local tokens) are in the store, of all shards.
    A multiple of the alignment, at least local."""
    tokens = limit // plan.alignment * plan.alignment
    for g, group in enumerate(plan.groups):
        if group.whole:
            tokens = min(tokens, _prefix(plan, indexes[g], ids, g, local,
                                         tokens))
    tokens = tokens // plan.alignment * plan.alignment
    if plan.drop_last:
        # Before windows are looked for: they lie before the shorter hit.
        tokens -= plan.alignment
    found: list[bytes] = [b""] * len(plan.groups)
    again = True
    while again and tokens > local:
        again = False
        for g, group in enumerate(plan.groups):
            if group.whole:
                continue
            if not found[g]:
                found[g] = _found(plan, indexes[g], ids, g, tokens)
            less = _fit(plan, group, found[g], local, tokens)
            again = again or less < tokens
            tokens = less
    return max(tokens, local)


def _prefix(plan: Plan, index: Asked, ids: Ids, g: int, local: int,
            tokens: int) -> int:
    group, step = plan.groups[g], ID * plan.shards
    first = local // group.block_tokens
    last = tokens // group.block_tokens
    if last <= first:
        return local
    count, _ = index.prefix(ids.all[g][first * step:last * step])
    return (first + count // plan.shards) * group.block_tokens


def _found(plan: Plan, index: Asked, ids: Ids, g: int, tokens: int) -> bytes:
    """A byte for each block: whether all shards of it are there."""
    last = tokens // plan.groups[g].block_tokens
    present, _ = index.lookup(ids.all[g][:last * ID * plan.shards])
    return all_shards(present, plan.shards)


def all_shards(present: bytes, shards: int) -> bytes:
    """From a byte for each id to one for each block."""
    if shards == 1:
        return present
    each = b"\1" * shards
    return bytes(present[i:i + shards] == each
                 for i in range(0, len(present), shards))


def _fit(plan: Plan, group: Group, found: bytes, local: int,
         tokens: int) -> int:
    """The largest hit up to tokens whose window is there."""
    while tokens > local:
        absent = found.rfind(b"\0", *group.needed(local, tokens))
        if absent < 0:
            return tokens
        # Any hit beyond the absent block needs it, down to the block's start.
        start = absent * group.block_tokens
        tokens = start // plan.alignment * plan.alignment
    return local


PIECE = 4096  # ids between two looks at the clock


class Budget:
    """An index that stops answering at a time: what it has not looked up by
    then counts as absent. cut: it has stopped."""

    def __init__(self, index: Asked, end: float,
                 clock: Callable[[], float]) -> None:
        self._index = index
        self._end = end
        self._clock = clock
        self.cut = False

    def prefix(self, ids: bytes) -> tuple[int, bool]:
        if len(ids) <= PIECE * ID:
            return self._index.prefix(ids)
        total = 0
        for at in range(0, len(ids), PIECE * ID):
            if at and self._clock() >= self._end:
                self.cut = True
                return total, True
            piece = ids[at:at + PIECE * ID]
            count, unknown = self._index.prefix(piece)
            total += count
            if count * ID < len(piece):
                return total, unknown
        return total, False

    def lookup(self, ids: bytes) -> tuple[bytes, bytes]:
        if len(ids) <= PIECE * ID:
            return self._index.lookup(ids)
        present, unknown = b"", b""
        for at in range(0, len(ids), PIECE * ID):
            piece = ids[at:at + PIECE * ID]
            if at and self._clock() >= self._end:
                self.cut = True
                rest = (len(ids) - at) // ID
                return present + bytes(rest), unknown + b"\1" * rest
            more, unsure = self._index.lookup(piece)
            present, unknown = present + more, unknown + unsure
        return present, unknown
