#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# FUSE over io_uring: the mount promises the same. The module's parameter is set
# for the time of the test. A daemon that starts in the moment in which it is
# switched off serves over /dev/fuse, and ends well.

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

# The kernel has offered the rings when the daemon says that it is ready, and
# asks the parameter once more when it gets the answer, half a second later.
if [ "$transport" = on ]; then
	echo 'SKIP: switched off in between: other tests need it to stay on'
	exit $failed
fi
(require_strace) || exit $failed
require_strace
# shellcheck disable=SC2034 # read by do_mount
ucmfs_wrapper='strace -D -f -qq -o /dev/null
	-e trace=write -e inject=write:delay_exit=500000'
mkdir "$work/tier3"
need do_mount -o io_uring=on "$work/tier3"
echo N >$parameter
core_promises "$work/tier3"
do_umount
logged 'io_uring off: it was switched off while this mount began'
