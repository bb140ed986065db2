# SPDX-License-Identifier: Apache-2.0
"""The fake runner's ranks as processes of their own, as an engine has them.

What goes between the two is pickled: the steps down, outputs up. A rank runs
the steps in order and at its own pace, so a stage of the pipeline may be ahead
of another. Each checks its own part of the KV cache; garbage in it is told as
a violation at once, so loads have to be asynchronous.

The processes come from multiprocessing's fork server, which has imported vLLM
once for all of them, and has no thread and no mount of ours. It ends with the
tests, and they with it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections import Counter, defaultdict, deque
from types import SimpleNamespace

import fake_runner
from fake_ranks import Config, Rank, Sequence, Step
from mount import PR_SET_PDEATHSIG

END_SECONDS = 30


class RankDied(Exception):
    """An engine ends then."""


# ---- in the rank's process ----

class Alone(fake_runner.FakeRunner):
    """What a rank needs of its runner: no scheduler, no other ranks."""

    def __init__(self, config: Config, directory: str, rank: int) -> None:
        self.config = config
        self.seed = self.step_no = 0
        self.directory = SimpleNamespace(name=directory)
        self.make_groups(self.make_vllm_config(rank))
        self.sequences: dict = {}
        self.history: dict = defaultdict(deque)
        self.stats: Counter = Counter()
        self.rank = Rank(self, rank)
        self.saves = self.worker._start_saves

    @property
    def worker(self):
        return self.rank.connector._worker

    def step(self, output, new: dict) -> tuple:
        """The output, and what was wrong, or None."""
        self.sequences.update({req_id: Sequence(prompt, epoch)
                               for req_id, (prompt, epoch) in new.items()})
        for job in output.kv_connector_metadata.loads:
            self.rank.loads[job.request] += 1
        step = Step(output)
        results = self.run_on([self.rank], step, self.work(output))
        wrong = [rank.describe(req_id, layer, position)[0] for
                 req_id, (rank, layer, position) in step.tainted.items()]
        return results[0], wrong[0] if wrong else None

    def handshake(self):
        return self.rank.handshake()

    def hold_saves(self) -> None:
        """From now on none begins."""
        self.worker._start_saves = lambda jobs, spaces: None

    def fail_saves(self) -> None:
        self.worker._start_saves = self.give_up

    def give_up(self, jobs, spaces) -> None:
        self.worker._give_up_saves(jobs)

    def mend_saves(self) -> None:
        self.worker._start_saves = self.saves

    def spoil(self) -> None:
        """Its part of the KV cache, which the next step must notice."""
        for array in self.rank.arrays.values():
            array[:] = 0xDEAD

    def end(self) -> None:
        self.rank.connector.shutdown()


def serve(pipe, config: Config, directory: str, rank: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    alone = Alone(config, directory, rank)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            os._exit(1)
        pipe.send(getattr(alone, name)(*args))
        if name == "end":
            return


# ---- in the engine's ----

class RankProcess:
    """A rank, as the runner sees it."""

    def __init__(self, runner: "WithProcesses", rank: int) -> None:
        self.rank = rank
        self.loads: Counter = Counter()
        self.tables: dict = {}
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["rank_processes"])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, daemon=True, args=(
                theirs, runner.config, runner.directory.name, rank))
        self._process.start()
        theirs.close()

    update_tables = Rank.update_tables  # as the process has them

    def send(self, name: str, *args: object) -> None:
        try:
            self._pipe.send((name, args))
        except OSError as error:
            raise RankDied(f"rank {self.rank}: {error}") from None

    def receive(self):
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RankDied(f"rank {self.rank}: {error!r}") from None

    def ask(self, name: str, *args: object):
        self.send(name, *args)
        return self.receive()

    def handshake(self):
        return self.ask("handshake")

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def end(self) -> None:
        try:
            self.ask("end")
            self._process.join(END_SECONDS)
        except RankDied:
            pass
        if self._process.is_alive():
            self.kill()
        self._process.close()
        self._pipe.close()


class WithProcesses(fake_runner.FakeRunner):
    """Its ranks are processes. The end of one is the end of all."""

    def make_ranks(self) -> list:
        self.told: set = set()  # requests that the ranks know
        self.ranks: list = []
        for rank in range(self.config.ranks * self.config.stages):
            self.ranks.append(RankProcess(self, rank))
        return self.ranks

    def execute(self) -> None:
        """All steps that are scheduled: the ranks may be as far apart."""
        due = [step for step in self.queue if step.result is None]
        for step in due:
            self.grow(self.work(step.output))
            new = {name: (one.tokens[:one.prompt_len], self.epoch)
                   for name, one in self.sequences.items()
                   if name not in self.told}
            self.told.update(new)
            for rank in self.ranks:
                rank.update_tables(step.output)
                rank.send("step", step.output, new)
        for step in due:
            self.collect(step)

    def collect(self, step: Step) -> None:
        for rank in self.ranks:
            result, wrong = rank.receive()
            if wrong:
                raise self.violation(wrong)
            for name in result.kv_connector_output.finished_recving or ():
                rank.loads[name] -= 1
            step.results.append(result)
        step.results[0].sampled_token_ids = [
            self.sample(piece, {}) for piece in self.work(step.output)]
        step.result = self.aggregator.aggregate(step.results)

    def shutdown(self) -> None:
        for rank in self.ranks:
            rank.end()
        self.scheduler.shutdown()
        self.directory.cleanup()
