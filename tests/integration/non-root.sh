#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A user without privileges mounts with fusermount3: no passthrough, and the log
# says why; the mount is his alone. A dead mount of his own he replaces, not one
# of root's.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test fuse setpriv fusermount3 mknod namespace
open_fuse_to_others
copy_ucmfs "$work/ucmfs"
as_nobody test -x "$work/ucmfs" || skip "$work cannot be reached by others"
ucmfs=$work/ucmfs
ucmfs_wrapper='setpriv --reuid=65534 --regid=65534 --clear-groups'
chown 65534:65534 "$work/tier" "$mnt"
make_src
chmod 755 "$work/src"

need do_mount "$work/tier"
path=$(small_paths 1)
f=$mnt/blocks/$path
same 'mounted for that user' 1 \
	"$(grep " $mnt " /proc/self/mountinfo | grep -c user_id=65534)"
logged 'passthrough off: it needs CAP_SYS_ADMIN'
check 'he writes a block' as_nobody cp "$work/src/$path" "$f"
check 'and reads it' as_nobody cmp "$work/src/$path" "$f"
same 'it is his' 65534 "$(as_nobody stat -c %u "$f")"
refused 'Permission denied' 'root may not look' ls "$mnt"
check 'he unmounts' as_nobody fusermount3 -u "$mnt"
reap "$(daemon_pid)"
same 'the daemon ends well' 0 "$reaped"
check 'no report of a sanitizer' no_sanitizer_report
check 'the directory is clean' grep -qx clean=1 "$work/tier/.ucmfs/state"
check 'the file is his' test "$(stat -c %u "$work/tier/blocks/$path")" = 65534

need do_mount "$work/tier"
crash_daemon
check 'he mounts over a dead mount' do_mount "$work/tier"
check 'and reads' as_nobody cmp "$work/src/$path" "$f"
do_umount TERM

mkdir "$work/other"
as_user=$ucmfs_wrapper ucmfs_wrapper=
need do_mount -o allow_other "$work/other"
crash_daemon
ucmfs_wrapper=$as_user
refused 'it stays: Operation not permitted' "not over root's dead mount" \
	do_mount "$work/tier"
same 'he tries it once' 1 "$(grep -c 'detaching a mount' "$log")"
need umount -l "$mnt"
same 'nothing is left' 0 "$(grep -c " $mnt " /proc/self/mountinfo)"
