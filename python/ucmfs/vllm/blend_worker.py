# SPDX-License-Identifier: Apache-2.0
"""UcmfsBlendConnector's half in a worker: loads chunks into staging memory,
moves their keys to where they stand now, and writes them into the engine's
pages; then computes what is missing, and those tokens that differ most.

All of it is done in start_load_kv(), before the step that computes the rest,
and by all ranks in step: which chunks failed in any, and how far tokens have
changed in all, is summed over the ranks. So all compute the same tokens. A
chunk that could not be loaded is computed, as if it had not been there. Where
nothing can be computed, because the model is not what blend_pass.py knows, the
pages are reported as not loaded, and vLLM computes them.

Chunks to be saved are copied when the step that computed them is done, moved
to position 0, and written from the copy. One for which there is no room is
left out.
"""

from __future__ import annotations

import errno
from array import array
from dataclasses import replace
from typing import Any, Sequence

import torch

from .. import position
from ..errors import UcmfsError
from ..layout import Layout
from .blend import (Blend, BlendMetadata, BlendOptions, Keep, check,
                    chunk_group, rope_of)
from .blend_pass import Pass, over_ranks
from .chunks import absent
from .groups import Group
from .metadata import NO_ID, Job, Part
from .worker import Transfer, UcmfsWorker

STAGING_BYTES = 256 << 20  # for loads, and as much for saves
SLOTS_MOST = 64


