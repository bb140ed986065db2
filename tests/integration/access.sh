#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Another user than root finds, reads and writes blocks when the mount is given
# to him; UCM asks access(R_OK|W_OK) before it loads. Others may read.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setpriv

as_other() {
	setpriv --reuid=1234 --regid=1234 --clear-groups "$@"
}

first=$(small_paths 1)
second=$(nth_path 2)
make_src
as_nobody test -r "$work/src/$first" ||
	skip "$work cannot be reached by other users"
need do_mount -o allow_other,uid=65534,gid=65534 "$work/tier"
need mk --count 1 "$mnt/blocks"
check 'the owner may read and write it, says access(2)' \
	as_nobody test -r "$mnt/blocks/$first" -a -w "$mnt/blocks/$first"
check 'the owner reads it' as_nobody cmp "$work/src/$first" \
	"$mnt/blocks/$first"
refused 'Operation not permitted' 'writing is refused all the same' \
	as_nobody dd if=/dev/null of="$mnt/blocks/$first" conv=notrunc
check 'the owner makes a block' as_nobody dd if="$work/src/$second" \
	of="$mnt/blocks/$second"
same 'it is his' 65534:65534 "$(stat -c %u:%g "$mnt/blocks/$second")"
check 'another user reads it' as_other cmp "$work/src/$second" \
	"$mnt/blocks/$second"
check 'but may not write it, says access(2)' \
	as_other sh -c '! test -w "$1"' sh "$mnt/blocks/$second"
third=$(nth_path 3)
refused 'Permission denied' 'another user makes no block' \
	as_other dd if="$work/src/$third" of="$mnt/blocks/$third"
refused 'Permission denied' 'another user removes no block' \
	as_other rm -f "$mnt/blocks/$first"
check 'the owner removes one' as_nobody rm "$mnt/blocks/$first"
absent "$mnt/blocks/$first"
do_umount
