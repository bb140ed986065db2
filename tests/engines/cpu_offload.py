# SPDX-License-Identifier: Apache-2.0
"""cpu_offload.py - vLLM's tiering offload on a machine without an accelerator.

vLLM's TieringOffloadingSpec refuses the CPU for one reason: the worker that
copies blocks between the accelerator's cache and the primary tier uses streams
and events. CpuTieringSpec is the same spec with a worker that copies by
memmove; manager, primary tier and secondary tiers are vLLM's own, unchanged.

    "spec_name": "CpuTieringSpec", "spec_module_path": "cpu_offload"

A transfer is done as soon as it is submitted and is reported one step later,
so that a request can be taken back, and the cache run full, while one is under
way.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class MemmoveWorker(OffloadingWorker):
    """Copies pages between the engine's cache and the primary tier."""

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        region: SharedOffloadRegion,
    ) -> None:
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._refs = kv_caches.group_data_refs
        self._cache = [each.tensor for each in kv_caches.tensors]
        self._page_bytes = [each.page_size_bytes for each in kv_caches.tensors]
        self._primary = [
            region.create_next_worker_view(page * blocks_per_chunk)
            for page in self._page_bytes
        ]
        self._submitted: list[TransferResult] = []
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._transfer(job_id, src_spec, dst_spec.block_ids, True)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        return self._transfer(job_id, dst_spec, src_spec.block_ids, False)

    def _transfer(
        self,
        job_id: int,
        gpu: GPULoadStoreSpec,
        chunks: np.ndarray,
        store: bool,
    ) -> bool:
        start = time.monotonic()
        size = 0
        block_at = chunk_at = 0
        per_chunk = self._blocks_per_chunk
        for refs, count, first in zip(
            self._refs, gpu.group_sizes, gpu.block_indices
        ):
            if count == 0:
                continue
            # the first chunk of a group may begin before its first block
            skip = first % per_chunk
            for i in range(count):
                block = int(gpu.block_ids[block_at + i])
                chunk, part = divmod(skip + i, per_chunk)
                slot = int(chunks[chunk_at + chunk])
                size += self._copy(refs, block, slot, part, store)
            block_at += count
            chunk_at += -(-(skip + count) // per_chunk)
        assert block_at == len(gpu.block_ids) and chunk_at == len(chunks)
        self._submitted.append(
            TransferResult(job_id, True, size, time.monotonic() - start)
        )
        return True

    def _copy(
        self, refs: list, block: int, slot: int, part: int, store: bool
    ) -> int:
        size = 0
        for ref in refs:
            cache = self._cache[ref.tensor_idx]
            primary = self._primary[ref.tensor_idx]
            page = cache.data_ptr() + block * cache.stride(0)
            kept = (
                primary.data_ptr()
                + slot * primary.stride(0)
                + part * self._page_bytes[ref.tensor_idx]
            )
            to, source = (kept, page) if store else (page, kept)
            ctypes.memmove(to, source, ref.page_size_bytes)
            size += ref.page_size_bytes
        return size

    def get_finished(self) -> list[TransferResult]:
        finished = self._finished
        self._finished, self._submitted = self._submitted, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing to wait for: what was submitted is done."""

    def shutdown(self) -> None:
        self._primary.clear()
        self._cache.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    """TieringOffloadingSpec with a worker that needs no accelerator."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        for each in kv_caches.tensors:
            assert each.tensor.dtype == torch.int8 and each.tensor.is_cpu
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = MemmoveWorker(
                kv_caches, self.blocks_per_chunk, region
            )
        return self._worker
