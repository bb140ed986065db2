# SPDX-License-Identifier: Apache-2.0
"""UcmfsBlendConnector: UcmfsConnector, and text that was cached elsewhere in a
prompt; see blend.py. doc/engines.md says what it is good for."""

from __future__ import annotations

from .blend import BlendOptions, BlendScheduler
from .blend_worker import BlendWorker
from .connector import UcmfsConnector


class UcmfsBlendConnector(UcmfsConnector):
    """See UcmfsConnector."""

    _parts = BlendOptions, BlendScheduler, BlendWorker
