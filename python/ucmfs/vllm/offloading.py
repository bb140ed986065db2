# SPDX-License-Identifier: Apache-2.0
"""UcmfsOffloadingConnector: vLLM's OffloadingConnector, for a UcmfsTier below.

    --kv-transfer-config '{"kv_connector": "UcmfsOffloadingConnector",
      "kv_connector_module_path": "ucmfs.vllm", "kv_role": "kv_both",
      "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240,
        "secondary_tiers": [{"type": "UcmfsTier", "module_path": "ucmfs.vllm",
                             "mount": "/mnt/kv"}]}}'

vLLM hands a tier the few fields of an OffloadingConfig: no quantisation, no
revision, no hash algorithm. This connector is given the whole configuration,
and makes it known to the tiers that are built while it is.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
    OffloadingConnector)

from .fingerprint import EngineConfigs, handed_down


class UcmfsOffloadingConnector(OffloadingConnector):
    """See OffloadingConnector."""

    def __init__(self, vllm_config: Any, role: Any,
                 kv_cache_config: Any = None, *args: Any,
                 **kwargs: Any) -> None:
        with handed_down(EngineConfigs(vllm_config, kv_cache_config)):
            super().__init__(vllm_config, role, kv_cache_config, *args,
                             **kwargs)
