#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# layers.sh - no room knows of one above it: layers.py
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

command -v nm >/dev/null || { echo "SKIP: no nm"; exit 77; }
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
exec python3 "$top_srcdir/tests/props/layers.py"
