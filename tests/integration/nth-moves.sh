#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The daemon is killed at its nth call to the backing directories, or that call
# fails or is short, while a block goes down, comes up, is written back, is
# evicted, removed, drained or rebalanced: no block is lost, and nothing is left.
#
# UCMFS_TEST_LONG=1: at every call; otherwise at a sample of them, which follows
# from a seed that is printed; UCMFS_TEST_SEED=... makes it again.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
limit=300
[ "${UCMFS_TEST_LONG:-0}" = 0 ] || limit=7200
: "${UCMFS_TEST_TIMEOUT:=$limit}"
start_test campaigns root fuse python3
preload=$top_builddir/tests/lib/.libs/libnthcall.so
[ -f "$preload" ] || skip "$preload is not built"

seed=${UCMFS_TEST_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "seed: $seed (UCMFS_TEST_SEED=$seed takes the same sample)"
UCMFS_TEST_DIR=$work
UCMFS_DAEMON=$ucmfs
export UCMFS_TEST_DIR UCMFS_DAEMON
# shellcheck disable=SC2086 # a list
python3 -B "$top_srcdir/tests/lib/nth_moves.py" "$mkblocks" "$ucm" "$preload" "$seed" \
	${UCMFS_TEST_SCENES-} || fail 'see above'
