#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A descriptor of a committed block that outlives the daemon: with passthrough
# the kernel goes on writing by it, which is found at the next mount; without,
# nothing can be written any more.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# outlive OPTIONS N: the Nth block, which is written to after the end of the
# mount; $wrote is what write(2) said
outlive() {
	path=$(nth_path "$2")
	need do_mount -o "$1" "$work/tier"
	rm -f "$work/go"
	need mkfifo "$work/go"
	PYTHONPATH=$top_srcdir/tests/lib python3 -B - "$work/src/$path" "$mnt/blocks/$path" "$work/go" \
		>"$work/wrote" <<'END' &
import os, sys
from dead_mount import DEAD
fd = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)
os.write(fd, open(sys.argv[1], "rb").read())
os.fsync(fd)
open(sys.argv[3]).read()
try:
    os.pwrite(fd, b"\xff" * 64, 5000)
    print("written")
except OSError as error:
    print("gone" if error.errno in DEAD else error)
END
	writer=$!
	keep_pid $writer
	check 'committed' wait_until cmp "$work/src/$path" "$mnt/blocks/$path"
	served=$(grep -o '"passthrough": [a-z]*' "$mnt/.ucmfs/stats.json")
	do_umount TERM
	echo go >"$work/go"
	reap $writer
	wrote=$(cat "$work/wrote")
	need do_mount "$work/tier"
}

make_src --count 2
outlive passthrough=off 1
same 'without passthrough nothing can be written' gone "$wrote"
check 'the block is whole' cmp "$work/src/$path" "$mnt/blocks/$path"
do_umount

outlive passthrough=auto 2
[ "$served" = '"passthrough": true' ] ||
	skip 'a descriptor with passthrough: there is none here'
same 'with passthrough it can' written "$wrote"
absent "$mnt/blocks/$path"
same 'and the block is in quarantine' 1 "$(stat_of quarantined)"
do_umount
