#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A tier is full while blocks are saved: each that found no room says so,
# nothing of it is seen, and the loader goes on.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client
mount_more=policy=none # what is full is full

count_of() {
	echo "$answer" | sed "s/.* $1 \([0-9]*\).*/\1/"
}

# fills WHAT: more than there is room for, then some room, then again
fills() {
	ask save 0 200
	saved=$(count_of ok)
	same "$1: none is lost without a word" 200 \
		$((saved + $(count_of failed)))
	check "$1: some found room" test "$saved" -ge 10
	check "$1: some did not" test "$saved" -lt 200
	client_said 'No space left on device'
	same "$1: only those are there" "$saved" \
		"$(blocks_in "$work/full/blocks")"
	ask load 0 200
	answers "$1: and they are whole" "$saved" 0 0 $((200 - saved)) 0
	no_debris "$work/full"
	rm -rf "$2"/blocks/??/*
	# the loader itself had some of them open
	ask_until '= ok 0 skipped 4 wrong 0 absent 0 failed 0' save 300 4
	answers "$1: with room again it saves" 0 4 0 0 0
	ask load 300 4
	answers "$1: and loads that" 4 0 0 0 0
}

for io in auto threads; do
	for shape in '' '--layers 8 --plane 4096'; do
		mkdir "$work/full"
		need mount -t tmpfs -o size=1m tmpfs "$work/full"
		need do_mount "$work/full"
		# shellcheck disable=SC2086 # options
		start_client --io $io $shape mount "$mnt"
		fills "the mount, $io, $shape" "$mnt"
		# block by block in layers: there is room for the first ones
		ask layers 400 150 0 1
		ask layers 400 150 1 1
		end_client
		no_debris "$work/full"
		do_umount
		need umount "$work/full"
		rmdir "$work/full"
	done
done

# by a limit of its own, of a tier that has room
need mkdir "$work/full"
need do_mount -o limit=tier0:512K "$work/full"
start_client mount "$mnt"
# before it knows how long blocks are it lets in what comes at a time
ask save 500 1
rm -rf "$mnt"/blocks/??/*
fills 'a limit' "$mnt"
end_client
do_umount
