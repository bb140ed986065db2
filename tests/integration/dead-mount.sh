#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A daemon that was killed leaves a dead mount; the next one on the same mount
# point detaches it, also while somebody has a file of it open, and where the
# daemon died before the kernel had heard from it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

is_dead() {
	stat "$mnt/blocks/00" 2>&1 >/dev/null |
		grep -q 'Transport endpoint is not connected'
}

path=$(small_paths 1)
need do_mount "$work/tier"
need mk "$mnt/blocks"
crash_daemon
check 'a new daemon takes its place at once' do_mount "$work/tier"
check 'and serves' verify "$mnt/blocks"
exec 5<"$mnt/blocks/$path"
crash_daemon
check 'the mount is dead' wait_until is_dead
check 'a new daemon takes its place, in spite of an open file' \
	do_mount "$work/tier"
check 'and serves' verify "$mnt/blocks"
exec 5<&-
do_umount

mkfifo "$work/hold" "$work/said"
python3 "$top_srcdir/tests/lib/refused_init.py" "$mnt" \
	<"$work/hold" >"$work/said" &
refused_pid=$!
keep_pid $refused_pid
exec 6>"$work/hold"
read -r said <"$work/said"
same 'a server whose first answer fails' ready "$said"
refused 'Connection refused' 'its mount answers nobody' stat -f "$mnt"
check 'a new daemon takes its place as well' do_mount "$work/tier"
check 'and serves' verify "$mnt/blocks"
do_umount
exec 6>&-
reap $refused_pid
same 'that server ends' 0 "$reaped"
same 'no mount is left below' 0 "$(grep -c " $mnt " /proc/self/mountinfo)"
check 'the mount point is an empty directory' rmdir "$mnt"
