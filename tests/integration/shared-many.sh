#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Four daemons on one shared directory, two of them with clocks that are minutes off, at
# random operations, while one after another is killed and comes back: each read is the
# committed bytes or a miss, all see the same soon after, and nothing of a daemon that
# lives is cleared. UCMFS_TEST_LONG=1: 100 000 operations.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3 unshare
. "$top_srcdir/tests/lib/hosts.sh"

operations=1000
victims='beta late early late beta early'
[ -z "${UCMFS_TEST_LONG-}" ] || {
	operations=25000
	victims="$victims $victims $victims $victims $victims"
}
shift_lib=$work/clock_shift.so
if nm -D "$ucmfs" 2>/dev/null | grep -q '__[at]san' ||
	! ${CC:-cc} -shared -fPIC -o "$shift_lib" "$top_srcdir/tests/lib/clock_shift.c"; then
	left_out 'clocks that are off: needs a C compiler, and no sanitizer'
	shift_lib=
fi

# start NAME: alpha's clock is right, early's and late's are not
start() {
	host=$1
	case $host in
	early) export CLOCK_SHIFT=-600 LD_PRELOAD="$shift_lib" ;;
	late) export CLOCK_SHIFT=600 LD_PRELOAD="$shift_lib" ;;
	esac
	mount_host "$host" "shared@$dir" 5>&-
	unset CLOCK_SHIFT LD_PRELOAD
}

play() {
	python3 -B "$top_srcdir/tests/lib/shared_ops.py" --killed "$work/over" "$work/src" $operations \
		15 "$work/alpha/blocks" "$work/beta/blocks" "$work/early/blocks" \
		"$work/late/blocks"
}

make_src --start 5000 --count 40
for host in alpha beta early late; do
	start $host
done
# what a daemon that lives has not finished yet
need cp "$work/src/$(small_paths 1 --start 5000)" "$work/whole"
exec 5>"$work/alpha/blocks/$(small_paths 1 --start 5000)"
head -c 5000 "$work/whole" >&5

play >"$work/played" 2>&1 5>&- &
player=$!
keep_pid $player
for host in $victims; do
	sleep 0.3
	on $host
	kill_daemon
	start $host
done
: >"$work/over"
wait $player
status=$?
forget_pid $player
same 'each read is the committed bytes or a miss, and all see the same at the end' 0 $status
[ $status = 0 ] || cat "$work/played"

tail -c +5001 "$work/whole" >&5
check "what was begun before all that is committed" eval "exec 5>&-"
for host in beta early late; do
	check "$host has it" within_s 5 \
		cmp "$work/whole" "$work/$host/blocks/$(small_paths 1 --start 5000)"
done
check 'the hearts of those that live are there' test "$(hearts)" -ge 4
[ -z "${UCMFS_TEST_LONG-}" ] ||
	check 'and those of the killed are removed' within_s 40 has_hearts 4
same 'none that lives was taken for dead' 0 \
	"$(cat "$work"/log.* | grep -c 'taken this one for dead')"
same 'no name was set aside' 0 \
	"$(find "$dir/.ucmfs/quarantine" -type f | wc -l)"
unmount_hosts alpha beta early late
exit $failed
