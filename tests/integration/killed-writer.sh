#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A writer that is killed leaves a whole block or none, also where the block has no
# checksums: then only fsync and rename make it one.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# 8 layers, 1 MiB: large enough for file systems to set something aside
large='--quiet --layers 8 --heads 8 --dim 128 --tokens 256'

# write SOURCE TARGET FROM-TO...: these bytes of it, and then wait to be killed;
# with "fsync" and "close", do that first; "truncate": to its full size
write() {
	python3 - "$@" <<'END'
import os, signal, sys
source, target, *parts = sys.argv[1:]
data = open(source, 'rb').read()
fd = os.open(target, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
for part in parts:
    if part == 'truncate':
        os.ftruncate(fd, len(data))
    elif part == 'fsync':
        os.fsync(fd)
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
	check "the unfinished file is dropped: $never_what" \
		wait_until has_no_temps "$work/tier"
	absent "$mnt/blocks/$never_name"
}

# Half a block with checksums: what is missing lies inside.
paged_blocks() {
	never_committed 'the last chunk came early' "$first" 0-5242880 8126464-
	never_committed 'chunks in any order' "$first" 6291456- 0-2097152
	never_committed 'its size came first' "$first" truncate 0-4194304
	check "the same block, whole" cp "$work/src/$first" "$mnt/blocks/$first"
	check "is right" cmp "$work/src/$first" "$mnt/blocks/$first"
	write "$work/src/$second" "$mnt/blocks/$second" 0- kill 2>"$work/killed"
	check "checksums vouch for a writer that was killed at the end" \
		wait_until cmp "$work/src/$second" "$mnt/blocks/$second"
}

# Without checksums it is its writer's word that counts. $1: the form
raw_blocks() {
	half=$(($(stat -c %s "$work/src/$first") / 2))
	never_committed "$1, half" "$first" 0-$half
	never_committed "$1, half, of full size" "$first" truncate 0-$half
	never_committed "$1, with a hole" "$first" 0-$half $((half + 262144))-
	never_committed "$1, whole, not closed" "$first" 0-
	refused 'Invalid argument' "$1, closed" \
		write "$work/src/$first" "$mnt/blocks/$first" 0- close
	check "it is dropped" wait_until has_no_temps "$work/tier"
	absent "$mnt/blocks/$first"
	logged 'not committed: it has no checksums: fsync or rename makes it a block'
	write "$work/src/$first" "$mnt/blocks/$first" 0- fsync kill 2>"$work/killed"
	check "$1, one that was synced, is right" \
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
	rm -rf "$work/tier/blocks" "$work/tier/.ucmfs"
	need do_mount "$work/tier"
	"$@"
	do_umount
}

make_source ''
with_tier paged_blocks
make_source '--form bare'
with_tier raw_blocks bare
make_source '--form packed --no-crc'
with_tier raw_blocks packed
