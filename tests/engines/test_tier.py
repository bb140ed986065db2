# SPDX-License-Identifier: Apache-2.0
"""UcmfsTier against real mounts: slots of random bytes go to blocks and come
back, or are told to have failed; never a wrong byte, never a wait.

    python3 -m unittest tests/engines/test_tier.py       (vLLM is needed)
"""

from __future__ import annotations

import ast
import dataclasses
import errno
import hashlib
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest
import uuid
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "lib")]
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

try:
    import numpy as np
    import vllm
    from vllm.v1.kv_offload.base import (LookupResult, Medium, ReqContext,
                                         ScheduleEndContext, make_offload_key)
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig,
        OffloadingModelConfig, OffloadingParallelConfig)
    from vllm.v1.kv_offload.tiering.base import TransferJob
except ImportError as error:
    raise unittest.SkipTest(f"needs vLLM: {error}") from None

from mount import Mount, Served
from private_daemon import directory_of, pid_of
from seed import SEED
from ucmfs import index
from ucmfs.blocks import Blocks
from ucmfs.errors import (ConfigError, NamespaceMismatch, Timeout,
                          UcmfsError)
from ucmfs.namespace import remove_space, space_id, spaces
from ucmfs.task import Outcome, Task
from ucmfs.vllm import UcmfsTier
from ucmfs.vllm.fingerprint import (EngineConfigs, engine_configs,
                                    handed_down)
from ucmfs.vllm.mount import log
from ucmfs.vllm.options import TierOptions, parse
from ucmfs.vllm.slots import PAGE, geometry_of, pieces_of
from ucmfs.vllm import tier
from ucmfs.vllm import mount as mount_py
from ucmfs.vllm import slots as slots_py
from ucmfs.vllm.tier import tier_manifest

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


class Uses(MountCase):
    """What the daemon hears of, beside loads."""

    def uses(self, slots: Slots, keys: List[bytes]) -> List[int]:
        store = slots.tier._store
        with Blocks(self.mount.path) as blocks:
            return [place.uses if place else -1 for place in blocks.locate(
                store.ids_of(keys), store.space)]

    def test_a_touch_is_a_use(self) -> None:
        slots = self.slots()
        slots.fill(0, 1, 2)
        keys = keys_of(0, 1, 2, 3)
        slots.store(keys[:3], [0, 1, 2])
        before = self.uses(slots, keys)
        slots.tier.touch(iter([keys[0], keys[2], keys[3]]),
                         ReqContext(req_id="r"))
        want = [before[0] + 1, before[1], before[2] + 1, -1]
        self.until(lambda: self.uses(slots, keys) == want, "not counted")

    def test_touches_of_a_daemon_that_is_gone_are_forgotten(self) -> None:
        slots = self.slots()
        slots.fill(0)
        slots.store(keys_of(0), [0])
        self.mount.crash()
        slots.tier.touch(keys_of(0), ReqContext(req_id="r"))
        self.mount.start()
        self.until(lambda: slots.hits(keys_of(0)) == [True], "not back")
        before = self.uses(slots, keys_of(0))
        slots.tier.touch(keys_of(0), ReqContext(req_id="r"))
        self.until(lambda: self.uses(slots, keys_of(0)) == [before[0] + 1],
                   "not counted")


class Wishes(MountCase):
    """What requests say in their kv_transfer_params."""

    @staticmethod
    def context(**wishes: Any) -> Any:
        return ReqContext(req_id=str(wishes),
                          kv_transfer_params={"ucmfs": wishes})

    def test_no_load_and_no_save(self) -> None:
        slots = self.slots()
        slots.fill(0, 1)
        keys = keys_of(0, 1)
        done = slots.store(keys, [0, 1], self.context(save=False))
        self.assertTrue(done.success)
        self.assertEqual(slots.hits(keys), [False, False])
        slots.store(keys, [0, 1], self.context(save=True))
        # in one step: the one does not speak for the other
        slots.tier.on_schedule_end(None)
        unwilling, willing = self.context(load=False), self.context()
        for key in keys:
            self.assertIs(slots.tier.lookup(key, unwilling),
                          LookupResult.MISS)
            self.assertIs(slots.tier.lookup(key, willing), LookupResult.HIT)

    def test_pinned(self) -> None:
        slots = self.slots()
        slots.fill(0, 1)
        keys = keys_of(0, 1)
        slots.store(keys[:1], [0])
        context = self.context(pin=True)
        self.assertIs(slots.tier.lookup(keys[0], context), LookupResult.HIT)
        slots.tier.on_schedule_end(None)
        slots.store(keys[1:], [1], context)
        slots.wait(slots.submit(True, keys[:1], [2], context))
        slots.tier.on_request_finished(context)
        store = slots.tier._store

        def pinned() -> List[bool]:
            with Blocks(self.mount.path) as blocks:
                return [bool(place and place.pinned) for place in
                        blocks.locate(store.ids_of(keys), store.space)]

        self.until(lambda: pinned() == [True, True], "not pinned")


class Refused(unittest.TestCase):
    """A mount on which a block an hour may be written: what comes after the
    first is not wanted."""

    def test_what_is_not_wanted_is_no_failure(self) -> None:
        mount = Mount(settings="endurance=tier0:24K")
        self.addCleanup(mount.close)
        slots = Slots(mount)
        self.addCleanup(slots.close)
        data = slots.fill(0, 1, 2)
        keys = keys_of(0, 1, 2)
        self.assertTrue(slots.store(keys[:1], [0]).success)
        result = slots.store(keys, [0, 1, 2])
        self.assertTrue(result.success)
        self.assertEqual(slots.hits(keys), [True, False, False])
        stats = slots.stats()
        self.assertEqual(stats["saved_blocks"], 1)
        self.assertEqual(stats["save_skipped_blocks"], 1)
        self.assertEqual(stats["save_refused_blocks"], 2)
        self.assertNotIn("save_failed_blocks full", stats)
        slots.bytes[0] = 0
        self.assertTrue(slots.load(keys[:1], [0]).success)
        self.assertEqual(slots.bytes[0].tobytes(), data[0])
        self.assertEqual(len(mount.blocks(slots.tier.space)), 1)


class Expected(MountCase):
    def look(self, slots: Slots, keys: List[bytes], name: str) -> None:
        """A request's look-ups of one step."""
        context = ReqContext(req_id=name)
        for key in keys:
            self.assertIs(slots.tier.lookup(key, context), LookupResult.HIT)
        slots.tier.on_schedule_end(None)

    def test_what_was_found_is_expected(self) -> None:
        slots = self.slots()
        slots.fill(*range(4))
        keys = keys_of(*range(4))
        slots.store(keys, list(range(4)))
        store, now = slots.tier._store, time.monotonic()
        with mock.patch.object(store._expected, "add") as add:
            self.look(slots, keys[:3], "r")
            add.assert_called_once_with(store.ids_of(keys[:3]), store.space)
            # one that waits looks in each step
            self.look(slots, keys[:3], "r")
            self.assertEqual(add.call_count, 1)
            # and finds more
            self.look(slots, keys, "r")
            add.assert_called_with(store.ids_of(keys[3:]), store.space)
            # another request for the same
            self.look(slots, keys, "other")
            add.assert_called_with(store.ids_of(keys), store.space)
            self.assertEqual(add.call_count, 3)
            with mock.patch.object(tier, "time", SimpleNamespace(
                    monotonic=lambda: now + 100)):
                self.look(slots, keys, "r")
            self.assertEqual(add.call_count, 4)
            add.assert_called_with(store.ids_of(keys), store.space)
        self.assertTrue(slots.load(keys[:3], [10, 11, 12]).success)


class Missing(MountCase):
    """The engine starts before the mount is there."""

    def test_is_used_when_it_is_there(self) -> None:
        keys = keys_of(0, 1)
        self.mount.stop()
        with self.assertLogs("vllm.ucmfs", "ERROR") as told:
            slots = self.slots()
        self.assertIn("starts without it", told.output[0])
        data = slots.fill(0, 1)
        self.assertEqual(slots.hits(keys), [False, False])
        self.assertFalse(slots.store(keys, [0, 1]).success)
        self.assertFalse(slots.load(keys, [0, 1]).success)
        self.assert_slots(slots, data)
        self.mount.start()
        self.until(lambda: slots.tier._store.connected, "not there")
        self.assertTrue(slots.store(keys, [0, 1]).success)
        self.assertTrue(slots.load(keys, [2, 3]).success)
        self.assert_slots(slots, {2: data[0], 3: data[1]})

    def test_the_end_comes_first(self) -> None:
        self.mount.stop()
        with self.assertLogs("vllm.ucmfs", "ERROR"):
            slots = self.slots()
        slots.close()


class ServedMissing(Missing):
    MOUNT = Served


