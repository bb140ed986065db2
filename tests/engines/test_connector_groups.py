# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector: stages of a pipeline, several groups, ranks that hold the
same, layouts."""

from __future__ import annotations

import dataclasses
import os
import time
import unittest
from collections import Counter
from unittest import mock

from connector_case import BLOCK, Case, Counted, FakeRunner, InProcesses
from mount import Mount
from rank_processes import RankDied
from ucmfs.errors import ConfigError
from ucmfs.namespace import read_manifest, spaces
from ucmfs.vllm.groups import plan_of


class Pipeline(Case):
    """A stage has other layers, and here other numbers of them."""

    MORE = {"layers": 3, "stages": 2}

    def stages(self, before: set) -> list:
        """Blocks that are new in the spaces of each stage."""
        names = [path.split("/spaces/")[1].split("/")[0]
                 for path in set(self.paths()) - before]
        return [sum(name.endswith(f"-p{stage}") for name in names)
                for stage in (0, 1)]

    def test_second_engine_hits(self) -> None:
        for more in ({"ranks": 2, "replicated": True}, {"indexer": 5},
                     {"ranks": 2, "layers": 5, "window": 40},
                     {"layers": 5, "state": 60, "layout": "BLNHC"}):
            with self.subTest(**more):
                self.check_second_hits(**{**self.MORE, **more})

    def test_blocks_of_each_rank(self) -> None:
        before = set(self.paths())
        runner = self.runner(ranks=2, **self.MORE)
        self.one(runner, self.prompt(100))
        self.assertEqual(self.stages(before), [12, 12])
        names = self.half(runner)._link.now.names
        first, second = (read_manifest(self.mount.path, name)
                         for name in names)
        self.assertEqual([first["geometry"]["num_layers"],
                          second["geometry"]["num_layers"]], [2, 1])
        self.assertEqual(first["connector"]["stages"],
                         second["connector"]["stages"])
        self.assertFalse(set(first["connector"]["layers"])
                         & set(second["connector"]["layers"]))

    def of_stage(self, before: set, stage: int) -> list:
        return sorted(path for path in set(self.paths()) - before
                      if f"-p{stage}/" in path)

    def test_all_stages_or_none(self) -> None:
        """A block that one stage lacks is absent, and is saved again."""
        for stage in (0, 1):
            with self.subTest(stage=stage):
                before, prompt = set(self.paths()), self.prompt(70, of=stage)
                self.one(self.runner(**self.MORE), prompt)
                lost = self.of_stage(before, stage)[0]
                self.unlink(lost)
                second = self.runner(**self.MORE)
                counted = Counted(second)
                self.one(second, prompt)
                self.assertLess(second.stats["tokens loaded"], 64)
                self.assertEqual(counted["load_failed_blocks"], 0)
                self.assertTrue(os.path.exists(lost))

    def test_damaged_in_a_stage(self) -> None:
        for stage in (0, 1):
            with self.subTest(stage=stage):
                before, prompt = set(self.paths()), self.prompt(100, of=stage)
                self.one(self.runner(**self.MORE), prompt)
                for path in self.of_stage(before, stage):
                    os.truncate(path, 100)
                second = self.runner(**self.MORE)
                self.one(second, prompt)
                self.assertGreater(second.stats["blocks failed"], 0)

    def test_other_stages_share_nothing(self) -> None:
        """The same layers in the first stage, and others in those behind:
        each has its own spaces, which are found again."""
        for turn, cut in enumerate(("1,2,1", "1,1,2", "1,2,1")):
            with self.subTest(cut=cut), mock.patch.dict(
                    os.environ, VLLM_PP_LAYER_PARTITION=cut):
                runner = self.runner(layers=4, stages=3)
                self.one(runner, self.prompt(100))
                self.assertEqual(runner.stats["tokens loaded"],
                                 96 if turn > 1 else 0)

    def test_in_the_step_is_not_done(self) -> None:
        for load in ("sync", "layerwise"):
            with self.subTest(load=load):
                runner = self.runner({"load": load}, **self.MORE)
                self.assertTrue(self.half(runner).asynchronous)

    def test_pinned(self) -> None:
        """A request that wants it has the blocks of all stages pinned."""
        self.check_pinned(self.runner(ranks=2, **self.MORE), 2)

    def test_stages_that_nobody_has_told_of(self) -> None:
        class Silent(FakeRunner):
            def tell_each_other(self) -> None:
                pass

        runner = self.runner(kind=Silent, **self.MORE)
        with self.assertRaisesRegex(ConfigError, "have not told"):
            runner.add(self.prompt(100), 3)

    def test_missing_mount(self) -> None:
        """It is there later: the stages' spaces are opened then."""
        mount = Mount(start=False)
        self.addCleanup(mount.close)
        runner = self.runner({"mount": mount.path}, **self.MORE)
        self.one(runner, self.prompt(100))
        mount.start()
        self.until_found(runner)

    def until_found(self, runner: FakeRunner) -> None:
        end, of = time.monotonic() + 20, 100
        while not runner.stats["tokens loaded"]:
            self.assertLess(time.monotonic(), end, "nothing is found")
            self.one(runner, self.prompt(100, of=of))
            self.forget(runner)
            self.one(runner, self.prompt(100, of=of))
            of += 1


