# SPDX-License-Identifier: Apache-2.0
"""pipeline_worker.py - vLLM's worker for CPUs, as a stage of a pipeline.

What comes from the stage before goes into tensors that vLLM makes when it
compiles the model. Where nothing is compiled its runner for CPUs lacks them,
and the first step fails.

A stage without attention takes every layout of the KV cache, and vLLM wants all
stages to name the same ones: it names those of a stage with attention.
"""

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.worker.cpu_worker import CPUWorker


class PipelineWorker(CPUWorker):
    def compile_or_warm_up_model(self, *args, **more):
        done = super().compile_or_warm_up_model(*args, **more)
        runner = self.model_runner
        runner.intermediate_tensors = \
            runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens,
                dtype=runner.model_config.dtype, device=runner.device)
        return done

    def get_supported_kv_cache_layouts(self):
        return [layout.name for layout in
                CPUAttentionBackend.supported_kv_cache_layouts()]
