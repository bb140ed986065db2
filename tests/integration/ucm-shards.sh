#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A writer that opens, writes and closes <hash>.tmp once for each shard and then
# renames it, as the POSIX store of UCM does; and one whose shards come from
# several processes at once.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# put_shard FILE N: the Nth 2 KiB of it, by a descriptor of its own
put_shard() {
	dd if="$src" of="$1" bs=2048 skip="$2" seek="$2" count=1 conv=notrunc \
		status=none
}

in_turn() {
	for shard in 0 1 2 3; do
		put_shard "$1" $shard || return 1
	done
}

at_once() {
	for shard in 3 1 0 2; do
		put_shard "$1" $shard &
		writers="$writers $!"
	done
	for writer in $writers; do
		wait "$writer" || return 1
	done
}

make_src
need do_mount "$work/tier"
writers=

first=$(small_paths 1)
src=$work/src/$first
temp=$mnt/blocks/${first%.bin}.tmp
check 'one open for each shard' in_turn "$temp"
absent "$mnt/blocks/$first"
check 'the name is asked for meanwhile' \
	sh -c '! test -e "$1"' sh "$mnt/blocks/$first"
check 'rename makes it the block' mv "$temp" "$mnt/blocks/$first"
check 'with all shards' cmp "$src" "$mnt/blocks/$first"
absent "$temp"

second=$(nth_path 2)
src=$work/src/$second
temp=$mnt/blocks/${second%.bin}.tmp
check 'shards of several processes' at_once "$temp"
check 'rename makes it the block' mv "$temp" "$mnt/blocks/$second"
check 'with all shards' cmp "$src" "$mnt/blocks/$second"
same 'two blocks' 2 "$(blocks_in "$mnt/blocks")"
no_debris "$work/tier"
do_umount
