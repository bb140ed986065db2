#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# find and du tell of the mount what they tell of the directory behind it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# size, allocated blocks, mtime and name of every block
facts() {
	find "$1" -name '*.bin' -printf '%s %b %Ts %f\n' | sort
}

disk_use() {
	find "$1" -name '*.bin' -print0 | du -ck --files0-from=- | tail -n 1
}

need do_mount "$work/tier"
need mk "$mnt/blocks"
same 'find sees every block' 16 "$(facts "$mnt/blocks" | wc -l)"
same 'sizes, blocks and times are those behind' \
	"$(facts "$work/tier/blocks")" "$(facts "$mnt/blocks")"
same 'du of the blocks is that behind' "$(disk_use "$work/tier/blocks")" \
	"$(disk_use "$mnt/blocks")"
check 'they take room' test "$(disk_use "$mnt/blocks" | cut -f 1)" -ge 128
same '256 buckets are listed' 256 \
	"$(find "$mnt/blocks" -mindepth 1 -maxdepth 1 -type d | wc -l)"
need mkdir -p "$mnt/files/a/b" "$mnt/spaces/s"
same 'a folder has one link: those in it are not counted' '' \
	"$(find "$mnt" -path "$mnt/files" -prune -o -type d ! -links 1 -print)"
same 'but in files/, where it has as many as the backing one' \
	"$(stat -c %h "$work/tier/files/a")" "$(stat -c %h "$mnt/files/a")"
do_umount
