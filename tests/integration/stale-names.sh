#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The kernel remembers names for an hour, and yet a block that turns out to be
# damaged is gone for stat(2) at once, however it was found out.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# A name that the kernel knows.
known() {
	path=$(nth_path "$1")
	block=$mnt/blocks/$path
	check 'a block is there' stat "$block"
}

is_forgotten() {
	check 'its name is forgotten' wait_until is_absent "$block"
}

need do_mount "$work/tier"
need mk "$mnt/blocks"

known 1
truncate -s 5000 "$work/tier/blocks/$path"
refused 'No such file' 'damage is seen when it is opened' cat "$block"
is_forgotten

# its writer goes on writing, and lets go of it
if grep -q '"passthrough": true' "$mnt/.ucmfs/stats.json"; then
	make_src --start 16 --count 1
	path=$(cd "$work/src" && echo ??/*.bin)
	block=$mnt/blocks/$path
	exec 5>"$block"
	cat "$work/src/$path" >&5
	check 'a block that is being written is there' stat "$block"
	echo more >&5
	check 'and still known' stat "$block"
	exec 5>&-
	is_forgotten
else
	left_out 'damage that is seen at the last close: no passthrough'
fi
same 'they are in quarantine' 2 \
	"$(find "$work/tier/.ucmfs/quarantine" -type f | wc -l)"
do_umount
