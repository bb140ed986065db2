#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A daemon that was killed leaves a dead mount; the next one on the same mount
# point detaches it, also while somebody has a file of it open.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

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
same 'no mount is left below' 0 "$(grep -c " $mnt " /proc/self/mountinfo)"
check 'the mount point is an empty directory' rmdir "$mnt"
