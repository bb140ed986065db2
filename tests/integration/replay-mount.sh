#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm trace replay plays what a mount has recorded (trace=FILE).

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

trace=$work/trace

# figures CAPACITY: hit rate and writes of LRU
figures() {
	"$ucm" trace replay "$trace" --json -c "$1" -p lru |
		sed 's/[{}"]//g; s/,/ /g; s/[a-z_]*://g' |
		awk '{ printf "%.4f %.4f\n", $3, $4 }'
}

need do_mount -c trace_size=64K,entry_timeout=0 -o "trace=$trace" "$work/tier"
need mk --count 4 "$mnt/blocks"
same 'what was written is asked for once' '0.0000 1.0000' "$(figures 4)"
# another process: another request, for the same blocks
need verify --count 4 "$mnt/blocks"
need wait_until sh -c '"$1" trace "$2" | grep -c release | grep -qx 8' sh \
	"$ucm" "$trace"
same 'what was read is asked for again' '0.5000 0.5000' "$(figures 4)"
same 'with room for half, the head has gone' '0.0000' \
	"$(figures 2 | cut -d' ' -f1)"
