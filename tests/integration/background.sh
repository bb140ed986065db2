#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# In the background: the same service, with deadlines (whose threads a fork
# would not copy) and a mount point that was given as a relative path.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# The daemon that was given these arguments, in $pid.
find_daemon() {
	pid=
	for proc in /proc/[0-9]*; do
		tr '\0' ' ' <"$proc/cmdline" | grep -q -F -- "$*" &&
			grep -q "^PPid:[[:space:]]*1$" "$proc/status" &&
			pid=${proc#/proc/}
	done 2>/dev/null
	[ -n "$pid" ]
}

is_unmounted() {
	! is_mounted
}

cd "$work" || exit 1
need "$ucmfs" -o deadline=3 tier mnt
cd / || exit 1
check 'blocks are written' timeout 30 "$mkblocks" --quiet --layers 2 --heads 1 \
	--dim 16 --tokens 16 --count 4 "$mnt/blocks"
check 'and read' mk --count 4 --verify "$mnt/blocks"
need find_daemon "$ucmfs" -o deadline=3 tier mnt
keep_pid "$pid"
same 'it is nobody else in /' / "$(readlink "/proc/$pid/cwd")"
need kill -TERM "$pid"
check 'SIGTERM unmounts' wait_until is_unmounted
forget_pid "$pid"

wait_until is_gone "$pid"
need mkdir "$work/tier/.ucmfs/state.new" # where the state would be written
refused 'Is a directory' 'a start that fails has its exit status' \
	"$ucmfs" "$work/tier" "$mnt"
check 'and leaves nothing mounted' is_unmounted
rmdir "$work/tier/.ucmfs/state.new"

# A fork copies one thread, and the locks of all, the allocator's too.
if may_try 'the fork comes before all threads' strace; then
	need env ASAN_OPTIONS=detect_leaks=0 strace -D -f -o "$work/calls" \
		-e trace=clone,clone3,fork,vfork \
		"$ucmfs" -o deadline=3 "$work/tier" "$mnt"
	check 'it has threads' grep -q CLONE_THREAD "$work/calls"
	sed '/CLONE_THREAD/q' "$work/calls" >"$work/first"
	check 'the fork comes before all threads' grep -q SIGCHLD "$work/first" ||
		sed 's/^/  | /' "$work/first"
	need umount "$mnt"
fi

# whose start waits for another
need do_mount "$work/tier"
exec 8<"$mnt/.ucmfs/stats.json"
need umount -l "$mnt"
mkdir "$work/mnt2"
"$ucmfs" "$work/tier" "$work/mnt2" 2>"$work/said" 8<&- &
start=$!
keep_pid $start
check 'a start waits' \
	wait_until grep -q 'waiting for another ucmfs' "$work/said"
children=$(cat /proc/$start/task/*/children)
need kill -KILL $start
for child in $children; do
	check 'who is killed waiting takes the daemon along' \
		wait_until is_gone "$child"
done
check 'there was one' test -n "$children"
exec 8<&-

refused 'ready-fd 77: it must be open' 'READY=1 is for nobody' \
	"$ucmfs" -o ready-fd=77 "$work/tier" "$mnt"
refused 'above 2 without -f' 'or would go to /dev/null' \
	"$ucmfs" -o ready-fd=1 "$work/tier" "$mnt"

# what is opened first would be what is written to instead
check 'without standard input, output and error' \
	"$ucmfs" "$work/tier" "$mnt" <&- >&- 2>&-
check 'blocks are written' mk --start 4 --count 8 "$mnt/blocks"
check 'and read' mk --start 4 --count 8 --verify "$mnt/blocks"
need find_daemon "$ucmfs" "$work/tier" "$mnt"
keep_pid "$pid"
need umount "$mnt"
check 'it ends' wait_until is_gone "$pid"
