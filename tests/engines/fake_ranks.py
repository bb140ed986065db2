# SPDX-License-Identifier: Apache-2.0
"""What fake_runner.py's engine is made of: configurations, what every slot
must hold, and ranks, which write and check it."""

from __future__ import annotations

import logging
import os
import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("HF_HUB_OFFLINE", "1"),
                    ("VLLM_NO_USAGE_STATS", "1"), ("PYTHONHASHSEED", "0"),
                    ("VLLM_TARGET_DEVICE", "cpu"), ("OMP_NUM_THREADS", "1")):
    os.environ.setdefault(name, value)

import numpy as np
import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.factory import (
    KVConnectorFactory)
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.forward_context import get_forward_context, set_forward_context
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.worker.utils import allocate_kv_cache

if TYPE_CHECKING:
    from fake_runner import FakeRunner

# Every injected failure is a warning of vLLM's.
logging.getLogger("vllm").setLevel(logging.CRITICAL)

VOCAB = 1000
# What a forward over garbage "samples"; no right sequence ever holds it.
POISON_TOKEN = VOCAB - 1
MASK = (1 << 64) - 1


class Violation(AssertionError):
    """The connector broke the engine's KV cache or its own promises."""


@dataclass
class Config:
    """One configuration of engine, connector and traffic."""

    name: str
    connector: str = "MemoryConnector"
    module: str = "memory_connector"
    extra: dict = field(default_factory=dict)
    policy: str = "recompute"
    ranks: int = 1
    # Of a pipeline: each has so many ranks, and a part of the layers.
    stages: int = 1
    # All ranks of a stage hold the same heads, as with MLA or few of them.
    replicated: bool = False
    # 0: one group. Otherwise a second one with a window of so many tokens.
    window: int = 0
    # Tokens to a block of the group with the window, if not block_size; its
    # cells are then as much smaller, so that pages are of one size.
    window_block: int = 0
    # 0: K and V. Otherwise each layer has a latent in their place, and beside
    # it a cache of so many elements, as DeepSeek V3.2's indexer.
    indexer: int = 0
    # The second half of the layers keeps a state of so many elements instead,
    # as vLLM's "align" mode has it; 0: none.
    state: int = 0
    # Of two groups, whose each layer is: "f" the first's, any other letter the
    # second's; "": half of them, or where there are stages some in each.
    kinds: str = ""
    # Tokens between those that are kept; 0: where the prompt may be gone on
    # from.
    retention: int = 0
    layout: str = "LBNHC"
    dtype: torch.dtype = torch.float32
    v2_runner: bool = False
    async_scheduling: bool = False
    layers: int = 3
    heads: int = 2
    head_size: int = 8
    block_size: int = 16
    num_blocks: int = 48
    max_running: int = 6
    batch_tokens: int = 96
    max_len: int = 512
    # Traffic, as probabilities per step.
    arrive: float = 0.35
    abort: float = 0.02
    abort_loading: float = 0.05
    reset: float = 0.01
    new_weights: float = 0.003
    fault: float = 0.02
    # Seconds that transfers may take in the end; 0: they take steps, not time.
    patience: float = 0.0


# ---- what every slot must hold ----


def mix(value: int) -> int:
    """splitmix64's finaliser."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


class Sequence:
    """The tokens of a request as they must come out, and their prefix hashes.

    hashes[p] covers the weights' epoch and the tokens 0 to p, so it is all
    that a slot may depend on besides layer, head and place.
    """

    def __init__(self, prompt: list, epoch: int) -> None:
        self.prompt_len = len(prompt)
        self.tokens: list = []
        self.hashes = np.empty(0, np.uint64)
        self._fill = 0
        self._state = mix(epoch + 1)
        for token in prompt:
            self.append(token)

    def append(self, token: int) -> None:
        if self._fill == len(self.hashes):
            self.hashes = np.resize(self.hashes, max(64, 2 * self._fill))
        self._state = mix(self._state ^ mix(token + 1))
        self.hashes[self._fill] = self._state
        self._fill += 1
        self.tokens.append(token)

    def next_token(self, position: int) -> int:
        """The token that follows position; the sequence grows by it."""
        if position + 1 == len(self.tokens):
            self.append(int(self.hashes[position] >> 32) % (VOCAB - 1))
        return self.tokens[position + 1]


class Content:
    """f: the bits of cells, from prefix hashes, for one rank's heads."""

    def __init__(self, config: Config, rank: int, shapes: list) -> None:
        self.shapes = shapes
        self.shift = np.uint64(64 - 8 * config.dtype.itemsize)
        self.bits = {2: np.uint16, 4: np.uint32}[config.dtype.itemsize]
        self.view = {2: torch.int16, 4: torch.int32}[config.dtype.itemsize]
        rank = 0 if config.replicated else rank
        shape = (len(shapes), config.ranks * config.heads,
                 max(cell for _, cell in shapes))
        odd = [mix(n + 77) | 1 for n in range(int(np.prod(shape)))]
        odd = np.array(odd, np.uint64).reshape(shape)
        self.odd = odd[:, rank * config.heads:(rank + 1) * config.heads]

    def cells(self, hashes: np.ndarray, layer: int) -> np.ndarray:
        """[n] hashes -> [n, heads, cell] bits."""
        heads, cell = self.shapes[layer]
        return ((hashes[:, None, None] * self.odd[layer][:heads, :cell])
                >> self.shift).astype(self.bits)


