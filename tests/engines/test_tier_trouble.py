# SPDX-License-Identifier: Apache-2.0
"""UcmfsTier: damaged blocks, daemons that fail, manners towards the manager,
and directories without a daemon."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time
import unittest
from types import SimpleNamespace
from typing import Any, Callable, List, Optional
from unittest import mock

from tier_case import (
    PATIENCE, SLOT, MountCase, Slots, engine_stub, flip_a_bit, keys_of,
    rewrite, spec_stub)
from mount import Served
from private_daemon import directory_of, pid_of

import numpy as np
from vllm.v1.kv_offload.base import Medium, ReqContext
from vllm.v1.kv_offload.tiering.base import TransferJob

from ucmfs.blocks import Blocks
from ucmfs.errors import UcmfsError
from ucmfs.namespace import remove_space
from ucmfs.task import Task
from ucmfs.vllm import UcmfsTier
from ucmfs.vllm.fingerprint import handed_down
from ucmfs.vllm import tier


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
        # as soon as the daemon has read what is there
        self.until(lambda: other.hits(keys) == [True] * 8, "found again")
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
        slots = self.slots(deadline_ms=2000)
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
            self.assertLess(time.monotonic() - start, 1.5)
            for job in jobs:
                slots.wait(job, 15.0)
            # no request waits for the next deadline
            self.assertEqual(slots.hits(keys), [False] * 4)
            start = time.monotonic()
            self.assertFalse(slots.store(keys_of(30), [0]).success)
            self.assertLess(time.monotonic() - start, 1.5)
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

    def test_events_tell_what_has_gone(self) -> None:
        slots = self.slots(events=True, enable_kv_events=True)
        slots.fill(0, 1, 2)
        keys = keys_of(0, 1, 2)
        slots.store(keys, [0, 1, 2])
        self.assertEqual([event.removed for event in
                          slots.tier.take_events()], [False])
        store = slots.tier._store
        with Blocks(self.mount.path) as blocks, \
                mock.patch.object(tier, "CHECKED", 2), \
                mock.patch.object(tier, "TURN_SECONDS", 0):
            blocks.remove(store.ids_of(keys[1:]), store.space)
            heard: List[Any] = []
            slots.tier._look_at = 0
            for _ in range(4):
                heard += slots.tier.take_events()
            self.assertTrue(all(event.removed for event in heard))
            self.assertEqual(sorted(key for event in heard
                                    for key in event.keys), sorted(keys[1:]))
            self.mount.crash()  # what nobody can say is there
            self.assertFalse(list(slots.tier.take_events()))
            self.mount.start()
            self.until(lambda: slots.hits(keys[:1]) == [True], "not back")
            self.assertFalse(list(slots.tier.take_events()))

    def test_events_forget_the_blocks_of_other_weights(self) -> None:
        weights = ["a"]
        with mock.patch.object(tier.Engine, "weigh",
                               lambda _, whole: weights[0]):
            slots = self.slots(events=True, enable_kv_events=True)
            slots.fill(0, 1)
            slots.store(keys_of(0, 1), [0, 1])
            self.assertEqual([event.removed for event in
                              slots.tier.take_events()], [False])
            for weights[0], told in (("a", []), ("b", [set(keys_of(0, 1))])):
                slots.tier.drain_jobs()
                slots.hits(keys_of(0))
                heard = list(slots.tier.take_events())
                self.assertEqual([set(event.keys) for event in heard
                                  if event.removed], told)
            self.assertFalse(slots.tier._reported)

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


if __name__ == "__main__":
    unittest.main()
