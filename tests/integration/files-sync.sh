#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fsync of the root of the mount is syncfs of every tier, and its errors are
# told; that of a folder in files/ is fsync of the folder. syncfs
# of the mount is neither: the kernel does not pass it on.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse strace

# serve [strace options]: with a tracer in the background
serve() {
	ucmfs_wrapper="strace -D -f -q -y -o $work/trace $*
		-e trace=syncfs,fsync"
	need do_mount -c checkpoint=0 "a=$work/a:b=$work/b"
}

syncs() {
	grep -c "syncfs([0-9]*<$work/$1" "$work/trace"
}

# folder_syncs DIR; a call that another thread interrupts has no ")" there
folder_syncs() {
	grep -c "fsync([0-9]*<$work/$1/files/folder>" "$work/trace"
}

# The tracer writes when it has nothing else to do.
told() {
	[ "$(syncs b)" -ge 1 ]
}

folder_told() {
	[ "$(folder_syncs a)" -ge 1 ]
}

# The tracer ends after the daemon.
traced() {
	grep -q 'exited with' "$work/trace"
}

mkdir -p "$work/a/files/folder" "$work/b"
serve
need sync -f "$mnt"
same 'syncfs of the mount does not come through' 0 "$(syncs a)"
need sync "$mnt/files/folder"
wait_until folder_told
same 'fsync of a folder is its own' 1 "$(folder_syncs a)"
same 'and no more' 0 "$(syncs a)"
need sync "$mnt"
wait_until told
same 'fsync of the root syncs the first tier' 1 "$(syncs a)"
same 'and the second' 1 "$(syncs b)"
do_umount
need wait_until traced

serve -e inject=syncfs:error=EIO:when=1
refused 'Input/output error' 'one that fails' sync "$mnt"
wait_until told
same 'the other is synced all the same' 1 "$(syncs b)"
logged "$work/a: sync: Input/output error: writes may be lost"
do_umount
