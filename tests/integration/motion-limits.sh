#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Blocks are evicted when limits ask for it, and only then: not by a drain, and not
# while a lower tier has room. A flush beside writers
# does not fail, and names the blocks that have no room below.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse python3

# 36 KiB each
make_blocks() {
	need "$mkblocks" --form packed --layers 2 --heads 2 --dim 128 \
		--tokens 16 "$@" "$mnt/blocks"
}

is_still() {
	was=$(cat "$mnt/.ucmfs/stats.json" |
		python3 -c 'import json, sys
print([d["blocks"] for t in json.load(sys.stdin)["tiers"] for d in t["directories"]])')
	[ "$was" = "${before-}" ] && return
	before=$was
	false
}

# a drain evicts nothing
mkdir "$work/x" "$work/y" "$work/z"
need do_mount -o limit=fast:1M "fast=$work/x:low=$work/z"
make_blocks --count 400
status 'drain the lower tier' 1 "$ucm" drain -m "$mnt" "$work/z"
says 'without room elsewhere'
says 'the other directories have no room below their high marks'
same 'all are there' 400 "$(blocks_in "$mnt/blocks")"
json 'x["no_room"] == x["blocks"] > 300' \
	"$ucm" drain -m "$mnt" -j --status "$work/z"
left=$(blocks_in "$work/z/blocks")
make_blocks --start 400 --count 200
check 'counts stand still' wait_until is_still
same 'new blocks take none from it' "$left" "$(blocks_in "$work/z/blocks")"
check 'new blocks are there' test "$(blocks_in "$mnt/blocks")" -gt "$left"
do_umount
rm -r "$work/x" "$work/z"

# with room above, the lower tier is emptied
mkdir "$work/x" "$work/z"
need do_mount -c high=95 -o limit=fast:100M "fast=$work/x:low=$work/z"
make_blocks --count 100
need "$ucm" drain -m "$mnt" -b "$work/x"
is_below() { [ "$(blocks_in "$work/z/blocks")" = 100 ]; }
check 'to the lower tier' wait_until is_below
need "$ucm" drain -m "$mnt" --stop "$work/x"
status 'and back' 0 "$ucm" drain -m "$mnt" "$work/z"
same 'all of them' 100 "$(blocks_in "$work/x/blocks")"
do_umount
rm -r "$work/x" "$work/z"

# down tier by tier
mkdir "$work/x" "$work/z"
need do_mount -o limit=fast:1M,limit=mid:1M \
	"fast=$work/x:mid=$work/y:low=$work/z"
make_blocks --count 395
check 'counts stand still' wait_until is_still
same 'all are there, below' 395 "$(blocks_in "$mnt/blocks")"
do_umount
rm -r "$work/x" "$work/y" "$work/z"

# a flush beside a writer; the lower tier has room for all, so that nothing leaves
# it again after the last flush
mkdir "$work/x" "$work/y"
need do_mount -o write=fast:back,limit=fast:20M,limit=low:600M \
	"fast=$work/x:low=$work/y"
(
	n=0
	while [ ! -e "$work/enough" ] && [ $n -lt 100 ]; do
		"$mkblocks" --form packed --layers 2 --heads 2 --dim 128 \
			--tokens 16 --start $((n * 100)) --count 100 \
			"$mnt/blocks" || exit 1
		n=$((n + 1))
	done
) >"$work/writer" 2>&1 &
writer=$!
keep_pid $writer
for i in 1 2 3 4 5 6 7 8; do
	status "flush $i beside a writer" 0 "$ucm" sync flush "$mnt"
done
check 'the writer writes still' kill -0 $writer
touch "$work/enough"
reap $writer
same 'the writer ends well' 0 "$reaped"
status 'the last flush' 0 "$ucm" sync flush "$mnt"
json 'x["index"]["unsaved"] == 0' cat "$mnt/.ucmfs/stats.json"
do_umount
rm -r "$work/x" "$work/y"

# what has no room below is named: ten blocks fill it, and may not go. One mover: a
# copy that ends counts twice for a moment, which two at once could take for a full tier.
mkdir "$work/x" "$work/y"
need do_mount -c movers=1 -o write=fast:back,limit=low:380K \
	"fast=$work/x:low=$work/y"
make_blocks --count 10
status 'with room' 0 "$ucm" sync flush "$mnt"
need "$ucm" pin -m "$mnt" --all
make_blocks --start 10 --count 5
status 'the lower tier is pinned' 0 "$ucm" sync flush "$mnt"
says '5 blocks had no room in a lower tier'
check 'the log names a block' \
	grep -q 'block [0-9a-f]*: not copied to a lower tier: no room' "$log"
same 'nothing is lost' 15 "$(blocks_in "$mnt/blocks")"
do_umount
