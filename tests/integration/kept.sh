#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The files of blocks that were closed a moment ago stay open, and yet nothing
# that was removed, changed or lost is served, and its room comes back.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# held: the daemon's descriptors of blocks' files, "17 3f/3f….bin" each
held() {
	for held_fd in /proc/"$(daemon_pid)"/fd/*; do
		held_path=$(readlink "$held_fd") || continue
		case $held_path in
		"$work"/tier/blocks/*) ;;
		"$work"/tier/.ucmfs/quarantine/*) ;;
		*) continue ;;
		esac
		echo "${held_fd##*/} ${held_path#"$work"/tier/blocks/}"
	done
}

held_number() {
	held | wc -l
}

held_is() {
	[ "$(held_number)" = "$1" ]
}

holds() {
	held | grep -qF "$1"
}

holds_all() {
	for holds_path; do
		holds "$holds_path" || return 1
	done
}

holds_not() {
	! holds "$1"
}

# RELEASE comes after close(2) has returned.
read_blocks() {
	for read_path; do
		cmp "$work/tier/blocks/$read_path" "$mnt/blocks/$read_path" ||
			fail "$read_path is not what the tier has"
	done
	wait_until holds "$read_path"
}

need do_mount "$work/tier"
need mk "$mnt/blocks"
# shellcheck disable=SC2046 # a list
read_blocks $(small_paths 16)
check 'the files of closed blocks stay open' wait_until held_is 16
held >"$work/before"
check 'they are read again' verify "$mnt/blocks"
check 'by the same descriptors' wait_until held_is 16
held >"$work/after"
check 'and no other' cmp "$work/before" "$work/after"

gone=$(nth_path 1)
need rm "$mnt/blocks/$gone"
check 'one that is removed is closed at once' holds_not "$gone"
absent "$mnt/blocks/$gone"
gone=$(nth_path 2)
check 'one is evicted' "$ucm" evict --mount "$mnt" \
	"$(basename "$gone" .bin)"
check 'it is closed at once' holds_not "$gone"
absent "$mnt/blocks/$gone"

gone=$(nth_path 3)
need rm "$work/tier/blocks/$gone"
refused 'No such file or directory' 'one that was removed in the tier' \
	cat "$mnt/blocks/$gone"
check 'is let go' holds_not "$gone"

cut=$(nth_path 4)
need truncate -s 5000 "$work/tier/blocks/$cut"
refused 'No such file or directory' 'one that was cut short there' \
	cat "$mnt/blocks/$cut"
check 'is closed' holds_not "$cut"
same 'and in quarantine' 1 "$(find "$work/tier/.ucmfs/quarantine" -type f |
	wc -l)"
check 'of which nothing is open' holds_not "${cut##*/}"
check 'it is written again' mk --existing-ok --start 3 --count 1 "$mnt/blocks"
read_blocks "$cut"

other=$(nth_path 5)
need cp "$work/tier/blocks/$other" "$work/copy"
need mv "$work/copy" "$work/tier/blocks/$other"
read_blocks "$other"
check 'another file of that name is the one that is open' \
	sh -c 'ls -l /proc/$1/fd | grep -F "$2" | grep -qv deleted' sh \
	"$(daemon_pid)" "$other"
check 'and it alone' \
	sh -c '! ls -l /proc/$1/fd | grep -F "$2" | grep -q deleted' sh \
	"$(daemon_pid)" "$other"

open=$(nth_path 6)
exec 5<"$mnt/blocks/$open"
need rm "$mnt/blocks/$open"
check 'one that is open is read to its end' test "$(wc -c <&5)" = $small_size
exec 5<&-
check 'and closed after that' wait_until holds_not "$open"

wait_until held_is 0
check 'some seconds later they are let go' wait_until held_is 0
check 'they are read once more' verify --start 6 --count 10 "$mnt/blocks"
check 'and kept' wait_until held_is 10
do_umount

need do_mount -c keep_open=4 "$work/tier"
check 'no more are kept than the option says' verify --start 6 --count 10 \
	"$mnt/blocks"
check 'of those read last' wait_until test -n "$(held)"
check 'four at most' test "$(held_number)" -le 4
do_umount

need do_mount -c keep_open=0 "$work/tier"
check 'and none' verify --start 6 --count 10 "$mnt/blocks"
check 'where it says so' wait_until held_is 0
do_umount

# 64 descriptors: a quarter of them is kept at most, and none while they are
# wanted for files that are open
ucmfs_wrapper='prlimit --nofile=64:64'
need do_mount -c threads=2 "$work/tier"
ucmfs_wrapper=
need mk --start 20 --count 60 "$mnt/blocks"
check 'with few descriptors all are read' verify --start 20 --count 60 \
	"$mnt/blocks"
check 'fewer are kept' test "$(held_number)" -le 16
holders=
paths=$(small_paths 79 | tail -n 32)
for path in $paths; do
	sleep 60 <"$mnt/blocks/$path" &
	keep_pid $!
	holders="$holders $!"
done
# shellcheck disable=SC2086 # lists
check 'and half of them can be open at a time' wait_until holds_all $paths
# shellcheck disable=SC2086
kill $holders
for pid in $holders; do
	reap "$pid"
done
do_umount
