#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Staging that is not a whole block cannot be renamed to a block's name; it stays,
# can be completed, and then it can.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

first=$(small_paths 1)
other=$(nth_path 2)
make_src
need do_mount "$work/tier"
src=$work/src/$first
dst=$mnt/blocks/$first

head -c 5000 "$src" >"$dst.tmp"
refused 'Invalid argument' 'renaming an incomplete file' \
	rename_file "$dst.tmp" "$dst"
absent "$dst"
same 'the staging stays' 5000 "$(stat -c %s "$dst.tmp")"
logged 'shorter than its header announces'
tail -c +5001 "$src" >>"$dst.tmp"
refused 'Invalid argument' "renaming it to another block's name" \
	rename_file "$dst.tmp" "$mnt/blocks/$other"
absent "$mnt/blocks/$other"
check 'renaming it when it is whole' mv "$dst.tmp" "$dst"
check 'it is the block' cmp "$src" "$dst"
absent "$dst.tmp"

: >"$mnt/blocks/${other%/*}/.empty"
refused 'Invalid argument' 'renaming an empty file' \
	rename_file "$mnt/blocks/${other%/*}/.empty" "$mnt/blocks/$other"
absent "$mnt/blocks/$other"
need rm "$mnt/blocks/${other%/*}/.empty"
same 'one block' 1 "$(blocks_in "$mnt/blocks")"
no_debris "$work/tier"
do_umount
