#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# While a call in files/ waits for a disk, a folder elsewhere in files/ can be
# changed.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse fsfreeze

# frozen, it could not be unmounted
on_exit() {
	fsfreeze -u "$work/frozen" 2>/dev/null
}

# A thread of the daemon sleeps where no signal reaches it.
daemon_waits() {
	cat "/proc/$(daemon_pid)/task/"*/status | grep -q '^State:.*D (disk'
}

# Names share locks, by chance: the file's and both folders' do once in a
# million runs.
changed() {
	[ "$(stat -c %a "$work/other/files/d1")" = 700 ] ||
		[ "$(stat -c %a "$work/other/files/d2")" = 700 ]
}

need mkdir -p "$work/other/files/d1" "$work/other/files/d2"
make_fs ext4 64M "$work/frozen"
# over io_uring one thread serves a processor: it waits for the frozen disk, and
# what comes from that processor waits with it
need do_mount -o io_uring=off "frozen=$work/frozen:other=$work/other"
need stat "$mnt/files/d1" "$mnt/files/d2" >/dev/null

need fsfreeze -f "$work/frozen"
touch "$mnt/files/x" &
keep_pid $!
toucher=$!
check 'a new file waits for the frozen disk' wait_until daemon_waits
chmods=
for folder in d1 d2; do
	chmod 700 "$mnt/files/$folder" &
	keep_pid $!
	chmods="$chmods $!"
done
check 'a folder on the other one is changed meanwhile' wait_until changed
check 'the file waits on' test ! -e "$work/frozen/files/x"
need fsfreeze -u "$work/frozen"
for pid in $toucher $chmods; do
	reap "$pid"
	same 'all end well when it answers' 0 "$reaped"
done
do_umount
