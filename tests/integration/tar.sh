#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tar packs a mount and unpacks into one; it writes 10 KiB at a time and sets
# owner, mode and times before it closes.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns root fuse tar

mkdir "$work/src" "$work/back"
need mk "$work/src"
touch -d '2020-02-02 02:02:02' "$work/src"/*/*.bin
need do_mount "$work/tier"
need tar -C "$work/src" -cf "$work/in.tar" .
check 'tar x fills the mount' tar -C "$mnt/blocks" -xf "$work/in.tar"
check 'the blocks are whole' verify "$mnt/blocks"
first=$(small_paths 1)
same 'times are kept' "$(stat -c %Y "$work/src/$first")" \
	"$(stat -c %Y "$mnt/blocks/$first")"
check 'tar c reads the mount' tar -C "$mnt/blocks" -cf "$work/out.tar" .
need tar -C "$work/back" -xf "$work/out.tar"
check 'what it read is whole' verify "$work/back"
same 'nothing but blocks came out' 16 \
	"$(find "$work/back" -type f | wc -l)"
no_debris "$work/tier"
do_umount
