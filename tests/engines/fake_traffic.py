# SPDX-License-Identifier: Apache-2.0
"""Random traffic for fake_runner.py's engine: requests that share,
continue and repeat; aborts, resets, faults."""

from __future__ import annotations

import random
from collections import Counter, deque

from fake_ranks import VOCAB, Config
from fake_runner import FakeRunner


class Traffic:
    """Requests that share, continue and repeat; aborts, resets, faults."""

    def __init__(self, runner: FakeRunner, faults=None) -> None:
        self.runner = runner
        self.random = random.Random(runner.seed + 1)
        self.faults = faults
        self.bases = [self.tokens(self.random.randint(16, 200))
                      for _ in range(6)]
        self.paragraphs = [self.tokens(runner.config.block_size)
                           for _ in range(4)]
        self.old: deque = deque(maxlen=12)

    def tokens(self, count: int) -> list:
        return [self.random.randrange(VOCAB - 1) for _ in range(count)]

    def prompt(self) -> list:
        """Mostly something of which a part has been seen before."""
        config = self.runner.config
        kind = self.random.random()
        if kind < 0.35 or not self.old:
            base = self.random.choice(self.bases)
            prompt = base[:self.random.randint(1, len(base))]
            prompt = prompt + self.tokens(self.random.randint(0, 40))
        elif kind < 0.65:
            # The next turn of a conversation.
            prompt = self.random.choice(self.old)
            prompt = prompt + self.tokens(self.random.randint(1, 24))
        elif kind < 0.9:
            # The same again; half of them end where a block does.
            prompt = list(self.random.choice(self.old))
            if self.random.random() < 0.5:
                size = config.block_size
                prompt = prompt[:max(size, len(prompt) // size * size)]
        else:
            # The same blocks in another order are other blocks.
            prompt = sum(self.random.choices(
                self.paragraphs, k=self.random.randint(1, 6)), [])
            prompt = prompt + self.tokens(self.random.randint(1, 20))
        return prompt[:config.max_len * 3 // 4]

    def arrive(self) -> None:
        runner = self.runner
        limit = runner.config.max_len
        prompt = self.prompt()
        room = min(40, limit - len(prompt) - 1)
        req_id = runner.add(prompt, self.random.randint(1, room))
        self.old.append(prompt)
        self.last = req_id

    def act(self) -> None:
        """What the world does before a step."""
        config, rng, runner = self.runner.config, self.random, self.runner
        if (rng.random() < config.arrive
                and len(runner.scheduler.requests) < 3 * config.max_running):
            self.arrive()
        if rng.random() < config.reset:
            runner.stats["resets asked"] += 1
            runner.reset()
        if rng.random() < config.new_weights:
            self.new_weights()
        if self.faults:
            self.faults.tick()
            if rng.random() < config.fault:
                runner.stats[f"fault: {self.faults.strike(rng)}"] += 1
        if rng.random() < 0.1:
            self.remember()

    def between(self) -> None:
        """Aborts, as the engine takes them: between a step and its output."""
        config, rng, runner = self.runner.config, self.random, self.runner
        if rng.random() < config.abort and runner.scheduler.requests:
            runner.abort(rng.choice(list(runner.scheduler.requests)))
        loading = runner.loading()
        if loading and rng.random() < config.abort_loading:
            runner.abort(rng.choice(loading))

    def remember(self) -> None:
        """A conversation includes what was answered."""
        done = [req_id for req_id in self.runner.sequences
                if req_id not in self.runner.scheduler.requests]
        for req_id in done:
            sequence = self.runner.sequences[req_id]
            if self.random.random() < 0.5:
                self.old.append(list(sequence.tokens[:300]))
        # Kept for whose(): the last ones only.
        for req_id in done[:-40]:
            del self.runner.sequences[req_id]

    def new_weights(self) -> None:
        """Everything computed so far becomes wrong, here and in the store."""
        runner = self.runner
        runner.settle()
        if runner.scheduler.reset_prefix_cache(reset_connector=True):
            runner.epoch += 1
            runner.stats["new weights"] += 1


def run(config: Config, seed: int, steps: int, faults=None,
        prepare=None) -> Counter:
    """A whole run; Violation if anything is wrong, counters otherwise."""
    runner = FakeRunner(config, seed)
    try:
        if prepare:
            prepare(runner)
        traffic = Traffic(runner, faults)
        while runner.step_no < steps:
            traffic.act()
            if not runner.step(traffic.between):
                runner.step_no += 1
        if faults:
            faults.heal()
        runner.settle()
        return runner.stats
    finally:
        runner.shutdown()
