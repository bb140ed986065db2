# SPDX-License-Identifier: Apache-2.0
"""The version: that of ucmfs as configure.ac has it (a test compares)."""

__version__ = "0.1.0"
