# SPDX-License-Identifier: Apache-2.0
"""What the tests of UcmfsTier share: a memory of slots and a tier on a real
mount."""

from __future__ import annotations

import hashlib
import mmap
import os
import pathlib
import sys
import time
import unittest
import uuid
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "lib")]
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

try:
    import vllm  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"needs vLLM: {error}") from None

from mount import Mount
from seed import SEED

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig,
    OffloadingModelConfig, OffloadingParallelConfig)
from vllm.v1.kv_offload.tiering.base import TransferJob

from ucmfs.vllm import UcmfsTier
from ucmfs.vllm.fingerprint import EngineConfigs, handed_down

SLOT = 64 << 10
PATIENCE = 30.0


def key_of(number: int, group: int = 0, size: int = 32) -> bytes:
    digest = hashlib.sha256(f"key {number}".encode()).digest()
    return make_offload_key(digest[:size], group)


def keys_of(*numbers: int) -> List[bytes]:
    return [key_of(n) for n in numbers]


def offloading_config(extra: Dict[str, Any], *, slot: int = SLOT,
                      **changes: Any) -> OffloadingConfig:
    values: Dict[str, Any] = dict(
        groups=(OffloadingGroupConfig(
            tokens_per_block=16, layer_names=("layers.0", "layers.1"),
            group_id=0),),
        worker_kv_bytes_per_block=slot, enable_kv_cache_events=False,
        extra_config=extra, engine_id=f"test-{uuid.uuid4().hex}",
        model=OffloadingModelConfig(name="tiny/model", dtype="float32"),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1,
            data_parallel_index=0, data_parallel_size=1,
            data_parallel_rank_local=None, is_parallelism_agnostic=False))
    values.update(changes)
    return OffloadingConfig(**values)


def spec_stub(**changes: Any) -> Any:
    events = changes.pop("events", False)
    return SimpleNamespace(
        config=offloading_config({}, **changes), replicated_layout=False,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=events))


def engine_stub(algorithm: str = "sha256") -> EngineConfigs:
    """As far as a tier asks that is told its namespace."""
    return EngineConfigs(SimpleNamespace(cache_config=SimpleNamespace(
        prefix_caching_hash_algo=algorithm)), None)


class Slots:
    """A memory of slots, and a tier on it, played by hand as the manager
    plays it."""

    def __init__(self, mount: Mount, num: int = 32, *, slot: int = SLOT,
                 events: bool = False, detector: Any = None,
                 **config: Any) -> None:
        self.slot = slot
        # as vLLM's: a mapping, and so at a page
        self.bytes = np.frombuffer(mmap.mmap(-1, num * slot),
                                   dtype=np.int8).reshape(num, slot)
        config.setdefault("namespace", "test")
        with handed_down(engine_stub()):
            self.tier = UcmfsTier(
                spec_stub(slot=slot, events=events), memoryview(self.bytes),
                "UcmfsTier", backpressure_detector=detector,
                **{**mount.where, **config})
        self.random = np.random.default_rng(SEED)
        self.jobs = 0
        self.results: Dict[int, Any] = {}
        self.closed = False

    def fill(self, *slots: int) -> Dict[int, bytes]:
        for slot in slots:
            self.bytes[slot] = self.random.integers(
                -128, 128, self.slot, dtype=np.int8)
        return {slot: self.bytes[slot].tobytes() for slot in slots}

    def submit(self, promotion: bool, keys: List[bytes],
               slots: List[int], context: Any = None) -> int:
        self.jobs += 1
        job = TransferJob(
            job_id=self.jobs, keys=keys,
            chunk_ids=np.array(slots, dtype=np.int32), is_promotion=promotion,
            req_context=context or ReqContext(req_id="r"))
        (self.tier.submit_load if promotion else self.tier.submit_store)(job)
        return self.jobs

    def wait(self, job: int, seconds: float = PATIENCE) -> Any:
        end = time.monotonic() + seconds
        while job not in self.results:
            for result in self.tier.get_finished_jobs():
                assert result.job_id not in self.results, "told twice"
                self.results[result.job_id] = result
            if time.monotonic() > end:
                raise AssertionError(f"job {job} does not end")
            time.sleep(0.001)
        return self.results[job]

    def store(self, keys: List[bytes], slots: List[int],
              context: Any = None) -> Any:
        return self.wait(self.submit(False, keys, slots, context))

    def load(self, keys: List[bytes], slots: List[int]) -> Any:
        return self.wait(self.submit(True, keys, slots))

    def look(self, keys: List[bytes]) -> List[Any]:
        """In a step of its own."""
        self.tier.on_schedule_end(None)
        context = ReqContext(req_id="look")
        return [self.tier.lookup(key, context) for key in keys]

    def hits(self, keys: List[bytes]) -> List[bool]:
        return [one is LookupResult.HIT for one in self.look(keys)]

    def tell(self) -> None:
        """As if the loader had told of all jobs."""
        store = self.tier._store
        store._over = list(store._jobs.values())

    def stats(self) -> Dict[str, Any]:
        """Metric's short name (and cause) to its value."""
        out = {}
        stats = self.tier.get_stats()
        for name, values in stats._values.items() if stats else ():
            for labels, value in values.items():
                short = name.replace("vllm:ucmfs_tier_", "")
                out[" ".join((short, *labels[1:]))] = value
        return out

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.tier.shutdown()


class MountCase(unittest.TestCase):
    MOUNT: type = Mount

    def setUp(self) -> None:
        self.mount = self.MOUNT()
        self.addCleanup(self.mount.close)

    def slots(self, *args: Any, mount: Optional[Mount] = None,
              **config: Any) -> Slots:
        out = Slots(mount or self.mount, *args, **config)
        self.addCleanup(out.close)
        return out

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.005)

    def assert_slots(self, slots: Slots, want: Dict[int, bytes]) -> None:
        for slot, data in want.items():
            self.assertEqual(hashlib.sha256(slots.bytes[slot]).hexdigest(),
                             hashlib.sha256(data).hexdigest(), f"slot {slot}")

    def files(self, slots: Slots) -> Dict[bytes, str]:
        """Id to file in the tiers."""
        found = self.mount.blocks(slots.tier.space)
        return {bytes.fromhex(name): path for name, path in found.items()}

    def file_of(self, slots: Slots, key: bytes) -> str:
        return self.files(slots)[slots.tier._store.ids_of([key])]


def flip_a_bit(path: str, where: int = -1) -> None:
    data = bytearray(pathlib.Path(path).read_bytes())
    data[where if where >= 0 else len(data) // 2] ^= 0x10
    rewrite(path, data)


def rewrite(path: str, data: bytes) -> None:
    """In place, as a disk that lies does it."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate(len(data))