class RoundTrips(MountCase):
    def test_random_bytes_in_random_slots_come_back(self) -> None:
        for slot, io in ((4096, "auto"), (SLOT, "threads"), (SLOT, "auto"),
                         (509 * PAGE, "auto"), (3 << 20, "auto")):
            with self.subTest(slot=slot, io=io):
                slots = self.slots(24, slot=slot, io=io,
                                   namespace=f"{slot} {io}")
                order = slots.random.permutation(24)
                data = slots.fill(*order[:12].tolist())
                keys = keys_of(*range(12))
                done = slots.store(keys, order[:12].tolist())
                self.assertTrue(done.success)
                self.assertEqual(done.transfer_bytes, 12 * slot)
                self.assertEqual(slots.hits(keys), [True] * 12)
                again = slots.random.permutation(12)
                done = slots.load([keys[i] for i in again],
                                  order[12:].tolist())
                self.assertTrue(done.success)
                self.assert_slots(slots, {
                    int(order[12 + n]): data[int(order[i])]
                    for n, i in enumerate(again)})
                slots.close()

    def test_read_into_the_slots_themselves(self) -> None:
        slots = self.slots(24, direct=True)
        data = slots.fill(*range(12))
        keys = keys_of(*range(12))
        self.assertTrue(slots.store(keys, list(range(12))).success)
        places = [23 - i for i in range(12)]
        self.assertTrue(slots.load(keys, places).success)
        self.assert_slots(slots, {places[i]: data[i] for i in range(12)})
        stats = slots.tier._store._movers.loader.stats()
        self.assertEqual(stats["direct_bytes"],
                         12 * SLOT if self.has_o_direct() else 0)

    def test_slots_that_are_lent_are_not_given_back(self) -> None:
        slots = self.slots()
        slots.fill(0)
        keys = keys_of(0)
        self.assertTrue(slots.store(keys, [0]).success)
        lent = mock.Mock(num_failed=1)
        lent.done.return_value = True
        lent.returned.return_value = False
        lent.outcomes.return_value = [Outcome(errno.ETIMEDOUT)]
        store = slots.tier._store
        with mock.patch.object(store._movers.group, "load",
                               return_value=lent) as load:
            job = slots.submit(True, keys, [1])
        self.assertEqual(load.call_args.kwargs["lend"], "local")
        for _ in range(3):
            slots.tell()
            self.assertEqual(list(slots.tier.get_finished_jobs()), [])
        self.assertTrue(slots.tier.has_pending_work())
        # what it has found out is known: nothing else goes there
        self.assertTrue(store._pause)
        self.assertEqual(slots.hits(keys), [False])
        slots.tier.drain_jobs()
        lent.wait_returned.assert_called_once_with()
        store._pause.ended(0, 0.0)
        store._pause._until = 0.0
        lent.returned.return_value = True
        self.assertFalse(slots.wait(job).success)
        self.assertFalse(store._pause)  # it says nothing of the mount now
        self.assertEqual(list(slots.tier.get_finished_jobs()), [])
        self.assertEqual(slots.stats()["load_failed_blocks deadline"], 1)

    def test_an_end_does_not_wait_for_slots_that_are_lent(self) -> None:
        slots = self.slots()
        slots.fill(0)
        self.assertTrue(slots.store(keys_of(0), [0]).success)
        read = threading.Event()
        self.addCleanup(tier._lent.clear)
        self.addCleanup(read.set)
        lent = mock.Mock()
        lent.wait_returned.side_effect = Timeout(110, "it hangs")
        lent.free.side_effect = read.wait
        with mock.patch.object(slots.tier._store._movers.group, "load",
                               return_value=lent):
            slots.submit(True, keys_of(0), [1])
        with mock.patch("ucmfs.vllm.mount.CLOSE_SECONDS", 0.5):
            end = threading.Thread(target=slots.close, daemon=True)
            end.start()
            end.join(PATIENCE)
        self.assertFalse(end.is_alive())
        self.assertIs(tier._lent[0], slots.bytes)

    def test_slots_in_huge_pages_are_read_into(self) -> None:
        for why, direct in (("", True), ("it may not", False)):
            with mock.patch("ucmfs.vllm.slots.use_huge_pages",
                            return_value=why) as use:
                slots = self.slots(8, namespace=f"why {why}")
            use.assert_called_once_with(slots.bytes.ctypes.data, 8 * SLOT)
            data = slots.fill(0)
            self.assertTrue(slots.store(keys_of(0), [0]).success)
            self.assertTrue(slots.load(keys_of(0), [3]).success)
            self.assert_slots(slots, {3: data[0]})
            stats = slots.tier._store._movers.loader.stats()
            self.assertEqual(
                stats["direct_bytes"] > 0, direct and self.has_o_direct())
            slots.close()

    def has_o_direct(self) -> bool:
        """Whether reads of the tier can go past the page cache at all."""
        try:
            os.close(os.open(self.mount.tiers[0] + "/.ucmfs/id",
                             os.O_RDONLY | os.O_DIRECT))
        except OSError:
            return False
        return True

    def test_another_process_finds_them(self) -> None:
        first, second = self.slots(), self.slots()
        data = first.fill(3)
        first.store(keys_of(1), [3])
        self.assertEqual(second.hits(keys_of(1, 2)), [True, False])
        self.assertTrue(second.load(keys_of(1), [5]).success)
        self.assert_slots(second, {5: data[3]})

    def unmapped(self) -> Slots:
        told = index.Index.info

        def info(this: Any) -> Dict[str, Any]:
            return {**told(this), "backend": "socket", "why": "a test"}

        with mock.patch.object(index.Index, "info", info):
            return self.slots()

    def test_where_the_index_is_not_mapped_the_daemon_is_asked(self) -> None:
        first, keys = self.slots(), keys_of(0, 1)
        first.fill(0)
        first.store(keys[:1], [0])
        second = self.unmapped()
        self.assertEqual(second.hits(keys), [True, False])
        self.assertTrue(second.load(keys[:1], [3]).success)

    def test_a_daemon_that_does_not_answer_is_a_pause(self) -> None:
        slots, keys = self.unmapped(), keys_of(0)
        slots.fill(0)
        slots.store(keys, [0])
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        with mock.patch.object(mount_py, "LATE_SECONDS", 0.01), \
                mock.patch.object(index.Index, "lookup",
                                  lambda *_: let_go.wait(PATIENCE)):
            self.assertEqual(slots.hits(keys), [False])
            self.assertFalse(slots.tier._store.connected)
            let_go.set()
        self.until(lambda: slots.hits(keys) == [True], "no answer")

    def test_what_another_saves_or_removes_is_known(self) -> None:
        slots, other, keys = self.unmapped(), self.slots(), keys_of(0, 1)
        self.assertEqual(slots.hits(keys), [False, False])
        other.fill(0, 1)
        other.store(keys, [0, 1])
        self.assertEqual(slots.hits(keys), [True, True])
        with Blocks(self.mount.path) as blocks:
            blocks.remove(slots.tier._store.ids_of(keys), slots.tier.space)
        self.assertEqual(slots.hits(keys), [False, False])

    def test_short_hashes_and_groups_are_told_apart(self) -> None:
        slots = self.slots()
        keys = [key_of(1, 0), key_of(1, 1), key_of(1, 7), key_of(2, 1)]
        for keys in (keys, [key_of(9, 0, 16), key_of(9, 1, 16)]):
            data = slots.fill(*range(len(keys)))
            self.assertTrue(
                slots.store(keys, list(range(len(keys)))).success)
            self.assertEqual(slots.hits(keys), [True] * len(keys))
            places = [10 + i for i in range(len(keys))]
            self.assertTrue(slots.load(keys, places).success)
            self.assert_slots(slots, {10 + i: data[i]
                                      for i in range(len(keys))})
        self.assertEqual(slots.hits([key_of(2, 0)]), [False])

    def test_ids_one_by_one_and_together_are_the_same(self) -> None:
        store = self.slots().tier._store
        keys = [key_of(n, n % 3) for n in range(50)]
        self.assertEqual(store.ids_of(keys),
                         b"".join(store.ids_of([key]) for key in keys))

    def test_what_is_there_is_not_written_again(self) -> None:
        slots = self.slots()
        slots.fill(0, 1, 2)
        slots.store(keys_of(0, 1), [0, 1])
        before = {path: os.stat(path).st_mtime_ns
                  for path in self.files(slots).values()}
        done = slots.store(keys_of(0, 1, 2), [0, 1, 2])
        self.assertTrue(done.success)
        self.assertEqual(done.transfer_bytes, SLOT)
        for path, when in before.items():
            self.assertEqual(os.stat(path).st_mtime_ns, when)
        self.assertEqual(slots.stats()["save_skipped_blocks"], 2)

    def test_two_jobs_with_one_key_write_it_once(self) -> None:
        slots = self.slots()
        data = slots.fill(0)
        slots.bytes[1] = slots.bytes[0]
        jobs = [slots.submit(False, keys_of(0), [n]) for n in (0, 1)]
        moved = [slots.wait(job).transfer_bytes for job in jobs]
        self.assertEqual(sorted(moved), [0, SLOT])
        slots.load(keys_of(0), [9])
        self.assert_slots(slots, {9: data[0]})

    def test_a_block_is_a_miss_until_it_is_committed(self) -> None:
        slots = self.slots(slot=4 << 20)
        slots.fill(0)
        self.assertEqual(slots.hits(keys_of(0)), [False])
        self.mount.freeze()
        job = slots.submit(False, keys_of(0), [0])
        self.assertEqual(slots.hits(keys_of(0)), [False])
        self.mount.thaw()
        slots.wait(job)
        self.assertEqual(slots.hits(keys_of(0)), [True])


    def parent_of(self, slots: Slots, key: bytes) -> Optional[bytes]:
        """What the block's header says."""
        id = slots.tier._store.ids_of([key])
        with open(self.files(slots)[id], "rb") as file:
            head = file.read(80)
        return head[64:80] if head[52] & 2 else None

    def test_blocks_name_the_chunk_before(self) -> None:
        slots = self.slots()
        slots.fill(*range(8))
        keys = keys_of(*range(60, 68))
        context = ReqContext(req_id="chain")
        for i, key in enumerate(keys):
            context.set_offload_key_position(key, 16 * (i + 1))
        slots.tier.lookup(keys[0], context)
        # in no order, and in several jobs, as slots become free
        slots.store([keys[5], keys[0], keys[3]], [5, 0, 3], context)
        slots.store([keys[1], keys[2], keys[4]], [1, 2, 4], context)
        slots.tier.on_request_finished(context)
        slots.store(keys[6:], [6, 7], context)
        ids = [slots.tier._store.ids_of([key]) for key in keys]
        self.assertEqual([self.parent_of(slots, key) for key in keys],
                         [None, *ids[:-1]])

    def test_a_chunk_whose_place_is_not_told_names_nothing(self) -> None:
        slots = self.slots()
        slots.fill(0, 1)
        keys = keys_of(70, 71)
        context = ReqContext(req_id="gap")
        context.set_offload_key_position(keys[0], 16)
        context.set_offload_key_position(keys[1], 48)
        slots.store(keys, [0, 1], context)
        self.assertEqual([self.parent_of(slots, key) for key in keys],
                         [None, None])


