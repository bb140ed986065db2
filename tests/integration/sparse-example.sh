#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The example of doc/tour.md that attends to the blocks that matter says on a mount
# what doc/tour.md says that it says, also where the blocks are there already.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test sparse root fuse python
"$python" -c 'import numpy' 2>/dev/null || skip "$python has no numpy"

section='/^## Attend to the blocks that matter$/,/^## Watch it$/'
sed -n "$section{/^\`\`\`python$/,/^\`\`\`$/p}" "$top_srcdir/doc/tour.md" |
	grep -v '^```' >"$work/attend.py"
sed -n "$section{/^[$] python3 attend.py/,/^\`\`\`$/p}" "$top_srcdir/doc/tour.md" |
	grep -v '^[$`]' >"$work/want"
need grep -q 'sparse.select' "$work/attend.py"
need grep -q 'of the attention dropped' "$work/want"

attend() {
	env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$top_srcdir/python" \
		UCMFS_LIBRARY="$top_builddir/.libs/libucm.so" \
		timeout 120 "$python" -W error "$work/attend.py" "$@"
}

need do_mount "$work/tier"
for times in 1 2; do
	attend "$mnt" >"$work/out" 2>&1
	same "run $times: status" 0 $?
	same "run $times" "$(cat "$work/want")" "$(cat "$work/out")"
	same 'blocks in the mount' 64 "$(find "$mnt/spaces" -name '*.bin' | wc -l)"
done
do_umount
refused 'is ucmfs mounted there?' 'no mount of ucmfs' attend "$mnt"
