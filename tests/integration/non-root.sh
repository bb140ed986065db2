#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A user without privileges mounts with fusermount3: no passthrough, and the log
# says why; the mount is his alone. A dead mount of his own he replaces, not one
# of root's. What keeps fusermount3 from mounting is told.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test fuse setpriv fusermount3 mknod namespace
open_fuse_to_others
copy_ucmfs "$work/ucmfs"
as_nobody test -x "$work/ucmfs" || skip "$work cannot be reached by others"
ucmfs=$work/ucmfs
ucmfs_wrapper='setpriv --reuid=65534 --regid=65534 --clear-groups'
chown 65534:65534 "$work/tier" "$mnt"
mkdir -m 700 "$work/runtime"
chown 65534:65534 "$work/runtime"
XDG_RUNTIME_DIR=$work/runtime
export XDG_RUNTIME_DIR
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
socket=$(as_nobody readlink "$mnt/.ucmfs/socket")
same 'its socket lies where his programs have theirs' "$work/runtime/ucmfs" \
	"${socket%/*}"
check 'it is one' as_nobody test -S "$socket"
check 'he unmounts' as_nobody fusermount3 -u "$mnt"
reap "$(daemon_pid)"
same 'the daemon ends well' 0 "$reaped"
check 'its socket is gone' test ! -e "$socket"
check 'no report of a sanitizer' no_sanitizer_report
check 'the directory is clean' grep -qx clean=1 "$work/tier/.ucmfs/state"
check 'the file is his' test "$(stat -c %u "$work/tier/blocks/$path")" = 65534

need do_mount "$work/tier"
crash_daemon
check 'he mounts over a dead mount' do_mount "$work/tier"
check 'and reads' as_nobody cmp "$work/src/$path" "$f"
do_umount TERM

# In the background nobody sees the log of what comes later.
daemon_ended() {
	! is_mounted && grep -qx clean=1 "$work/tier/.ucmfs/state"
}
check 'ucmfs mount' as_nobody "$ucmfs" mount "$work/tier" "$mnt" \
	-o "log=$work/tier/log,io_uring=$transport"
same 'whoever starts it is told of what is slower, once' 1 \
	"$(grep -c 'passthrough off: it needs CAP_SYS_ADMIN' "$work/check.out")"
check 'he reads' as_nobody cmp "$work/src/$path" "$f"
check 'he unmounts' as_nobody fusermount3 -u "$mnt"
check 'it ends' wait_until daemon_ended

# What keeps fusermount3 from mounting; in its place, wherever it is.
fusermount=$(readlink -f "$(command -v fusermount3)")
need cp "$fusermount" "$work/fusermount3"
need mount --bind "$work/fusermount3" "$fusermount"
chmod 755 "$work/fusermount3"
refused 'it is not setuid root; the package fuse3' 'without its setuid bit' \
	do_mount "$work/tier"
chmod 644 "$work/fusermount3"
refused 'fusermount3 is not in PATH, and users other than root mount by it' \
	'none that may be run' do_mount "$work/tier"
need umount "$fusermount"
if setpriv --no-new-privs true 2>/dev/null; then
	ucmfs_wrapper="$ucmfs_wrapper --no-new-privs"
	refused 'no_new_privs is set' 'where it gets no rights' \
		do_mount "$work/tier"
	ucmfs_wrapper=${ucmfs_wrapper% *}
fi

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