class ServedRoundTrips(RoundTrips):
    """By a socket alone."""

    MOUNT = Served


class Lookups(MountCase):
    def test_all_of_a_request_are_asked_for_in_a_few_calls(self) -> None:
        slots = self.slots()
        slots.fill(0)
        slots.store(keys_of(*range(10)), [0] * 10)
        keys = keys_of(*range(300))
        context = ReqContext(req_id="many")
        for i, key in enumerate(keys):
            context.set_offload_key_position(key, 16 * (i + 1))
        asked: List[int] = []
        store = slots.tier._store
        plain_lookup = store.lookup
        store.lookup = lambda k: asked.append(len(k)) or plain_lookup(k)
        for _ in range(2):
            asked.clear()
            got = [slots.tier.lookup(key, context) is LookupResult.HIT
                   for key in keys]
            self.assertEqual(got, [True] * 10 + [False] * 290)
            self.assertLessEqual(len(asked), 3)
            slots.tier.on_schedule_end(None)

    def test_backwards_as_sliding_windows_are(self) -> None:
        slots = self.slots()
        slots.fill(0)
        slots.store(keys_of(*range(5, 10)), [0] * 5)
        keys = keys_of(*range(20))
        context = ReqContext(req_id="back")
        for i, key in enumerate(keys):
            context.set_offload_key_position(key, 16 * (i + 1))
        got = [slots.tier.lookup(key, context) is LookupResult.HIT
               for key in reversed(keys)]
        self.assertEqual(got, [5 <= n < 10 for n in reversed(range(20))])

    def test_a_request_that_is_finished_leaves_nothing(self) -> None:
        slots = self.slots()
        context = ReqContext(req_id="gone")
        slots.tier.on_new_request(context)
        slots.tier.lookup(key_of(1), context)
        slots.tier.on_schedule_end(None)
        slots.tier.on_request_finished(context)
        self.assertFalse(slots.tier._requests)
        self.assertFalse(slots.tier._verdicts)

    def test_answers_hold_for_one_step_only(self) -> None:
        slots = self.slots()
        slots.fill(0)
        context = ReqContext(req_id="r")
        self.assertIs(slots.tier.lookup(key_of(1), context),
                      LookupResult.MISS)
        slots.store(keys_of(1), [0])
        slots.tier.on_schedule_end(None)
        self.assertIs(slots.tier.lookup(key_of(1), context),
                      LookupResult.HIT)


