#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Removing a block removes it from every tier.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

mkdir "$work/fast" "$work/slow" "$work/fast/blocks" "$work/slow/blocks"
need mk "$work/fast/blocks"
need mk "$work/slow/blocks" # the same 16
need mk --start 16 --count 4 "$work/slow/blocks"
need do_mount "fast=$work/fast:slow=$work/slow"
same 'each block is listed once' 20 "$(blocks_in "$mnt/blocks")"
check 'all are read' verify --count 20 "$mnt/blocks"
path=$(small_paths 1)
check 'one that lies in both goes' rm "$mnt/blocks/$path"
absent "$mnt/blocks/$path"
absent "$work/fast/blocks/$path"
absent "$work/slow/blocks/$path"
for path in $(small_paths 20 | tail -n 19); do
	rm "$mnt/blocks/$path" || fail "rm $path"
done
same 'none is listed' 0 "$(blocks_in "$mnt/blocks")"
do_umount
same 'none lies in the fast tier' 0 "$(blocks_in "$work/fast/blocks")"
same 'none lies in the slow tier' 0 "$(blocks_in "$work/slow/blocks")"
