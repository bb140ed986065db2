# SPDX-License-Identifier: Apache-2.0
"""What each rank of an engine has in a chunk below vLLM's OffloadingConnector.

The parts of all ranks lie one after the other in a slot, and each process
works out by itself how large a part is: from its own layers, as if all ranks
had as many. Where the stages of a pipeline differ in that, ranks write over
each other's parts (vLLM 0.31 to 0.33). A tier is told of the first stage's
layers alone, so the workers are asked.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from ..errors import ConfigError
from .mount import log

Layers = tuple[tuple[str, ...], ...]  # of each group


class Share(NamedTuple):
    """A rank's: its bytes of a block, and its layers."""

    block_bytes: int
    layers: Layers


def share_of(worker: Any) -> Share | None:
    """Of a worker, by whom this is run; None: it cannot be found."""
    try:
        config = worker.model_runner.kv_cache_config
        # Its tensors lie in one piece of memory, of which this is the size.
        total = config.kv_cache_tensors[0].size
        return Share(total // config.num_blocks, tuple(
            tuple(group.layer_names) for group in config.kv_cache_groups))
    except Exception:  # whatever a version has changed: it is told as such
        log.exception("ucmfs: the layers of a rank cannot be looked at")
        return None


def layers_of(shares: Sequence[Share | None], ranks: int,
              block_bytes: int) -> tuple[Layers, ...]:
    """Of each rank. shares: what the ranks have said; block_bytes: what the
    scheduler takes for a rank's share. ConfigError where they do not fit."""
    found = [share for share in shares if share is not None]
    if len(found) != ranks:
        raise ConfigError(
            "pipeline_parallel_size", f"{len(found)} of {ranks} workers say "
            "which layers they have; without that blocks of stages cannot be "
            "told apart")
    sizes = sorted({share.block_bytes for share in found} | {block_bytes})
    if len(sizes) > 1:
        raise ConfigError(
            "pipeline_parallel_size", "stages have "
            f"{' and '.join(map(str, sizes))} bytes of a block, and vLLM's "
            "OffloadingConnector lays them over each other; "
            "VLLM_PP_LAYER_PARTITION says how many layers each stage has: all "
            "need as many bytes. UcmfsConnector takes any stages")
    return tuple(share.layers for share in found)
