#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A tier with a limit takes no more than that; a read-only one takes nothing,
# and its blocks cannot be removed.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr
mount_more=policy=none # what is full is full

used() {
	du -sk "$1/blocks" | cut -f 1
}

mkdir "$work/fast" "$work/slow"
need do_mount -o limit=fast:256K "fast=$work/fast:slow=$work/slow"
check 'more blocks than the limit of the first tier' \
	mk --count 100 "$mnt/blocks"
check 'all are whole' verify --count 100 "$mnt/blocks"
in_fast=$(blocks_in "$work/fast/blocks")
check 'the limit is kept' test "$in_fast" -le 32
check 'and made use of' test "$in_fast" -ge 28
same 'the rest is in the next' $((100 - in_fast)) \
	"$(blocks_in "$work/slow/blocks")"
do_umount

mkdir "$work/one" "$work/two"
need do_mount -o "limit=$work/one:128K,limit=all:512K" \
	"all=$work/one,$work/two"
refused 'No space left' 'a tier is full though its directories are not' \
	mk --count 100 "$mnt/blocks"
in_one=$(blocks_in "$work/one/blocks")
check "the limit of a directory is kept: $in_one" test "$in_one" -le 16
check 'and made use of' test "$in_one" -ge 12
check 'the other takes more' test "$(blocks_in "$work/two/blocks")" -gt 24
first() {
	python3 -c 'import json, sys
stats = json.load(open(sys.argv[1]))
print(stats["tiers"][0]["directories"][0][sys.argv[2]])' \
		"$mnt/.ucmfs/stats.json" "$1"
}
check 'each says how many it has' [ "$(first blocks)" = "$in_one" ]
check 'and what it may take' [ "$(first limit_bytes)" = 131072 ]
do_umount

was=$(find "$work/slow" -type f -printf '%P %s %T@\n' | sort)
need do_mount -o readonly=slow "slow=$work/slow:fast=$work/fast"
check 'blocks of a read-only tier are read' verify --count 100 "$mnt/blocks"
check 'new ones go elsewhere' mk --start 100 "$mnt/blocks"
last=$(nth_path 100)
new=$(nth_path 101)
same 'into the tier that is not read-only' fast \
	"$(xattr tier "$mnt/blocks/$new")"
same 'the last lies in the read-only one' slow \
	"$(xattr tier "$mnt/blocks/$last")"
refused 'Read-only file system' 'which gives none away' \
	rm -f "$mnt/blocks/$last"
check 'it is still there' test -f "$mnt/blocks/$last"
check 'others can be removed' rm "$mnt/blocks/$new"
do_umount
same 'nothing in the read-only tier has changed' "$was" \
	"$(find "$work/slow" -type f -printf '%P %s %T@\n' | sort)"

need do_mount -o readonly=slow "slow=$work/slow"
refused 'Read-only file system' 'with no other tier nothing can be made' \
	mk --start 200 "$mnt/blocks"
do_umount
