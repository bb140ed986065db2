#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# After a clean end the headers of blocks are not read again; after a crash, at
# whatever moment of the end, they are. All blocks are there in any case.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

count=300
snapshot=$work/tier/.ucmfs/snapshot

# Files whose header the scan has read; the first of a space is read before.
headers_read() {
	grep -c 'fs.scan: .*: block ' "$log"
}

index_whole() {
	grep -q '"complete": true' "$mnt/.ucmfs/stats.json"
}

start() {
	need do_mount -c debug=fs.scan=2 "$work/tier"
	need wait_until index_whole
}

all_there() {
	same "$1: all blocks are there" $count "$(stat_of blocks)"
	check "$1: all are right" verify --count $count "$mnt/blocks"
}

# The file system's clock has left the times of the buckets behind.
buckets_are_old() {
	touch "$work/tier/now"
	newest=$(find "$work/tier/blocks" -type d -printf '%C@\n' | sort -n |
		tail -n 1)
	now=$(stat -c %.Z "$work/tier/now")
	awk -v n="$now" -v b="$newest" 'BEGIN { exit !(n > b + 2.5) }'
}

need mkdir -p "$work/tier/blocks"
need mk --count $count "$work/tier/blocks"
need wait_until buckets_are_old
start
check 'headers are read at first' test "$(headers_read)" -ge $((count - 1))
all_there 'first start'
check 'there is no snapshot while it runs' test ! -e "$snapshot"
do_umount
check 'a clean end leaves one' test -s "$snapshot"
same 'which is for us' 600 "$(stat -c %a "$snapshot")"

start
same 'no header is read after it' 0 "$(headers_read)"
all_there 'second start'
crash_daemon
umount -l "$mnt"

start
check 'all are read after a crash' test "$(headers_read)" -ge $((count - 1))
all_there 'after a crash'
do_umount TERM

need flip "$snapshot" 5000
start
logged '.ucmfs/snapshot: checksum'
all_there 'damaged snapshot'
do_umount

# what an outsider does while nothing is mounted
other=$(nth_path 301)
gone=$(small_paths 1)
torn=$(nth_path 2)
need mk --count 1 --start 300 "$work/tier/blocks"
need rm "$work/tier/blocks/$gone"
need truncate -s 100 "$work/tier/blocks/$torn"
start
check 'a block that came is there' test -e "$mnt/blocks/$other"
absent "$mnt/blocks/$gone"
check 'one that was torn cannot be read' sh -c '! cat "$1"' sh "$mnt/blocks/$torn"
need wait_until is_absent "$mnt/blocks/$torn"
need mk --existing-ok --count 2 "$mnt/blocks"
count=301
all_there 'after an outsider'
do_umount

# killed at any moment of its end
cycle=0
while [ $cycle -lt 15 ]; do
	cycle=$((cycle + 1))
	start
	pid=$(daemon_pid)
	kill -TERM "$pid"
	# some moment, no condition
	sleep "0.0$(printf %02d $(($(od -An -N2 -tu2 /dev/urandom) % 40)))"
	kill -9 "$pid" 2>/dev/null
	reap "$pid"
	umount -l "$mnt" 2>/dev/null
	case $(cat "$work/tier/.ucmfs/state") in
	*clean=1*snapshot=*) check "cycle $cycle: clean, and there is one" \
		test -s "$snapshot" ;;
	*clean=1*) fail "cycle $cycle: clean without a snapshot" ;;
	*) pass "cycle $cycle: not clean" ;;
	esac
done
start
all_there 'after the kills'
same 'nothing was set aside meanwhile' 0 "$(stat_of quarantined)"
do_umount
exit $failed
