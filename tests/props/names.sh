#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# names.sh - no global name has two meanings: names.py
set -u
: "${top_srcdir:?}"

command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
exec python3 "$top_srcdir/tests/props/names.py"
