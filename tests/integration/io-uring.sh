#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# FUSE over io_uring: the mount promises the same. The module's parameter is set
# for the time of the test.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/core.sh"
start_test root fuse
parameter=/sys/module/fuse/parameters/enable_uring
[ -w $parameter ] || skip 'this kernel has no FUSE over io_uring'
was=$(cat $parameter)
on_exit() {
	echo "$was" >$parameter
}
echo Y 2>/dev/null >$parameter || skip "$parameter cannot be set"

need do_mount -o io_uring=on "$work/tier"
grep -q '"io_uring": true' "$mnt/.ucmfs/stats.json" ||
	skip "$(grep -o 'io_uring off.*' "$log")"
# policies NAME: of the daemon's threads of that name; 3 is SCHED_BATCH
policies() {
	for task in /proc/"$(daemon_pid)"/task/*; do
		case $(cat "$task/comm") in
		$1) sed 's/.*) //' "$task/stat" | cut -d ' ' -f 39 ;;
		esac
	done | sort -u
}
same 'no request takes the processor from a reader' 3 \
	"$(policies 'fuse-ring-*')"
same 'what else the daemon does is scheduled as usual' 0 "$(policies ucmfs)"
core_promises
do_umount
mkdir "$work/tier2"
need do_mount -o io_uring=on,passthrough=off "$work/tier2"
core_promises "$work/tier2"
do_umount TERM
