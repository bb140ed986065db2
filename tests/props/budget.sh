#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# budget.sh - the tree is no larger than budget.txt allows.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
[ -x "$top_builddir/ucmfs" ] || { echo "SKIP: ucmfs has not been built"; exit 77; }
exec python3 -B "$top_srcdir/tests/props/budget.py" "$top_srcdir" "$top_builddir"
