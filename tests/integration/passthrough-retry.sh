#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A file that the kernel has no memory to take for passthrough is served without
# it; the next one may have it. What the kernel says for good turns it off.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse strace

need do_mount "$work/tier"
grep -q '"passthrough": true' "$mnt/.ucmfs/stats.json" || skip 'no passthrough'
do_umount

# mount_with ERROR: every third ioctl of each thread fails so: not every other one, which
# could be closes alone
mount_with() {
	ucmfs_wrapper="strace -D -f -q -o $work/trace.$1
		-e trace=ioctl -e inject=ioctl:error=$1:when=1+3"
	need do_mount -c threads=2 "$work/tier"
	ucmfs_wrapper=
}

# FUSE_DEV_IOC_BACKING_OPEN is number 1 of 229; old straces know no name.
registered() {
	need wait_until grep -q 'exited with' "$work/trace.$1" >&2
	grep 'BACKING_OPEN\|0xe5, 0x1,' "$work/trace.$1" | grep -c "$2"
}

mount_with ENOMEM
need mk --count 24 "$mnt/blocks"
check 'all is read' mk --count 24 --verify "$mnt/blocks"
exec 5<"$mnt/blocks/$(small_paths 1)"
for again in 1 2 3; do # while it is open, in the same mode
	check "the same again: $again" mk --count 1 --verify "$mnt/blocks"
done
exec 5<&-
check 'passthrough is on' grep -q '"passthrough": true' "$mnt/.ucmfs/stats.json"
check 'not refused by the directory' sh -c '! grep -q "passthrough off" "$1"' \
	sh "$log"
do_umount
refused_files=$(registered ENOMEM INJECTED)
check "files were refused: $refused_files" test "$refused_files" -gt 1
taken=$(registered ENOMEM '= [1-9]')
check "others were taken: $taken" test "$taken" -gt 1

mount_with ELOOP
check 'all is read' mk --count 24 --verify "$mnt/blocks"
logged "$work/tier: passthrough off"
check 'it is off' grep -q '"passthrough": false' "$mnt/.ucmfs/stats.json"
do_umount
