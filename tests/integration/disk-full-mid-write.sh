#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A disk that fills up while a block is being written: the writer is told, and
# nothing of it stays.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# of the first block of a space the size is not known when it is created
need mount -t tmpfs -o size=1m tmpfs "$work/tier"
need do_mount "$work/tier"
refused 'No space left on device' 'a block larger than the disk' \
	"$mkblocks" --quiet --count 1 --chunk 65536 "$mnt/blocks"
absent "$mnt/blocks/$("$mkblocks" --list --count 1)"
no_debris "$work/tier"
same 'nothing is listed' 0 "$(blocks_in "$mnt/blocks")"
refused 'No space left on device' 'the same by staging and rename' \
	"$mkblocks" --quiet --count 1 --method rename "$mnt/blocks"
need rm -f "$mnt/blocks/$("$mkblocks" --list --count 1).tmp"
no_debris "$work/tier"
check 'a smaller one still goes in' mk --count 1 "$mnt/blocks"
check 'and is whole' verify --count 1 "$mnt/blocks"
do_umount
