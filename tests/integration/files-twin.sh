#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Random calls of two users in files/, over three directories in two tiers, and
# in a plain directory: results, errors, attributes and contents are the same.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# The twin is what the files lie on.
# twin OPTIONS
twin() {
	rm -rf "$work/a" "$work/b" "$work/slow" "$work/twin"
	mkdir "$work/a" "$work/b" "$work/slow" "$work/twin"
	for turn in 1 2 3 4 5 6; do
		need do_mount -o "$1,allow_other" \
			"fast=$work/a,$work/b:slow=$work/slow"
		chmod 777 "$mnt/files" "$work/twin"
		check "$1, turn $turn" \
			python3 "$top_srcdir/tests/lib/tree_twin.py" \
			3000 "$mnt/files" "$work/twin"
		do_umount
	done
	check 'several directories were used' test \
		-n "$(find "$work/a/files" -mindepth 1 | head -n 1)" \
		-a -n "$(find "$work/b/files" -mindepth 1 | head -n 1)"
}

twin passthrough=auto,placement=random
twin passthrough=off,placement=random