# ---- stages of which some have no layers of a group ----

class Partial(Case):
    """What one stage has, and others lack: nothing of it is kept there."""

    # Stages with layers of the first group alone, of both, of the second.
    MORE = {"layers": 6, "stages": 3, "kinds": "fffwww", "window": 40}
    TWO = {"layers": 4, "stages": 2, "window": 40}

    def files(self, before: set) -> dict:
        """How many are new, by group and stage."""
        names = [path.split("/spaces/")[1].split("/")[0].split("-")
                 for path in set(self.paths()) - before]
        return Counter(f"{name[-2]}-{name[-1]}" for name in names)

    def test_second_engine_hits(self) -> None:
        """Also where the scheduler is told of a stage without layers that all
        tokens need, and of states that not all stages have."""
        for more in ({**self.MORE, "ranks": 2},
                     {**self.TWO, "kinds": "ffww"},
                     {**self.TWO, "kinds": "wwff", "window_block": 32},
                     {"layers": 4, "stages": 2, "kinds": "ssfs", "state": 60,
                      "layout": "BLNHC"}):
            with self.subTest(**more):
                self.check_second_hits(**more)

    def test_files_and_spaces(self) -> None:
        before = set(self.paths())
        runner = self.runner(**self.MORE)
        self.one(runner, self.prompt(100))
        self.assertEqual(self.files(before), {
            "g0-p0": 6, "g0-p1": 6, "g1-p1": 6, "g1-p2": 6})
        here = self.half(runner)._link.now
        told = [read_manifest(self.mount.path, name)["connector"]
                for name in here.names]
        self.assertEqual([len(one["layers"]) for one in told], [2, 1, 1, 2])
        self.assertEqual(len({one["stages"] for one in told}), 1)

    def test_other_stages_share_nothing(self) -> None:
        """Cut elsewhere, or into more or fewer: each has its own spaces, which
        are found again."""
        seen = set()
        for turn in range(2):
            for cut in ("2,2,2", "2,1,3", "4,2"):
                with self.subTest(cut=cut), mock.patch.dict(
                        os.environ, VLLM_PP_LAYER_PARTITION=cut):
                    before = set(self.paths())
                    runner = self.runner(**{
                        **self.MORE, "stages": len(cut.split(","))})
                    self.one(runner, self.prompt(100))
                    self.assertEqual(runner.stats["tokens loaded"],
                                     96 if turn else 0)
                    self.assertEqual(set(self.paths()) > before, not turn)
                    names = set(self.half(runner)._link.now.names)
                    self.assertEqual(bool(seen & names), bool(turn))
                    seen |= names

    def test_all_that_have_it_or_none(self) -> None:
        """A block that one of the stages lacks is no hit, and is saved
        again."""
        for turn, home in enumerate(("g0-p0", "g1-p1", "g1-p2")):
            with self.subTest(home=home):
                before, prompt = set(self.paths()), self.prompt(100, of=turn)
                self.one(self.runner(**self.MORE), prompt)
                lost = [path for path in set(self.paths()) - before
                        if f"-{home}/" in path]
                for path in lost:
                    self.unlink(path)
                second = self.runner(**self.MORE)
                counted = Counted(second)
                self.one(second, prompt)
                self.assertEqual(second.stats["tokens loaded"], 0)
                self.assertEqual(counted["load_failed_blocks"], 0)
                self.assertEqual(counted["saved_blocks"], 6)
                self.assertTrue(all(map(os.path.exists, lost)))

    def test_damaged_in_a_stage(self) -> None:
        for turn, home in enumerate(("g0-p0", "g1-p2")):
            with self.subTest(home=home):
                before, prompt = set(self.paths()), self.prompt(100, of=turn)
                self.one(self.runner(**self.MORE), prompt)
                for path in set(self.paths()) - before:
                    if f"-{home}/" in path:
                        os.truncate(path, 100)
                second = self.runner(**self.MORE)
                name = self.one(second, prompt)
                self.assertEqual(second.stats["requests failed"], 1)
                self.assertEqual(second.delivered[name], 3)

    def test_pinned(self) -> None:
        """In the spaces that there are, the blocks of their own stages."""
        self.check_pinned(self.runner(ranks=2, **self.MORE), 4)

    def test_a_rank_that_does_not_know_its_spaces(self) -> None:
        """It fails to load and to save what it has layers of, and nothing
        else."""
        more = {**self.TWO, "kinds": "fffw"}
        self.one(self.runner(**more), self.prompt(100))
        second = self.runner(**more)
        counted = Counted(second)
        with mock.patch.object(self.worker(second), "_ready",
                               lambda meta, wait: False):
            self.one(second, self.prompt(100))
        self.assertEqual(second.stats["requests failed"], 1)
        self.assertEqual(counted["load_failed_blocks"], 6)

    def test_a_rank_is_killed(self) -> None:
        """In a process of its own, before it has saved what it alone has: the
        group of the other stage is whole, and no hit."""
        more = {**self.TWO, "kinds": "wwff"}
        runner = self.runner(kind=InProcesses, **more)
        before = set(self.paths())
        runner.ranks[1].ask("hold_saves")
        runner.add(self.prompt(100), 3)
        self.until(runner, lambda: len(set(self.paths()) - before) == 6)
        runner.ranks[1].kill()
        with self.assertRaises(RankDied):
            self.until(runner, lambda: False)
        self.assertEqual(self.files(before), {"g1-p0": 6})
        for loaded, saved in ((0, 6), (96, 0)):
            second = self.runner(**more)
            counted = Counted(second)
            self.one(second, self.prompt(100))
            self.assertEqual(second.stats["tokens promised"], loaded)
            self.assertEqual(counted["saved_blocks"], saved)

    def test_a_stage_without_states_is_refused(self) -> None:
        with self.assertRaisesRegex(ConfigError, "VLLM_PP_LAYER_PARTITION"):
            self.runner(layers=4, state=60, stages=2, kinds="ffss")


