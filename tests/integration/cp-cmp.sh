#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Blocks copied in with cp are the same blocks, through the mount and behind it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

copy_all() {
	for path in $paths; do
		cp "$work/src/$path" "$mnt/blocks/$path" || return 1
	done
}

compare_all() {
	for path in $paths; do
		cmp "$work/src/$path" "$1/$path" || return 1
	done
}

make_src
paths=$(small_paths 16)
need do_mount "$work/tier"
check 'cp puts blocks in' copy_all
check 'cmp finds them equal' compare_all "$mnt/blocks"
check 'they lie in the directory behind as they are' \
	compare_all "$work/tier/blocks"
check 'every byte can be read' verify "$mnt/blocks"
check 'every byte can be read with O_DIRECT' verify --direct "$mnt/blocks"
same 'as many as were put in' 16 "$(blocks_in "$mnt/blocks")"
no_debris "$work/tier"
do_umount

# the shape of a real model's blocks
need mkdir "$work/large" "$work/mnt2"
mnt=$work/mnt2
need do_mount "$work/large"
check 'blocks of 2 MiB are written' "$mkblocks" --quiet --count 8 "$mnt/blocks"
check 'and read' "$mkblocks" --quiet --count 8 --verify "$mnt/blocks"
check 'and read with O_DIRECT' \
	"$mkblocks" --quiet --count 8 --verify --direct "$mnt/blocks"
do_umount
