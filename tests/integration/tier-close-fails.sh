#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A tier on a file system that tells of lost writes when a file is closed, as
# network file systems do: such a file becomes no block, and its writer is told.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

faultfs=$top_builddir/tests/lib/faultfs
[ -x "$faultfs" ] || skip "$faultfs is not built"

mkdir "$work/src" "$work/disk" "$work/other"
need mk --count 4 "$work/src"
need "$faultfs" "$work/disk" "$work/tier" "$work/EIO"
small_paths 4 >"$work/paths"
{
	read -r first
	read -r second
	read -r third
	read -r fourth
} <"$work/paths"

need do_mount "$work/tier"
check 'a block is written' cp "$work/src/$first" "$mnt/blocks/$first"
need cp "$work/src/$third" "$mnt/blocks/$third.tmp"
touch "$work/EIO"
refused 'Input/output error' 'close(2) tells of what is lost' \
	cp "$work/src/$second" "$mnt/blocks/$second"
absent "$mnt/blocks/$second"
logged 'close: Input/output error'
refused 'Input/output error' 'so does a rename' \
	rename_file "$mnt/blocks/$third.tmp" "$mnt/blocks/$third"
absent "$mnt/blocks/$third"
rm "$work/EIO"
same 'nothing else was made' 1 "$(blocks_in "$work/disk/blocks")"
do_umount
need do_mount "$work/tier"
check 'the next one is committed' cp "$work/src/$fourth" "$mnt/blocks/$fourth"
check 'and is whole' cmp "$work/src/$fourth" "$mnt/blocks/$fourth"
check 'as is the first' cmp "$work/src/$first" "$mnt/blocks/$first"
do_umount
