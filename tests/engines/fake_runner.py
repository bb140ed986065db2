# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler and a KV connector over a model that only keeps books.

The real Scheduler decides; both roles of the connector run in this process;
the KV cache is CPU tensors that vLLM's own code allocates. In place of a model
a "forward" writes f(token prefix, layer, head, place in the cell) into the
slots of the scheduled tokens, and checks that each slot these tokens attend to
holds exactly its f. So a block that was loaded into the wrong place, too late,
or after its owner had left, a save that read too early or too late, and a
failure that nobody reported all show at once and by themselves, without
weights and without kernels.

A request may run over garbage in one case: when a load that this very step
should have done has failed, and the connector says so. What is computed then
is made wrong on purpose, so that it is found wherever it goes.

Everything is drawn from one seed; a Violation tells it, and what happened to
the block. test_fake_runner.py says how to repeat a run.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import tempfile
import time
from collections import Counter, defaultdict, deque
from types import SimpleNamespace
from typing import Optional

from fake_ranks import (
    POISON_TOKEN, VOCAB, Config, Rank, Sequence, Step, Violation)

import numpy as np
from vllm.config import (
    CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, ParallelConfig,
    SchedulerConfig, VllmConfig, set_current_vllm_config)
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.utils import get_pp_indices
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config, get_request_block_hasher,
    init_none_hash, resolve_kv_cache_block_sizes)
try:
    from vllm.v1.core import kv_cache_planning as planning  # 0.33
except ImportError:
    from vllm.v1.core import kv_cache_utils as planning
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec, KVCacheGroupSpec, MambaSpec, MLAAttentionSpec,
    SlidingWindowSpec, UniformTypeKVCacheSpecs)
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager


class FakeRunner:
    """Scheduler, ranks, and the books over what everything must be."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        self.config = config
        self.seed = seed
        self.random = random.Random(seed)
        self.directory = tempfile.TemporaryDirectory(prefix="fake-runner-")
        self.write_model()
        vllm_config = self.make_vllm_config(0)
        self.make_groups(vllm_config)
        self.make_scheduler(vllm_config)
        self.ranks = self.make_ranks()
        self.aggregator = KVOutputAggregator.from_connector(
            self.scheduler.connector, len(self.ranks))
        self.tell_each_other()
        self.sequences: dict = {}
        self.delivered: dict = {}
        self.epoch = 0
        self.step_no = 0
        self.queue: deque = deque()
        self.history: dict = defaultdict(lambda: deque(maxlen=16))
        self.stats: Counter = Counter()

    def make_ranks(self) -> list:
        return [Rank(self, rank)
                for rank in range(self.config.ranks * self.config.stages)]

    def tell_each_other(self) -> None:
        """What workers have for the scheduler's half, as the engine core asks
        for it."""
        told = [(divmod(rank.rank, self.config.ranks), rank.handshake())
                for rank in self.ranks]
        told = pickle.loads(pickle.dumps(
            {place: one for place, one in told if one is not None}))
        # also where nobody has anything to tell
        self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(told)

    def write_model(self) -> None:
        config = self.config
        model = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": config.heads * config.ranks * config.head_size,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads * config.ranks,
            "num_key_value_heads": config.heads * config.ranks,
            "head_dim": config.head_size, "intermediate_size": 64,
            "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
            "max_position_embeddings": config.max_len,
            "torch_dtype": str(config.dtype).split(".")[1]}
        with open(os.path.join(self.directory.name, "config.json"), "w",
                  encoding="utf-8") as file:
            json.dump(model, file)

    def make_vllm_config(self, rank: int) -> VllmConfig:
        config = self.config
        vllm_config = VllmConfig(
            model_config=ModelConfig(
                model=self.directory.name, skip_tokenizer_init=True,
                dtype=config.dtype, max_model_len=config.max_len, seed=0),
            cache_config=CacheConfig(
                block_size=config.block_size, enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(
                max_num_seqs=config.max_running, max_model_len=config.max_len,
                max_num_batched_tokens=config.batch_tokens,
                is_encoder_decoder=False, async_scheduling=False),
            parallel_config=ParallelConfig(
                tensor_parallel_size=config.ranks,
                pipeline_parallel_size=config.stages),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig(
                kv_connector=config.connector,
                kv_connector_module_path=config.module, kv_role="kv_both",
                kv_load_failure_policy=config.policy,
                kv_connector_extra_config=dict(config.extra)))
        # Not for the CPU, says vLLM; what it changes is the scheduler's part.
        vllm_config.scheduler_config.async_scheduling = config.async_scheduling
        vllm_config.parallel_config.rank = rank
        vllm_config.cache_config.num_gpu_blocks = config.num_blocks
        vllm_config.cache_config.num_gpu_blocks_override = config.num_blocks
        vllm_config.cache_config.kv_cache_layout = config.layout
        if config.state:
            vllm_config.cache_config.mamba_cache_mode = "align"
            vllm_config.cache_config.mamba_block_size = config.block_size
        vllm_config.cache_config.prefix_cache_retention_interval = \
            config.retention
        return vllm_config

    def make_groups(self, vllm_config: VllmConfig) -> None:
        config = self.config
        names = [f"model.layers.{n}.self_attn.attn"
                 for n in range(config.layers)]
        same = {"block_size": config.block_size, "dtype": config.dtype,
                "num_kv_heads": config.heads, "head_size": config.head_size}
        self.shapes = [(config.heads, 2 * config.head_size)] * config.layers
        if config.indexer:
            self.make_indexers(same)
        elif config.state:
            self.make_states(names, same)
        elif config.window:
            names, half = self.halves(names)
            times = (config.window_block or config.block_size) \
                // config.block_size
            sliding = SlidingWindowSpec(sliding_window=config.window, **{
                **same, "block_size": config.block_size * times,
                "head_size": config.head_size // times})
            self.shapes[half:] = [(config.heads, 2 * sliding.head_size)] \
                * (config.layers - half)
            self.groups = [
                KVCacheGroupSpec(names[:half], FullAttentionSpec(**same)),
                KVCacheGroupSpec(names[half:], sliding)]
        else:
            self.groups = [KVCacheGroupSpec(names, FullAttentionSpec(**same))]
        self.finish_groups(vllm_config)

    def halves(self, names: list) -> tuple:
        """The layers of two groups, and how many are in the first."""
        if self.config.kinds:
            first = [name for name, kind in zip(names, self.config.kinds)
                     if kind == "f"]
            return first + [name for name in names if name not in first], \
                len(first)
        if self.config.stages == 1:
            return names, len(names) // 2
        return names[::2] + names[1::2], len(names[::2])

    def make_indexers(self, same: dict) -> None:
        config = self.config
        same = {**same, "num_kv_heads": 1}
        specs = {}
        for n in range(config.layers):
            where = f"model.layers.{n}.self_attn"
            specs[f"{where}.attn"] = MLAAttentionSpec(
                **{**same, "head_size": 2 * config.head_size})
            specs[f"{where}.indexer.k_cache"] = MLAAttentionSpec(
                **{**same, "head_size": config.indexer})
        self.shapes = [(1, spec.head_size) for spec in specs.values()]
        self.groups = [KVCacheGroupSpec(
            list(specs), UniformTypeKVCacheSpecs.from_specs(specs))]

    def make_states(self, names: list, same: dict) -> None:
        """Two tensors a state. Pages are of one size, by padding, but where
        blocks are outermost."""
        config = self.config
        names, half = self.halves(names)
        full = FullAttentionSpec(**same)
        padded = None if config.layout.startswith("B") \
            else full.page_size_bytes
        state = MambaSpec(
            block_size=config.block_size, mamba_cache_mode="align",
            shapes=((3,), (config.state - 3,)), dtypes=(config.dtype,) * 2,
            page_size_padded=padded)
        self.groups = [KVCacheGroupSpec(names[:half], full),
                       KVCacheGroupSpec(names[half:], state)]
        self.shapes[half:] = [(1, config.state)] * (config.layers - half)

    def finish_groups(self, vllm_config: VllmConfig) -> None:
        config = self.config
        self.windows = [getattr(group.kv_cache_spec, "sliding_window", None)
                        for group in self.groups]
        self.sizes = [group.kv_cache_spec.block_size for group in self.groups]
        self.is_state = [isinstance(group.kv_cache_spec, MambaSpec)
                         for group in self.groups]
        self.layers = [(name, number)
                       for number, group in enumerate(self.groups)
                       for name in group.layer_names]
        self.kv_cache_config = planning.get_kv_cache_config_from_groups(
            vllm_config, self.groups, 1 << 30)
        self.kv_cache_config.kv_cache_layout = config.layout
        if config.replicated:
            self.kv_cache_config.kv_tp_replicas = config.ranks
        self.make_stages(vllm_config)

    def make_stages(self, vllm_config: VllmConfig) -> None:
        """The KV cache of each stage, with the layers that vLLM gives it."""
        config = self.config
        if config.stages == 1:
            self.stage_of = dict.fromkeys(
                (name for name, _ in self.layers), 0)
            self.stage_configs = [self.kv_cache_config]
            return
        self.stage_of = {
            name: stage for stage in range(config.stages)
            for first, end in [get_pp_indices(config.layers, stage,
                                              config.stages)]
            for name, _ in self.layers
            if first <= int(name.split(".")[2]) < end}
        self.stage_configs = []
        for stage in range(config.stages):
            mine = dict.fromkeys(name for name, _ in self.layers
                                 if self.stage_of[name] == stage)
            made = planning.get_kv_cache_config_from_groups(
                vllm_config, planning._project_kv_cache_groups_to_worker(
                    self.groups, mine), 1 << 30)
            made.kv_cache_layout = config.layout
            made.kv_tp_replicas = self.kv_cache_config.kv_tp_replicas
            self.stage_configs.append(made)

    def make_scheduler(self, vllm_config: VllmConfig) -> None:
        cls = AsyncScheduler if self.config.async_scheduling else Scheduler
        block_size, hash_block_size = resolve_kv_cache_block_sizes(
            self.kv_cache_config, vllm_config)
        for one in self.stage_configs:
            one.hash_block_size = hash_block_size
        told = generate_scheduler_kv_cache_config(self.stage_configs)
        with set_current_vllm_config(vllm_config):
            self.scheduler = cls(
                vllm_config=vllm_config, kv_cache_config=told,
                structured_output_manager=StructuredOutputManager(vllm_config),
                block_size=block_size, hash_block_size=hash_block_size,
                log_stats=True)
        # The configuration refuses it without Triton; what it means for the
        # scheduler's output needs none.
        self.scheduler.use_v2_model_runner = self.config.v2_runner
        # As the engine core does it, after the scheduler and its connector.
        hash_fn = get_hash_fn_by_name(
            vllm_config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_fn)
        self.hasher = get_request_block_hasher(hash_block_size, hash_fn)
        self.depth = vllm_config.max_concurrent_batches
        self.watch(self.scheduler.connector)

    def watch(self, connector) -> None:
        """Count what is promised at the one place where vLLM says so."""
        inner = connector.update_state_after_alloc

        def update_state_after_alloc(request, blocks, num_external_tokens):
            if num_external_tokens:
                self.stats["loads"] += 1
                self.stats["tokens promised"] += num_external_tokens
                self.promised[request.request_id] = num_external_tokens
                self.started.append(request.request_id)
            return inner(request, blocks, num_external_tokens)

        self.promised: dict = {}
        self.started: list = []
        connector.update_state_after_alloc = update_state_after_alloc

    # ---- requests ----

    def add(self, prompt: list, max_tokens: int, **extra: object) -> str:
        req_id = f"q{self.stats['requests']}"
        self.stats["requests"] += 1
        self.stats["prompt tokens"] += len(prompt)
        request = Request(
            req_id, list(prompt),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True,
                           extra_args=extra or None), None,
            arrival_time=float(self.step_no), block_hasher=self.hasher)
        self.sequences[req_id] = Sequence(prompt, self.epoch)
        self.delivered[req_id] = 0
        self.scheduler.add_request(request)
        return req_id

    def abort(self, req_id: str) -> None:
        self.stats["aborts"] += 1
        request = self.scheduler.requests.get(req_id)
        if request and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            self.stats["aborts while loading"] += 1
        self.scheduler.finish_requests(req_id, RequestStatus.FINISHED_ABORTED)

    def loading(self) -> list:
        return [req_id for req_id, request in self.scheduler.requests.items()
                if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS]

    # ---- steps ----

    def step(self, between=None) -> bool:
        """Schedule and execute; False when there is nothing to do."""
        if self.scheduler.has_requests():
            self.schedule()
            if len(self.queue) < self.depth and self.random.random() < 0.5:
                self.execute()
            if len(self.queue) < self.depth:
                return True
        elif not self.queue:
            return False
        self.finish(between)
        if self.config.patience and not self.scheduler.running:
            # Nothing to compute: let the transfers have the processor.
            time.sleep(0.0002)
        return True

    def reset(self) -> None:
        """Empty vLLM's prefix cache, as far as it goes just now."""
        busy = (self.scheduler.kv_holding_waiting or self.queue
                or self.scheduler.connector.has_pending_push_work())
        # vLLM itself raises if blocks are held by more than what runs.
        preempt = not busy and self.random.random() < 0.7
        self.stats["preempted all"] += preempt
        try:
            done = self.scheduler.reset_prefix_cache(
                reset_running_requests=preempt)
        except RuntimeError:  # of an aborted request that is being loaded
            done = False
        self.stats["resets"] += done

    def schedule(self) -> None:
        self.step_no += 1
        self.started = []
        output = self.scheduler.schedule()
        if output.kv_cache_block_copies:
            raise NotImplementedError("copy on write of blocks")
        for req_id in set(self.started).intersection(self.loading()):
            self.stats["async loads"] += 1
            for rank in self.ranks:
                rank.loads[req_id] += 1
        self.stats["preemptions"] += len(output.preempted_req_ids or ())
        for data in output.scheduled_new_reqs:
            self.note_table(data.req_id, data.block_ids)
        cached = output.scheduled_cached_reqs
        for req_id, ids in zip(cached.req_ids, cached.new_block_ids):
            if ids is not None:
                self.note_table(req_id, ids)
        self.queue.append(Step(output))

    def work(self, output) -> list:
        """(request, first position, tokens, outputs known) of what is due."""
        work = []
        for data in output.scheduled_new_reqs:
            outputs = 0
            if data.prefill_token_ids is not None:
                outputs = len(data.prefill_token_ids) - data.prompt_len
            work.append((data.req_id, data.num_computed_tokens, outputs))
        cached = output.scheduled_cached_reqs
        work += zip(cached.req_ids, cached.num_computed_tokens,
                    cached.num_output_tokens)
        return [(req_id, first, output.num_scheduled_tokens[req_id], outputs)
                for req_id, first, outputs in work]

    def execute(self) -> None:
        """Run on all ranks what has been scheduled and not yet executed. A
        stage of a pipeline takes the steps in order, each when the stage
        before is done with it: which of several does so first is left to
        chance."""
        while True:
            due, before = [], self.config.stages
            for step in self.queue:
                if step.stage < before:
                    due.append(step)
                before = step.stage
            if not due:
                return
            self.execute_stage(due[0] if len(due) == 1
                               else self.random.choice(due))

    def execute_stage(self, step: Step) -> None:
        work = self.work(step.output)
        ranks = self.ranks[step.stage * self.config.ranks:][:self.config.ranks]
        step.results += self.run_on(ranks, step, work)
        step.stage += 1
        if step.stage < self.config.stages:
            return
        self.judge(step.tainted, step.results)
        step.results[0].sampled_token_ids = [
            self.sample(piece, step.tainted) for piece in work]
        step.result = self.aggregator.aggregate(step.results)

    def run_on(self, ranks: list, step: Step, work: list) -> list:
        for rank in ranks:
            rank.begin(step.output)
        self.grow(work)
        self.forward(ranks, work, step.tainted)
        return [rank.end(step.output) for rank in ranks]

    def forward(self, ranks: list, work: list, tainted: dict) -> None:
        """Write what is scheduled on a stage's ranks; tainted: {request:
        (rank, layer, position)} if off, in a stage before or now.

        As in a model each layer writes all its new cells before it reads, so
        requests of one step may share blocks that one of them fills; and
        garbage in one rank's cells is garbage on all.
        """
        if not work:
            return
        layers = [(layer, name, group)
                  for layer, (name, group) in enumerate(self.layers)
                  if self.stage_of[name] == ranks[0].stage]
        for layer, name, group in layers:
            for rank in ranks:
                rank.connector.wait_for_layer_load(name)
                if self.is_state[group]:
                    continue
                for req_id, first, count, _ in work:
                    rank.write(req_id, group, layer, first, count)
            if self.is_state[group]:
                self.advance(ranks, work, tainted, layer)
            else:
                self.compare(ranks, work, tainted, layer)
            for rank in ranks:
                rank.connector.save_kv_layer(
                    name, rank.caches[name],
                    SimpleNamespace(num_actual_tokens=sum(
                        count for _, _, count, _ in work)))
        while tainted:
            # What the other layers wrote for these is garbage as well.
            before = len(tainted)
            for layer, _, group in layers:
                if self.is_state[group]:
                    self.spoil(ranks, work, tainted, layer)
                else:
                    self.compare(ranks, work, tainted, layer)
            if len(tainted) == before:
                break

    def advance(self, ranks: list, work: list, tainted: dict,
                layer: int) -> None:
        """States: who goes on from garbage leaves some."""
        group = self.layers[layer][1]
        for req_id, first, count, _ in work:
            for rank in ranks:
                off = rank.compare_state(req_id, group, layer, first)
                if off is not None:
                    tainted.setdefault(req_id, (rank, layer, off))
            for rank in ranks:
                rank.write_state(req_id, group, layer, first + count)
        self.spoil(ranks, work, tainted, layer)

    def spoil(self, ranks: list, work: list, tainted: dict,
              layer: int) -> None:
        group = self.layers[layer][1]
        for req_id, _, _, _ in work:
            for rank in ranks if req_id in tainted else ():
                rank.poison_state(req_id, group, layer)

    def compare(self, ranks: list, work: list, tainted: dict,
                layer: int) -> None:
        """Find who reads garbage, make garbage of what they write, repeat."""
        group = self.layers[layer][1]
        while True:
            before = len(tainted)
            for req_id, first, _, _ in work:
                for rank in ranks:
                    if req_id in tainted:
                        break
                    off = rank.compare(req_id, group, layer, first)
                    if off is not None:
                        tainted[req_id] = (rank, layer, off)
            for req_id, first, count, _ in work:
                if req_id in tainted:
                    for rank in ranks:
                        rank.poison(req_id, group, layer, first, count)
            if len(tainted) == before:
                return

    def judge(self, tainted: dict, results: list) -> None:
        """Garbage is allowed only to a request whose load failed just now."""
        invalid = set()
        for result in results:
            invalid |= result.kv_connector_output.invalid_block_ids
        for req_id, (rank, layer, position) in tainted.items():
            table = rank.tables[req_id][self.layers[layer][1]]
            if not invalid.intersection(table):
                raise self.violation(*rank.describe(req_id, layer, position))
            self.stats["steps on garbage, reported"] += 1

    def grow(self, work: list) -> None:
        """Tokens sampled in steps of which the scheduler has not heard."""
        for req_id, first, count, _ in work:
            sequence = self.sequences[req_id]
            while len(sequence.tokens) < first + count:
                sequence.next_token(len(sequence.tokens) - 1)

    def sample(self, piece: tuple, tainted: dict) -> list:
        """A chunk that ends before the last known token samples nothing."""
        req_id, first, count, outputs = piece
        sequence = self.sequences[req_id]
        if first + count < sequence.prompt_len + outputs:
            return []
        if req_id in tainted:
            return [POISON_TOKEN]
        return [sequence.next_token(first + count - 1)]

    def finish(self, between) -> None:
        """Hand the oldest step's output to the scheduler."""
        self.execute()
        step = self.queue.popleft()
        output, result = step.output, step.result
        if between:
            between()
        kv = result.kv_connector_output
        self.stats["blocks failed"] += len(kv.invalid_block_ids)
        self.stats["requests failed"] += len(kv.failed_recving)
        failed = {
            req_id for req_id, table in self.ranks[0].tables.items()
            if kv.invalid_block_ids.intersection(*table[:1])}
        loaded = set(kv.finished_recving or ())
        for req_id in output.num_scheduled_tokens:
            if req_id in self.promised and req_id not in failed:
                loaded.add(req_id)
        outputs = self.scheduler.update_from_output(output, result)
        loaded -= self.scheduler.failed_recving_kv_req_ids
        for req_id in loaded:
            tokens = self.promised.pop(req_id, 0)
            if req_id in self.scheduler.requests:
                self.stats["tokens loaded"] += tokens
        for client in outputs.values():
            for out in client.outputs:
                self.deliver(out)

    def deliver(self, out) -> None:
        """Tokens that reach the user must be the ones of the sequence."""
        req_id = out.request_id
        sequence = self.sequences[req_id]
        done = sequence.prompt_len + self.delivered[req_id]
        new = list(out.new_token_ids)
        if sequence.tokens[done:done + len(new)] != new:
            raise self.violation(
                f"{req_id} delivers {new} as tokens {done} on; right is "
                f"{sequence.tokens[done:done + len(new)]}")
        self.delivered[req_id] += len(new)
        self.stats["tokens generated"] += len(new)
        if out.finish_reason is not None:
            self.stats[f"finished: {out.finish_reason}"] += 1

    # ---- after a run, and when something is wrong ----

    def settle(self) -> None:
        """No more requests: all must finish and give back their blocks."""
        self.run_out()
        if self.is_held_up():
            self.stats["held up"] += 1
            for req_id in list(self.scheduler.requests):
                self.abort(req_id)
            self.run_out()
        if self.scheduler.has_requests() or self.queue:
            raise self.violation(
                "never finished: " + ", ".join(
                    f"{req_id} {request.status.name}" for req_id, request
                    in self.scheduler.requests.items()) + "; pending work: "
                f"{self.scheduler.connector.has_pending_push_work()}")
        pool = self.scheduler.kv_cache_manager.block_pool
        held = [block.block_id for block in pool.blocks
                if block.ref_cnt and not block.is_null]
        free = pool.get_num_free_blocks()
        if held or free != self.config.num_blocks - 1:
            raise self.violation(
                f"{free} of {self.config.num_blocks - 1} blocks are free in "
                f"the end; held: {held}", *held[:1])
        for rank in self.ranks:
            if +rank.loads:
                raise self.violation(
                    f"rank {rank.rank} never reported: {dict(rank.loads)}")

    def run_out(self) -> None:
        """Until nothing is left, or nothing has moved for long."""
        deadline = time.monotonic() + self.config.patience
        last = self.step_no + 1000
        while self.step():
            if self.step_no > last and time.monotonic() > deadline:
                break

    def is_held_up(self) -> bool:
        """vLLM 0.32: a request whose load has failed keeps its blocks until it
        is scheduled; one that waits before it may need them, and then nothing
        goes on, whatever the connector does. Users abort."""
        return bool(not self.scheduler.running
                    and self.scheduler.failed_recving_kv_req_ids)

    def note(self, blocks, what: str) -> None:
        for block in blocks:
            self.history[block].append((self.step_no, what))

    def note_table(self, req_id: str, tables) -> None:
        for group, ids in enumerate(tables):
            for block in ids:
                self.history[block].append(
                    (self.step_no, f"given to {req_id} (group {group})"))

    def whose(self, rank: Rank, cells: np.ndarray, layer: int) -> str:
        """Which known prefix a slot's cells belong to, if any."""
        if not cells.any():
            return "zeros"
        if (cells == 0xDEAD).all():
            return "what was computed from garbage"
        for req_id, sequence in self.sequences.items():
            count = len(sequence.tokens)
            for other in [layer] + list(range(len(self.shapes))):
                if self.shapes[other] != self.shapes[layer]:
                    continue
                want = rank.content.cells(sequence.hashes[:count], other)
                found = np.flatnonzero((want == cells).all(axis=(1, 2)))
                if len(found):
                    return (f"position {found[0]} of {req_id}, layer {other}")
        return "bytes of no known prefix"

    def violation(self, what: str, block: Optional[int] = None) -> Violation:
        lines = [what, f"step {self.step_no}, seed {self.seed}, "
                 f"configuration {self.config.name}"]
        if block is not None:
            lines.append(f"block {block}:")
            lines += [f"  step {step}: {event}"
                      for step, event in self.history[block]]
        lines.append(f"so far: {dict(self.stats)}")
        return Violation("\n".join(lines))

    def shutdown(self) -> None:
        for rank in self.ranks:
            rank.connector.shutdown()
        self.scheduler.shutdown()
        self.directory.cleanup()