class Staging:
    """Keys and values of chunks, [layer][slot, token, head, channel]. The
    first half of the slots is for loads, the others for saves: free has those
    of them that no save is in."""

    def __init__(self, group: Group, dtype: torch.dtype) -> None:
        geometry = group.geometry
        assert geometry is not None
        self.num = max(1, min(SLOTS_MOST,
                              STAGING_BYTES // geometry.payload_bytes))
        shape = (geometry.num_layers, 2 * self.num, geometry.block_size,
                 geometry.num_kv_heads, geometry.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self.free = list(range(self.num, 2 * self.num))
        self.layout = Layout(geometry, 2 * self.num)
        for layer, name in enumerate(group.layers):
            for plane, tensor in ("k", self.keys), ("v", self.values):
                self.layout.add_tensor(tensor[layer], "BNHD", layer=layer,
                                       plane=plane, name=f"{name} {plane}")
        self.layout.seal()


class BlendWorker(UcmfsWorker):
    """See UcmfsWorker."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any,
                 options: BlendOptions) -> None:
        super().__init__(vllm_config, kv_cache_config, options)
        check(vllm_config, kv_cache_config, self.plan, options)
        self._blend_options = options
        self._group = chunk_group(kv_cache_config, self.plan, options)
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        self._dtype = spec.dtype
        self._rope = rope_of(vllm_config.model_config.hf_config,
                             spec.head_size)
        self._pass = Pass(vllm_config, self._rope, self._group.layers)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        self._pass.bind(self.plan.groups[0].block_tokens)
        self._staging = Staging(self._group, self._dtype)
        # From now on chunks are moved like blocks of one more group.
        self.plan = replace(self.plan, groups=(*self.plan.groups, self._group))
        self._groups[self._group.index] = self._group
        self._layouts[self._group.index] = self._staging.layout

    def _ready(self, meta: Any, wait: bool) -> bool:
        return super()._ready(meta, wait or bool(meta.blends or meta.keeps))

    # ---- loads ----

    def start_load_kv(self, meta: BlendMetadata) -> None:
        super().start_load_kv(meta)
        for blend in meta.blends:
            pages = torch.tensor(array("I", blend.pages).tolist())
            try:
                self._pass.check()
                self._blend(blend, pages, meta.space == self._space)
            except UcmfsError as error:
                self._teller.warn("blend", "%s", error)
                size = self._pass.caches[0].page_tokens
                self._bad_pages.update(
                    pages[blend.begin // size:-(-blend.end // size)].tolist())

    def _blend(self, blend: Blend, pages: torch.Tensor, ready: bool) -> None:
        tokens = torch.tensor(array("q", blend.tokens).tolist())
        shape = (len(tokens), *self._staging.keys.shape[3:])
        cached = torch.zeros(shape, dtype=self._dtype)
        chunks = self._load(blend, pages, ready, cached)
        ranges = position.recompute(self._blend_options.chunks, chunks)
        ranges = position.merge_ranges(ranges + self._changed(
            blend, tokens, pages, cached, ranges))
        self._pass.run(tokens, blend.begin, ranges, pages)
        if self.rank == 0:
            again = sum(end - begin for begin, end in ranges)
            self.stats.add("blended_tokens", len(tokens))
            self.stats.add("blend_computed_tokens", again)

    def _load(self, blend: Blend, pages: torch.Tensor, ready: bool,
              cached: torch.Tensor) -> list[position.Chunk]:
        """Into the engine's pages, as many at a time as there is room for;
        cached: the keys of the layer that is compared. The chunks as they are
        now: those that failed are absent."""
        places = [i for i, c in enumerate(blend.chunks) if c.matched]
        failed = torch.zeros(len(blend.chunks), dtype=torch.int32)
        for at in range(0, len(places), self._staging.num):
            some = places[at:at + self._staging.num]
            errors = self._load_staged(
                blend.request, blend.ids[16 * at:16 * (at + len(some))], ready)
            failed[some] = torch.tensor(errors, dtype=torch.int32).ne(0).int()
            good = [(slot, blend.chunks[place]) for slot, place
                    in enumerate(some) if not errors[slot]]
            if good:
                self._write(good, pages, blend.begin, cached)
        over_ranks(failed)
        return [absent(chunk.begin, chunk.end) if bad else chunk
                for chunk, bad in zip(blend.chunks, failed.tolist())]

    def _load_staged(self, request: str, ids: bytes,
                     ready: bool) -> list[int]:
        """Into the first slots: an errno for each."""
        num = len(ids) // 16
        slots = array("I", range(num)).tobytes()
        part = Part(self._group.index, ids, slots, slots)
        transfer = self._start_load(Job(0, request, [part]), ready)
        (task,) = transfer.tasks
        if not task:
            errors = [transfer.errno or errno.EIO] * num
        else:
            task.result()  # of each block, whatever it is
            errors = task.errors()
            self._remove_damaged(transfer, part, task)
        self.stats.add("loaded_blocks", errors.count(0))
        self.stats.add("loaded_bytes",
                       errors.count(0) * self._group.payload_bytes)
        self.stats.add_failed("load_failed_blocks", errors)
        return errors

    def _write(self, staged: Sequence[tuple[int, position.Chunk]],
               pages: torch.Tensor, first: int, cached: torch.Tensor) -> None:
        """Chunks, with the slots that they were loaded into."""
        slots = [slot for slot, _ in staged]
        size = self._group.block_tokens
        at = torch.cat([slot * size + torch.arange(chunk.matched)
                        for slot, chunk in staged])
        where = torch.cat([chunk.begin + torch.arange(chunk.matched)
                           for _, chunk in staged])
        into = self._pass.slots(pages, where)
        deltas = [chunk.delta for _, chunk in staged]
        for layer, cache in enumerate(self._pass.caches):
            keys, values = self._staging.keys[layer], \
                self._staging.values[layer]
            self._rope.shift(keys, deltas, from_blocks=slots, unchecked=True)
            key = keys.flatten(0, 1)[at]
            cache.write(key, values.flatten(0, 1)[at], into)
            if layer == self._blend_options.blend_layer:
                cached[where - first] = key

    # ---- what is computed again ----

    def _changed(self, blend: Blend, tokens: torch.Tensor,
                 pages: torch.Tensor, cached: torch.Tensor,
                 known: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The reused tokens whose keys differ most, in one layer, from what
        they are after the text that stands before them now. known: ranges
        that are computed in any case."""
        ratio, layer = (self._blend_options.blend_ratio,
                        self._blend_options.blend_layer)
        if ratio in (0, 1):
            return [(blend.begin, blend.end)] * int(ratio)
        self._pass.run(tokens, blend.begin, [(blend.begin, blend.end)], pages,
                       layer + 1)
        where = torch.arange(blend.begin, blend.end)
        fresh = self._pass.caches[layer].keys(self._pass.slots(pages, where))
        try:
            scores = torch.tensor(position.deviation(
                cached[None], fresh.contiguous()).tolist())
        except UcmfsError as error:  # a key that is not finite
            self._teller.warn("blend", "%s", error)
            scores = torch.full((len(tokens),), torch.inf)
        over_ranks(scores)
        for begin, end in known:
            scores[begin - blend.begin:end - blend.begin] = -torch.inf
        chosen = position.select_tokens(scores, "ratio", ratio)
        return [(blend.begin + i, blend.begin + i + 1) for i in chosen]

    # ---- saves ----

    def wait_for_save(self) -> None:
        super().wait_for_save()
        step: Any = self._step
        if not step or not step.keeps:
            return
        # What was computed from a block that some rank could not load must
        # not be saved.
        failed = over_ranks(torch.tensor([step.step in self.meta.sync_failed]
                                         ).int())
        if step.space == self._space and not failed:
            for keep in step.keeps:
                self._keep(keep)

    def _keep(self, keep: Keep) -> None:
        staging, size = self._staging, self._group.block_tokens
        num = min(len(keep.begins), len(staging.free))
        self.stats.add("save_dropped_blocks", len(keep.begins) - num)
        if not num:
            return
        slots, staging.free = staging.free[:num], staging.free[num:]
        begins = keep.begins[:num]
        pages = torch.tensor(array("I", keep.pages).tolist())
        where = self._pass.slots(pages, torch.cat(
            [torch.arange(begin, begin + size) for begin in begins]))
        for layer, cache in enumerate(self._pass.caches):
            keys, values = staging.keys[layer], staging.values[layer]
            keys[slots] = cache.keys(where).unflatten(0, (num, size))
            values[slots] = cache.values(where).unflatten(0, (num, size))
            self._rope.shift(keys, [-begin for begin in begins],
                             from_blocks=slots, unchecked=True)
        self._start_saves([Job(keep.job, keep.request, [Part(
            self._group.index, keep.ids[:16 * num],
            array("I", slots).tobytes(),
            array("I", range(num)).tobytes(), NO_ID * num)])], self._spaces)

    def _end_save(self, transfer: Transfer) -> None:
        super()._end_save(transfer)
        for part in transfer.parts:
            if part.group == self._group.index:
                self._staging.free += array("I", part.pages)

    def shutdown(self) -> None:
        self._pass.forget()
        super().shutdown()
