#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# files/ serves programs that keep chunks in files of their own, with and without
# passthrough: 16 writers and 16 readers at once, each chunk whole or absent.
# UCMFS_TEST_LONG=1: twice as many chunks.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns root fuse python3
chunks=32
[ "${UCMFS_TEST_LONG:-0}" = 0 ] || chunks=64

fs_tier() {
	python3 "$top_srcdir/tests/lib/fs_tier.py" "$@"
}

# serve OPTIONS
serve() {
	rm -rf "$work/a" "$work/b" "$work/slow"
	mkdir "$work/a" "$work/b" "$work/slow"
	need do_mount -o "$1" "fast=$work/a,$work/b:slow=$work/slow"
	echo "-- $1: $(grep -o '"passthrough": [a-z]*' "$mnt/.ucmfs/stats.json")"
	check 'chunks of 2 MiB, stored and loaded' \
		fs_tier vllm "$mnt/files/vllm" 16 $chunks
	same 'all of them are there' $chunks \
		"$(find "$mnt/files/vllm" -name '*.bin' | wc -l)"
	same 'and no temporary files' '' \
		"$(find "$mnt/files/vllm" -name '*.tmp')"
	check 'writers that share their temporary names' \
		fs_tier lmcache "$mnt/files/lmcache" 4 $((chunks * 25 / 32))
	check 'a name that is replaced while it is read' \
		fs_tier versions "$mnt/files" 8 $((chunks * 50 / 32))
	do_umount
	need do_mount -o "$1" "fast=$work/a,$work/b:slow=$work/slow"
	check 'after a remount all is found and loaded' \
		fs_tier vllm "$mnt/files/vllm" 2 $chunks
	do_umount
}

serve passthrough=auto
serve passthrough=off
