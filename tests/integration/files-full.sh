#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# No room: files/ hands over to the next tier when a file is made; when none has
# room it is ENOSPC; a file that grows on a full disk gets ENOSPC from there.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr

mkdir "$work/fast" "$work/slow"
need mount -t tmpfs -o size=4m tmpfs "$work/fast"
need mount -t tmpfs -o size=4m tmpfs "$work/slow"
files=$mnt/files

# fill: files of 512 KiB, until one is refused; how many there are
fill() {
	made=0
	while dd if=/dev/zero of="$files/fill.$made" bs=512K count=1 \
		status=none 2>"$work/err"; do
		made=$((made + 1))
		[ $made -lt 100 ] || break
	done
}

# serve OPTIONS
serve() {
	need do_mount -o "$1" "fast=$work/fast:slow=$work/slow"
	fill
	check 'the last was refused for lack of room' \
		grep -q 'No space left on device' "$work/err"
	check "after a good many, $made" test $made -ge 13
	same 'the first is in the fast tier' fast \
		"$(xattr tier "$files/fill.0")"
	same 'the last in the slow one' slow \
		"$(xattr tier "$files/fill.$((made - 1))")"
	i=0
	while [ $i -lt $made ]; do
		same "fill.$i is whole" 524288 "$(stat -c %s "$files/fill.$i")" \
			>/dev/null
		i=$((i + 1))
	done
	refused 'No space left on device' 'one that grows' \
		dd if=/dev/zero of="$files/fill.0" bs=1M count=8 conv=notrunc
	rm -f "$files"/fill.*
	check 'when they are gone there is room again' \
		wait_until dd if=/dev/zero of="$files/new" bs=1M count=1
	rm "$files/new"
	do_umount
}

serve passthrough=auto
serve passthrough=off

# limits hold when a file is made, and count files and blocks
need do_mount -o limit=fast:1M,limit=slow:1M "fast=$work/fast:slow=$work/slow"
fill
check "within the limits there are $made" test $made -le 6 -a $made -ge 4
check 'and it is ENOSPC' grep -q 'No space left on device' "$work/err"
refused 'No space left on device' 'for blocks as well' \
	mk --count 1 "$mnt/blocks"
check 'df shows it' test "$(df --output=avail "$mnt" | tail -n 1)" -eq 0
do_umount
need do_mount -o limit=fast:1M,limit=slow:1M "fast=$work/fast:slow=$work/slow"
check 'they are counted at the next start' wait_until sh -c \
	"! dd if=/dev/zero of='$files/probe' count=1 2>/dev/null && [ ! -e '$files/probe' ] || { rm -f '$files/probe'; false; }"
rm -f "$files"/fill.*
check 'and removed' wait_until touch "$files/new"
do_umount

# a large file that is read is no example for those that are made
rm -rf "$work"/fast/* "$work"/fast/.ucmfs "$work"/slow/* "$work"/slow/.ucmfs
mkdir "$work/fast/files"
dd if=/dev/zero of="$work/fast/files/large" bs=1M count=3 status=none
need do_mount "fast=$work/fast:slow=$work/slow"
same 'it is read' 3145728 "$(wc -c <"$files/large")"
: >"$files/small"
same 'a new one is where there is some room' fast "$(xattr tier "$files/small")"
do_umount
umount "$work/fast" "$work/slow"
