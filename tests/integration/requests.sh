#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# How many requests the kernel sends: with passthrough no byte of data comes by,
# and writing does not ask for an attribute each time.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

shape='--quiet --layers 4 --heads 2 --dim 64 --count 4 --chunk 4096'
writes=36 # 4 files of 9 pages

requests() {
	grep -c "opcode: $1 " "$log"
}

# at_most LIMIT NAME
at_most() {
	seen=$(requests "$2")
	check "$seen $2, at most $1" test "$seen" -le "$1"
}

# mount_counted OPTIONS: on a busy machine the kernel asks again for a name that has
# timed out.
mount_counted() {
	rm -rf "$work/tier"
	mkdir "$work/tier"
	need do_mount -c entry_timeout=60 -o "$1" "$work/tier"
}

# traffic OPTIONS
traffic() {
	mount_counted "$1"
	# shellcheck disable=SC2086
	need "$mkblocks" $shape "$mnt/blocks"
	# shellcheck disable=SC2086
	need "$mkblocks" $shape --verify "$mnt/blocks"
	do_umount
}

mount_flags=-d
traffic passthrough=off
same 'without passthrough every write(2) comes by' $writes "$(requests WRITE)"
check 'and reads do' test "$(requests READ)" -ge 4
same 'each file is created once' 4 "$(requests CREATE)"
at_most 4 GETXATTR
at_most 4 FLUSH

traffic passthrough=auto
! grep -q 'passthrough off' "$log" ||
	skip 'the requests with passthrough: there is none here'
same 'with passthrough no write does' 0 "$(requests WRITE)"
same 'nor a read' 0 "$(requests READ)"
same 'each file is created once' 4 "$(requests CREATE)"
same 'and opened once' 4 "$(requests OPEN)"
same 'and flushed when it was written' 4 "$(requests FLUSH)"
same 'and released twice' 8 "$(requests RELEASE)"
at_most 4 GETXATTR
at_most 20 LOOKUP
at_most 12 GETATTR

# files/: 4 files under temporary names, renamed, and read
mount_counted passthrough=auto
for i in 1 2 3 4; do
	need dd if=/dev/zero of="$mnt/files/$i.tmp" bs=4096 count=9 oflag=direct \
		status=none
	need rename_file "$mnt/files/$i.tmp" "$mnt/files/$i"
	need dd if="$mnt/files/$i" of=/dev/null bs=1M status=none
done
do_umount
same 'files/: no byte comes by' '0 0' "$(requests WRITE) $(requests READ)"
same 'each file is created and renamed once' '4 4' \
	"$(requests CREATE) $(requests RENAME)"
same 'and opened once' 4 "$(requests OPEN)"
same 'and never flushed' 0 "$(requests FLUSH)"
at_most 4 GETXATTR
at_most 16 LOOKUP
at_most 12 GETATTR
