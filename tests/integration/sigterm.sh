#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# SIGTERM, SIGINT and SIGHUP end the daemon cleanly: unmounted, exit status 0, and
# the directories are called clean.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# the shell has what it starts in the background ignore SIGINT
env --default-signal=INT true 2>/dev/null || skip 'env cannot reset signals'
ucmfs_wrapper='env --default-signal=INT,QUIT'

for signal in TERM INT HUP; do
	need do_mount "$work/tier"
	mk --count 4 --seed 1$(printf %d "'$signal") "$mnt/blocks" || fail "mk"
	do_umount $signal
	check "clean after SIG$signal" \
		grep -qx clean=1 "$work/tier/.ucmfs/state"
done
need do_mount "$work/tier"
same 'nothing is in doubt' 0 "$(stat_of in_doubt)"
exec 5<"$mnt/blocks" # busy: SIGTERM detaches all the same
do_umount TERM
exec 5<&-
