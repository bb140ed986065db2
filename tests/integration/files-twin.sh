#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Random calls of two users in files/ and in a plain directory: results, errors,
# attributes and contents are the same.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# The twin is what the files lie on.
# twin OPTIONS
twin() {
	rm -rf "$work/a" "$work/b" "$work/twin"
	mkdir "$work/a" "$work/b" "$work/twin"
	for turn in 1 2 3 4 5 6; do
		need do_mount -o "$1,allow_other" \
			"$work/a,$work/b"
		chmod 777 "$mnt/files" "$work/twin"
		check "$1, turn $turn" \
			python3 "$top_srcdir/tests/lib/tree_twin.py" \
			3000 "$mnt/files" "$work/twin"
		do_umount
	done
}

twin passthrough=auto
twin passthrough=off
