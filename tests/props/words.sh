#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# words.sh - the project's private words become fewer: words.py, words.txt
set -u
: "${top_srcdir:?}"
command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
git -C "$top_srcdir" rev-parse >/dev/null 2>&1 ||
	{ echo "SKIP: not a git checkout"; exit 77; }
exec python3 -B "$top_srcdir/tests/props/words.py" "$top_srcdir"
