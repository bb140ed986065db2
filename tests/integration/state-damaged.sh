#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A damaged .ucmfs/state is an unclean stop of which nothing is known: the mount
# begins, says so in one line, checks all blocks, and leaves a good one.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

state=$work/tier/.ucmfs/state
torn=$work/tier/blocks/$(small_paths 1)

# Commands that damage $state.
cut_off() {
	truncate -s "$1" "$state"
}

zeros() {
	dd if=/dev/zero of="$state" bs=64 count=1 conv=notrunc status=none
}

is_clean() {
	grep -q '^clean=1' "$state" && ! grep -q damaged "$state"
}

all_checked() {
	stat_is in_doubt 0 && index_is_complete
}

need mkdir -p "$work/tier/blocks"
need mk "$work/tier/blocks"
need do_mount "$work/tier"
do_umount

for damage in 'cut_off 0' 'cut_off 6' 'cut_off 20' 'cut_off 50' zeros \
	'flip 0' 'flip 5' 'flip 7' 'flip 10' 'flip 40'; do
	# shellcheck disable=SC2086 # a command and its operand
	case $damage in
	flip*) need flip "$state" ${damage#flip} ;;
	*) need $damage ;;
	esac
	need flip "$torn" 5000
	need do_mount "$work/tier"
	same "$damage: one line says so" 1 \
		"$(grep -c "$work/tier: .ucmfs/state is damaged: " "$log")"
	check "$damage: good blocks are served" \
		verify --start 1 --count 15 "$mnt/blocks"
	check "$damage: a torn one is found" wait_until stat_is quarantined 1
	check "$damage: the state is replaced" grep -q '^clean=0' "$state"
	check "$damage: all is checked" wait_until all_checked
	do_umount
	check "$damage: and is clean at the end" is_clean
	need mk --count 1 "$work/tier/blocks"
done

# Not its business: another version's identity is refused as before.
need sed -i 's/^ucmfs [0-9]*/ucmfs 9/' "$work/tier/.ucmfs/id"
refused 'version' 'a directory of another version' do_mount "$work/tier"
