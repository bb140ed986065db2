# SPDX-License-Identifier: Apache-2.0
"""What a vLLM knows of ucmfs without a configuration: the entry point
"ucmfs" of vllm.general_plugins.

Every process of an engine calls register(), before there is a configuration.
So it leaves names alone, which are looked up when a configuration asks:

  tier       {"type": "ucmfs"} is UcmfsTier

vLLM 0.31 to 0.33 have the hooks. Where one is missing, a line says which, and
the engine runs as if ucmfs were not installed. Nothing is raised, and libucm
is not loaded.
"""

from __future__ import annotations

import logging

log = logging.getLogger("vllm.ucmfs")

TIER = "ucmfs"


def register() -> None:
    """Called by vLLM, any number of times."""
    for what, hook in (("the tier \"ucmfs\"", _register_tier),):
        try:
            hook()
        except Exception as error:  # whatever it is, vLLM runs without it
            log.info("ucmfs: vLLM %s lacks a hook, so %s cannot be had: %s",
                     _version(), what, error)


def _version() -> str:
    import vllm

    return str(getattr(vllm, "__version__", "of no version"))


def _register_tier() -> None:
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

    if TIER not in getattr(SecondaryTierFactory, "_registry", ()):
        SecondaryTierFactory.register_tier(TIER, "ucmfs.vllm.tier",
                                           "UcmfsTier")
