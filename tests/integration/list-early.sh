#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A bucket that is listed before the scan has come to it is listed in full.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

# Without its tracer the daemon goes on.
let_go() {
	tracer=$(sed -n 's/^TracerPid:[[:space:]]*//p' \
		"/proc/$(cat "$work/run/mnt.pid")/status" 2>/dev/null)
	[ "${tracer:-0}" = 0 ] || kill -KILL "$tracer"
}

start_test root fuse strace

# In all buckets but the one that the scan is held in.
names() {
	find "$1" -path "$1/01" -prune -o -name '*.bin' -printf '%P\n' | sort
}

# The one thread of the scan takes the buckets in their order. The start itself
# reads the first one that has a block.
mkdir "$work/tier/blocks"
need mk --bucket 0 --count 1 "$work/tier/blocks"
need mk --bucket 1 --count 4 "$work/tier/blocks"
need mk "$work/tier/blocks"
ucmfs_wrapper="strace -D -f -q -o $work/trace -e trace=getdents64
	-P $work/tier/blocks/01 -e inject=getdents64:delay_enter=1000000000"
need do_mount -c threads=1 "$work/tier"
same 'all names are there' "$(names "$work/tier/blocks")" \
	"$(names "$mnt/blocks")"
check 'though the scan has not come so far' \
	grep -q '"complete": false' "$mnt/.ucmfs/stats.json"
let_go
check 'it goes on' wait_until index_is_complete
same 'and finds the others' 21 "$(stat_of blocks)"
same 'which are listed' 21 "$(blocks_in "$mnt/blocks")"
do_umount
