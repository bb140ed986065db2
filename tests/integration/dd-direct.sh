#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dd writes and reads blocks with O_DIRECT.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

shape='--quiet --layers 4 --heads 2 --dim 64 --count 4' # files of 68 KiB

write_all() {
	for path in $paths; do
		dd if="$work/src/$path" of="$mnt/blocks/$path" bs=4096 \
			oflag=direct || return 1
	done
}

read_all() {
	for path in $paths; do
		dd if="$mnt/blocks/$path" of="$work/back" bs=8192 \
			iflag=direct || return 1
		cmp "$work/src/$path" "$work/back" || return 1
	done
}

mkdir "$work/src"
# shellcheck disable=SC2086
need "$mkblocks" $shape "$work/src"
# shellcheck disable=SC2086
paths=$("$mkblocks" $shape --list)
need do_mount "$work/tier"
check 'dd oflag=direct writes blocks' write_all
check 'dd iflag=direct reads them back' read_all
# shellcheck disable=SC2086
check 'so does a reader without O_DIRECT' \
	"$mkblocks" $shape --verify "$mnt/blocks"
no_debris "$work/tier"
do_umount
