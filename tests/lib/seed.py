# SPDX-License-Identifier: Apache-2.0
"""seed.py - what all random input of a run follows from: another number each
time, unless the environment has it, as UCMFS_TEST_SEED. A program that imports
this says it, and passes it on to those that it starts."""

import os

SEED = int(os.environ.get("UCMFS_TEST_SEED") or
           str(int.from_bytes(os.urandom(4), "little")), 0)
os.environ["UCMFS_TEST_SEED"] = str(SEED)
print(f"# UCMFS_TEST_SEED={SEED}", flush=True)
