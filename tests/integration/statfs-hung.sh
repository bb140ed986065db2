#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# df, stats.json and metrics with a tier whose server has stopped: they answer at
# once, with what was seen of it last, before its deadline and after it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse python3
deadline=9

# Of the slow tier and its directory: size and free bytes; and the size for df.
sizes() {
	python3 - "$mnt" <<-'END'
		import json, os, sys
		with open(f"{sys.argv[1]}/.ucmfs/stats.json") as file:
		    slow = json.load(file)["tiers"][1]
		st = os.statvfs(sys.argv[1])
		for one in slow, slow["directories"][0]:
		    print(one["total_bytes"], one["free_bytes"], end=" ")
		print(st.f_blocks * st.f_frsize)
	END
}

free_of_slow() {
	sizes | cut -d ' ' -f 2
}

free_is_less() {
	[ "$(free_of_slow)" -le $((free - (2 << 20))) ]
}

slow_has_gone() {
	grep -q "$hung: no answer" "$log"
}

# looked 'when': all of it, several times
looked() {
	since=$(date +%s)
	for file in stats.json metrics; do
		check "$1: $file can be read" cat "$mnt/.ucmfs/$file"
	done
	check "$1: df ends" df "$mnt"
	same "$1: sizes are those that were seen last" "$before" "$(sizes)"
	took=$(($(date +%s) - since))
	check "$1: in $took s, not after the deadline" \
		test $took -lt $((deadline / 3))
}

mkdir -p "$work/server" "$work/fast"
need mount -t tmpfs -o size=8m tmpfs "$work/fast"
need mount -t tmpfs -o size=16m tmpfs "$work/tier"
mnt=$work/server
# a server that is stopped must not have taken requests over io_uring
need do_mount -o io_uring=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung"
mnt=$work/mnt
# Over io_uring a directory that hangs holds up the requests of a processor.
need do_mount -o "deadline=$deadline,policy=none,files=$hung,io_uring=off" \
	"fast=$work/fast:slow=$hung"
free=$(free_of_slow)
check 'there is room' test "$free" -gt $((4 << 20))
need dd if=/dev/zero of="$work/tier/others" bs=1M count=2 status=none
check 'what others take of it is seen soon' wait_until free_is_less
before=$(sizes)

need freeze "$(cat "$work/run/server.pid")"
looked 'just stopped'
timeout 60 cat "$mnt/files/none" >/dev/null 2>&1 # asks it
check 'it is noticed' slow_has_gone
looked 'noticed'

need let_go
do_umount
mnt=$work/server
do_umount
