#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A full tier hands over to the next; when all are full a writer gets ENOSPC, and
# nothing half is left.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr
mount_more=policy=none # what is full is full

mkdir "$work/fast" "$work/slow"
need mount -t tmpfs -o size=1m tmpfs "$work/fast"
need do_mount "fast=$work/fast:slow=$work/slow"
check 'more blocks than the first tier holds' mk --count 200 "$mnt/blocks"
check 'all are whole' verify --count 200 "$mnt/blocks"
first=$(small_paths 1)
last=$(nth_path 200)
same 'the first lies in the fast tier' fast \
	"$(xattr tier "$mnt/blocks/$first")"
same 'the last in the slow one' slow "$(xattr tier "$mnt/blocks/$last")"
check 'the fast tier was used' \
	test "$(blocks_in "$work/fast/blocks")" -ge 64
same 'each lies in one of them' 200 \
	$(($(blocks_in "$work/fast/blocks") + $(blocks_in "$work/slow/blocks")))
no_debris "$work/fast" "$work/slow"
do_umount

# all full
umount "$work/fast"
mkdir "$work/other"
need mount -t tmpfs -o size=512k tmpfs "$work/fast"
need mount -t tmpfs -o size=512k tmpfs "$work/other"
need do_mount "fast=$work/fast:other=$work/other"
mk --count 300 --print "$mnt/blocks" >"$work/acked" 2>"$work/err"
same 'the writer was refused' 1 "$?"
check 'for lack of room' grep -q 'No space left on device' "$work/err"
acked=$(wc -l <"$work/acked")
check 'after a good many blocks' test "$acked" -ge 64
check 'and these are whole' verify --count "$acked" "$mnt/blocks"
same 'and all that is there' "$acked" "$(blocks_in "$mnt/blocks")"
no_debris "$work/fast" "$work/other"
check 'df says so' test "$(df --output=pcent "$mnt" | tr -dc 0-9)" -ge 90

# room again
small_paths "$acked" | head -n 40 | while read -r path; do
	rm "$mnt/blocks/$path" || exit 1
done
next() { mk --start "$acked" --count 20 --existing-ok "$mnt/blocks"; }
check 'when blocks go there is room again' wait_until next
do_umount

# Not a page is left, and no name: it is mounted all the same, to read and to
# remove, also after a crash.
fill() {
	dd if=/dev/zero of="$1/ballast" bs=4k 2>/dev/null
	df --output=avail "$1" | tail -n 1 | tr -d ' '
}
for dir in "$work/fast" "$work/other"; do
	same "$dir has no room at all" 0 "$(fill "$dir")"
done
need do_mount "fast=$work/fast:other=$work/other"
next() { verify --start 40 --count 10 "$mnt/blocks"; }
check 'a mount of full directories is read' next
kill_daemon
need do_mount "fast=$work/fast:other=$work/other"
check 'and after the death of its daemon' next
check 'blocks are removed' rm "$mnt/blocks/$(nth_path 45)"
do_umount
