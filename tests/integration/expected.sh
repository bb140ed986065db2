#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Blocks that are expected survive a flood of new ones, as long as anything else may
# go; and nobody keeps others from saving by expecting everything.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client python3

# block N: one that is nobody's parent
block() {
	mk --seed "$1" --count 1 --quiet "$mnt/blocks"
}

# id N: of that block
id() {
	small_paths 1 --seed "$1" | sed 's,.*/,,; s/.bin//'
}

# expect <IDS
expect() {
	python3 "$top_srcdir/tests/lib/control.py" "$mnt" touch '' uid=1234 flags=4
}

# are_there FIRST LAST: how many of these blocks
are_there() {
	seq "$1" "$2" | while read -r are_n; do
		small_paths 1 --seed "$are_n"
	done | while read -r are_path; do
		[ ! -e "$work/tier/blocks/$are_path" ] || echo "$are_path"
	done | wc -l
}

# flood FIRST LAST
flood() {
	for flood_n in $(seq "$1" "$2"); do
		need block "$flood_n"
	done
}

# expects FIRST LAST: what is said of these blocks
expects() {
	for expects_n in $(seq "$1" "$2"); do
		id "$expects_n"
	done | expect | tr '\n' ' '
}

need do_mount -o allow_other,policy=lru,limit=only:256K "only=$work/tier"
flood 1 5
same 'everyone may expect' '0 0 0 0 0 ' "$(expects 1 5)"
check 'the owner may evict what is expected' "$ucm" evict -m "$mnt" "$(id 5)"
for n in 10 30 50 70; do
	same 'expected for longer' '0 0 0 0 ' "$(expects 1 4)"
	flood $n $((n + 19))
done
check 'new blocks have taken others' test "$(are_there 10 89)" -lt 40
same 'and none that is expected' 4 "$(are_there 1 4)"

# by one who expects all that there is, always
saved=0
for n in $(seq 101 150); do
	! block "$n" || saved=$((saved + 1))
	{
		"$ucm" ls -m "$mnt" | sed 1d | cut -d' ' -f1
		id "$n"
	} | expect >/dev/null
done
same 'new blocks are saved all the same' 50 $saved
check 'and others have gone for them' test "$(are_there 1 150)" -lt 40
do_umount
rm -r "$work/tier"

# what a loader finds is expected
mkdir "$work/tier"
need do_mount -o policy=lru,limit=only:256K "only=$work/tier"
need mkdir "$mnt/spaces/other"
start_client --space other --layers 2 --plane 1024 mount "$mnt"
ask save 0 4
ask lookup 0 8
same 'a loader finds some' '= found 4' "$answer"
end_client # tells what it has not told yet
flood 1 45
start_client --space other --layers 2 --plane 1024 mount "$mnt"
ask load 0 4
answers 'and loads them later' 4 0 0 0 0
end_client
do_umount
