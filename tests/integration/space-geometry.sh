#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The first block of a space fixes its geometry: others are refused, in this space
# alone, until it is empty again.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

mk3() {
	mk --layers 3 --count 2 --seed 3 "$@"
}

need do_mount "$work/tier"
need mkdir "$mnt/spaces/one"
need mk --count 2 "$mnt/blocks"
refused 'close: Invalid argument' 'another geometry is refused' \
	mk3 "$mnt/blocks"
check 'elsewhere it is not' mk3 "$mnt/spaces/one"
refused 'close: Invalid argument' 'there the first is' mk --seed 1 "$mnt/spaces/one"
refused 'close: Invalid argument' 'more tokens are another geometry' \
	mk --tokens 32 --count 1 "$mnt/blocks"
refused 'close: Invalid argument' 'so is another type of the same size' \
	mk --dtype bfloat16 --count 1 --seed 2 "$mnt/blocks"
refused 'close: Invalid argument' 'and K and V as one' \
	mk --v-bytes 0 --count 1 --seed 2 "$mnt/blocks"
check 'the packed form of the same is not' \
	mk --form packed --count 1 --seed 2 "$mnt/blocks"
do_umount

need do_mount "$work/tier"
refused 'close: Invalid argument' 'so it is after a remount' \
	mk3 "$mnt/blocks"
need rm "$mnt/blocks/$(small_paths 1)" \
	"$mnt/blocks/$(nth_path 2)" \
	"$mnt/blocks/$(small_paths 1 --seed 2)"
check 'an empty space takes another' mk3 "$mnt/blocks"
refused 'close: Invalid argument' 'and then not the old one' \
	mk --count 2 "$mnt/blocks"

# a block of another geometry that came in behind the mount
do_umount
need mk --seed 7 --count 1 "$work/tier/blocks"
need do_mount "$work/tier"
need wait_until grep -q '"complete": true' "$mnt/.ucmfs/stats.json"
seen=$(blocks_in "$mnt/blocks")
same 'of what is there, one geometry is served' 1 \
	"$( ([ "$seen" = 2 ] || [ "$seen" = 1 ]) && echo 1)"
same 'the rest is counted' $((3 - seen)) "$(stat_of misfits)"
do_umount
same 'and left where it is' 3 "$(blocks_in "$work/tier/blocks")"
