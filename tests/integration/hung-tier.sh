#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A directory on a file server that stops answering, also for reads: a call ends
# at the deadline, those after it at once; the other tier goes on; and what the
# server answers too late leaves nothing open. The server is another mount here,
# whose daemon is stopped.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse getfattr

# Of the daemon's descriptors those on the server.
descriptors() {
	find "/proc/$(daemon_pid)/fd" -lname "$hung*" | wc -l
}

are_closed() {
	[ "$(descriptors)" = "$before" ]
}

# ends 'what' command...: somehow
ends() {
	ends_what=$1
	shift
	timeout 60 "$@" >/dev/null 2>&1
	check "$ends_what ends" test $? != 124
}

# The reads of all blocks at once: each is in the server's hands when the first
# one is given up.
read_all_at_once() {
	readers=
	for path in $(small_paths 16); do
		timeout 60 cat "$mnt/blocks/$path" >/dev/null 2>&1 &
		readers="$readers $!"
	done
	for reader in $readers; do
		wait "$reader"
		[ $? = 1 ] || return 1
	done
}

# One after the other.
read_all() {
	for path in $(small_paths 16); do
		! cat "$mnt/blocks/$path" || return 1
	done
}

mkdir -p "$work/server" "$work/other"
mnt=$work/server
# Over io_uring the kernel gives requests to a server that is stopped, and waits for
# the answers where no signal reaches: a process could not end before that.
need do_mount -o io_uring=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung/blocks"
need mk "$hung/blocks"
mnt=$work/mnt
need do_mount -o deadline=1 "other=$work/other:hung=$hung"
need mk --start 16 --count 4 "$mnt/blocks"
need verify --count 20 "$mnt/blocks"
same 'blocks are in both' '4 16' \
	"$(blocks_in "$work/other/blocks") $(blocks_in "$hung/blocks")"
before=$(descriptors)
one=$(small_paths 1)

need freeze "$(cat "$work/run/server.pid")"
check 'sixteen readers are sent away' read_all_at_once
logged "$hung: no answer in 1000 ms"
since=$(date +%s)
check 'sixteen more, one by one' read_all
took=$(($(date +%s) - since))
check "they do not wait a second each, $took in all" test $took -lt 8
for command in 'stat' 'stat -f' 'rm' 'getfattr -d'; do
	# shellcheck disable=SC2086 # a command with an option
	ends "$command" $command "$mnt/blocks/$one"
done
ends 'ls' ls "$mnt/blocks/${one%/*}"
ends 'mkdir' mkdir "$mnt/files/folder"

check 'the other tier is read' \
	timeout 60 "$mkblocks" --quiet --layers 2 --heads 1 --dim 16 --tokens 16 \
	--start 16 --count 4 --verify "$mnt/blocks"

need let_go
check 'what came too late is closed' wait_until are_closed
check 'blocks are read again' \
	wait_until verify --start 1 --count 15 "$mnt/blocks"
do_umount
mnt=$work/server
do_umount
