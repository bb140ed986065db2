#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ucm_in_man.sh - ucm(1) says what ucm COMMAND --help says: ucm_in_man.py
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

command -v python3 >/dev/null || { echo "SKIP: no python3"; exit 77; }
"$top_builddir/ucm" --help | grep -q "^  repr " ||
	{ echo "SKIP: built without sparse"; exit 77; }
exec python3 "$top_srcdir/tests/props/ucm_in_man.py" \
	"$top_builddir/ucm" "$top_srcdir/man/ucm.1"
