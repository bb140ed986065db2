#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The daemon is killed while blocks are written, at a random moment, again and
# again. After a remount no acknowledged block is missing and none is half.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

random_below() {
	echo $(($(od -An -N2 -tu2 /dev/urandom) % $1))
}

acknowledged() {
	wc -l <"$work/acked"
}

acknowledged_reach() {
	[ "$(acknowledged)" -ge "$1" ] || is_gone "$writer"
}

sum=0
cycle=0
while [ $cycle -lt 10 ]; do
	cycle=$((cycle + 1))
	method=create
	[ $((cycle % 2)) = 0 ] || method=rename
	need mkdir "$work/tier$cycle"
	: >"$work/acked"
	need do_mount "$work/tier$cycle"
	mk --count 100000 --seed $cycle --method $method --chunk 3000 --print \
		"$mnt/blocks" >"$work/acked" 2>"$work/writer.err" &
	writer=$!
	keep_pid $writer
	goal=$((15 + $(random_below 60)))
	need wait_until acknowledged_reach $goal
	kill_daemon
	reap $writer
	acked=$(acknowledged)
	echo "cycle $cycle: $acked blocks acknowledged, aim was $goal;" \
		"the writer: $(cat "$work/writer.err")"
	sum=$((sum + acked))

	need do_mount "$work/tier$cycle"
	seen=$(blocks_in "$mnt/blocks")
	check 'no acknowledged block is lost' verify --seed $cycle \
		--count "$acked" "$mnt/blocks"
	# one may have been committed and not been told of
	check 'all that is seen is whole' verify --seed $cycle \
		--count "$seen" "$mnt/blocks"
	check 'no more is there than was written' \
		test "$seen" -le $((acked + 1))
	no_debris "$work/tier$cycle"
	same 'nothing had to be set aside' 0 "$(stat_of quarantined)"
	do_umount
done
[ $sum -ge 100 ] || die "$sum blocks acknowledged: that proves nothing"
