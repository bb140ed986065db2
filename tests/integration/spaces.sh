#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Spaces: made with mkdir, used like blocks/, separate from it, removed with
# rmdir when they are empty.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

path=$(small_paths 1)
need do_mount "$work/tier"
check 'mkdir' mkdir "$mnt/spaces/one" "$mnt/spaces/two words"
same 'they are listed' 'one
two words' "$(ls "$mnt/spaces")"
same 'with all buckets' 256 "$(find "$mnt/spaces/one" -mindepth 1 | wc -l)"
refused 'File exists' 'not twice' mkdir "$mnt/spaces/one"
refused 'Invalid argument' 'not with a dot' mkdir "$mnt/spaces/.one"
refused 'File name too long' 'not with a name of 129 bytes' \
	mkdir "$mnt/spaces/$(printf '%0129d' 0)"
check 'blocks go in' mk "$mnt/spaces/one"
check 'and are whole' verify "$mnt/spaces/one"
absent "$mnt/blocks/$path"
absent "$mnt/spaces/two words/$path"
check 'the same names elsewhere' mk --count 3 "$mnt/blocks"
need rm "$mnt/blocks/$path"
check 'are other files' verify "$mnt/spaces/one"
check 'inode numbers differ as well' test \
	"$(stat -c %i "$mnt/blocks/$(nth_path 2)")" != \
	"$(stat -c %i "$mnt/spaces/one/$(nth_path 2)")"
refused 'Directory not empty' 'rmdir of a space with blocks' \
	rmdir "$mnt/spaces/one"
check 'staging of one becomes a block of the other' sh -c '
	cp "$1/spaces/one/$2" "$1/spaces/one/$2.tmp" &&
	mv "$1/spaces/one/$2.tmp" "$1/spaces/two words/$2"' sh "$mnt" "$path"
check 'a whole one' verify --count 1 "$mnt/spaces/two words"
do_umount

need do_mount "$work/tier"
same 'a remount finds them' 'one
two words' "$(ls "$mnt/spaces")"
check 'and their blocks' verify "$mnt/spaces/one"
for p in $(small_paths 16); do
	need rm "$mnt/spaces/one/$p"
done
check 'rmdir of an empty one' rmdir "$mnt/spaces/one"
absent "$mnt/spaces/one"
absent "$work/tier/spaces/one"
refused 'No such file' 'not twice' rmdir "$mnt/spaces/one"
check 'it can be made again' mkdir "$mnt/spaces/one"
same 'and is empty' 0 "$(blocks_in "$mnt/spaces/one")"
do_umount
