#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Clients of a socket make every request that reads or changes blocks, and are killed at
# each kind of message; so is the daemon: nothing that was committed is lost, no draft
# becomes a block, no byte is wrong, and nothing is left, by a map that is kept outside.
#
# 30 000 operations; a million with UCMFS_TEST_LONG=1. The choices follow from a seed,
# which is printed; UCMFS_TEST_SEED=... makes the same again.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
operations=30000
[ "${UCMFS_TEST_LONG:-0}" = 0 ] || {
	operations=1000000
	: "${UCMFS_TEST_TIMEOUT:=3600}"
}
start_test python3

model=
on_exit() {
	[ -z "$model" ] || {
		kill -TERM $model
		reap $model
	}
}

# in memory, where it can be: each commit is synced
mkdir "$work/disk"
[ "$(id -u)" != 0 ] || mount -t tmpfs -o size=256M none "$work/disk" ||
	left_out 'a tmpfs cannot be mounted: on the disk of tests'
python3 -B "$top_srcdir/tests/lib/socket_model.py" "$ucmfs" "$work/disk" \
	$operations &
model=$!
keep_pid $model
wait $model || fail 'see above'
forget_pid $model
model=
