#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# df adds up the tiers, within their limits, and shows what is used.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

df_of() {
	df -B1 --output="$1" "$mnt" | tail -n 1 | tr -d ' '
}

mkdir "$work/a" "$work/b"
need mount -t tmpfs -o size=4m tmpfs "$work/a"
need mount -t tmpfs -o size=8m tmpfs "$work/b"
need do_mount "a=$work/a:b=$work/b"
same 'the size is the sum' $((12 << 20)) "$(df_of size)"
same 'its type' fuse.ucmfs "$(df_of fstype)"
free=$(df_of avail)
check 'nearly all is free' test "$free" -gt $((11 << 20))
need mk --count 100 "$mnt/blocks"
after=$(df_of avail)
check '100 blocks take their room' test $((free - after)) -ge 819200
check 'and not much more' test $((free - after)) -le 3000000
same 'they are counted' 100 "$(df_of iused)"
do_umount

need do_mount -o limit=b:1M,limit=a:50% "a=$work/a:b=$work/b"
check 'limits count' test "$(df_of size)" -le $((3 << 20)) \
	-a "$(df_of size)" -ge $((3 * 1000 * 1000)) # percent are rounded
check 'in what is free as well' test "$(df_of avail)" -lt $((3 << 20))
do_umount

# two directories of one file system are counted once
mkdir "$work/a/1" "$work/a/2"
need do_mount "$work/a/1,$work/a/2"
same 'one file system is counted once' $((4 << 20)) "$(df_of size)"
do_umount
