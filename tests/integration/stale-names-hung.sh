#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A program hangs while it makes a file in a bucket, and has the kernel's lock of that
# folder. A block of it goes, whose name the kernel cannot forget meanwhile; a
# block of another bucket goes, and its name is forgotten at once. Then the daemon is
# to end. The program hangs as the tier is another mount, whose daemon is stopped.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse python3
# whoever looks for leaks stops all threads first, and one hangs in the kernel
ASAN_OPTIONS=detect_leaks=0
export ASAN_OPTIONS

# evict PATH: as a program does that makes room
evict() {
	evict_id=${1##*/}
	echo "${evict_id%.bin}" |
		timeout 20 python3 "$top_srcdir/tests/lib/control.py" "$mnt" evict
}

# The lock is held for as long as the request waits.
hangs() {
	grep -q request_wait_answer "/proc/$hung_pid/stack"
}

mkdir -p "$work/server" "$work/other"
mnt=$work/server
# Over io_uring the kernel gives requests to a server that is stopped, and waits for
# the answers where no signal reaches: a process could not end before that.
need do_mount -o io_uring=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung"
mnt=$work/mnt
need do_mount "$work/other"
need mk "$mnt/blocks"
do_umount
# Over io_uring a directory that hangs holds up the requests of a processor.
need do_mount -c entry_timeout=3600 -o deadline=10,io_uring=off \
	"hung=$hung:other=$work/other"
one=$(small_paths 1)
other=$(nth_path 2)
check 'two blocks of two buckets' test "${one%/*}" != "${other%/*}"
need index_is_complete
check 'the kernel knows one' stat "$mnt/blocks/$one"
check 'and the other' stat "$mnt/blocks/$other"

need freeze "$(cat "$work/run/server.pid")"
sh -c 'echo x >"$1"' sh "$mnt/blocks/${one%.bin}.tmp" 2>"$work/hung.out" &
hung_pid=$!
check 'a program hangs in a bucket' wait_until hangs
same 'a block of that bucket goes' 0 "$(evict "$one")"
same 'and one of another' 0 "$(evict "$other")"
check 'which is forgotten' wait_until is_absent "$mnt/blocks/$other"
check 'the program hangs still' hangs

since=$(date +%s)
do_umount TERM
took=$(($(date +%s) - since))
check "the end waits for nothing but the deadline, $took s" test $took -lt 25
wait "$hung_pid"
need let_go
mnt=$work/server
do_umount
