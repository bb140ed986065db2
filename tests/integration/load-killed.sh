#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A process that saves is killed: what can be seen of its blocks is whole, and
# nothing else is left. UCMFS_TEST_LONG=1: as many of the large ones.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client
clients_are_killed

kill_client() {
	kill -9 "$client"
	exec 8>&-
	reap "$client"
}

some_saved() {
	[ "$(blocks_in "$work/tier/blocks")" -ge "$1" ]
}

# all_whole NUM: of the blocks below this number
all_whole() {
	# shellcheck disable=SC2086 # options
	start_client $shape mount "$mnt"
	ask load 0 "$1"
	seen=$(blocks_in "$work/tier/blocks")
	answers "$how: all that is there is whole" "$seen" 0 0 \
		$(($1 - seen)) 0
	ask save 0 "$1"
	answers "$how: and the rest can be saved" $(($1 - seen)) "$seen" 0 0 0
	end_client
}

for shape in '' '--layers 16 --plane 16384' \
	'--layers 16 --plane 16384 --io threads' '--layers 64 --plane 65536'; do
	num=100
	case ${UCMFS_TEST_LONG:-0}:$shape in
	0:*65536) num=30 ;; # of 8 MiB
	esac
	how="killed while saving ($shape)"
	need do_mount "$work/tier"
	# shellcheck disable=SC2086 # options
	start_client $shape --threads 2 mount "$mnt"
	tell start save 0 $num
	hear
	need wait_until some_saved 10
	kill_client
	no_debris "$work/tier"
	all_whole $num

	# blocks of which some layers were saved
	how="killed between layers ($shape)"
	rm -rf "$mnt"/blocks/??/*
	# shellcheck disable=SC2086 # options
	start_client $shape mount "$mnt"
	ask layers 0 20 1 1
	answers "$how: a layer is saved" 20 0 0 0 0
	kill_client
	no_debris "$work/tier"
	same "$how: nothing is there" 0 "$(blocks_in "$work/tier/blocks")"
	all_whole 20

	# the same of a process that writes the tiers itself
	rm -rf "$mnt"/blocks/??/*
	do_umount
	how="killed while saving to tiers ($shape)"
	# shellcheck disable=SC2086 # options
	start_client $shape tiers "$work/tier"
	tell start save 0 $num
	hear
	need wait_until some_saved 10
	kill_client
	need do_mount "$work/tier"
	no_debris "$work/tier"
	all_whole $num
	do_umount
	rm -rf "$work/tier"
	mkdir "$work/tier"
done
