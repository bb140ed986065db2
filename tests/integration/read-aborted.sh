#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The kernel may end the daemon's read of a request with ECONNABORTED when the
# mount goes just then: that is a normal end. (Here strace says so, and the mount
# goes by that.)

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse strace

ucmfs_wrapper="strace -D -f -q -o $work/trace -P /dev/fuse -e trace=read,readv,splice
	-e inject=read,readv,splice:error=ECONNABORTED:when=200+"
need do_mount -c threads=1 -o io_uring=off "$work/tier"
ucmfs_wrapper=
pid=$(daemon_pid)

is_over() {
	stat "$mnt/.ucmfs/stats.json" >/dev/null 2>&1
	is_gone "$pid"
}

check 'the daemon ends' wait_until is_over
grep -q 'ECONNABORTED.*INJECTED' "$work/trace" ||
	skip 'strace does not change what the daemon reads'
reap "$pid"
same 'well' 0 "$reaped"
check 'no report of a sanitizer' no_sanitizer_report
check 'nothing is mounted' sh -c '! mountpoint -q "$1"' sh "$mnt"
check 'the directory is clean' grep -qx clean=1 "$work/tier/.ucmfs/state"
