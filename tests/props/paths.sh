#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# paths.sh - paths of the block tree are spelt in one place: paths.py
set -u
: "${top_srcdir:?}"

command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
exec python3 "$top_srcdir/tests/props/paths.py"
