#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# umount and mount at once: umount(8) returns before the daemon has closed, and
# the start waits for it. A directory in use by a daemon that is not ending is
# refused after some seconds.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# As a user does it: into the background.
mount_it() {
	# syncfs waits for all that others write to the same file system
	"$ucmfs" "$work/tier" "$mnt" \
		-o "io_uring=off,log=$work/log,$options" \
		2>"$work/said"
}

# Reads and writes as long as the file "go" is there; fails with each umount.
keep_busy() {
	i=0
	while [ -e "$work/go" ]; do
		i=$((i + 1))
		head -c 200000 /dev/urandom >"$mnt/files/f$((i % 7))"
		cat "$mnt"/files/* "$mnt"/blocks/*/*.bin >"$work/sink"
		ls "$mnt/blocks" "$mnt/spaces"
	done >/dev/null 2>&1
}

umount_it() {
	wait_until umount "$mnt"
}

# Its locks are what tells; the file's inode is the end of the 6th word.
daemon_is_gone() {
	ino=$(stat -c %i "$work/tier/.ucmfs/lock")
	! grep -q ":$ino " /proc/locks
}

touch "$work/go"
keep_busy &
busy=$!
keep_pid $busy
for options in durability=none durability=full,deadline=5,passthrough=off; do
	need mount_it
	for cycle in $(seq 20); do
		need mk --existing-ok "$mnt/blocks"
		umount_it || fail "$options: umount $cycle"
		check "$options: mount $cycle" mount_it ||
			sed 's/^/  | /' "$work/said"
	done
	check "$options: all is there" verify "$mnt/blocks"
	umount_it
	check 'the daemon ends' wait_until daemon_is_gone
	check 'cleanly' grep -qx clean=1 "$work/tier/.ucmfs/state"
done
rm "$work/go"
reap $busy

# in use by one that goes on
need do_mount "$work/tier"
mkdir "$work/mnt2"
before=$(date +%s%N)
refused 'in use by another ucmfs' 'a directory in use is refused' \
	"$ucmfs" "$work/tier" "$work/mnt2"
took=$((($(date +%s%N) - before) / 1000000))
check "soon ($took ms)" test $took -lt 20000

# one that does not end, though its mount is gone: something holds it
exec 8<"$mnt/.ucmfs/stats.json"
need umount -l "$mnt"
refused 'in use by another ucmfs' 'the wait is bounded' \
	"$ucmfs" "$work/tier" "$work/mnt2"
"$ucmfs" "$work/tier" "$work/mnt2" -o io_uring=off 2>"$work/said" 8<&- &
start=$!
keep_pid $start
check 'the wait is told on standard error' \
	wait_until grep -q 'waiting for another ucmfs' "$work/said"
exec 8<&-
reap $start
same 'and ends with the other daemon' 0 "$reaped"
same 'it was told once' 1 "$(grep -c waiting "$work/said")"
check 'all is there' verify "$work/mnt2/blocks"
need umount "$work/mnt2"
check 'the daemon ends' wait_until daemon_is_gone
