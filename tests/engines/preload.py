# SPDX-License-Identifier: Apache-2.0
"""preload.py - what each start of the engine imports, imported once.

Imported by the server from which the processes of test files (run) and of
engines (suite.py) are forked; it takes longer than all the rest of a start.
"""

import gc

import generate

generate.set_environment()

import vllm  # noqa: E402, F401
import vllm.v1.core.sched.scheduler  # noqa: E402, F401
import vllm.v1.engine.llm_engine  # noqa: E402, F401
import vllm.v1.worker.cpu_worker  # noqa: E402, F401
import vllm.model_executor.models.llama  # noqa: E402, F401

# Forks share it, and the connector looks for its engine among what is not frozen
# (650 000 objects otherwise).
gc.freeze()
