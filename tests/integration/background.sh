#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# In the background: the same service, with deadlines (whose threads a fork
# does not copy) and a mount point that was given as a relative path.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse no_tsan

is_unmounted() {
	! is_mounted
}

cd "$work" || exit 1
need "$ucmfs" -o deadline=3 tier mnt
cd / || exit 1
check 'blocks are written' timeout 30 "$mkblocks" --quiet --layers 2 --heads 1 \
	--dim 16 --tokens 16 --count 4 "$mnt/blocks"
check 'and read' mk --count 4 --verify "$mnt/blocks"
for proc in /proc/[0-9]*; do
	[ "$(readlink "$proc/cwd")" = / ] &&
		tr '\0' ' ' <"$proc/cmdline" | grep -q -- '-o deadline=3 tier mnt' &&
		pid=${proc#/proc/}
done 2>/dev/null
need test -n "${pid-}"
keep_pid "$pid"
need kill -TERM "$pid"
check 'SIGTERM unmounts' wait_until is_unmounted
forget_pid "$pid"

wait_until is_gone "$pid"
need mkdir "$work/tier/.ucmfs/state.new" # where the state would be written
refused 'Is a directory' 'a start that fails has its exit status' \
	"$ucmfs" "$work/tier" "$mnt"
check 'and leaves nothing mounted' is_unmounted
