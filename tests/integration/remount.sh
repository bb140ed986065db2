#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A clean remount changes nothing that a user can see: names, inode numbers,
# sizes, times, pins.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setfattr

facts() {
	find "$mnt/blocks" "$mnt/spaces" \( -type f -o -type d \) \
		-printf '%p %i %s %b %m %U:%G\n' | sort
	find "$mnt/blocks" "$mnt/spaces" -type f -printf '%f %T@\n' | sort
}

need do_mount "$work/tier"
need mk "$mnt/blocks"
need mkdir "$mnt/spaces/one"
need mk --count 4 "$mnt/spaces/one"
path=$(small_paths 1)
same 'inode numbers differ' 20 "$(find "$mnt/blocks" "$mnt/spaces" -type f \
	-printf '%i\n' | sort -u | wc -l)"
need setfattr -n user.ucmfs.pinned -v 1 "$mnt/blocks/$path"
need setfattr -n user.ucmfs.pinned -v 1 "$mnt/spaces/one/$path"
was=$(facts)
do_umount
check 'the directory is called clean' \
	grep -qx clean=1 "$work/tier/.ucmfs/state"

need do_mount "$work/tier"
same 'all is as it was' "$was" "$(facts)"
check 'the pin is there' wait_until test \
	"$(xattr pinned "$mnt/blocks/$path")" = 1
same 'in the space as well' 1 "$(xattr pinned "$mnt/spaces/one/$path")"
other=$(nth_path 2)
same 'another block is not pinned' 0 "$(xattr pinned "$mnt/blocks/$other")"
check 'every byte is' verify "$mnt/blocks"
same 'nothing was in doubt' 0 "$(stat_of doubts_settled)"
do_umount
