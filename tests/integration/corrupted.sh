#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# After an unclean stop what may be damaged is checked before it is served: a
# block with a flipped bit is a miss and lies in quarantine, a torn one as well;
# all others are served.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

need do_mount "$work/tier"
need mk "$mnt/blocks"
bits=$(nth_path 3)
torn=$(nth_path 5)
tail=$(nth_path 7)
check 'while it is mounted it is not called clean' \
	grep -qx clean=0 "$work/tier/.ucmfs/state"
kill_daemon
flip "$work/tier/blocks/$bits" 5000 # layer 0, V
truncate -s 5000 "$work/tier/blocks/$torn"
flip "$work/tier/blocks/$tail" 8000 # after the payload

need do_mount "$work/tier"
absent "$mnt/blocks/$bits"
absent "$mnt/blocks/$torn"
absent "$mnt/blocks/$tail"
same 'the others are listed' 13 "$(blocks_in "$mnt/blocks")"
for path in $(small_paths 16); do
	[ "$path" != "$bits" ] && [ "$path" != "$torn" ] &&
		[ "$path" != "$tail" ] || continue
	cmp "$work/tier/blocks/$path" "$mnt/blocks/$path" >/dev/null ||
		fail "$path cannot be read"
done
check 'three files are in quarantine' test \
	"$(find "$work/tier/.ucmfs/quarantine" -type f | wc -l)" = 3
same 'they are counted' 3 "$(stat_of quarantined)"
logged 'plane checksum differs (layer 0 V)'
logged 'shorter than its header announces'
check 'all doubts are settled' wait_until stat_is in_doubt 0
check 'what was lost can be written again' mk --existing-ok "$mnt/blocks"
check 'and is whole' verify "$mnt/blocks"
do_umount
check 'then it is clean' grep -qx clean=1 "$work/tier/.ucmfs/state"
