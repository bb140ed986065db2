#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The directory of a tier vanishes while it is mounted: its blocks are misses,
# new ones go to the other tier, and nobody hangs.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr timeout

mkdir "$work/fast" "$work/slow"
need do_mount "slow=$work/slow"
need mk --count 8 "$mnt/blocks"
do_umount
need do_mount "fast=$work/fast:slow=$work/slow"
need mk --start 8 --count 8 "$mnt/blocks"
path=$(nth_path 9)
same 'the new ones lie in the fast tier' fast \
	"$(xattr tier "$mnt/blocks/$path")"
rm -rf "$work/fast"

refused 'No such file or directory' 'its blocks are misses' \
	timeout 10 cat "$mnt/blocks/$path"
absent "$mnt/blocks/$path"
check 'those of the other tier are there' \
	timeout 10 "$mkblocks" --quiet --layers 2 --heads 1 --dim 16 \
	--count 8 --verify "$mnt/blocks"
check 'new ones are taken' timeout 10 "$mkblocks" --quiet --layers 2 --heads 1 \
	--dim 16 --count 8 --start 16 "$mnt/blocks"
new=$(nth_path 17)
same 'by the other tier' slow "$(xattr tier "$mnt/blocks/$new")"
for path in $(small_paths 16 | tail -n 8); do
	cat "$mnt/blocks/$path" >/dev/null 2>&1 && fail "$path can be read"
done
same 'a listing has those that are there' 16 "$(blocks_in "$mnt/blocks")"
check 'the vanished can be made again' mk --start 8 --count 8 "$mnt/blocks"
check 'and all are whole' verify --count 24 "$mnt/blocks"
umount "$mnt"
reap "$(daemon_pid)"
check 'no report of a sanitizer' no_sanitizer_report
