# SPDX-License-Identifier: Apache-2.0
"""Storage of engines other than vLLM, a module for each: lmcache, sglang."""
