#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Four writers at full speed into three full tiers, while blocks are removed,
# pinned, warmed, flushed, scrubbed and compared, a quota changes, directories are
# drained and used again, and the daemon is killed every 8 to 20 seconds: no
# write and no flush fails, no byte is wrong, and nothing is lost that limits did
# not ask for, by an account that is kept outside of the daemon.
#
# Each kind of life once; ten minutes with UCMFS_TEST_LONG=1. The choices follow from
# a seed, which is printed; UCMFS_TEST_SEED=... makes the same again.
# UCMFS_TEST_LIVES="full still": only these kinds of lives (tests/lib/motion_soak.py).

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
seconds=40
life=8
[ "${UCMFS_TEST_LONG:-0}" = 0 ] || {
	seconds=600
	life=20
}
: "${UCMFS_TEST_TIMEOUT:=$((seconds * 2 + 240))}"
start_test campaigns root fuse python3

# limits of some MiB, without the syncs of a disk that others use
mkdir "$work/disk"
mount -t tmpfs -o size=512M none "$work/disk" 2>"$work/mount.err" ||
	skip "a tmpfs cannot be mounted: $(cat "$work/mount.err")"
UCMFS_TEST_DIR=$work/disk
UCMFS_TEST_PID=$work/run/soak.pid
UCMFS_DAEMON=$ucmfs
export UCMFS_TEST_DIR UCMFS_TEST_PID UCMFS_DAEMON
soak=
on_exit() {
	[ -z "$soak" ] || {
		kill -TERM $soak
		reap $soak
	}
}

# in the background, so that a signal ends it
# shellcheck disable=SC2086 # a list
python3 -B "$top_srcdir/tests/lib/motion_soak.py" "$ucm" $seconds $life \
	${UCMFS_TEST_LIVES-} &
soak=$!
keep_pid $soak
wait $soak || fail 'see above'
forget_pid $soak
soak=
