#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# With passthrough the daemon makes the mount's first write itself, of a kind that
# makes the kernel ready for many at a time: before loaders write, and without
# keeping the mount busy.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse strace
clients_are_killed

byte() {
	od -An -tu1 "$mnt/.ucmfs/first-write" | tr -d ' '
}

is_made() {
	[ "$(byte)" = 1 ]
}

need do_mount -o io_uring=off "$work/tier"
grep -q '"passthrough": true' "$mnt/.ucmfs/stats.json" || skip 'no passthrough'
check 'it is made' wait_until is_made
same 'its file is for the daemon' '600 0 1' \
	"$(stat -c '%a %u %s' "$mnt/.ucmfs/first-write")"
if may_try 'that it is for root alone' setpriv; then
	refused 'ermission denied' 'and no other user reads it' \
		as_nobody cat "$mnt/.ucmfs/first-write"
fi
do_umount

# A thread that waits for its own process keeps what is left of that.
threads_have_ended() {
	[ "$(find "/proc/$killed/task" -mindepth 1 -maxdepth 1 | wc -l)" -le 1 ]
}

# A kernel that takes its time for it; meanwhile the mount is left.
mount_with_slow_write() {
	ucmfs_wrapper="strace -D -f -q -o $work/trace -e trace=io_submit
		-e inject=io_submit:delay_enter=1000000"
	need do_mount -o io_uring=off "$work/tier"
	ucmfs_wrapper=
	need wait_until grep -q 'io_submit(' "$work/trace" >&2
}
mount_with_slow_write
same 'it is not made yet' 0 "$(byte)"
do_umount
# in two lines, if another thread has ended meanwhile
check 'it was one that nobody waits for' wait_until \
	grep -Eq '(PWRITE|io_submit resumed>).*= 1' "$work/trace"
rm "$work/trace"
mount_with_slow_write
do_umount TERM
mount_with_slow_write
killed=$(daemon_pid)
kill -9 "$killed"
check 'one that is killed ends' wait_until threads_have_ended
umount -f "$mnt" || umount -l "$mnt" # and so does the connection
crash_daemon

# A daemon over io_uring that is killed may leave requests of its own unanswered.
need do_mount -o io_uring=auto "$work/tier"
if grep -q '"io_uring": true' "$mnt/.ucmfs/stats.json"; then
	same 'none over io_uring' 0 "$(stat -c %s "$mnt/.ucmfs/first-write")"
else
	left_out 'over io_uring' 'the machine has it not'
fi
do_umount

need do_mount -o passthrough=off "$work/tier"
same 'without passthrough there is none' 0 \
	"$(stat -c %s "$mnt/.ucmfs/first-write")"
refused 'not supported' 'to be read' cat "$mnt/.ucmfs/first-write"
do_umount
