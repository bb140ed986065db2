# SPDX-License-Identifier: Apache-2.0
"""UcmfsTier against real mounts: slots of random bytes go to blocks and come
back, or are told to have failed; never a wrong byte, never a wait.

    python3 -m unittest tests/engines/test_tier.py       (vLLM is needed)
"""

from __future__ import annotations

import errno
import os
import threading
import time
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List, Optional
from unittest import mock

from tier_case import PATIENCE, SLOT, MountCase, Slots, key_of, keys_of
from mount import Mount, Served

from vllm.v1.kv_offload.base import LookupResult, ReqContext

from ucmfs import index
from ucmfs.blocks import Blocks
from ucmfs.errors import Timeout
from ucmfs.task import Outcome
from ucmfs.vllm.slots import PAGE
from ucmfs.vllm import tier
from ucmfs.vllm import mount as mount_py


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

    def test_a_session_that_pauses_and_ends(self) -> None:
        """What was found and what is stored is kept, or given up."""
        slots = self.slots()
        slots.fill(0, 1, 2)
        keys = keys_of(0, 1, 2)
        slots.store(keys[:1], [0])
        told: List[Any] = []

        def noted(call: Any) -> Any:
            def run(*args: Any, **named: Any) -> Any:
                told.append((call.__name__, named, call(*args, **named)))
                return told[-1][2]
            return run

        with mock.patch.object(Blocks, "keep", noted(Blocks.keep)), \
                mock.patch.object(Blocks, "end", noted(Blocks.end)):
            for key, slot, hints in ((keys[1], 1, {"ttl": 60}),
                                      (keys[2], 2, {"end": True})):
                told.clear()
                context = self.context(**hints)
                slots.tier.lookup(keys[0], context)
                slots.tier.on_schedule_end(None)
                slots.store([key], [slot], context)
                slots.tier.on_request_finished(context)
                self.until(lambda: len(told) == 2, "not told")
                want = ("end", {}, [0]) if "end" in hints \
                    else ("keep", {"seconds": 60}, [0])
                self.assertEqual(told, [want, want])

    def test_no_end_where_nobody_knows_what_follows_what(self) -> None:
        """vLLM 0.31."""
        tier = self.slots().tier
        params = {"ucmfs": {"end": True, "ttl": 60}}
        for context, end in (
                (ReqContext(req_id="r", kv_transfer_params=params), True),
                (SimpleNamespace(kv_transfer_params=params), False)):
            with mock.patch.object(tier, "_teller") as teller:
                wanted = tier._told_by(context)
            self.assertEqual((wanted.end, wanted.ttl), (end, 60))
            self.assertEqual(teller.warn.called, not end)


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


if __name__ == "__main__":
    unittest.main()
