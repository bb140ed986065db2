# SPDX-License-Identifier: Apache-2.0
"""Which settings of vLLM decide about the bytes of KV blocks, field by field.

Of each configuration class every field goes in that is not HARMLESS, nor in
the parts of the manifest that fingerprint.py writes by name (ELSEWHERE). So
does one that a newer vLLM brings: that costs a cold cache, and leaving it out
would cost wrong tokens; tests/engines/test_fingerprint.py lists those that are
meant to. A setting that has its default does not go in: it would only make the
manifest of each version another one, which the era sees to.

HARMLESS holds what decides how fast, how much or where: limits, ports, paths,
sampling, logging, and what moves rounding alone (compilation, fused kernels,
how work is spread over ranks). vLLM's own prefix cache counts on the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Where they are in a VllmConfig.
PLACES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("VllmConfig", "engine", ()),
    ("ModelConfig", "model", ("model_config",)),
    ("MultiModalConfig", "media", ("model_config", "multimodal_config")),
    ("LoadConfig", "load", ("load_config",)),
    ("CacheConfig", "cache", ("cache_config",)),
    ("ParallelConfig", "parallel", ("parallel_config",)),
    ("AttentionConfig", "attention", ("attention_config",)),
    ("MambaConfig", "mamba", ("mamba_config",)),
    ("KernelConfig", "kernel", ("kernel_config",)),
    ("LoRAConfig", "lora", ("lora_config",)),
)

# In the manifest under names of their own; see fingerprint.py.
ELSEWHERE: dict[str, frozenset[str]] = {
    "VllmConfig": _names(
        "model_config cache_config parallel_config load_config "
        "attention_config mamba_config kernel_config lora_config "
        "speculative_config"),
    "ModelConfig": _names(
        "model model_weights dtype hf_config hf_text_config revision "
        "code_revision max_model_len quantization disable_sliding_window "
        "multimodal_config"),
    "MultiModalConfig": _names("language_model_only video_pruning_rate"),
    "LoadConfig": _names("load_format"),
    "CacheConfig": _names(
        "block_size kv_cache_layout cache_dtype prefix_caching_hash_algo "
        "kv_cache_dtype_skip_layers calculate_kv_scales mamba_block_size "
        "mamba_cache_dtype mamba_ssm_cache_dtype mamba_cache_mode "
        "use_replayssm kv_sharing_fast_prefill swa_bounded_replay"),
    "ParallelConfig": _names(
        "tensor_parallel_size pipeline_parallel_size "
        "decode_context_parallel_size prefill_context_parallel_size "
        "cp_kv_cache_interleave_size"),
    "AttentionConfig": _names("backend backend_per_kind flash_attn_version"),
    "MambaConfig": frozenset(),
    "KernelConfig": frozenset(),
    "LoRAConfig": _names("lora_dtype target_modules"),
}

HARMLESS: dict[str, frozenset[str]] = {
    "VllmConfig": _names(
        "scheduler_config device_config offload_config aux_output_config "
        "watermark_config structured_outputs_config observability_config "
        "logging_config quant_config compilation_config profiler_config "
        "kv_transfer_config kv_events_config ec_transfer_config "
        "ec_manager_config reasoning_config instance_id optimization_level "
        "performance_mode weight_transfer_config shutdown_timeout "
        "watchdog_config"),
    "ModelConfig": _names(
        "runner convert tokenizer tokenizer_mode seed is_submodel_config "
        "hf_config_path allowed_local_media_path allowed_media_domains "
        "tokenizer_revision spec_target_max_model_len "
        "allow_deprecated_quantization enforce_eager return_sampling_mask "
        "max_logprobs logprobs_mode use_fp64_gumbel enable_trace_replay "
        "disable_cascade_attn skip_tokenizer_init enable_prompt_embeds "
        "served_model_name config_format hf_token generation_config "
        "override_generation_config enable_sleep_mode "
        "sleep_preserve_parameter_names sleep_mode_backend "
        "sleep_mode_offload_cudagraph enable_nccl_comm_suspend "
        "enable_cumem_allocator logits_processors renderer_num_workers "
        "pooler_config"),
    # the hash of an image is part of the block's, whatever makes it
    "MultiModalConfig": _names(
        "limit_per_prompt enable_mm_embeds mm_processor_cache_gb "
        "mm_processor_cache_type mm_hasher_algorithm "
        "mm_shm_cache_max_object_size_mb mm_encoder_tp_mode "
        "mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin "
        "interleave_mm_strings skip_mm_profiling mm_tensor_ipc "
        "allow_missing_mm_embeddings mm_ipc_gpu_memory_gb"),
    "LoadConfig": _names(
        "download_dir safetensors_load_strategy "
        "safetensors_prefetch_num_threads safetensors_prefetch_block_size "
        "device use_tqdm_on_load pt_load_map_location"),
    "CacheConfig": _names(
        "user_specified_block_size prefix_match_unit gpu_memory_utilization "
        "is_attention_free num_gpu_blocks_override sliding_window "
        "enable_prefix_caching prefix_cache_retention_interval "
        "mamba_page_size_padded skip_page_size_padded num_gpu_blocks "
        "num_cpu_blocks effective_attention_block_size kv_cache_size_tokens "
        "kv_cache_max_concurrency hash_block_size cache_hit_alignment_tokens "
        "kv_cache_memory_bytes kv_offloading_size kv_offloading_backend "
        "simple_cpu_offload_num_blocks _block_size_resolved"),
    "ParallelConfig": _names(
        "data_parallel_size data_parallel_size_local data_parallel_rank "
        "data_parallel_rank_local data_parallel_master_ip "
        "data_parallel_rpc_port dp_sync_interval data_parallel_master_port "
        "data_parallel_backend data_parallel_external_lb "
        "data_parallel_hybrid_lb is_moe_model enable_hc_sp "
        "enable_expert_parallel enable_batch_sharded_sampling "
        "enable_ep_weight_filter enable_eplb eplb_config "
        "expert_placement_strategy all2all_backend "
        "max_parallel_loading_workers disable_custom_all_reduce "
        "enable_shm_tensor_arena enable_elastic_ep elastic_ep_max_dp_size "
        "enable_dbo ubatch_size dbo_decode_token_threshold "
        "dbo_prefill_token_threshold disable_nccl_for_dp_synchronization "
        "ray_workers_use_nsight ray_runtime_env placement_group "
        "distributed_executor_backend worker_cls sd_worker_cls master_addr "
        "master_port node_rank nnodes numa_bind numa_bind_nodes "
        "numa_bind_cpus assigned_physical_gpu_ids distributed_timeout_seconds "
        "cpu_distributed_timeout_seconds world_size rank "
        "_data_parallel_master_port_list _coord_store_port dcp_comm_backend "
        "dcp_q_replicate _allow_auto_resolve_cp_interleave_size "
        "data_parallel_index _api_process_count _api_process_rank "
        "enable_fault_tolerance fault_tolerance_config"),
    "AttentionConfig": _names(
        "flash_attn_max_num_splits_for_cuda_graph tokenspeed_mla_min_split_kv "
        "tq_max_kv_splits_for_cuda_graph indexer_tp_shard_min_rows "
        "sparse_mla_prefill_workspace_factor flex_attn_block_m "
        "flex_attn_block_n flex_attn_q_block_size flex_attn_kv_block_size"),
    "MambaConfig": frozenset(),
    "KernelConfig": _names(
        "ir_op_priority enable_flashinfer_autotune "
        "enable_rocm_segmented_attn_autotune enable_cutedsl_warmup "
        "enable_jit_warmup"),
    "LoRAConfig": _names(
        "max_lora_rank max_loras fully_sharded_loras max_cpu_loras "
        "specialize_active_lora enable_mixed_moe_lora_format "
        "enable_moe_shared_loras max_lora_cls_labels"),
}


def _default_of(field: Any) -> Any:
    if hasattr(field.default, "get_default"):  # pydantic's own description
        return field.default.get_default(call_default_factory=True)
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None


def _names_and_defaults(config: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(config):
        return {field.name: _default_of(field)
                for field in dataclasses.fields(config)}
    return dict.fromkeys(vars(config))


def changed(vllm_config: Any, plain: Callable[[Any], Any],
            ) -> dict[str, dict[str, Any]]:
    """The settings that count and have not their defaults, as plain values:
    {"model": {"model_impl": "transformers"}, ...}."""
    out = {}
    for kind, short, path in PLACES:
        config = vllm_config
        for name in path:
            config = getattr(config, name, None)
        left_out = HARMLESS[kind] | ELSEWHERE[kind]
        if config is None:
            continue
        found = {name: plain(getattr(config, name, None))
                 for name, default in _names_and_defaults(config).items()
                 if name not in left_out
                 and plain(getattr(config, name, None)) != plain(default)}
        if found:
            out[short] = found
    return out
