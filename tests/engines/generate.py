#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""generate.py - one start of vLLM's engine, and what it is to do, as data.

    generate.py --config FILE --prompts FILE --out FILE

A start leaves state behind in the process, so a test starts one engine, has it
do several things, and starts another in another process. The files are JSON.
Configuration:

    {"model": DIR,
     "engine": {argument of vLLM's EngineArgs: value},
     "kv_transfer": {argument of KVTransferConfig: value} or null,
     "path": [DIR...], where else Python looks for modules,
     "steps": [STEP...]}

Prompts: {name: [token...]}. Steps, in order:

    {"do": "generate", "prompts": [name...], "max_tokens": N}
        all at once; "one_by_one": true for one after the other;
        "abort": {name: WHEN} takes a request back: "added" at once, "loading"
        when it waits for its blocks, "running" after its first token;
        "pause": WORD as below, after a few steps; "lora": [name, id, path],
        of an adapter; "handed": {name: {...}}, kv_transfer_params
    {"do": "reset"}       forget the blocks in the engine's own cache;
        "connector": true also what the connector holds in memory
    {"do": "scale", "part": TEXT, "factor": F}
        change the weights in place: the parameters with TEXT in their names
    {"do": "save_cache", "path": PATH}
        the first pages of the KV cache, of all layers, into PATH.npy
    {"do": "settle"}      step until nothing is left to save
    {"do": "until_cached", "cached": {name: tokens}, "connector": true}
        reset and generate these, again and again until so many tokens of each
        are cached, or a minute has passed; the last result
    {"do": "modules"}     of ucmfs, which have been imported
    {"do": "metrics"}     all samples that begin with vllm:
    {"do": "pause", "say": WORD}   print WORD, wait for a line on stdin

Output: a list with the result of each step. Of generate: {name: {"tokens",
"cached", "finish"}}; finish is "length", "abort" or "error".
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
import time
from typing import Any, Callable

# before vLLM is imported; PYTHONHASHSEED is the caller's
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
SETTLE_S = 60.0
PAUSE_STEPS = 3  # a load has begun, and no request has ended
ABORTED: dict[str, Any] = {"tokens": [], "cached": 0, "finish": "abort"}


@dataclasses.dataclass
class Request:
    """One that has not ended; vLLM knows it by two names."""

    name: str
    key: str
    core_key: str
    started: bool = False


class Engine:
    """vLLM's engine in this process, stepped by hand."""

    def __init__(
        self,
        config: dict,
        prompts: dict[str, list[int]],
        pause: Callable[[str], Any],
    ) -> None:
        from vllm import EngineArgs
        from vllm.config import KVTransferConfig
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments: dict[str, Any] = {
            "model": config["model"],
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 2048,
            "block_size": 32,
            "num_gpu_blocks_override": 256,
            "seed": 0,
            "disable_log_stats": False,
        }
        arguments.update(config.get("engine", {}))
        if config.get("kv_transfer"):
            arguments["kv_transfer_config"] = KVTransferConfig(
                **config["kv_transfer"]
            )
        self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._core = self._engine.engine_core.engine_core
        self._prompts = prompts
        self._wait = pause
        self._num_started = 0
        self._lora: list | None = None
        self._handed: dict[str, dict] = {}

    def do(self, step: dict) -> Any:
        arguments = {key: step[key] for key in step if key != "do"}
        return getattr(self, "_" + step["do"])(**arguments)

    def _generate(
        self,
        prompts: list[str],
        max_tokens: int = 16,
        one_by_one: bool = False,
        abort: dict[str, str] | None = None,
        pause: str | None = None,
        lora: list | None = None,
        handed: dict[str, dict] | None = None,
    ) -> dict:
        self._lora, self._handed = lora, handed or {}
        if not one_by_one:
            return self._together(prompts, max_tokens, abort or {}, pause)
        done = {}
        for name in prompts:
            done.update(self._together([name], max_tokens, abort or {}))
        return done

    def _together(
        self,
        names: list[str],
        max_tokens: int,
        abort: dict[str, str],
        pause: str | None = None,
    ) -> dict:
        running = [self._start(name, max_tokens) for name in names]
        done: dict[str, dict] = {}
        stage = "added"
        for step in itertools.count():
            if pause and step == PAUSE_STEPS:
                self._wait(pause)
            for request in running:
                if self._is_due(request, abort.get(request.name), stage):
                    self._engine.abort_request([request.key])
                    done[request.name] = ABORTED
            running = [each for each in running if each.name not in done]
            if not running:
                return done
            for output in self._engine.step():
                (request,) = [r for r in running if r.key == output.request_id]
                request.started = bool(output.outputs[0].token_ids)
                if output.finished:
                    done[request.name] = result(output)
            running = [each for each in running if each.name not in done]
            stage = "stepped"
        return done

    def _start(self, name: str, max_tokens: int) -> Request:
        from vllm import SamplingParams

        self._num_started += 1
        key = f"{name}-{self._num_started}"
        params = SamplingParams(
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            max_tokens=max_tokens,
            extra_args={"kv_transfer_params": self._handed[name]}
            if name in self._handed else None,
        )
        prompt = {"prompt_token_ids": self._prompts[name]}
        core_key = self._engine.add_request(
            key, prompt, params, lora_request=self._adapter()
        )
        return Request(name, key, core_key)

    def _adapter(self) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(*self._lora) if self._lora else None

    def _scale(self, part: str, factor: float) -> int:
        of_ranks = self._core.model_executor.collective_rpc(
            scale, args=(part, factor)
        )
        return min(of_ranks)

    def _save_cache(self, path: str) -> None:
        self._core.model_executor.collective_rpc(save_cache, args=(path,))

    def _is_due(self, request: Request, when: str | None, stage: str) -> bool:
        if when == "loading":
            return self._is_loading(request.core_key)
        if when == "running":
            return request.started
        return when == stage

    def _is_loading(self, request_id: str) -> bool:
        from vllm.v1.request import RequestStatus

        request = self._core.scheduler.requests.get(request_id)
        return (
            request is not None
            and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        )

    def _reset(self, connector: bool = False) -> bool:
        return self._engine.reset_prefix_cache(reset_connector=connector)

    def _until_cached(
        self, cached: dict[str, int], connector: bool = False
    ) -> dict:
        end = time.monotonic() + SETTLE_S
        while True:
            self._reset(connector)
            done = self._together(list(cached), 16, {})
            enough = all(done[name]["cached"] >= cached[name] for name in done)
            if enough or time.monotonic() > end:
                return done
            self._settle()

    def _settle(self) -> bool:
        end = time.monotonic() + SETTLE_S
        while self._core.scheduler.has_requests():
            if time.monotonic() > end:
                return False
            self._engine.step()
        return True

    def _modules(self) -> list[str]:
        return [name for name in sys.modules if name.split(".")[0] == "ucmfs"]

    def _metrics(self) -> dict[str, float]:
        from prometheus_client import REGISTRY

        found = {}
        for family in REGISTRY.collect():
            for sample in family.samples:
                if not sample.name.startswith("vllm:"):
                    continue
                if sample.name.endswith(("_created", "_bucket")):
                    continue
                labels = ",".join(
                    f"{key}={sample.labels[key]}"
                    for key in sorted(sample.labels)
                    if key not in ("model_name", "engine")
                )
                key = sample.name + (f"{{{labels}}}" if labels else "")
                found[key] = found.get(key, 0.0) + sample.value
        return found

    def _pause(self, say: str) -> None:
        self._wait(say)

    def shutdown(self) -> None:
        self._engine.engine_core.shutdown()


def scale(worker: Any, part: str, factor: float) -> int:
    """In a worker: how many parameters these were."""
    found = [
        parameter
        for name, parameter in worker.model_runner.get_model().named_parameters()
        if part in name
    ]
    for parameter in found:
        parameter.data.mul_(factor)
    return len(found)


def save_cache(worker: Any, path: str) -> None:
    """In a worker."""
    import numpy

    numpy.save(path, numpy.stack(
        [cache[:64].numpy() for cache in worker.model_runner.kv_caches]))


def result(output: Any) -> dict:
    completion = output.outputs[0]
    return {
        "tokens": list(completion.token_ids),
        "cached": output.num_cached_tokens,
        "finish": completion.finish_reason,
        "handed": output.kv_transfer_params,
    }


def set_environment() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def run(
    config: dict,
    prompts: dict[str, list[int]],
    pause: Callable[[str], Any],
) -> list:
    """The results of all steps. pause: called with the word of a pause, it
    returns when the engine may go on."""
    set_environment()
    sys.path[:0] = config.get("path", [])
    engine = Engine(config, prompts, pause)
    try:
        return [engine.do(step) for step in config["steps"]]
    finally:
        engine.shutdown()


def ask(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("config", "prompts", "out"):
        parser.add_argument("--" + name, required=True)
    arguments = parser.parse_args()
    with open(arguments.config, encoding="utf-8") as file:
        config = json.load(file)
    with open(arguments.prompts, encoding="utf-8") as file:
        prompts = json.load(file)
    results = run(config, prompts, ask)
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(results, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
