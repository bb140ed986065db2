# SPDX-License-Identifier: Apache-2.0
"""UcmfsConnector: vLLM's KV cache in ucmfs, by a KV connector of its own.

    --kv-transfer-config '{"kv_connector": "UcmfsConnector",
        "kv_connector_module_path": "ucmfs.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"mount": "/mnt/kv"}}'

In place of "mount" there may be "socket", the path that a daemon listens on,
or "tiers", directories: a private daemon has them, if no other does.

vLLM makes two of it, for the scheduler and for a worker; this class hands the
calls on to the half that its role is about. Hooks take whatever else a version
of vLLM passes. ucmfs.vllm.options has the keys of the configuration.
"""

from __future__ import annotations

from typing import Any, Iterable

from vllm.distributed.kv_transfer.kv_connector.v1 import base as _base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1, KVConnectorRole, SupportsHMA)

from ..errors import ConfigError
from .metadata import UcmfsHandshake, UcmfsMetadata
from .metrics import UcmfsPromMetrics, UcmfsStats
from .options import ConnectorOptions, connector_options
from .plugin import warn_if_dense
from .scheduler import UcmfsScheduler
from .worker import UcmfsWorker

try:  # since vLLM counts hits by where they come from
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
    _HIT_SOURCE: Any = CacheHitSource.DISK
except ImportError:
    _HIT_SOURCE = None

# Since vLLM can be told of requests, not of pages, that failed to load.
_RESULTS = getattr(_base, "KVConnectorTransferResults", None)
_TELLS_REQUESTS = hasattr(_RESULTS, "failed_recving") or "failed_recving" in \
    getattr(_RESULTS, "__dataclass_fields__", ())


class UcmfsConnector(KVConnectorBase_V1, SupportsHMA):
    """See KVConnectorBase_V1."""

    _cache_hit_source = _HIT_SOURCE
    # The options' class, and the two halves'.
    _parts: tuple[type, type, type] = (ConnectorOptions, UcmfsScheduler,
                                       UcmfsWorker)

    @classmethod
    def _options(cls, extra: dict[str, Any],
                 check_paths: bool = True) -> Any:
        return connector_options(extra, check_paths=check_paths,
                                 kind=cls._parts[0])

    def __init__(self, vllm_config: Any, role: KVConnectorRole,
                 kv_cache_config: Any = None, *args: Any,
                 **kwargs: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _, scheduler, worker = self._parts
        options = self._options(
            vllm_config.kv_transfer_config.kv_connector_extra_config)
        if kv_cache_config is None:
            raise ConfigError("kv_cache_config", "vLLM has given none: it is "
                              "too old")
        self._scheduler: Any = None
        self._worker: Any = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = scheduler(vllm_config, kv_cache_config, options)
        else:
            self._worker = worker(vllm_config, kv_cache_config, options)
        num = len((self._scheduler or self._worker).plan.groups)
        if num > 1 and not _TELLS_REQUESTS:
            raise ConfigError(
                "kv_cache_groups", f"{num} of them need a "
                "vLLM with KVConnectorTransferResults.failed_recving; "
                "--disable-hybrid-kv-cache-manager makes one of them")

    # ---- both ----

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is lost is a miss later."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any],
                                         *args: Any, **kwargs: Any) -> bool:
        return cls._options(extra_config, False).load == "layerwise"

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any, *args: Any,
                                    **kwargs: Any) -> str | None:
        layout = cls._options(
            vllm_config.kv_transfer_config.kv_connector_extra_config,
            False).layout
        return None if layout in ("", "auto") else layout

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None,
                                 ) -> UcmfsStats:
        return UcmfsStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any,
                           labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]],
                           *args: Any, **kwargs: Any) -> UcmfsPromMetrics:
        return UcmfsPromMetrics(vllm_config, metric_types, labelnames,
                                per_engine_labelvalues)

    def get_kv_connector_stats(self) -> UcmfsStats | None:
        return (self._scheduler or self._worker).get_stats()

    def shutdown(self) -> None:
        (self._scheduler or self._worker).shutdown()

    # ---- the scheduler's ----

    def set_xfer_handshake_metadata_pp_aware(
            self, metadata: dict[tuple[int, int], UcmfsHandshake]) -> None:
        self._scheduler.set_stages(
            {rank: told.plan for rank, told in metadata.items()})

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler.block_ids = kv_cache_manager.get_block_ids

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._scheduler.bind_gpu_block_pool(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any,
                                   num_computed_tokens: int,
                                   ) -> tuple[int | None, bool]:
        return self._scheduler.get_num_new_matched_tokens(
            request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external_tokens: int, *args: Any,
                                 **kwargs: Any) -> None:
        self._scheduler.update_state_after_alloc(request, blocks,
                                                 num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> UcmfsMetadata:
        return self._scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler.update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: Any,
                         ) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler.request_finished(request)

    request_finished_all_groups = request_finished

    def take_events(self) -> Iterable[Any]:
        return self._scheduler.take_events()

    def has_pending_push_work(self) -> bool:
        return self._scheduler.has_pending_push_work()

    def has_pending_block_frees(self) -> bool:
        return self._scheduler.has_pending_block_frees()

    def reset_cache(self) -> bool:
        return self._scheduler.reset_cache()

    # ---- a worker's ----

    def get_handshake_metadata(self) -> UcmfsHandshake | None:
        plan = self._worker.plan
        return UcmfsHandshake(plan) if plan.stages > 1 else None

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        warn_if_dense(self._vllm_config)
        self._worker.register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context: Any, *args: Any,
                      **kwargs: Any) -> None:
        self._worker.start_load_kv(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_for_layer_load(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any,
                      attn_metadata: Any, *args: Any, **kwargs: Any) -> None:
        """Blocks are saved as a whole, after the step."""

    def wait_for_save(self) -> None:
        self._worker.wait_for_save()

    def get_finished(self, finished_req_ids: set[str],
                     ) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.get_finished(finished_req_ids) or None

    if _RESULTS is not None:
        def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
            results = super().get_transfer_results(finished_req_ids)
            failed = self._worker.take_failed()
            if failed:
                results.failed_recving |= failed
            return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_bad_pages()

    def build_connector_worker_meta(self) -> Any:
        return self._worker.take_meta()
