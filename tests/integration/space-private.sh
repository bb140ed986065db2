#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A space made with mode 0700 is its owner's alone: others can neither list
# nor open nor look up what is in it; so after a remount.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setpriv

as_other() {
	setpriv --reuid=1234 --regid=1234 --clear-groups "$@"
}

closed_to_others() {
	refused 'Permission denied' 'another cannot list it' as_other ls "$s"
	refused 'Permission denied' 'nor a bucket' as_other ls "$s/${path%/*}"
	refused 'Permission denied' 'nor read a block' as_other cat "$s/$path"
	refused 'Permission denied' 'nor ask for one' as_other stat "$s/$path"
	refused 'Permission denied' 'nor for one that is not there' \
		as_other stat "$s/$other"
	refused 'Permission denied' 'nor put one in' \
		as_other dd if="$work/src/$other" of="$s/$other"
	check 'the owner reads' as_nobody cmp "$work/src/$path" "$s/$path"
	same 'mode and owner' '700 65534:65534' "$(stat -c '%a %u:%g' "$s")"
	same 'and of a block' '600 65534:65534' "$(stat -c '%a %u:%g' "$s/$path")"
}

path=$(small_paths 1)
other=$(nth_path 2)
s=$mnt/spaces/mine
make_src
as_nobody test -r "$work/src/$path" ||
	skip "$work cannot be reached by other users"
need do_mount -o allow_other "$work/tier"
same 'anyone may make a space' 1777 "$(stat -c %a "$mnt/spaces")"
check 'one does, for himself' as_nobody mkdir -m 700 "$s"
check 'and puts a block in' as_nobody dd if="$work/src/$path" of="$s/$path"
closed_to_others
refused 'Operation not permitted' 'another cannot remove it' as_other rmdir "$s"
refused 'Operation not permitted' 'nor open it' as_other chmod 755 "$s"
do_umount
refused 'Permission denied' 'nor get at it behind the mount' \
	as_other ls "$work/tier/spaces/mine"

need do_mount -o allow_other "$work/tier"
closed_to_others
check 'the owner opens it' as_nobody chmod 755 "$s"
check 'then others read' as_other cmp "$work/src/$path" "$s/$path"
do_umount
