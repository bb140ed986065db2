# SPDX-License-Identifier: Apache-2.0
"""A KV connector that keeps blocks in a dict of this process.

The reference for fake_runner.py: small enough to be read in one sitting,
right in all that the runner checks, and as late with its copies as vLLM allows
(a load's bytes arrive, and a save's are read, only at the moment the transfer
is reported), so that a block that was let go too early shows. The broken
connectors of broken_connectors.py are made from it by one change each.

kv_connector_extra_config:
  store       name of the dict; connectors of one name see the same blocks
  mode        "async", "sync" or "layerwise"
  delay       a transfer takes 0 to this many steps, at random
  seed        of the delays and of the failures
  load_errors, save_errors   share of blocks that fail
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole,
    KVConnectorTransferResults, KVConnectorWorkerMetadata, SupportsHMA)
from vllm.v1.kv_cache_interface import SlidingWindowSpec

# name -> {(epoch, group, hash, rank): {layer: tensor}}
STORES: dict[str, dict] = defaultdict(dict)
EPOCHS: dict[str, int] = defaultdict(int)


@dataclass
class Move:
    """Blocks of one request to load or to save, and how late that happens."""

    job: int
    request: str
    # (group, block id, key)
    blocks: list
    due: int = 0


@dataclass
class Plan(KVConnectorMetadata):
    loads: list = field(default_factory=list)
    saves: list = field(default_factory=list)


@dataclass
class Done(KVConnectorWorkerMetadata):
    jobs: dict

    def aggregate(self, other: "Done") -> "Done":
        jobs = dict(self.jobs)
        for job, count in other.jobs.items():
            jobs[job] = jobs.get(job, 0) + count
        return Done(jobs)


class MemoryConnector(KVConnectorBase_V1, SupportsHMA):
    """Both roles; what belongs to which is marked below."""

    requires_kv_delivery = False

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        parallel = vllm_config.parallel_config
        self.name = extra["store"]
        self.store = STORES[self.name]
        self.mode = extra.get("mode", "async")
        self.delay = extra.get("delay", 0)
        self.load_errors = extra.get("load_errors", 0.0)
        self.save_errors = extra.get("save_errors", 0.0)
        self.world = parallel.world_size
        self.rank = parallel.rank if role == KVConnectorRole.WORKER else None
        self.random = random.Random(f"{extra.get('seed', 0)} {self.rank}")
        self.specs = [g.kv_cache_spec for g in kv_cache_config.kv_cache_groups]
        self.layers = [g.layer_names for g in kv_cache_config.kv_cache_groups]
        self.block_size = self.specs[0].block_size
        # scheduler
        self.requests: dict = {}
        self.starts: dict = {}
        self.targets: dict = {}
        self.given_up: set = set()
        self.saved_to: dict = {}
        self.pins: dict = {}
        self.reports: dict = {}
        self.saving: set = set()
        self.plan = Plan()
        self.next_job = 0
        # The saves of each step of which the output is not known yet.
        self.computing: deque = deque()
        # worker
        self.caches: dict = {}
        self.loading: list = []
        self.writing: list = []
        self.waiting_layers: list = []
        self.invalid: set = set()
        self.failed: set = set()
        self.done: dict = {}

    # ---- the scheduler's side ----

    def bind_gpu_block_pool(self, gpu_block_pool) -> None:
        self.pool = gpu_block_pool

    def on_new_request(self, request) -> None:
        self.requests[request.request_id] = request

    def key(self, group: int, block_hash: bytes) -> tuple:
        return (EPOCHS[self.name], group, bytes(block_hash))

    def has(self, key: tuple) -> bool:
        return all(key + (rank,) in self.store for rank in range(self.world))

    def window_blocks(self, group: int, count: int) -> range:
        """The blocks that a sequence of count whole blocks still needs."""
        spec = self.specs[group]
        if not isinstance(spec, SlidingWindowSpec):
            return range(count)
        first = max(0, count * self.block_size - spec.sliding_window + 1)
        return range(first // self.block_size, count)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        start = num_computed_tokens // self.block_size
        limit = request.num_tokens
        if self.mode != "async":
            limit -= 1
        hashes = request.block_hashes[:limit // self.block_size]
        count = len(hashes)
        for index in range(start, count):
            if not self.has(self.key(0, hashes[index])):
                count = index
                break
        while count > start and not all(
                self.has(self.key(group, hashes[index]))
                for group in range(1, len(self.specs))
                for index in self.window_blocks(group, count)):
            count -= 1
        if (count <= start or request.skip_reading_prefix_cache
                or request.request_id in self.given_up):
            return 0, False
        self.starts[request.request_id] = start
        return (count - start) * self.block_size, self.mode == "async"

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens == 0:
            return
        start = self.starts[request.request_id]
        end = start + num_external_tokens // self.block_size
        moves = []
        for group, ids in enumerate(blocks.get_block_ids()):
            for index in self.window_blocks(group, end):
                if index >= start and ids[index] != 0:
                    moves.append((group, ids[index], self.key(
                        group, request.block_hashes[index])))
        self.targets[request.request_id] = {block for _, block, _ in moves}
        self.plan.loads.append(Move(self.new_job(), request.request_id, moves))
        self.saved_to[request.request_id] = end

    def new_job(self) -> int:
        self.next_job += 1
        return self.next_job

    def build_connector_meta(self, scheduler_output) -> Plan:
        self.computing.append([])
        for req_id in scheduler_output.preempted_req_ids or ():
            self.saved_to.pop(req_id, None)
        for data in scheduler_output.scheduled_new_reqs:
            self.plan_saves(scheduler_output, data.req_id,
                            data.num_computed_tokens)
        cached = scheduler_output.scheduled_cached_reqs
        for req_id, computed in zip(cached.req_ids,
                                    cached.num_computed_tokens):
            self.plan_saves(scheduler_output, req_id, computed)
        plan, self.plan = self.plan, Plan()
        return plan


    def plan_saves(self, output, req_id: str, computed: int) -> None:
        request = self.requests[req_id]
        full = (computed + output.num_scheduled_tokens[req_id])
        full = min(full // self.block_size, len(request.block_hashes))
        first = self.saved_to.get(req_id, 0)
        if full <= first:
            return
        self.saved_to[req_id] = full
        moves = []
        tables = self._kv_cache_manager.get_block_ids(req_id)
        for group, ids in enumerate(tables):
            for index in range(first, full):
                key = self.key(group, request.block_hashes[index])
                if (ids[index] != 0 and key not in self.saving
                        and not self.has(key)):
                    moves.append((group, ids[index], key))
        if moves:
            self.start_save(Move(self.new_job(), req_id, moves))

    def start_save(self, move: Move) -> None:
        self.computing[-1].append(move)
        self.saving.update(key for _, _, key in move.blocks)
        self.reports[move.job] = 0
        self.pin(move)

    def pin(self, move: Move) -> None:
        self.pins[move.job] = move
        self.pool.touch([self.pool.blocks[i] for _, i, _ in move.blocks])

    def unpin(self, job: int) -> None:
        move = self.pins.pop(job)
        self.saving.difference_update(key for _, _, key in move.blocks)
        self.pool.free_blocks([self.pool.blocks[i] for _, i, _ in move.blocks])

    def update_connector_output(self, connector_output) -> None:
        self.release(self.computing.popleft(),
                     bool(connector_output.invalid_block_ids))
        # To load again what has just failed would fail again, and vLLM lets
        # a request that does so hold up all others that wait with blocks.
        self.given_up.update(connector_output.failed_recving)
        self.given_up.update(
            req_id for req_id, blocks in self.targets.items()
            if blocks & connector_output.invalid_block_ids)
        # vLLM leaves what a failed load did not fill, and what was computed
        # from that, in its own prefix cache until the request recomputes it;
        # a request that hits it before reads garbage.
        if connector_output.invalid_block_ids:
            self._kv_cache_manager.evict_blocks(
                self.descendants(connector_output.invalid_block_ids))
        meta = connector_output.kv_connector_worker_meta
        for job, count in (meta.jobs if meta else {}).items():
            self.reports[job] += count
            if self.reports[job] == self.world:
                del self.reports[job]
                self.unpin(job)

    def release(self, moves: list, failed: bool) -> None:
        """A step is over: have what it computed saved.

        Not before: when a load of that step failed, on whichever rank, the
        step computed garbage from it, and this is where all ranks' failures
        are known.
        """
        if not failed:
            self.plan.saves += moves
            return
        for move in moves:
            del self.reports[move.job]
            self.unpin(move.job)

    def descendants(self, invalid: set) -> set:
        """The invalid blocks and all that follow one in some request."""
        blocks = set(invalid)
        for req_id in self.requests:
            (table,) = self._kv_cache_manager.get_block_ids(req_id)
            for index, block in enumerate(table):
                if block in invalid:
                    blocks.update(table[index:])
                    break
        return blocks

    def request_finished_all_groups(self, request, block_ids):
        self.requests.pop(request.request_id, None)
        self.starts.pop(request.request_id, None)
        self.targets.pop(request.request_id, None)
        self.given_up.discard(request.request_id)
        self.saved_to.pop(request.request_id, None)
        return False, None

    def has_pending_push_work(self) -> bool:
        return bool(self.pins)

    def reset_cache(self) -> bool:
        EPOCHS[self.name] += 1
        return True

    # ---- the workers' side ----

    def register_kv_caches(self, kv_caches) -> None:
        self.caches = kv_caches

    def start_load_kv(self, forward_context, **kwargs) -> None:
        for move in self._get_connector_metadata().loads:
            if self.mode == "async":
                move.due = self.random.randint(0, self.delay)
                self.loading.append(move)
            elif self.mode == "layerwise":
                self.waiting_layers.append((move, self.failing(move)))
            else:
                self.load(move, self.failing(move))

    def failing(self, move: Move) -> set:
        """The blocks of a load that fail, by their place in it."""
        bad = {n for n, (_, _, key) in enumerate(move.blocks)
               if key + (self.rank,) not in self.store
               or self.random.random() < self.load_errors}
        if bad:
            self.fail(move, bad)
        return bad

    def fail(self, move: Move, bad: set) -> None:
        if len(self.specs) > 1:
            self.failed.add(move.request)
        else:
            self.invalid.update(move.blocks[n][1] for n in bad)

    def load(self, move: Move, bad: set, layer: str = "") -> None:
        for n, (group, block, key) in enumerate(move.blocks):
            if n in bad:
                continue
            saved = self.store[key + (self.rank,)]
            for name in self.layers[group]:
                if not layer or name == layer:
                    self.caches[name][block] = saved[name]

    def wait_for_layer_load(self, layer_name: str) -> None:
        for move, bad in self.waiting_layers:
            self.load(move, bad, layer_name)

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self) -> None:
        self.waiting_layers.clear()
        for move in self._get_connector_metadata().saves:
            move.due = self.random.randint(0, self.delay)
            self.writing.append(move)

    def save(self, move: Move) -> None:
        for group, block, key in move.blocks:
            if self.random.random() >= self.save_errors:
                self.store[key + (self.rank,)] = {
                    name: self.caches[name][block].clone()
                    for name in self.layers[group]}

    def due(self, moves: list) -> list:
        """Take the moves whose time has come, in any order."""
        now = [move for move in moves if move.due <= 0]
        moves[:] = [move for move in moves if move.due > 0]
        for move in moves:
            move.due -= 1
        self.random.shuffle(now)
        return now

    def get_finished(self, finished_req_ids):
        received = set()
        for move in self.due(self.loading):
            self.load(move, self.failing(move))
            received.add(move.request)
        for move in self.due(self.writing):
            self.save(move)
            self.done[move.job] = 1
        return None, received

    def get_transfer_results(self, finished_req_ids):
        _, received = self.get_finished(finished_req_ids)
        failed, self.failed = self.failed & received, self.failed - received
        return KVConnectorTransferResults(
            finished_recving=received, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set:
        invalid, self.invalid = self.invalid, set()
        return invalid

    def build_connector_worker_meta(self):
        done, self.done = self.done, {}
        return Done(done) if done else None
