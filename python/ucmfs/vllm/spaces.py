# SPDX-License-Identifier: Apache-2.0
"""The plan and the spaces of an engine, from its configuration."""

from __future__ import annotations

import os
import re
from typing import Any, Sequence

from ..namespace import check_name, default_name
from .epochs import Epochs
from .fingerprint import EngineConfigs, Overrides, digest, engine_manifest
from .groups import Home, Plan, homes_of, plan_of, space_names
from .mount import Space
from .options import ConnectorOptions


def plan_for(vllm_config: Any, kv_cache_config: Any) -> Plan:
    """Raises ConfigError for what cannot be kept."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    alignment, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config,
                                                          vllm_config)
    return plan_of(vllm_config, kv_cache_config, hash_tokens, alignment)


def load_mode(vllm_config: Any, plan: Plan, options: ConnectorOptions,
              ) -> tuple[str, str]:
    """How loads are done, and why that is not what was asked for, or ""."""
    if options.load == "async":
        return "async", ""
    if len(plan.groups) > 1:
        return "async", (f"{len(plan.groups)} KV cache groups: vLLM cannot "
                         "recover from a load that fails within a step")
    if any(group.state for group in plan.groups):
        return "async", "a state is of no use in the step that loads it"
    if getattr(vllm_config, "speculative_config", None) is not None:
        return "async", ("speculative decoding: vLLM asks what has become of "
                         "loads before it lets the step end")
    if plan.stages > 1:
        return "async", ("pipeline parallelism: the next step is made before "
                         "a load is known to have failed")
    if getattr(vllm_config, "max_concurrent_batches", 1) > 1:
        return "async", ("asynchronous scheduling: the next step is made "
                         "before a load is known to have failed "
                         "(--no-async-scheduling allows it)")
    return options.load, ""


def space_name(given: str, model: Any, manifest: dict[str, Any],
               epochs: Epochs) -> str:
    """The name that a user has given, in the epoch of the start; else one
    that says what is in it."""
    if given and epochs.now == epochs.usual:
        return given
    name = os.path.basename(str(model).rstrip("/"))
    return default_name(given or "vllm-" + re.sub(
        "[^A-Za-z0-9._-]", "_", name)[:64], manifest)


def manifest_for(vllm_config: Any, kv_cache_config: Any, plan: Plan,
                 options: ConnectorOptions) -> dict[str, Any]:
    """The engine's, as it starts: looks at the model's files."""
    return engine_manifest(
        EngineConfigs(vllm_config, kv_cache_config),
        hash_block_size=plan.hash_tokens, overrides=Overrides.of(options))


def spaces_for(model: Any, stages: Sequence[Plan], options: ConnectorOptions,
               common: dict[str, Any], epochs: Epochs) -> list[Space]:
    """A space for each home, in their order. model: its name; stages: a plan
    of each; common: the engine's manifest of the start. The same tokens have
    other blocks in another epoch."""
    common = epochs.in_force(common)
    manifests = [_manifest(common, stages, home) for home in homes_of(stages)]
    base = space_name(options.space, model, manifests[0], epochs)
    return [Space(check_name(name), manifest) for name, manifest
            in zip(space_names(stages, base), manifests)]


def _manifest(common: dict[str, Any], stages: Sequence[Plan],
              home: Home) -> dict[str, Any]:
    """What the engine's own manifest does not say: how blocks are laid out,
    and which of its groups, and of the pipeline's stages, these are of."""
    plan = stages[home.stage]
    group = plan.groups[home.group]
    assert group.geometry is not None
    places: dict[str, Any] = {}
    if len(stages) > 1:
        # Spaces of a pipeline belong together: a block of a request has its
        # name from the first of them.
        places["stage"] = home.stage
        places["stages"] = digest([[list(each.layers) for each in one.groups]
                                   for one in stages])
    if any(plane != "both" for _, plane in group.places):
        # As K and V of which of a block's layers the engine's are kept, and
        # how much of these is not padding.
        places["places"] = [f"{row}{plane}" for row, plane in group.places]
        places["sizes"] = list(group.sizes)
    return {
        **common,
        "geometry": group.geometry.to_json(),
        "connector": {
            "format": 1, "ids": "external", "group": group.index,
            "shards": plan.shards, "layers": list(group.layers),
            **places,
        },
    }
