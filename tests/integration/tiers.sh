#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Blocks in motion, through a mount: a store that is full goes on, and what is
# worth least leaves it; blocks go down, and come up when they are used; what is
# written back is below when the mount ends; pins stay; a drained directory is
# empty.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
let_go() {
	[ ! -f "$work/run/mnt.pid" ] ||
		kill -CONT "$(cat "$work/run/mnt.pid")" 2>/dev/null
}

start_test root fuse getfattr python3

metric() {
	sed -n "s/^$1{.*$2.*} //p; s/^$1 //p" "$mnt/.ucmfs/metrics" | head -n 1
}

metric_of_mount() {
	sed -n "s/^$1{mount=[^ ]*} //p" "$mnt/.ucmfs/metrics"
}

is_saved() { [ "$(metric_of_mount ucmfs_unsaved_blocks)" = 0 ]; }
is_relieved() { [ "$(metric ucmfs_directory_pressure_bytes 'directory="0"')" = 0 ]; }
is_in() { [ "$(xattr tier "$1" 2>/dev/null)" = "$2" ]; }

mkdir "$work/a" "$work/b" "$work/c"

# one directory, a quarter of what is written
need do_mount -o limit=only:256K "only=$work/a"
check 'four times the room is written, and nothing fails' \
	mk --count 120 "$mnt/blocks"
check 'the limit is kept' test "$(blocks_in "$work/a/blocks")" -le 32
check 'and made use of' test "$(blocks_in "$work/a/blocks")" -ge 24
left=$(ls "$mnt"/blocks/*/*.bin | wc -l)
same 'what is listed is what lies there' "$(blocks_in "$work/a/blocks")" "$left"
for file in "$mnt"/blocks/*/*.bin; do
	cat "$file" >"$work/one" || fail "cannot read $file"
done
evicted=$(metric ucmfs_tier_evicted_total 'tier="only"')
same 'all others were evicted' $((120 - left)) "$evicted"
do_umount
rm -rf "$work/a" && mkdir "$work/a"

# what is pinned stays, and says so
need do_mount -c high=100,low=99 -o limit=only:128K "only=$work/a"
check 'eight blocks' mk --count 8 "$mnt/blocks"
for path in $(small_paths 8); do
	setfattr -n user.ucmfs.pinned -v 1 "$mnt/blocks/$path" ||
		fail "pinning $path"
done
check 'more than there is room for' mk --start 8 --count 40 "$mnt/blocks"
check 'the pinned ones are there' verify --count 8 "$mnt/blocks"
fill_with_pinned() {
	for path in $(small_paths 40); do
		[ -f "$mnt/blocks/$path" ] ||
			cp "$work/src/$path" "$mnt/blocks/$path" || return
		setfattr -n user.ucmfs.pinned -v 1 "$mnt/blocks/$path"
	done
}
make_src --count 40
refused 'No space left' 'until all are pinned' fill_with_pinned
logged 'are pinned'
do_umount
rm -rf "$work/a" && mkdir "$work/a"

# two tiers: down by the mark, up by use
# (lru: what was just used is the last to go down again)
need do_mount -c high=80,low=50 -o limit=fast:256K,promote=2,policy=lru \
	"fast=$work/a:slow=$work/b"
check 'more than the fast tier has room for' mk --count 64 "$mnt/blocks"
check 'all are served' verify --count 64 "$mnt/blocks"
check 'the fast tier gets below its mark' wait_until is_relieved
check 'what it has is within the mark' \
	test "$(blocks_in "$work/a/blocks")" -le 26
down=
for path in $(small_paths 64); do
	[ -f "$work/a/blocks/$path" ] || {
		down=$path
		break
	}
done
need test -n "$down"
comes_up() {
	cat "$mnt/blocks/$down" >"$work/one" && is_in "$mnt/blocks/$down" fast
}
check 'what is used comes up' wait_until comes_up
check 'and lies in both' test -f "$work/a/blocks/$down" -a -f \
	"$work/b/blocks/$down"
same 'which the block says' slow "$(xattr copy "$mnt/blocks/$down")"
check 'all are served' verify --count 64 "$mnt/blocks"
do_umount
need do_mount -o limit=fast:256K "fast=$work/a:slow=$work/b"
check 'a remount finds them all' verify --count 64 "$mnt/blocks"
do_umount
rm -rf "$work/a" "$work/b" && mkdir "$work/a" "$work/b"

# written back
need do_mount -o write=fast:back "fast=$work/a:slow=$work/b"
check 'blocks are committed at once' mk --count 32 "$mnt/blocks"
check 'and are below soon' wait_until is_saved
same 'all of them' 32 "$(blocks_in "$work/b/blocks")"
check 'more' mk --start 32 --count 32 "$mnt/blocks"
do_umount
same 'what was not below is, when the mount has ended' 64 \
	"$(blocks_in "$work/b/blocks")"
rm -rf "$work/a" "$work/b" && mkdir "$work/a" "$work/b"

# a directory is taken out of use
need do_mount "all=$work/a,$work/b:slow=$work/c"
check 'blocks in two directories' mk --count 64 "$mnt/blocks"
is_drained() { [ "$(blocks_in "$work/a/blocks")" = 0 ]; }
drain() {
	python3 "$top_srcdir/tests/lib/control.py" "$mnt" drain '' \
		"path=$work/a" "argument=$1"
}
check 'one is drained' drain 1
check 'it is empty soon' wait_until is_drained
check 'all are served' verify --count 64 "$mnt/blocks"
check 'new ones' mk --start 64 --count 16 "$mnt/blocks"
same 'go elsewhere' 0 "$(blocks_in "$work/a/blocks")"
check 'it is used again' drain 2
check 'by new ones' mk --start 80 --count 64 "$mnt/blocks"
check 'which lie there' test "$(blocks_in "$work/a/blocks")" -gt 0
do_umount

# a file system with few inodes: the folders of the blocks take 256 of them
mkdir "$work/few"
need mount -t tmpfs -o nr_inodes=400 none "$work/few"
mkdir "$work/few/blocks"
for i in $(seq 0 255); do
	mkdir "$work/few/blocks/$(printf %02x "$i")"
done
free_inodes() { stat -f -c %d "$work/few"; }
# of those that strangers leave, percent
our_inodes() {
	ours=$(blocks_in "$work/few/blocks")
	echo $((100 * ours / (ours + $(free_inodes))))
}
are_left() { [ "$(our_inodes)" -le "$1" ]; }
need do_mount -c high=90,low=60 "few=$work/few"
room=$(free_inodes)
check 'three times as many blocks as inodes' \
	mk --count $((3 * room)) "$mnt/blocks"
check 'some are left to others' wait_until are_left 90
check 'and not too many' test "$(our_inodes)" -ge 50
before=$(blocks_in "$work/few/blocks")
strangers() {
	for i in $(seq "$(free_inodes)"); do
		: >"$work/few/stranger.$i" || return
	done
}
# all at once: it must not make room for them while they take it
need freeze "$(cat "$work/run/mnt.pid")"
check 'strangers take what is free' strangers
need let_go
check 'blocks make way' wait_until are_left 90
check 'but not all of them' \
	test "$(blocks_in "$work/few/blocks")" -ge $((before / 2))
do_umount
umount "$work/few"
