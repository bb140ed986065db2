# SPDX-License-Identifier: Apache-2.0
"""The plan and the spaces of an engine, from its configuration."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from ..namespace import check_name, default_name
from .fingerprint import EngineConfigs, Overrides, engine_manifest
from .groups import Plan, plan_of, space_names
from .link import Space
from .options import Options


def plan_for(vllm_config: Any, kv_cache_config: Any) -> Plan:
    """Raises ConfigError for what cannot be kept."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    alignment, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config,
                                                          vllm_config)
    return plan_of(vllm_config, kv_cache_config, hash_tokens, alignment)


def load_mode(vllm_config: Any, plan: Plan, options: Options,
              ) -> Tuple[str, str]:
    """How loads are done, and why that is not what was asked for, or ""."""
    if options.load == "async":
        return "async", ""
    if len(plan.groups) > 1:
        return "async", (f"{len(plan.groups)} KV cache groups: vLLM cannot "
                         "recover from a load that fails within a step")
    if getattr(vllm_config, "speculative_config", None) is not None:
        return "async", ("speculative decoding: vLLM asks what has become of "
                         "loads before it lets the step end")
    if getattr(vllm_config, "max_concurrent_batches", 1) > 1:
        return "async", ("asynchronous scheduling: the next step is made "
                         "before a load is known to have failed "
                         "(--no-async-scheduling allows it)")
    return options.load, ""


def spaces_for(vllm_config: Any, kv_cache_config: Any, plan: Plan,
               options: Options, epoch: str) -> List[Space]:
    """A space for each group. epoch: the configured one, or what a reset has
    made of it; the same tokens have other blocks in another epoch."""
    common = engine_manifest(
        EngineConfigs(vllm_config, kv_cache_config),
        hash_block_size=plan.hash_tokens,
        overrides=Overrides(options.weights, options.tenant, epoch,
                            options.era))
    manifests = [_manifest(common, plan, g) for g in range(len(plan.groups))]
    if options.space:
        base = options.space
        if epoch != options.epoch:
            base = default_name(base, manifests[0])
    else:
        base = default_name("vllm", manifests[0])
    return [Space(check_name(name), manifest) for name, manifest
            in zip(space_names(plan, base), manifests)]


def _manifest(common: Dict[str, Any], plan: Plan, g: int) -> Dict[str, Any]:
    """What the engine's own manifest does not say: how blocks are laid out,
    and which of its groups these are of."""
    group = plan.groups[g]
    return {
        **common,
        "geometry": group.geometry.to_json(),
        "connector": {
            "format": 1, "ids": "external", "group": group.index,
            "shards": plan.shards, "layers": list(group.layers),
        },
    }
