#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Four writers at full speed into three tiers that are full, and readers beside
# them: no ENOSPC, no limit passed, nothing wrong. UCMFS_TEST_LONG=1: ten minutes.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
seconds=6
rounds=12 # at most, on a machine that is too slow to fill all tiers in one
[ "${UCMFS_TEST_LONG:-0}" = 0 ] || {
	seconds=600
	rounds=6
}
: "${UCMFS_TEST_TIMEOUT:=$((2 * rounds * seconds + 120))}" # two modes
start_test root fuse python3

metric() {
	sed -n "s/^$1{.*$2.*} //p" "$mnt/.ucmfs/metrics" | head -n 1
}

some_are_evicted() {
	[ "$(metric ucmfs_tier_evicted_total 'tier="slow"')" -gt 0 ]
}

# write_and_read MODE
write_and_read() {
	check "$1: four writers, three readers" env WORK="$work" \
		python3 "$top_srcdir/tests/lib/tier_load.py" "$mkblocks" "$mnt" \
		"$seconds" 4 3 "$work/a=$((2 << 20))" "$work/b=$((4 << 20))" \
		"$work/c=$((8 << 20))"
	sed 's/^/  | /' "$work/check.out"
}

mkdir "$work/a" "$work/b" "$work/c"
for mode in stay back; do
	need do_mount -o \
		"limit=fast:2M,limit=mid:4M,limit=slow:8M,write=fast:$mode" \
		"fast=$work/a:mid=$work/b:slow=$work/c"
	round=1
	write_and_read $mode
	until some_are_evicted || [ $round -eq $rounds ]; do
		round=$((round + 1))
		write_and_read $mode
	done
	for tier in fast mid; do
		check "$mode: blocks went down from $tier" test \
			"$(metric ucmfs_tier_demoted_total "tier=\"$tier\"")" -gt 0
	done
	check "$mode: and out" some_are_evicted
	do_umount
	no_debris "$work/a" "$work/b" "$work/c"
	need do_mount "fast=$work/a:mid=$work/b:slow=$work/c"
	check "$mode: all that is there is whole" "$ucm" verify -m "$mnt" --all
	do_umount
	rm -rf "$work"/[abc]/blocks
done
