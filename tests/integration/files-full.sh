#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# No room: a new file of files/ is refused with ENOSPC, within the limits of its
# tier too; a file that grows on a full disk gets ENOSPC from there.

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
	check "after a good many, $made" test $made -ge 6 -a $made -le 8
	same 'the last is in the first directory too' fast \
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
need do_mount -o limit=fast:1M "fast=$work/fast"
fill
check "within the limit there are $made" test $made -le 3 -a $made -ge 2
check 'and it is ENOSPC' grep -q 'No space left on device' "$work/err"
refused 'No space left on device' 'for blocks as well' \
	mk --count 1 "$mnt/blocks"
check 'df shows it' test "$(df --output=avail "$mnt/files" | tail -n 1)" -eq 0
do_umount
need do_mount -o limit=fast:1M "fast=$work/fast"
check 'they are counted at the next start' wait_until sh -c \
	"! dd if=/dev/zero of='$files/probe' count=1 2>/dev/null && [ ! -e '$files/probe' ] || { rm -f '$files/probe'; false; }"
rm -f "$files"/fill.*
check 'and removed' wait_until touch "$files/new"
do_umount
umount "$work/fast" "$work/slow"
