#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# On a file system that tells of write errors at close(2), the program that
# closes a file of files/ is told.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

faultfs=$top_builddir/tests/lib/faultfs
[ -x "$faultfs" ] || skip "$faultfs is not built"
sign=$work/sign
need mkdir "$work/disk" "$work/net" "$work/local"
"$faultfs" "$work/disk" "$work/net" "$sign" || skip 'no FUSE'

# with passthrough=... in turn
serve() {
	need do_mount -o "$1" "net=$work/net:local=$work/local"
	echo "-- $1: $(grep -o '"passthrough": [a-z]*' "$mnt/.ucmfs/stats.json")"
	check 'all is well' cp "$work/text" "$mnt/files/good"
	same 'it lies there' "$(cat "$work/text")" "$(cat "$work/disk/files/good")"

	echo >"$sign"
	refused 'Input/output error' 'closing a file that could not be written' \
		cp "$work/text" "$mnt/files/bad"
	logged "a file in $work/net/files: close: Input/output error"
	check 'a file that was only read closes well' cat "$mnt/files/good"
	echo ENOSPC >"$sign"
	refused 'No space left on device' 'a full server' \
		cp "$work/text" "$mnt/files/bad"
	check 'by any descriptor, also while others are open' \
		python3 - "$mnt/files/good" <<'END'
import errno, os, sys
reader = os.open(sys.argv[1], os.O_RDONLY)
writer = os.open(sys.argv[1], os.O_RDWR)
other = os.dup(writer)
os.write(writer, b"more")
for fd in (writer, other):
    try:
        os.close(fd)
        sys.exit("closed")
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
os.close(reader)
END
	rm "$sign"
	check 'what was written can be written again' \
		cp "$work/text" "$mnt/files/bad"
	need rm "$mnt/files/good" "$mnt/files/bad"
	do_umount
}

echo 'one line' >"$work/text"
serve passthrough=auto
serve passthrough=off
