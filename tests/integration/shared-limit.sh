#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Daemons of several hosts keep the limit of a directory that they share: each evicts
# in its part of it, also one that nobody writes to, and none is refused a save while
# something may go.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setfattr unshare
. "$top_srcdir/tests/lib/hosts.sh"

limit=$((200 * small_size))

takes() {
	find "$dir/blocks" -name '*.bin' -printf '%b\n' |
		awk '{ sum += $1 } END { print sum * 512 }'
}

is_kept() {
	[ "$(takes)" -le "$limit" ]
}

evicted() {
	on "$1"
	metric ucmfs_tier_evicted_total
}

has_evicted() {
	[ "$(evicted "$1")" -gt 0 ]
}

for host in alpha beta idle; do
	mount_host $host -o "limit=tier0:$limit" "shared@$dir"
done
need mk --count 4 "$work/alpha/blocks"
need setfattr -n user.ucmfs.pinned -v 1 "$work/alpha/blocks/$(small_paths 1)"

sleep 5 # until each has seen the others' hearts
for round in 1 2 3 4 5 6 7 8; do
	for host in alpha beta; do
		mk --start $((round * 1000)) --count 60 "$work/$host/blocks" \
			>>"$work/refusals" 2>&1 || echo "$host" >>"$work/refused"
		round=$((round + 100))
	done
	sleep 1
done
check 'no save was refused' test ! -s "$work/refused"
[ ! -s "$work/refused" ] || tail -n 20 "$work/refusals"
check 'the limit is kept' within_s 15 is_kept
check 'much of it is used' test "$(takes)" -ge $((limit / 4))
for host in alpha beta idle; do
	check "$host did its part" within_s 15 has_evicted $host
done
check 'what one has pinned the others have not evicted' \
	test -f "$dir/blocks/$(small_paths 1)"
same 'nothing was set aside' 0 \
	"$(find "$dir/.ucmfs/quarantine" -type f | wc -l)"
unmount_hosts alpha beta idle
exit $failed