# ---- one rank ----


class Rank:
    """One worker: its tensors, its connector, and its block tables."""

    def __init__(self, runner: "FakeRunner", rank: int) -> None:
        config = runner.config
        self.rank = rank
        self.stage, shard = divmod(rank, config.ranks)
        self.runner = runner
        self.content = Content(config, shard, runner.shapes)
        kv_cache_config = runner.stage_configs[self.stage]
        self.vllm_config = runner.make_vllm_config(rank)
        self.vllm_config.cache_config.kv_cache_layout = config.layout
        self.caches = allocate_kv_cache(
            kv_cache_config, torch.device("cpu"),
            self.vllm_config.cache_config.get_resolved_kv_cache_layout(),
            runner.sizes)
        # The same bytes as [blocks, heads, slots, cell] of unsigned integers.
        self.arrays = {
            name: cache.view(self.content.view).numpy().view(self.content.bits)
            for name, cache in self.caches.items()}
        with set_current_vllm_config(self.vllm_config):
            self.connector = KVConnectorFactory.create_connector(
                config=self.vllm_config, role=KVConnectorRole.WORKER,
                kv_cache_config=kv_cache_config)
        self.connector.register_kv_caches(self.caches)
        self.tables: dict = {}
        self.states: dict = {}  # of requests: the place that has it
        self.loads: Counter = Counter()

    def begin(self, output) -> None:
        """A step up to its forward, in the order of vLLM's model runners."""
        # A worker is another process: it gets a copy.
        meta = pickle.loads(pickle.dumps(output.kv_connector_metadata))
        self.update_tables(output)
        for block in output.new_block_ids_to_zero or ():
            for array in self.arrays.values():
                array[block] = 0
        self.connector.handle_preemptions(meta)
        self.connector.bind_connector_metadata(meta)
        if output.has_sync_kv_loads:
            self.start_load()
        self.move_states(output)

    def handshake(self):
        return self.connector.get_handshake_metadata()

    def start_load(self) -> None:
        with set_forward_context(None, self.vllm_config):
            self.connector.start_load_kv(get_forward_context())

    def end(self, output) -> ModelRunnerOutput:
        """What follows the forward."""
        self.connector.finish_forward()
        if not output.has_sync_kv_loads:
            self.start_load()
        self.connector.wait_for_save()
        result = self.collect(output)
        self.connector.clear_connector_metadata()
        return result

    def collect(self, output) -> ModelRunnerOutput:
        connector = self.connector
        done = connector.get_transfer_results(set(output.finished_req_ids))
        kv = KVConnectorOutput(
            finished_sending=done.finished_sending or None,
            finished_recving=done.finished_recving or None,
            failed_recving=done.failed_recving,
            invalid_block_ids=connector.get_block_ids_with_load_errors(),
            kv_connector_stats=connector.get_kv_connector_stats(),
            kv_cache_events=connector.get_kv_connector_kv_cache_events(),
            kv_connector_worker_meta=connector.build_connector_worker_meta())
        kv = pickle.loads(pickle.dumps(kv))
        for req_id in kv.finished_recving or ():
            self.loads[req_id] -= 1
            if self.loads[req_id] != 0:
                raise self.runner.violation(
                    f"rank {self.rank}: load of {req_id} reported "
                    f"{1 - self.loads[req_id]} times")
            del self.loads[req_id]
        if kv.invalid_block_ids:
            self.runner.note(kv.invalid_block_ids, f"r{self.rank} invalid")
        order = [piece[0] for piece in self.runner.work(output)]
        return ModelRunnerOutput(
            req_ids=order,
            req_id_to_index={req_id: i for i, req_id in enumerate(order)},
            kv_connector_output=kv)

    def update_tables(self, output) -> None:
        """Block tables from what a worker is told, and nothing else."""
        for req_id in output.finished_req_ids:
            self.tables.pop(req_id, None)
        for data in output.scheduled_new_reqs:
            self.tables[data.req_id] = [list(ids) for ids in data.block_ids]
        cached = output.scheduled_cached_reqs
        for req_id, ids in zip(cached.req_ids, cached.new_block_ids):
            if req_id in cached.resumed_req_ids:
                self.tables[req_id] = [list(group) for group in ids]
            elif ids is not None:
                for table, new in zip(self.tables[req_id], ids):
                    table.extend(new)

    def move_states(self, output) -> None:
        """As vLLM's preprocess_mamba(): a state goes on in the block of the
        step's last token; the one before stays what it is."""
        for req_id in [*output.finished_req_ids,
                       *(output.preempted_req_ids or ()),
                       *output.scheduled_cached_reqs.resumed_req_ids]:
            self.states.pop(req_id, None)
        size = self.runner.config.block_size
        for req_id, first, count, _ in self.runner.work(output):
            before = self.states.get(req_id, (first - 1) // size)
            now = self.states[req_id] = (first + count - 1) // size
            for name, group in self.runner.layers:
                if (before in (-1, now) or not self.runner.is_state[group]
                        or name not in self.arrays):
                    continue
                table = self.tables[req_id][group]
                if not table[before] or not table[now]:
                    raise self.runner.violation(
                        f"{req_id} has no block for a state: {table}, "
                        f"{before} to {now}")
                array = self.arrays[name]
                array[table[now]] = array[table[before]]

    def state_of(self, req_id: str, group: int) -> int:
        """The block with a request's state, and a state's one slot."""
        return self.tables[req_id][group][self.states[req_id]]

    def write_state(self, req_id, group, layer, tokens) -> None:
        hashes = self.runner.sequences[req_id].hashes[tokens - 1:tokens]
        array = self.arrays[self.runner.layers[layer][0]]
        array[self.state_of(req_id, group), :, 0] = \
            self.content.cells(hashes, layer)[0]

    def compare_state(self, req_id, group, layer, tokens) -> Optional[int]:
        """As compare(): does the block hold the state after so many?"""
        if not tokens:
            return None
        hashes = self.runner.sequences[req_id].hashes[tokens - 1:tokens]
        array = self.arrays[self.runner.layers[layer][0]]
        self.runner.stats["cells checked"] += 1
        same = array[self.state_of(req_id, group), :, 0] == \
            self.content.cells(hashes, layer)[0]
        return None if same.all() else tokens - 1

    def poison_state(self, req_id, group, layer) -> None:
        array = self.arrays[self.runner.layers[layer][0]]
        array[self.state_of(req_id, group), :, 0] = 0xDEAD

    def places(self, req_id: str, group: int, first: int, end: int):
        """Blocks and slots of positions first to end of a request."""
        positions = np.arange(first, end)
        size = self.runner.sizes[group]
        table = np.array(self.tables[req_id][group], np.int64)
        return table[positions // size], positions % size

    def write(self, req_id, group, layer, first, count) -> None:
        hashes = self.runner.sequences[req_id].hashes[first:first + count]
        blocks, slots = self.places(req_id, group, first, first + count)
        if not blocks.all():
            raise self.runner.violation(f"{req_id} writes to the null block")
        array = self.arrays[self.runner.layers[layer][0]]
        array[blocks, :, slots] = self.content.cells(hashes, layer)

    def compare(self, req_id, group, layer, first) -> Optional[int]:
        """The first position before first that does not hold its f."""
        window = self.runner.windows[group]
        start = max(0, first - window + 1) if window else 0
        if start >= first:
            return None
        blocks, slots = self.places(req_id, group, start, first)
        hashes = self.runner.sequences[req_id].hashes[start:first]
        array = self.arrays[self.runner.layers[layer][0]]
        self.runner.stats["cells checked"] += first - start
        same = array[blocks, :, slots] == self.content.cells(hashes, layer)
        if same.all():
            return None
        return start + int(np.argmin(same.all(axis=(1, 2))))

    def poison(self, req_id, group, layer, first, count) -> None:
        blocks, slots = self.places(req_id, group, first, first + count)
        array = self.arrays[self.runner.layers[layer][0]]
        array[blocks, :, slots] = 0xDEAD

    def describe(self, req_id, layer, position) -> tuple:
        name, group = self.runner.layers[layer]
        size = self.runner.sizes[group]
        block = self.tables[req_id][group][position // size]
        slot = position % size
        if self.runner.is_state[group]:
            block, slot = self.state_of(req_id, group), 0
        cells = self.arrays[name][block, :, slot]
        what = self.runner.whose(self, cells, layer)
        return (f"rank {self.rank}: {req_id} position {position} "
                f"(block {block}, slot {slot}) of {name} is wrong: "
                f"it holds {what}", block)


# ---- the engine ----

@dataclass
class Step:
    """One that is scheduled: the stage that it waits for, what the stages
    before have made of it, and what the scheduler is told in the end."""

    output: object
    stage: int = 0
    tainted: dict = field(default_factory=dict)
    results: list = field(default_factory=list)
    result: Optional[ModelRunnerOutput] = None