def flip_a_bit(path: str, where: int = -1) -> None:
    data = bytearray(pathlib.Path(path).read_bytes())
    data[where if where >= 0 else len(data) // 2] ^= 0x10
    rewrite(path, data)


def rewrite(path: str, data: bytes) -> None:
    """In place, as a disk that lies does it."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate(len(data))


class Damage(MountCase):
    NUM = 12

    def stored(self) -> Slots:
        slots = self.made = self.slots()
        self.data = slots.fill(*range(self.NUM))
        self.keys = keys_of(*range(self.NUM))
        self.assertTrue(
            slots.store(self.keys, list(range(self.NUM))).success)
        return slots

    def check(self, slots: Slots, bad: List[int], cause: str) -> None:
        """Exactly the bad ones fail, are counted, and avoided."""
        places = [self.NUM + i for i in range(self.NUM)]
        slots.stats()
        done = slots.load(self.keys, places)
        good = [i for i in range(self.NUM) if i not in bad]
        self.assertFalse(done.success)
        self.assertEqual(set(done.successful_keys),
                         {self.keys[i] for i in good})
        self.assert_slots(slots, {places[i]: self.data[i] for i in good})
        stats = slots.stats()
        self.assertEqual(stats[f"load_failed_blocks {cause}"], len(bad))
        self.assertEqual(stats["loaded_blocks"], len(good))
        self.assertEqual(slots.hits(self.keys),
                         [i in good for i in range(self.NUM)])

    def damaged(self, how: Callable[[str], None], *bad: int,
                cause: str = "damaged") -> None:
        slots = self.stored()
        for i in bad:
            how(self.file_of(slots, self.keys[i]))
        self.check(slots, list(bad), cause)
        # and such a block is replaced by the next who computes it
        paths = set(self.files(slots))
        gone = {slots.tier._store.ids_of([self.keys[i]]) for i in bad}
        self.until(lambda: not gone & set(self.files(slots)),
                   "damaged blocks stay in the way")
        self.assertEqual(set(self.files(slots)), paths - gone)
        self.assertTrue(slots.store(
            [self.keys[i] for i in bad], list(bad)).success)
        self.assertEqual(slots.hits(self.keys), [True] * self.NUM)
        self.assertTrue(slots.load(self.keys,
                                   [20 + i for i in range(self.NUM)]).success)
        self.assert_slots(slots, {20 + i: self.data[i]
                                  for i in range(self.NUM)})

    def test_a_flipped_bit(self) -> None:
        self.damaged(flip_a_bit, 3)

    def test_the_end_of_a_load_is_not_a_hang(self) -> None:
        """Its slots come back a moment after it is done."""
        returned = Task.returned
        early: set = set()

        def late(task: Task) -> bool:
            if task.done() and task not in early:
                early.add(task)
                self.made.tell()  # once more, when they are back
                return False
            return returned(task)

        with mock.patch.object(Task, "returned", late):
            self.damaged(flip_a_bit, 3)
        self.assertTrue(early)

    def test_what_failed_is_not_offered_while_it_is_still_there(self) -> None:
        slots = self.stored()
        flip_a_bit(self.file_of(slots, self.keys[3]))
        with mock.patch("ucmfs.vllm.slots.remove_blocks"):
            self.check(slots, [3], "damaged")

    def test_a_flipped_bit_in_the_header(self) -> None:
        self.damaged(lambda path: flip_a_bit(path, 20), 0, 11)

    def test_truncated(self) -> None:
        # the daemon itself sees that at the open, and takes it away
        self.damaged(lambda path: rewrite(
            path, pathlib.Path(path).read_bytes()[:SLOT // 2]), 5, 6,
            cause="absent")

    def test_zeroed(self) -> None:
        self.damaged(lambda path: rewrite(
            path, bytes(os.path.getsize(path))), 1, 2, 3)

    def test_zeroed_behind_the_header(self) -> None:
        self.damaged(lambda path: rewrite(
            path, pathlib.Path(path).read_bytes()[:4096].ljust(
                os.path.getsize(path), b"\0")), 7)

    def test_swapped(self) -> None:
        slots = self.stored()
        one, two = (self.file_of(slots, self.keys[i]) for i in (4, 8))
        a, b = (pathlib.Path(p).read_bytes() for p in (one, two))
        rewrite(one, b)
        rewrite(two, a)
        self.check(slots, [4, 8], "damaged")

    def test_without_checks_a_wrong_byte_would_be_seen_here(self) -> None:
        self.stored().close()
        slots = self.slots(verify="none")
        flip_a_bit(self.file_of(slots, self.keys[3]))
        self.assertTrue(slots.load(self.keys[3:4], [20]).success)
        self.assertNotEqual(slots.bytes[20].tobytes(), self.data[3])

    def test_some_are_missing(self) -> None:
        slots = self.stored()
        for i in (2, 9):
            os.unlink(self.file_of(slots, self.keys[i]))
        self.check(slots, [2, 9], "absent")

    def test_all_are_missing(self) -> None:
        slots = self.stored()
        done = slots.load(keys_of(100, 101), [20, 21])
        self.assertFalse(done.success)
        self.assertFalse(done.successful_keys)


class Trouble(MountCase):
    def test_a_full_tier_drops_and_goes_on(self) -> None:
        mount = self.MOUNT(tmpfs=2 << 20, options="policy=none")
        self.addCleanup(mount.close)
        slots = self.slots(mount=mount)
        data = slots.fill(*range(32))
        keys = keys_of(*range(64))
        for first in range(0, 64, 8):
            slots.store(keys[first:first + 8],
                        [n % 32 for n in range(first, first + 8)])
        stats = slots.stats()
        self.assertGreater(stats["save_failed_blocks full"], 0)
        self.assertEqual(stats["save_failed_blocks full"] +
                         stats["saved_blocks"], 64)
        there = [n for n, hit in enumerate(slots.hits(keys)) if hit]
        self.assertEqual(len(there), stats["saved_blocks"])
        for n in there:
            slots.bytes[0] = 0
            self.assertTrue(slots.load([keys[n]], [0]).success)
            self.assertEqual(slots.bytes[0].tobytes(), data[n % 32])

    def test_over_the_budget_is_dropped_at_once(self) -> None:
        slots = self.slots(slot=1 << 20, threads=1, staging_bytes=1)
        slots.fill(*range(32))
        self.mount.freeze()
        start = time.monotonic()
        jobs = [slots.submit(False, keys_of(n), [n]) for n in range(32)]
        self.assertLess(time.monotonic() - start, 1.0)
        self.mount.thaw()
        failed = sum(not slots.wait(job).success for job in jobs)
        stats = slots.stats()
        self.assertGreater(failed, 0)
        self.assertEqual(stats["save_failed_blocks budget"], failed)
        self.assertEqual(stats["saved_blocks"], 32 - failed)

    def test_the_daemon_dies_and_comes_back(self) -> None:
        slots = self.slots()
        data = slots.fill(*range(8))
        keys = keys_of(*range(8))
        slots.store(keys, list(range(8)))
        self.mount.crash()
        start = time.monotonic()
        self.assertEqual(slots.hits(keys), [False] * 8)
        self.assertFalse(slots.store(keys_of(50), [0]).success)
        self.assertFalse(slots.load(keys, list(range(8, 16))).success)
        self.assertLess(time.monotonic() - start, 5.0)
        stats = slots.stats()
        self.assertEqual(stats["connected"], 0)
        self.assertEqual(stats["save_failed_blocks disconnected"], 1)
        self.mount.start()
        # what failed is avoided for a while; others are found
        other = self.slots()
        self.assertEqual(other.hits(keys), [True] * 8)
        self.until(lambda: slots.tier._store.connected, "connected again")
        slots.tier._store._avoid.clear()
        self.assertEqual(slots.hits(keys), [True] * 8)
        self.assertTrue(slots.load(keys, list(range(16, 24))).success)
        self.assert_slots(slots, {16 + n: data[n] for n in range(8)})
        self.assertTrue(slots.store(keys_of(60), [0]).success)

    def test_killed_in_mid_job(self) -> None:
        """Whatever has become of each block, its slot is right or it is told
        to have failed; and nothing waits."""
        slots = self.slots(64, slot=1 << 20)
        data = slots.fill(*range(32))
        keys = keys_of(*range(32))
        slots.store(keys, list(range(32)))
        for round in range(3):
            slots.tier._store._avoid.clear()
            load = slots.submit(True, keys, list(range(32, 64)))
            save = slots.submit(False, keys_of(*range(100 + 40 * round,
                                                      132 + 40 * round)),
                                list(range(32)))
            time.sleep(0.004 * round)
            self.mount.crash()
            done = slots.wait(load, 15.0)
            slots.wait(save, 15.0)
            good = keys if done.success else done.successful_keys or ()
            self.assert_slots(slots, {
                32 + n: data[n] for n in range(32) if keys[n] in good})
            slots.hits(keys)  # notices
            self.mount.start()
            self.until(lambda: slots.tier._store.connected, "back")
        slots.tier._store._avoid.clear()
        self.until(lambda: slots.hits(keys) == [True] * 32, "found again")
        self.assertTrue(slots.load(keys, list(range(32, 64))).success)
        self.assert_slots(slots, {32 + n: data[n] for n in range(32)})

    def test_a_daemon_that_hangs_holds_up_nothing(self) -> None:
        slots = self.slots(deadline_ms=300)
        slots.fill(*range(4))
        keys = keys_of(*range(4))
        slots.store(keys, list(range(4)))
        self.mount.freeze()
        try:
            start = time.monotonic()
            self.assertEqual(slots.hits(keys), [True] * 4)
            jobs = [slots.submit(True, keys_of(n), [8 + n])
                    for n in range(4)]
            jobs += [slots.submit(False, keys_of(20 + n), [n])
                     for n in range(4)]
            self.assertLess(time.monotonic() - start, 0.5)
            for job in jobs:
                slots.wait(job, 5.0)
            # no request waits for the next deadline
            self.assertEqual(slots.hits(keys), [False] * 4)
            start = time.monotonic()
            self.assertFalse(slots.store(keys_of(30), [0]).success)
            self.assertLess(time.monotonic() - start, 0.2)
        finally:
            self.mount.thaw()
        slots.tier._store._pause.ended(0, 0.0)
        self.until(lambda: slots.tier._store.connected, "the pause ends")
        slots.tier._store._avoid.clear()
        self.assertEqual(slots.hits(keys), [True] * 4)
        self.assertTrue(slots.load(keys, [8, 9, 10, 11]).success)
        # the kernel may have had a block's file at hand; nothing else may
        # have passed
        self.assertGreater(sum(value for name, value in slots.stats().items()
                               if name.endswith("deadline")), 0)

    def test_shutdown_while_the_daemon_hangs_is_bounded(self) -> None:
        import ucmfs.vllm.mount as module
        slots = self.slots(deadline_ms=60_000)
        slots.fill(0)
        slots.store(keys_of(0), [0])
        seconds, module.CLOSE_SECONDS = module.CLOSE_SECONDS, 0.5
        self.mount.freeze()
        try:
            slots.submit(True, keys_of(0), [1])
            slots.submit(False, keys_of(1), [0])
            start = time.monotonic()
            slots.close()
            self.assertLess(time.monotonic() - start, 5.0)
        finally:
            module.CLOSE_SECONDS = seconds
            self.mount.thaw()

    def test_space_removed_below_us_is_made_again(self) -> None:
        slots = self.slots()
        slots.fill(0)
        remove_space(self.mount.path, slots.tier.space)
        self.assertEqual(slots.hits(keys_of(0)), [False])
        self.until(lambda: slots.tier._store.connected, "made again")
        self.assertTrue(slots.store(keys_of(0), [0]).success)
        self.assertEqual(slots.hits(keys_of(0)), [True])


class ServedTrouble(Trouble):
    MOUNT = Served


class Manners(MountCase):
    """What the manager relies on beside the bytes."""

    def test_drain_waits_and_results_are_still_told(self) -> None:
        slots = self.slots(slot=1 << 20)
        slots.fill(*range(32))
        jobs = [slots.submit(False, keys_of(n), [n]) for n in range(32)]
        self.assertTrue(slots.tier.has_pending_work())
        slots.tier.drain_jobs()
        told = {result.job_id for result in slots.tier.get_finished_jobs()}
        self.assertEqual(told, set(jobs))
        self.assertFalse(slots.tier.has_pending_work())
        slots.tier.drain_jobs()

    def test_polled_from_another_thread(self) -> None:
        slots = self.slots()
        data = slots.fill(0)
        done: List[Any] = []
        thread = threading.Thread(
            target=lambda: done.append(slots.store(keys_of(0), [0])))
        thread.start()
        thread.join(PATIENCE)
        self.assertTrue(done and done[0].success)
        slots.load(keys_of(0), [1])
        self.assert_slots(slots, {1: data[0]})

    def test_events_tell_what_is_stored(self) -> None:
        slots = self.slots(events=True, enable_kv_events=True,
                           locality="LOCAL")
        slots.fill(0, 1)
        slots.store(keys_of(0, 1), [0, 1])
        (event,) = slots.tier.take_events()
        self.assertEqual(set(event.keys), set(keys_of(0, 1)))
        self.assertIs(event.medium, Medium.STORAGE)
        self.assertFalse(event.removed)
        self.assertEqual(event.locality.value, "LOCAL")
        self.assertFalse(list(slots.tier.take_events()))
        self.mount.crash()
        slots.store(keys_of(5), [0])
        self.assertFalse(list(slots.tier.take_events()))

    def test_no_events_where_nobody_publishes_them(self) -> None:
        slots = self.slots(enable_kv_events=True)
        slots.fill(0)
        slots.store(keys_of(0), [0])
        self.assertFalse(list(slots.tier.take_events()))

    def test_every_figure_has_a_definition_with_its_labels(self) -> None:
        slots = self.slots()
        slots.fill(0)
        slots.store(keys_of(0), [0])
        slots.hits(keys_of(0, 1))
        slots.load(keys_of(0, 1), [1, 2])
        self.mount.crash()
        slots.hits(keys_of(0))
        slots.store(keys_of(3), [0])
        stats = slots.tier.get_stats()
        known = UcmfsTier.build_metric_definitions({})
        self.assertFalse(set(stats._values) - set(known))
        for name, values in stats._values.items():
            for labels in values:
                self.assertEqual(len(labels), len(known[name].labelnames))
        for name in ("lookups", "lookup_hits", "loaded_blocks", "saved_bytes",
                     "load_failed_blocks", "save_failed_blocks",
                     "load_seconds", "connected"):
            self.assertIn(f"vllm:ucmfs_tier_{name}", stats._values)
        stats.reduce()

    def test_no_figures_where_nothing_has_happened(self) -> None:
        slots = self.slots()
        self.assertEqual(slots.stats(), {"connected": 1})
        self.assertIsNone(slots.tier.get_stats())

    def test_the_view_can_be_released_at_the_end(self) -> None:
        for used in (False, True):
            region = np.zeros((8, SLOT), dtype=np.int8)
            view = memoryview(bytearray(region.nbytes)).cast(
                "B", (8, SLOT))
            with handed_down(engine_stub()):
                tier = UcmfsTier(spec_stub(), view, "UcmfsTier",
                                 mount=self.mount.path, namespace="view")
            if used:
                tier.submit_store(TransferJob(
                    1, keys_of(1), np.array([0], dtype=np.int32), False,
                    ReqContext(req_id="r")))
            tier.shutdown()
            view.release()

    def test_facts_of_0_33(self) -> None:
        tier = self.slots().tier
        self.assertEqual(set(tier.config_info()),
                         set(UcmfsTier.config_info_keys({})))
        self.assertFalse(getattr(UcmfsTier, "tolerates_off_thread_polling",
                                 False))


BASES = {
    "0.31": """
class Base(base.SecondaryTierManager):
    def __init_subclass__(cls, **kwargs): pass  # knows no cache_hit_source
""",
    "0.33": """
class Base(base.SecondaryTierManager):
    tolerates_off_thread_polling = False
    @classmethod
    def config_info_keys(cls, tier_config): return ()
    def config_info(self): return {}
""",
}
WITH_A_BASE = """
import sys
import vllm.v1.kv_offload.tiering.base as base
%s
base.SecondaryTierManager = Base
sys.path.insert(0, sys.argv[1])
import test_tier as t
mount = t.Mount()
slots = t.Slots(mount)
data = slots.fill(0)
assert slots.store(t.keys_of(0), [0]).success
assert slots.hits(t.keys_of(0, 1)) == [True, False]
assert slots.load(t.keys_of(0), [1]).success
assert slots.bytes[1].tobytes() == data[0]
assert issubclass(t.UcmfsTier, Base)
assert not getattr(t.UcmfsTier, "tolerates_off_thread_polling", False)
slots.close()
mount.close()
print("well")
"""


class Versions(unittest.TestCase):
    """Bases of other versions, as far as they differ from this one's."""

    def test_nothing_is_imported_before_a_class_is_asked_for(self) -> None:
        code = ("import sys, ucmfs.vllm\n"
                "assert 'UcmfsTier' in dir(ucmfs.vllm)\n"
                "assert not {'vllm', 'numpy', 'torch'} & set(sys.modules)\n"
                "sys.modules['vllm'] = None\n"
                "ucmfs.vllm.UcmfsTier\n")
        out = subprocess.run([sys.executable, "-c", code], text=True,
                             capture_output=True)
        self.assertIn("ModuleNotFoundError", out.stderr.split("\n")[-2])

    def test_bases(self) -> None:
        for version, base in BASES.items():
            with self.subTest(version=version):
                out = subprocess.run(
                    [sys.executable, "-c", WITH_A_BASE % base,
                     os.path.dirname(os.path.abspath(__file__))],
                    capture_output=True, text=True)
                self.assertEqual(out.stdout.split()[-1:], ["well"],
                                 out.stderr)


def method_of(tree: str, path: str, name: str) -> ast.FunctionDef:
    """A method of the class "NAME.METHOD" in vLLM's sources, unread by
    Python: other versions need other packages."""
    with open(os.path.join(tree, "vllm", path), encoding="utf-8") as file:
        module = ast.parse(file.read())
    for part in name.split("."):
        module = next(each for each in module.body
                      if getattr(each, "name", None) == part)
    return module


def calls_of(method: ast.FunctionDef) -> List[str]:
    return [getattr(each.func, "attr", getattr(each.func, "id", ""))
            for each in ast.walk(method) if isinstance(each, ast.Call)]


class Connector(unittest.TestCase):
    """What UcmfsOffloadingConnector takes for granted of vLLM's."""

    V1 = "distributed/kv_transfer/kv_connector/v1/offloading"

    def check(self, tree: str) -> None:
        built = method_of(tree, f"{self.V1}_connector.py",
                          "OffloadingConnector.__init__")
        self.assertEqual([arg.arg for arg in built.args.args],
                         ["self", "vllm_config", "role", "kv_cache_config"])
        self.assertIn("create_spec", calls_of(built))
        self.assertIn("OffloadingConnectorScheduler", calls_of(built))
        # so tiers are made while the connector is, in the same thread
        self.assertIn("get_manager", calls_of(method_of(
            tree, f"{self.V1}/scheduler.py",
            "OffloadingConnectorScheduler.__init__")))

    def test_of_the_vllm_that_is_installed(self) -> None:
        self.check(os.path.dirname(os.path.dirname(vllm.__file__)))

    def test_of_other_versions(self) -> None:
        """UCMFS_VLLM_SOURCES: directories of unpacked sources, by colons."""
        trees = os.environ.get("UCMFS_VLLM_SOURCES", "")
        if not trees:
            self.skipTest("UCMFS_VLLM_SOURCES names no sources of vLLM")
        for tree in trees.split(":"):
            with self.subTest(tree=tree):
                self.check(tree)

    def test_tells_the_tiers_which_engine_is_built(self) -> None:
        from vllm.distributed.kv_transfer.kv_connector.factory import (
            KVConnectorFactory)

        cls = KVConnectorFactory.get_connector_class(SimpleNamespace(
            kv_connector="UcmfsOffloadingConnector",
            kv_connector_module_path="ucmfs.vllm"))
        self.assertTrue(KVConnectorFactory.supports_hma_config(
            SimpleNamespace(kv_connector="UcmfsOffloadingConnector",
                            kv_connector_module_path="ucmfs.vllm")))
        seen = []

        def built(connector, *args: Any) -> None:
            seen.append((args, engine_configs()))

        with mock.patch.object(cls.__mro__[1], "__init__", built):
            cls("vllm", "role", "cache")
        self.assertEqual(cls.__mro__[1].__name__, "OffloadingConnector")
        self.assertEqual(seen, [(("vllm", "role", "cache"),
                                 EngineConfigs("vllm", "cache"))])


class Configurations(unittest.TestCase):
    def refused(self, key: str, what: str, **config: Any) -> None:
        with self.assertRaises(ConfigError) as caught:
            UcmfsTier(spec_stub(), memoryview(np.zeros((2, SLOT), np.int8)),
                      "UcmfsTier", **config)
        self.assertEqual(caught.exception.key, key)
        self.assertIn(what, str(caught.exception))

    def test_what_is_wrong_is_named(self) -> None:
        self.refused("mount", "needed")
        self.refused("locality", "REMOTE", mount="/x", locality="near")
        self.refused("staging_byte", "staging_bytes?", mount="/x",
                     staging_byte=1)

    def test_without_the_connector_that_tells_the_engine(self) -> None:
        for config in ({}, {"namespace": "x"}):
            self.refused("kv_connector", '"UcmfsOffloadingConnector"',
                         mount="/x", **config)

    def test_random_hashes_are_refused_with_advice(self) -> None:
        seed = os.environ.pop("PYTHONHASHSEED", None)
        try:
            with handed_down(engine_stub("xxhash")):
                self.refused("PYTHONHASHSEED", "PYTHONHASHSEED=0", mount="/x",
                             namespace="x")
        finally:
            if seed is not None:
                os.environ["PYTHONHASHSEED"] = seed

    def test_no_mount(self) -> None:
        for path in ("/nowhere/at/all", "/tmp"):
            with self.assertRaises(UcmfsError), handed_down(engine_stub()):
                UcmfsTier(spec_stub(),
                          memoryview(np.zeros((2, SLOT), np.int8)),
                          "UcmfsTier", mount=path, namespace="x",
                          on_missing="fail")

    def test_pieces(self) -> None:
        for slot, pieces in ((4096, 1), (1 << 20, 1), (2 << 20, 2),
                             (3 << 20, 3), (64 << 20, 64), (509 * PAGE, 1),
                             (509 * 2 * PAGE, 2)):
            self.assertEqual(pieces_of(slot), pieces, slot)
        for slot in range(PAGE, 600 * PAGE, PAGE):
            geometry = geometry_of(slot, 16)
            self.assertEqual(geometry.payload_bytes, slot)
            self.assertEqual(geometry.k_bytes % PAGE, 0)


class Manifests(unittest.TestCase):
    """A namespace that is named by hand says nothing of what follows: that is
    taken from the engine, and makes another space."""

    MODEL = dict(name="tiny/model", dtype="float32")
    CACHE = dict(tokens_per_hash=16, blocks_per_chunk=1)
    GROUP = dict(tokens_per_block=16, layer_names=("layers.0", "layers.1"),
                 group_id=0)
    PARALLEL = dict(
        rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1,
        data_parallel_index=0, data_parallel_size=1,
        data_parallel_rank_local=None, is_parallelism_agnostic=False)

    def space(self, *, slot: int = SLOT, algorithm: str = "sha256",
              replicated: bool = False, canonical: bool = False,
              layout: str = "", config: Dict[str, Any] = {},
              groups: int = 1, **changes: Any) -> bytes:
        def of(kind: type, values: Dict[str, Any]) -> Any:
            return kind(**{k: changes.pop(k, v) for k, v in values.items()})

        one = of(OffloadingGroupConfig, self.GROUP)
        spec = spec_stub(
            slot=changes.pop("worker_bytes", SLOT), groups=(one,) * groups,
            model=of(OffloadingModelConfig, self.MODEL),
            cache=of(OffloadingCacheConfig, self.CACHE),
            parallel=of(OffloadingParallelConfig, self.PARALLEL))
        self.assertFalse(changes)
        spec.replicated_layout = replicated
        # not of every version of vLLM
        spec.config = SimpleNamespace(**{
            **vars(spec.config), "canonical_layout": canonical,
            "kv_cache_layout": layout})
        return space_id(tier_manifest(
            spec, slot, parse(TierOptions, {
                "mount": "/x", "namespace": "n", **config}),
            engine_stub(algorithm)))

    def test_each_field_makes_another(self) -> None:
        seen = {self.space(): "unchanged"}
        for change in (
                dict(slot=2 * SLOT), dict(worker_bytes=2 * SLOT),
                dict(name="other"), dict(dtype="float16"),
                dict(tokens_per_hash=32), dict(blocks_per_chunk=2),
                dict(tokens_per_block=32), dict(group_id=1), dict(groups=2),
                dict(world_size=2), dict(tp_size=2), dict(pp_size=2),
                dict(dcp_size=2), dict(pcp_size=2), dict(replicated=True),
                dict(canonical=True), dict(layout="BLNHC"),
                dict(algorithm="sha256_cbor"),
                dict(config={"namespace": "m"}),
                dict(config={"tenant": "t"}), dict(config={"epoch": "1"})):
            space = self.space(**change)
            self.assertNotIn(space, seen,
                             f"{change} is as {seen.get(space)}")
            seen[space] = change

    def test_pages_that_are_the_same_for_all_numbers_of_ranks(self) -> None:
        """One copy for them, where vLLM says so, and only there."""
        portable = dict(canonical=True, is_parallelism_agnostic=True)
        two = dict(tp_size=2, world_size=2, worker_bytes=SLOT // 2)
        want = self.space(**portable)
        self.assertEqual(self.space(**portable, **two), want)
        for other in (dict(canonical=True), dict(two, canonical=True),
                      dict(two, is_parallelism_agnostic=True),
                      dict(portable, pp_size=2), dict(portable, slot=2 * SLOT),
                      dict(portable, layout="BLNHC"),
                      dict(portable, dtype="float16")):
            self.assertNotEqual(self.space(**other), want, other)

    def test_stages_of_a_pipeline(self) -> None:
        """Cut elsewhere they have other blocks, whatever the first holds."""
        def space(*stages: Any) -> bytes:
            return space_id(tier_manifest(
                spec_stub(), SLOT, parse(TierOptions, {
                    "mount": "/x", "namespace": "n"}), engine_stub(), stages))

        a, b, c = (("a",), ()), (("b",), ("c",)), ((), ("c",))
        cuts = [(), (a, b), (a, c), (a, c, b), (a, b, c)]
        self.assertEqual(len({space(*cut) for cut in cuts}), len(cuts))
        self.assertEqual(space(a, b), space(a, b))

    def test_ranks_leave_the_engines_manifest(self) -> None:
        engine = {"model": {"name": "m"}, "parallel": {"tp": 2}, "groups": [
            {"kind": "FullAttentionSpec", "page_bytes": 4, "spec": "ab",
             "layer_names": "cd"}]}
        self.assertEqual(tier._without_ranks(engine), {
            "model": {"name": "m"}, "groups": [
                {"kind": "FullAttentionSpec", "layer_names": "cd"}]})

    def test_the_same_is_the_same(self) -> None:
        self.assertEqual(self.space(), self.space())
        self.assertEqual(self.space(rank=1), self.space())


class Pipelines(MountCase):
    """vLLM tells a tier of the first stage; the workers are asked."""

    def tier(self, *workers: Any, ranks: int = 2, **config: Any) -> UcmfsTier:
        """Of an engine with these workers, as vLLM's executor asks them."""
        def collective_rpc(function: Any, args: tuple) -> list:
            return [function(worker, *args) for worker in workers]

        executor = SimpleNamespace(collective_rpc=collective_rpc)
        spec = spec_stub()
        spec.config = dataclasses.replace(
            spec.config, parallel=dataclasses.replace(
                spec.config.parallel, world_size=ranks, pp_size=ranks))
        with handed_down(engine_stub()), mock.patch(
                "ucmfs.vllm.engine._found",
                lambda kinds, config: [lambda: executor, None]), mock.patch(
                "ucmfs.vllm.engine.digest_of_model", lambda *_: "weights"):
            made = UcmfsTier(
                spec, memoryview(np.zeros((2, SLOT), np.int8)), "UcmfsTier",
                mount=self.mount.path, namespace="x", **config)
        self.addCleanup(made.shutdown)
        return made

    @staticmethod
    def worker(*layers: str, block_bytes: int = SLOT, blocks: int = 7) -> Any:
        """With the layers of two groups."""
        return SimpleNamespace(model_runner=SimpleNamespace(
            kv_cache_config=SimpleNamespace(
                num_blocks=blocks, kv_cache_tensors=[
                    SimpleNamespace(size=blocks * block_bytes)],
                kv_cache_groups=[SimpleNamespace(layer_names=names.split())
                                 for names in layers])))

    def test_each_cut_has_a_space(self) -> None:
        """Also where a stage has no layers of a group."""
        cuts = [("a", ""), ("", "b")], [("a", ""), ("b", "")], \
            [("a", ""), ("", "b"), ("", "c")]
        names = [self.tier(*(self.worker(*one) for one in cut),
                           ranks=len(cut)).space for cut in cuts]
        self.assertEqual(len(set(names)), 3)
        again = self.tier(*(self.worker(*one) for one in cuts[0]))
        self.assertEqual(again.space, names[0])

    def test_stages_that_lie_over_each_other(self) -> None:
        for size in (SLOT // 2, 2 * SLOT):
            with self.assertRaisesRegex(
                    ConfigError, "over each other; VLLM_PP_LAYER_PARTITION"):
                self.tier(self.worker("a"),
                          self.worker("b", block_bytes=size))

    def test_workers_that_do_not_say(self) -> None:
        for workers in ((), (self.worker("a"),),
                        (self.worker("a"), SimpleNamespace())):
            with self.assertLogs("vllm.ucmfs") as said, \
                    self.assertRaisesRegex(ConfigError,
                                           "of 2 workers say which layers"):
                log.info("so that there is a line")
                self.tier(*workers)
            self.assertEqual(len(said.output) > 1, len(workers) == 2)


class Spaces(MountCase):
    def test_another_namespace_in_a_named_space_is_refused(self) -> None:
        self.slots(space="mine", namespace="one").close()
        self.slots(space="mine", namespace="one").close()
        with self.assertRaises(NamespaceMismatch) as caught:
            Slots(self.mount, space="mine", namespace="two")
        self.assertIn("one", str(caught.exception))

    def test_what_one_has_another_does_not_see(self) -> None:
        one = self.slots(namespace="one")
        one.fill(0)
        one.store(keys_of(0), [0])
        for config in (dict(namespace="two"),
                       dict(namespace="one", tenant="t"),
                       dict(namespace="one", epoch=1)):
            other = self.slots(**config)
            self.assertNotEqual(other.tier.space, one.tier.space)
            self.assertEqual(other.hits(keys_of(0)), [False])
            other.close()
        same = self.slots(namespace="one")
        self.assertEqual(same.hits(keys_of(0)), [True])


class WithoutADaemon(unittest.TestCase):
    """Directories instead of a mount: a private daemon is started."""

    def setUp(self) -> None:
        self.tier = directory_of(self)

    def slots(self, **config: Any) -> Slots:
        slots = Slots(SimpleNamespace(where={}), tiers=self.tier, **config)
        self.addCleanup(slots.close)
        return slots

    def files(self) -> List[str]:
        return [str(path) for path in
                pathlib.Path(self.tier, "spaces").glob("*/??/*.bin")]

    def test_stored_by_one_and_loaded_by_the_next(self) -> None:
        for direct in (False, True):
            keys = keys_of(*range(10 * direct, 10 * direct + 3))
            first = self.slots(direct=direct)
            data = first.fill(0, 1, 2)
            self.assertTrue(first.store(keys, [0, 1, 2]).success)
            self.assertEqual(first.hits(keys + keys_of(99)),
                             [True] * 3 + [False])
            first.close()
            second = self.slots(direct=direct)
            self.assertEqual(second.hits(keys), [True] * 3)
            self.assertTrue(second.load(keys, [5, 6, 7]).success)
            for slot, content in data.items():
                self.assertEqual(second.bytes[5 + slot].tobytes(), content)
            second.close()

    def test_other_weights_have_other_blocks(self) -> None:
        keys, seen = keys_of(0, 1), {}
        with mock.patch.object(tier.Engine, "weigh",
                               lambda _, whole: self.weights):
            self.weights = "a"
            slots = self.slots()
            for self.weights in ("a", "b", "c", "a"):
                slots.tier.drain_jobs()
                self.assertEqual(slots.hits(keys), 2 * [self.weights in seen])
                if self.weights not in seen:
                    seen[self.weights] = slots.fill(0, 1)
                    self.assertTrue(slots.store(keys, [0, 1]).success)
                    self.assertEqual(slots.hits(keys), [True, True])
                self.assertTrue(slots.load(keys, [2, 3]).success)
                for slot, content in seen[self.weights].items():
                    self.assertEqual(slots.bytes[2 + slot].tobytes(), content)
        self.assertEqual(len(self.files()), 6)

    def test_damaged_blocks_are_a_miss_and_replaced(self) -> None:
        slots, keys = self.slots(), keys_of(0, 1)
        data = slots.fill(0, 1)
        slots.store(keys, [0, 1])
        for path in self.files():
            flip_a_bit(path)
        result = slots.load(keys, [2, 3])
        self.assertFalse(result.success)
        self.assertEqual(slots.hits(keys), [False, False])
        end = time.monotonic() + PATIENCE
        while self.files():  # a thread takes them away
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)
        self.assertTrue(slots.store(keys, [0, 1]).success)
        self.assertEqual(slots.hits(keys), [True, True])
        self.assertTrue(slots.load(keys, [2, 3]).success)
        self.assertEqual(slots.bytes[3].tobytes(), data[1])

    def test_two_save_beside_each_other(self) -> None:
        first, second = self.slots(), self.slots()
        data = first.fill(0)
        self.assertTrue(first.store(keys_of(0), [0]).success)
        self.assertTrue(second.load(keys_of(0), [1]).success)
        self.assertEqual(second.bytes[1].tobytes(), data[0])
        self.assertTrue(second.store(keys_of(1), [1]).success)
        self.assertTrue(second.store(keys_of(0), [1]).success)
        self.assertEqual(second.hits(keys_of(0, 1)), [True, True])
        self.assertTrue(first.load(keys_of(1), [2]).success)
        self.assertEqual(first.bytes[2].tobytes(), data[0])

    def daemon(self) -> Optional[int]:
        """None: a new one is about to make its link."""
        try:
            return pid_of(self.tier)
        except FileNotFoundError:
            return None

    def test_a_killed_daemon_is_replaced(self) -> None:
        slots, keys = self.slots(), keys_of(0, 1)
        data = slots.fill(0)
        self.assertTrue(slots.store(keys[:1], [0]).success)
        before = pid_of(self.tier)
        os.kill(before, signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while not slots.hits(keys[:1])[0] or self.daemon() in (None, before):
            self.assertLess(time.monotonic(), end, "it is not replaced")
            time.sleep(0.01)
        while not slots.load(keys[:1], [1]).success:
            self.assertLess(time.monotonic(), end, "it cannot be loaded")
            time.sleep(0.01)
        self.assertEqual(slots.bytes[1].tobytes(), data[0])

    def test_directories_that_are_not_there(self) -> None:
        with self.assertRaises(UcmfsError), handed_down(engine_stub()):
            Slots(SimpleNamespace(where={}), tiers="/nowhere/at/all",
                  on_missing="fail")


class WithTheManager(MountCase):
    """vLLM's own specification, manager and factory around the tier."""

    def setUp(self) -> None:
        super().setUp()
        self.weights = "a"  # as the workers say, of which there are none
        patch = mock.patch.object(tier.Engine, "weigh",
                                  lambda _, whole: self.weights)
        patch.start()
        self.addCleanup(patch.stop)

    def make(self, **config: Any) -> Any:
        from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
        own = {"type": "UcmfsTier", "module_path": "ucmfs.vllm",
               "mount": self.mount.path, "namespace": "manager", **config}
        extra = {"cpu_bytes_to_use": 16 * SLOT, "secondary_tiers": [own]}
        TieringOffloadingSpec.build_metric_definitions(extra)
        spec = TieringOffloadingSpec(offloading_config(extra))
        with handed_down(engine_stub()):
            manager = spec.get_manager()
        self.addCleanup(self.end, manager)
        self.ended: List[Any] = []
        return manager

    def end(self, manager: Any) -> None:
        if manager not in self.ended:
            self.ended.append(manager)
            manager.shutdown()

    def forget(self, manager: Any) -> None:
        """What the first tier has; 0.33 waits for its workers behind that."""
        manager.reset_cache()
        getattr(manager, "on_reset_flushed", lambda: None)()

    def step(self, manager: Any, *new: str) -> None:
        manager.on_schedule_end(ScheduleEndContext(list(new), []))

    def view(self, manager: Any) -> Any:
        return np.asarray(manager.primary_tier.get_kv_memoryview())

    def store(self, manager: Any, context: Any,
              keys: List[bytes]) -> Dict[bytes, bytes]:
        output = manager.prepare_store(keys, context)
        assert output is not None and output.keys_to_store == keys
        view, data = self.view(manager), {}
        for key, slot in zip(keys, output.store_spec.chunk_ids):
            view[slot] = np.frombuffer(os.urandom(SLOT), dtype=np.int8)
            data[key] = view[slot].tobytes()
        manager.complete_store(keys, context)
        self.until(lambda: (self.step(manager), not manager._jobs)[1],
                   "stored")
        return data

    def promote(self, manager: Any, context: Any,
                keys: List[bytes]) -> List[LookupResult]:
        """Step as the scheduler does until no answer is pending."""
        def settled() -> bool:
            self.got = [manager.lookup(key, context) for key in keys]
            self.step(manager)
            return not {LookupResult.RETRY,
                        LookupResult.HIT_PENDING} & set(self.got)
        self.until(settled, "settled")
        return self.got

    def test_stored_promoted_and_right(self) -> None:
        manager = self.make()
        context = ReqContext(req_id="r")
        manager.on_new_request(context)
        keys = keys_of(*range(10))
        data = self.store(manager, context, keys)
        self.forget(manager)
        self.assertEqual(self.promote(manager, context, keys),
                         [LookupResult.HIT] * 10)
        slots = manager.prepare_load(keys, context).chunk_ids
        view = self.view(manager)
        for key, slot in zip(keys, slots):
            self.assertEqual(view[slot].tobytes(), data[key])
        manager.complete_load(keys, context)
        manager.touch(keys, context)
        self.assertFalse(manager.get_stats().is_empty())
        list(manager.take_events())
        manager.on_request_finished(context)
        self.assertFalse(manager.has_pending_work())

    def test_found_by_the_next_without_a_daemon(self) -> None:
        options = {"mount": None, "tiers": directory_of(self)}
        context, keys = ReqContext(req_id="r"), keys_of(*range(10))
        first = self.make(**options)
        first.on_new_request(context)
        data = self.store(first, context, keys)
        manager = self.make(**options)
        manager.on_new_request(context)
        self.assertEqual(self.promote(manager, context, keys + keys_of(99)),
                         [LookupResult.HIT] * 10 + [LookupResult.MISS])
        view = self.view(manager)
        slots = manager.prepare_load(keys, context).chunk_ids
        for key, slot in zip(keys, slots):
            self.assertEqual(view[slot].tobytes(), data[key])
        manager.complete_load(keys, context)
        manager.on_request_finished(context)

    def test_other_weights_have_other_blocks(self) -> None:
        manager = self.make()
        context = ReqContext(req_id="r")
        manager.on_new_request(context)
        keys = keys_of(*range(4))
        first = self.store(manager, context, keys)
        self.weights = "b"
        self.forget(manager)
        self.assertEqual(self.promote(manager, context, keys),
                         [LookupResult.MISS] * 4)
        second = self.store(manager, context, keys)
        for self.weights, want in (("a", first), ("b", second)):
            self.forget(manager)
            self.assertEqual(self.promote(manager, context, keys),
                             [LookupResult.HIT] * 4)
            view = self.view(manager)
            slots = manager.prepare_load(keys, context).chunk_ids
            for key, slot in zip(keys, slots):
                self.assertEqual(view[slot].tobytes(), want[key])
            manager.complete_load(keys, context)

    def test_files_are_looked_at_once(self) -> None:
        """They may be others later, or gone."""
        looks = []

        def manifest(*_: Any, **__: Any) -> Dict[str, Any]:
            looks.append(None)
            return {"model": {"weights": f"files:{len(looks)}"}, "epoch": ""}

        with mock.patch.object(tier, "engine_manifest", manifest):
            own = self.make(namespace="").secondary_tiers[0]
            usual, context = own.space, ReqContext(req_id="r")
            for self.weights, same in (("b", False), ("", False),
                                       ("a", True)):
                own.drain_jobs()
                own.lookup(key_of(1), context)
                self.assertEqual(own.space == usual, same)
        self.assertEqual(len(looks), 1)

    def test_what_has_kv_of_before_is_not_saved_as_of_now(self) -> None:
        manager = self.make()
        own = manager.secondary_tiers[0]
        requests = {name: SimpleNamespace(num_computed_tokens=tokens)
                    for name, tokens in (("runs", 64), ("waits", 0))}
        scheduler = SimpleNamespace(requests=requests)
        own._engine._scheduler = lambda: scheduler
        runs, waits = (ReqContext(req_id=name) for name in requests)
        manager.on_new_request(runs)
        manager.on_new_request(waits)
        for self.weights, context, amount in (
                ("a", runs, 1),               # a reset like any other
                ("b", runs, 0), ("b", waits, 1),
                ("b", runs, 1)):              # of before, and of now
            self.forget(manager)
            self.store(manager, context, keys_of(amount))
            self.assertEqual(len(self.mount.blocks(own.space)), amount)
        self.forget(manager)
        manager.on_request_finished(runs)
        manager.on_new_request(runs)  # another of that name
        self.store(manager, runs, keys_of(2))
        self.assertEqual(len(self.mount.blocks(own.space)), 2)

    def test_moves_leave_no_groups_behind(self) -> None:
        manager = self.make(direct=True)
        own, context = manager.secondary_tiers[0], ReqContext(req_id="r")
        manager.on_new_request(context)
        loader = own._store._movers.loader
        for self.weights in "bcab":
            self.forget(manager)
            self.promote(manager, context, keys_of(1))
            self.until(lambda: own._store._movers is not None, "there")
            self.until(lambda: len(loader._keep) == 1, "removed")
        self.store(manager, context, keys_of(1))
        self.assertEqual(len(self.mount.blocks(own.space)), 1)

    def test_private_spaces_do_not_pile_up(self) -> None:
        manager = self.make()
        context = ReqContext(req_id="r")
        manager.on_new_request(context)
        keys = keys_of(*range(4))
        usual = set(spaces(self.mount.path))
        self.store(manager, context, keys)
        self.weights = ""
        with mock.patch.object(slots_py, "SPACES_MOST", 2):
            for _ in range(4):
                self.forget(manager)
                self.assertEqual(self.promote(manager, context, keys),
                                 [LookupResult.MISS] * 4)
                self.store(manager, context, keys)
                self.until(lambda: len(spaces(self.mount.path)) == 2,
                           "the former one is removed")
        self.end(manager)
        self.assertEqual(set(spaces(self.mount.path)), usual)

    def test_adapters_of_one_name_and_path(self) -> None:
        """The keys are the same, as vLLM hashes no more than that."""
        lora = SimpleNamespace(lora_name="n", lora_path="p")
        requests = {"plain": SimpleNamespace(lora_request=None),
                    "one": SimpleNamespace(lora_request=lora),
                    "other": SimpleNamespace(lora_request=lora)}
        there = {"one": "11" * 32, "other": "22" * 32}
        with mock.patch.multiple(
                tier.Engine, has_adapters=True,
                request=lambda _, name: requests.get(name),
                adapter=lambda _, lora: self.adapter):
            manager = self.make()
            keys = keys_of(*range(4))
            data = {}
            for name in (*requests, *requests):
                self.adapter = there.get(name)
                context = ReqContext(req_id=name)
                manager.on_new_request(context)
                self.forget(manager)
                found = name in data
                self.assertEqual(
                    self.promote(manager, context, keys),
                    [LookupResult.HIT if found else LookupResult.MISS] * 4)
                if not found:
                    data[name] = self.store(manager, context, keys)
                else:
                    slots = manager.prepare_load(keys, context).chunk_ids
                    for key, slot in zip(keys, slots):
                        self.assertEqual(self.view(manager)[slot].tobytes(),
                                         data[name][key])
                    manager.complete_load(keys, context)
                manager.on_request_finished(context)
            self.stays_out(manager, "one", "33" * 32)
            self.stays_out(manager, "gone", None)

    def test_stores_of_requests_that_were_never_looked_up(self) -> None:
        """And that the engine has forgotten, when their stores come."""
        lora = SimpleNamespace(lora_name="n", lora_path="p")
        requests: Dict[str, Any] = {}
        self.adapter = "11" * 32
        with mock.patch.multiple(
                tier.Engine, has_adapters=True,
                request=lambda _, name: requests.get(name),
                adapter=lambda _, lora: self.adapter):
            manager = self.make()
            own, total = manager.secondary_tiers[0], 0
            for name, lora, after, saved in (
                    ("plain", None, "11" * 32, 1), ("one", lora, "11" * 32, 1),
                    ("other", lora, "22" * 32, 0)):
                requests[name] = SimpleNamespace(lora_request=lora)
                context = ReqContext(req_id=name)
                manager.on_new_request(context)
                self.step(manager, name)
                del requests[name]
                self.adapter = after
                self.forget(manager)
                self.store(manager, context, keys_of(1))
                total += saved
                self.assertEqual(len(self.mount.blocks(own.space)), total)
                manager.on_request_finished(context)

    def test_a_load_of_nobody_knows_what_fails(self) -> None:
        with mock.patch.multiple(
                tier.Engine, has_adapters=True,
                request=lambda *_: SimpleNamespace(lora_request=None)):
            manager = self.make()
            own, context = manager.secondary_tiers[0], ReqContext(req_id="r")
            manager.on_new_request(context)
            own.lookup(key_of(1), context)
            self.store(manager, context, keys_of(1))
            before = self.view(manager).tobytes()
            manager.on_request_finished(context)
            own.submit_load(TransferJob(
                job_id=99, keys=keys_of(1), req_context=context,
                chunk_ids=np.array([7], dtype=np.int32), is_promotion=True))
            done: List[Any] = []
            self.until(lambda: bool(done.extend(own.get_finished_jobs())
                                    or done), "ended")
        self.assertEqual([(one.job_id, one.success, one.successful_keys)
                          for one in done], [(99, False, None)])
        self.assertEqual(self.view(manager).tobytes(), before)

    def test_only_the_engines_thread_asks_the_workers(self) -> None:
        """vLLM 0.33 looks up for other engines in a thread of its own."""
        askers: List[int] = []
        lora = SimpleNamespace(lora_name="n", lora_path="p")

        def asked(answer: str) -> str:
            askers.append(threading.get_ident())
            return answer

        with mock.patch.multiple(
                tier.Engine, has_adapters=True,
                weigh=lambda _, whole: asked(self.weights),
                adapter=lambda _, lora: asked("11" * 32),
                request=lambda _, name: SimpleNamespace(lora_request=lora)):
            manager = self.make()
            context = ReqContext(req_id="r")
            own, keys = manager.secondary_tiers[0], keys_of(0)
            manager.on_new_request(context)
            self.promote(manager, context, keys)
            self.store(manager, context, keys)
            self.assertIs(own.lookup(keys[0], context), LookupResult.HIT)
            self.assertIs(self.elsewhere(own, keys[0], context),
                          LookupResult.HIT)  # it has just been asked
            self.step(manager)
            self.assertIs(self.elsewhere(own, keys[0], context),
                          LookupResult.MISS)
            self.forget(manager)
            self.assertIs(self.elsewhere(own, keys[0], context),
                          LookupResult.MISS)
            self.assertIs(own.lookup(keys[0], context), LookupResult.HIT)
        self.assertEqual(set(askers), {threading.get_ident()})

    def elsewhere(self, own: Any, key: bytes, context: Any) -> Any:
        """What another thread is told."""
        told: List[Any] = []
        thread = threading.Thread(
            target=lambda: told.append(own.lookup(key, context)))
        thread.start()
        thread.join(PATIENCE)
        return told[0]

    def test_workers_are_asked_once_for_an_adapter_and_step(self) -> None:
        """For look-ups, and again for what its outputs bring: an adapter may
        change between steps."""
        asked = []
        lora = SimpleNamespace(lora_name="n", lora_path="p")
        with mock.patch.multiple(
                tier.Engine, has_adapters=True,
                request=lambda _, name: SimpleNamespace(lora_request=lora),
                adapter=lambda *_: (asked.append(None), "11" * 32)[1]):
            manager = self.make()
            own = manager.secondary_tiers[0]
            contexts = [ReqContext(req_id=f"r{i}") for i in range(4)]
            for step in range(2):
                for context in contexts:
                    own.lookup(key_of(1), context)
                self.assertEqual(len(asked), 2 * step + 1)
                own.on_schedule_end(None)
                for context in contexts:
                    self.assertTrue(own._may_save(context))
                self.assertEqual(len(asked), 2 * step + 2)

    def stays_out(self, manager: Any, name: str,
                  adapter: Optional[str]) -> None:
        """Its adapter has changed since the last reset, or nobody knows the
        request."""
        own = manager.secondary_tiers[0]
        self.adapter = "11" * 32
        context = ReqContext(req_id=name)
        own.lookup(key_of(1), context)
        self.adapter = adapter
        before = self.mount.blocks(own.space)
        self.assertEqual(own.lookup(key_of(2), context), LookupResult.MISS)
        own.submit_store(TransferJob(
            job_id=99, keys=keys_of(77), req_context=context,
            chunk_ids=np.array([0], dtype=np.int32), is_promotion=False))
        self.until(lambda: any(result.job_id == 99 and result.success
                               for result in own.get_finished_jobs()), "left")
        self.assertEqual(self.mount.blocks(own.space), before)

    def test_damaged_ones_are_misses_and_nothing_loops(self) -> None:
        manager = self.make()
        context = ReqContext(req_id="r")
        manager.on_new_request(context)
        keys = keys_of(*range(8))
        data = self.store(manager, context, keys)
        tier = manager.secondary_tiers[0]
        blocks = self.mount.blocks(tier.space)
        for n in (2, 5):
            flip_a_bit(blocks[tier._store.ids_of([keys[n]]).hex()])
        self.forget(manager)
        got = self.promote(manager, context, keys)
        self.assertEqual(got, [
            LookupResult.MISS if n in (2, 5) else LookupResult.HIT
            for n in range(8)])
        good = [key for n, key in enumerate(keys) if n not in (2, 5)]
        view = self.view(manager)
        for key, slot in zip(
                good, manager.prepare_load(good, context).chunk_ids):
            self.assertEqual(view[slot].tobytes(), data[key])
        manager.complete_load(good, context)

    def test_a_dead_daemon_is_a_miss(self) -> None:
        manager = self.make()
        context = ReqContext(req_id="r")
        manager.on_new_request(context)
        keys = keys_of(*range(4))
        self.store(manager, context, keys)
        self.forget(manager)
        self.mount.crash()
        self.assertEqual(self.promote(manager, context, keys),
                         [LookupResult.MISS] * 4)
        self.store(manager, context, keys)
        self.assertEqual(self.promote(manager, context, keys),
                         [LookupResult.HIT] * 4)  # of the first tier
        self.forget(manager)
        self.end(manager)

    def test_back_pressure_drops_stores_and_is_counted(self) -> None:
        manager = self.make(backpressure={
            "backpressure_cls": "EMABackpressureDetector",
            "policy_cls": "DropStorePolicy", "high_water_s": 1e-9,
            "low_water_s": 1e-10, "warmup_completions": 1})
        context = ReqContext(req_id="r")
        manager.on_new_request(context)
        detector = manager.secondary_tiers[0].bp_detector
        for n in range(4):
            self.store(manager, context, keys_of(n))
        self.assertTrue(detector.is_under_pressure())
        values = manager.get_stats()._values
        self.assertGreater(sum(values[
            "vllm:kv_offload_tiering_backpressure_stores_dropped"
        ].values()), 0)
        self.assertEqual(self.view(manager).shape[1], SLOT)

    def test_shutdown_leaves_no_view(self) -> None:
        manager = self.make()
        context = ReqContext(req_id="r")
        manager.on_new_request(context)
        self.store(manager, context, keys_of(1))
        self.end(manager)
        self.assertFalse([name for name in os.listdir("/dev/shm")
                          if name.startswith("vllm_offload_test")])


if __name__ == "__main__":
    unittest.main()
