#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# durability=data syncs a block before its commit, full its directory as well,
# none does neither.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse strace

trace_for() {
	ucmfs_wrapper="strace -D -f -q -y -o $work/trace.$1"
	ucmfs_wrapper="$ucmfs_wrapper -e trace=fsync,fdatasync,linkat"
	mkdir "$work/tier.$1"
	need do_mount -c checkpoint=0 -o "durability=$1" "$work/tier.$1"
	need mk --count 10 "$mnt/blocks"
	do_umount
	# the tracer ends behind the daemon
	need wait_until tail_is_there "$work/trace.$1"
}

tail_is_there() {
	grep -q 'exited with' "$1"
}

# calls NAME LEVEL PATTERN
calls() {
	grep "$1(" "$work/trace.$2" | grep -c "$3"
}

trace_for none
trace_for data
trace_for full
same 'none: no block is synced' 0 "$(calls fdatasync none .ucmfs/tmp/)"
same 'data: each is' 10 "$(calls fdatasync data .ucmfs/tmp/)"
same 'data: no bucket' 0 "$(calls fsync data "/blocks/")"
same 'full: each block is' 10 "$(calls fdatasync full .ucmfs/tmp/)"
check 'full: and each bucket' test "$(calls fsync full "/blocks/..>")" -ge 10
check 'data: every sync comes before its link' awk '
	/fdatasync\(.*= 0|fdatasync resumed.*= 0/ { synced++ }
	/linkat\(.*\.bin/ { if (++linked > synced) exit 1 }
	END { exit !linked }' "$work/trace.data"
