#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A file system that goes read-only under a tier, as after an I/O error: its
# blocks are still read, new ones go to the next tier.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr

make_fs ext4 8M "$work/fast" errors=remount-ro
mkdir "$work/slow"
device=$(basename "$(findmnt -n -o SOURCE "$work/fast")")
trigger=/sys/fs/ext4/$device/trigger_fs_error
[ -w "$trigger" ] || skip 'ext4 has no trigger_fs_error here'

need do_mount "fast=$work/fast:slow=$work/slow"
need mk "$mnt/blocks"
path=$(small_paths 1)
same 'the first lie in the fast tier' fast "$(xattr tier "$mnt/blocks/$path")"
echo 1 >"$trigger"
refused 'Read-only file system' 'the file system is read-only now' \
	touch "$work/fast/x"
check 'its blocks are read' verify "$mnt/blocks"
check 'new ones are taken' mk --start 16 "$mnt/blocks"
check 'and are whole' verify --count 32 "$mnt/blocks"
path=$(nth_path 17)
same 'in the other tier' slow "$(xattr tier "$mnt/blocks/$path")"
logged "$work/fast"
umount "$mnt"
reap "$(daemon_pid)"
check 'no report of a sanitizer' no_sanitizer_report
