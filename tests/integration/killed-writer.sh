#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A writer that is killed leaves a whole block or none, on every file system:
# also on one that counts blocks which nobody has written (XFS sets them aside,
# ext4 with clusters and tmpfs with huge pages give more than was asked for),
# and also where the block has no checksums.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# 8 layers, 1 MiB: large enough for file systems to set something aside
large='--quiet --layers 8 --heads 8 --dim 128 --tokens 256'

# write SOURCE TARGET FROM-TO...: these bytes of it, and then wait to be killed;
# with "close", close it well; "truncate" first, to its full size
write() {
	python3 - "$@" <<'END'
import os, signal, sys
source, target, *parts = sys.argv[1:]
data = open(source, 'rb').read()
fd = os.open(target, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
for part in parts:
    if part == 'truncate':
        os.ftruncate(fd, len(data))
    elif part == 'close':
        os.close(fd)
    elif part == 'kill':
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        begin, end = part.split('-')
        begin, end = int(begin), int(end or len(data))
        for at in range(begin, end, 1 << 18):
            os.pwrite(fd, data[at:min(at + (1 << 18), end)], at)
END
}

# never_committed WHAT NAME PARTS...: a killed writer's block does not come
never_committed() {
	never_what=$1
	never_name=$2
	shift 2
	write "$work/src/$never_name" "$mnt/blocks/$never_name" "$@" kill 2>"$work/killed"
	check "$fs: the unfinished file is dropped: $never_what" \
		wait_until has_no_temps "$work/$fs"
	absent "$mnt/blocks/$never_name"
}

# Half a block with checksums: what is missing lies inside.
paged_blocks() {
	never_committed 'the last chunk came early' "$first" 0-5242880 8126464-
	never_committed 'chunks in any order' "$first" 6291456- 0-2097152
	never_committed 'its size came first' "$first" truncate 0-4194304
	check "$fs: the same block, whole" cp "$work/src/$first" "$mnt/blocks/$first"
	check "$fs: is right" cmp "$work/src/$first" "$mnt/blocks/$first"
	write "$work/src/$second" "$mnt/blocks/$second" 0- kill 2>"$work/killed"
	check "$fs: checksums vouch for a writer that was killed at the end" \
		wait_until cmp "$work/src/$second" "$mnt/blocks/$second"
}

# Without checksums: the end of writing is its writer's word. $1: the form
raw_blocks() {
	half=$(($(stat -c %s "$work/src/$first") / 2))
	never_committed "$1, half" "$first" 0-$half
	never_committed "$1, half, of full size" "$first" truncate 0-$half
	never_committed "$1, with a hole" "$first" 0-$half $((half + 262144))-
	never_committed "$1, whole, not closed" "$first" 0-
	check "$fs: $1, one that is closed well" \
		write "$work/src/$first" "$mnt/blocks/$first" truncate 0- close
	check "$fs: $1, is right" \
		wait_until cmp "$work/src/$first" "$mnt/blocks/$first"
}

# $1: options of mkblocks
make_source() {
	rm -rf "$work/src"
	mkdir "$work/src"
	# shellcheck disable=SC2086 # lists
	need "$mkblocks" $large $1 --count 2 "$work/src"
	# shellcheck disable=SC2086
	"$mkblocks" $large $1 --list --count 2 >"$work/paths"
	{
		read -r first
		read -r second
	} <"$work/paths"
}

with_tier() {
	rm -rf "$work/$fs/blocks" "$work/$fs/.ucmfs"
	need do_mount "$work/$fs"
	"$@"
	do_umount
}

on_file_system() {
	fs=$1
	make_source ''
	with_tier paged_blocks
	make_source '--form bare'
	with_tier raw_blocks bare
	make_source '--form packed --no-crc'
	with_tier raw_blocks packed
}

make_fs xfs 400M "$work/xfs"
on_file_system xfs
mkfs_flags='-O bigalloc -C 65536' make_fs ext4 200M "$work/ext4"
on_file_system ext4
mkdir "$work/tmpfs"
need mount -t tmpfs -o huge=always,size=200M none "$work/tmpfs"
on_file_system tmpfs
logged 'its writer ended without closing it'
