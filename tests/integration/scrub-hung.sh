#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A scrub of a directory on a file server that stops answering leaves it out after
# the deadline of network file systems, reads the others to their end, and says so.
# The server is another mount here, whose daemon is stopped.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse
# Whoever looks for leaks stops all threads first, and one of them hangs.
ASAN_OPTIONS=detect_leaks=0
export ASAN_OPTIONS

mkdir -p "$work/server" "$work/other"
mnt=$work/server
# Over io_uring the kernel gives requests to a server that is stopped, and waits for
# the answers where no signal reaches: a process could not end before that.
need do_mount -o io_uring=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung/blocks"
need mk --count 24 "$hung/blocks"
need mkdir -p "$work/other/blocks"
need mk --start 24 --count 8 "$work/other/blocks"
mnt=$work/mnt
need do_mount -o deadline=1 "other=$work/other:hung=$hung"
check 'the index is whole' wait_until index_is_complete

"$ucm" scrub --rate 32K --state "$work/mark" "$mnt" \
	>"$work/said" 2>"$work/err" &
scrub=$!
keep_pid $scrub
check 'some of it is read' wait_until test -f "$work/mark"
# Who reads stands still first: a request that the server has taken when it stops
# is waited for where no signal reaches either.
need freeze $scrub
need freeze "$(cat "$work/run/server.pid")"
kill -CONT $scrub
wait $scrub
same 'it ends, and not all was read' 1 $?
forget_pid $scrub
check 'it says what was left out' grep -qF "$hung: left out from here on" "$work/err"
check 'why' grep -qF 'Connection timed out' "$work/said" "$work/err"
check 'nothing was called damaged' sh -c "! grep -q damaged '$work/said'"
need let_go
check 'then all is read' sh -c '"$1" scrub --rate 0 --state "$2/mark" "$2/mnt" >"$2/said"' sh "$ucm" "$work"
check 'and good' grep -q '^32 blocks: 32 intact' "$work/said"
do_umount
mnt=$work/server
do_umount