# ---- several groups, ranks that hold the same ----

class Replicas(FakeRunner):
    """Two ranks with the same pages, as of MLA."""

    def make_groups(self, vllm_config) -> None:
        super().make_groups(vllm_config)
        self.kv_cache_config.kv_tp_replicas = 2


class Groups(Case):

    def test_window(self) -> None:
        """A second group with a window: only the window's blocks are
        loaded, and a hit needs no others."""
        first = self.runner(window=40)
        counted = Counted(first)
        self.one(first, self.prompt(200))
        self.assertEqual(counted["saved_blocks"], 24)
        # Of 12 blocks of the window's group the first ones are not needed.
        second = self.runner(window=40)
        counted = Counted(second)
        self.one(second, self.prompt(200))
        self.assertEqual(second.stats["tokens loaded"], 192)
        self.assertEqual(self.loaded_blocks(counted, second), 12 + 3)

    @staticmethod
    def loaded_blocks(counted: Counted, runner: FakeRunner) -> int:
        """Pages of the two groups differ in size: layers 1 and 2."""
        page = 2 * runner.config.heads * runner.config.head_size * 4 * BLOCK
        return (counted["loaded_bytes"] - 12 * page) // (2 * page) + 12

    def test_blocks_of_two_sizes(self) -> None:
        """vLLM makes pages of one size by more tokens to a block."""
        more = {"window": 40, "window_block": 32}
        first = self.runner(**more)
        counted = Counted(first)
        self.one(first, self.prompt(200))
        self.assertEqual(counted["saved_blocks"], 12 + 6)
        second = self.runner(**more)
        counted = Counted(second)
        self.one(second, self.prompt(210))
        self.assertEqual(second.stats["tokens loaded"], 192)
        page = 2 * second.config.heads * second.config.head_size * 4 * BLOCK
        # a layer of 12 blocks, and two of those from token 153 on
        self.assertEqual(counted["loaded_bytes"], (12 + 2 * 2) * page)

    def test_window_at_the_end(self) -> None:
        """The last token is computed anew, and needs the one before its
        window: the whole prompt is never promised."""
        self.one(self.runner(window=33), self.prompt(96))
        second = self.runner(window=33)
        self.one(second, self.prompt(96))
        self.assertEqual(second.stats["tokens promised"], 80)

    def test_failure_recomputes(self) -> None:
        """vLLM dies of pages that are told to have failed; requests are."""
        self.one(self.runner(window=40), self.prompt(200))
        for path in self.paths()[::3]:
            os.truncate(path, 100)
        second = self.runner(window=40)
        name = self.one(second, self.prompt(200))
        self.assertGreater(second.stats["requests failed"], 0)
        self.assertEqual(second.stats["blocks failed"], 0)
        self.assertEqual(second.delivered[name], 3)

    def test_sync_is_not_done(self) -> None:
        self.one(self.runner(window=40), self.prompt(200))
        second = self.runner({"load": "sync"}, window=40)
        self.one(second, self.prompt(200))
        self.assertEqual(second.stats["async loads"], 1)

    def test_old_vllm(self) -> None:
        """Without requests that failed, several groups are refused."""
        from ucmfs.vllm import connector

        with mock.patch.object(connector, "_TELLS_REQUESTS", False):
            with self.assertRaisesRegex(ValueError, "failed_recving"):
                self.runner(window=40)
            self.runner()

    def test_replicas(self) -> None:
        first = self.runner(kind=Replicas, ranks=2)
        first.ranks[1].content = first.ranks[0].content
        counted = Counted(first)
        self.one(first, self.prompt(100))
        self.assertEqual(counted["saved_blocks"], 6)
        for rank in (0, 1):
            self.assertEqual(self.half(first).plan.shards, 1)
            writes = [self.worker(first, rank).plan.writes(rank, i)
                      for i in range(6)]
            self.assertEqual(writes.count(True), 3)
        second = self.runner(kind=Replicas, ranks=2)
        second.ranks[1].content = second.ranks[0].content
        counted = Counted(second)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)
        self.assertEqual(counted["loads"], 2)


