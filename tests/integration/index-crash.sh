#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The daemon is killed while it inserts blocks, at a random moment, and readers
# have its index mapped. Up to then they find every acknowledged block, whole, and
# none that nobody wrote; then they notice, and do not hang.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

random_below() {
	echo $(($(od -An -N2 -tu2 /dev/urandom) % $1))
}

# start SEED...: a writer and a reader for each
start() {
	writers=
	readers=
	for seed; do
		: >"$work/acked$seed"
		mk --count 20000 --seed "$seed" --print "$mnt/blocks" \
			>"$work/acked$seed" 2>/dev/null &
		writers="$writers $!"
		keep_pid $!
		index_ask follow "$mnt" '' "$work/acked$seed" \
			>"$work/reader$seed" 2>&1 &
		readers="$readers $!"
		keep_pid $!
		need wait_until test -s "$work/reader$seed"
	done
}

acknowledged_reach() {
	[ "$(cat "$work"/acked* | wc -l)" -ge "$1" ]
}

sum=0
cycle=0
while [ $cycle -lt 12 ]; do
	cycle=$((cycle + 1))
	rm -rf "$work/tier" "$work"/acked* "$work"/reader?
	need mkdir "$work/tier"
	need do_mount "$work/tier"
	start 1 2
	need wait_until acknowledged_reach $((20 + $(random_below 400)))
	crash_daemon
	for reader in $readers; do
		reap "$reader"
		same 'a reader notices, and has seen nothing wrong' 0 "$reaped"
	done
	for writer in $writers; do
		reap "$writer"
	done
	sed "/^following/d; s/^/cycle $cycle: /" "$work"/reader?
	refused 'Transport endpoint is not connected' 'none can be opened now' \
		index_ask ask "$mnt"
	umount -l "$mnt"
	sum=$((sum + $(cat "$work"/acked* | wc -l)))

	need do_mount "$work/tier"
	need wait_until index_is_complete
	need wait_until stat_is in_doubt 0 # blocks are checked after a crash
	for seed in 1 2; do
		index_ask ask "$mnt" <"$work/acked$seed" | tail -n 1 \
			>"$work/answers"
		check 'a new reader finds what was acknowledged' \
			sh -c '! grep -q "[n?]" "$1"' sh "$work/answers"
	done
	do_umount
done
[ $sum -ge 500 ] || die "$sum blocks acknowledged: that proves nothing"
