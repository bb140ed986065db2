# SPDX-License-Identifier: Apache-2.0
"""UcmfsTier below vLLM's own specification, manager and factory."""

from __future__ import annotations

import os
import threading
import unittest
from types import SimpleNamespace
from typing import Any, Dict, List, Optional
from unittest import mock

from tier_case import (
    PATIENCE, SLOT, MountCase, engine_stub, flip_a_bit, key_of, keys_of,
    offloading_config)
from private_daemon import directory_of

import numpy as np
from vllm.v1.kv_offload.base import (
    LookupResult, ReqContext, ScheduleEndContext)
from vllm.v1.kv_offload.tiering.base import TransferJob

from ucmfs.namespace import spaces
from ucmfs.vllm.fingerprint import handed_down
from ucmfs.vllm import tier
from ucmfs.vllm import slots as slots_py


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