class Indexer(Case):
    """Layers of two sizes in one group, as DeepSeek V3.2 has them."""

    def test_second_engine_hits(self) -> None:
        for layout in ("LBNHC", "BLNHC"):
            with self.subTest(layout):
                more = {"indexer": 5, "layout": layout}
                extra = {"tenant": f"{self.id()} {layout}"}
                self.one(self.runner(extra, **more), self.prompt(100))
                second = self.runner(extra, **more)
                self.one(second, self.prompt(100))
                self.assertEqual(second.stats["tokens loaded"], 96)

    def test_is_the_v_plane(self) -> None:
        """No byte of a file is padding."""
        runner = self.runner(indexer=5)
        geometry = self.half(runner).plan.groups[0].geometry
        cell = 4 * BLOCK
        self.assertEqual(
            (geometry.num_layers, geometry.k_bytes, geometry.v_bytes),
            (3, 16 * cell, 5 * cell))
        self.assertEqual(
            [(r.layer, r.run_bytes)
             for r in self.worker(runner)._layouts[0].regions()],
            [(n // 2, (5 if n % 2 else 16) * cell) for n in range(6)])

    def test_layer_by_layer(self) -> None:
        more = {"extra": {"load": "layerwise"}, "indexer": 5}
        self.one(self.runner(**more), self.prompt(100))
        second = self.runner(**more)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)

    def test_ranks_that_hold_the_same(self) -> None:
        more = {"indexer": 5, "ranks": 2, "replicated": True}
        self.one(self.runner(**more), self.prompt(100))
        second = self.runner(**more)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 96)

    def test_other_sizes_are_another_space(self) -> None:
        self.one(self.runner(indexer=5), self.prompt(100))
        (space,) = [name for name in spaces(self.mount.path)
                    if read_manifest(self.mount.path, name)["tenant"]
                    == self.id()]
        self.assertEqual(
            read_manifest(self.mount.path, space)["connector"]["sizes"],
            [16 * 4 * BLOCK, 5 * 4 * BLOCK] * 3)
        second = self.runner(indexer=6)
        self.one(second, self.prompt(100))
        self.assertEqual(second.stats["tokens loaded"], 0)


class States(Case):
    """Attention beside states (Mamba, GDN), of which vLLM keeps some."""

    def test_second_engine_hits(self) -> None:
        for layout in ("LBNHC", "BLNHC"):
            with self.subTest(layout):
                more = {"state": 60, "layout": layout}
                extra = {"tenant": f"{self.id()} {layout}"}
                first = self.runner(extra, **more)
                counted = Counted(first)
                self.one(first, self.prompt(200))
                # The one that the prompt may be gone on from.
                self.assertEqual(counted["saved_blocks"], 12 + 1)
                second = self.runner(extra, **more)
                counted = Counted(second)
                self.one(second, self.prompt(200))
                self.assertEqual(second.stats["tokens loaded"], 192)
                self.assertEqual(counted["loads"], 1)

    def test_a_state_that_is_there(self) -> None:
        """A hit ends where the engine has kept a state: at 96 tokens a step,
        after 96 and 192."""
        more = {"state": 60, "retention": BLOCK}
        first = self.runner(**more)
        counted = Counted(first)
        self.one(first, self.prompt(200))
        self.assertEqual(counted["saved_blocks"], 12 + 2)
        second = self.runner(**more)
        self.one(second, self.prompt(180) + [7] * 20)
        self.assertEqual(second.stats["tokens loaded"], 96)

    def test_decode(self) -> None:
        more = {"extra": {"save_decode": True}, "state": 60,
                "retention": BLOCK}
        first = self.runner(**more)
        name = self.one(first, self.prompt(40), 60)
        tokens = list(first.sequences[name].tokens)
        second = self.runner(**more)
        self.one(second, tokens + [1, 2])
        self.assertEqual(second.stats["tokens loaded"], 96)

    def test_whole_prompt(self) -> None:
        """The last token is computed in any case: from the state before its
        block."""
        self.one(self.runner(state=60), self.prompt(96) + [5])
        second = self.runner(state=60)
        self.one(second, self.prompt(96))
        self.assertEqual(second.stats["tokens loaded"], 0)
        self.one(second, self.prompt(96) + [9])

    def test_failure_recomputes(self) -> None:
        self.one(self.runner(state=60), self.prompt(200))
        for path in self.paths():
            os.truncate(path, 100)
        second = self.runner(state=60)
        name = self.one(second, self.prompt(200))
        self.assertGreater(second.stats["requests failed"], 0)
        self.assertEqual(second.delivered[name], 3)

    def test_modes_without_states_are_refused(self) -> None:
        from ucmfs.errors import ConfigError

        runner = self.runner(state=60)
        group = runner.kv_cache_config.kv_cache_groups[1]
        for change, text in ((dict(mamba_cache_mode="all"), "mode 'all'"),
                             (dict(num_speculative_blocks=2),
                              "speculative decoding")):
            spec = dataclasses.replace(group.kv_cache_spec, **change)
            config = dataclasses.replace(
                runner.kv_cache_config, kv_cache_groups=[
                    dataclasses.replace(group, kv_cache_spec=spec)])
            with self.assertRaisesRegex(ConfigError, text):
                plan_of(runner.ranks[0].vllm_config, config, BLOCK, BLOCK)


# ---- layouts ----

class Layouts(Case):

    def caches(self, runner: FakeRunner) -> dict:
        return dict(runner.ranks[0].caches)

    def refused(self, caches: dict, text: str) -> None:
        runner = self.runner()
        worker = self.worker(runner)
        with self.assertRaisesRegex(ValueError, text):
            worker.register_kv_caches(caches)

    def test_kernel_blocks(self) -> None:
        """Dimension 0 may count a kernel's blocks."""
        runner = self.runner()
        worker = self.worker(runner)
        caches = {}
        for name, cache in self.caches(runner).items():
            blocks, heads, slots, cell = cache.shape
            flat = cache.permute(0, 2, 1, 3)  # [B, N, H, C], contiguous
            flat = flat.reshape(blocks * 4, slots // 4, heads, cell)
            caches[name] = flat.permute(0, 2, 1, 3)
        worker._loader.close()
        worker.register_kv_caches(caches)
        self.assertEqual(
            [r.run_bytes for r in worker._layouts[0].regions()],
            [worker.plan.groups[0].geometry.k_bytes] * 3)

    def test_refused(self) -> None:
        runner = self.runner()
        caches = self.caches(runner)
        name = next(iter(caches))
        shape = tuple(caches[name].shape)
        for wrong in (caches[name][:5], caches[name][None],
                      caches[name].flatten()):
            self.refused({**caches, name: wrong},
                         rf"{name}: shape \({wrong.shape[0]}, ?.*strides")
        # half of the head's elements
        self.refused({**caches, name: caches[name][..., ::2]},
                     rf"{name}.*{shape[-1] // 2}.*stride")
        # two layers in the same memory
        other = list(caches)[1]
        self.refused({**caches, name: caches[other]}, "overlap|layer")
        del caches[name]
        self.refused(caches, name)


if __name__ == "__main__":
    unittest.main()
