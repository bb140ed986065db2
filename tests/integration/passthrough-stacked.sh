#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A tier on a file system that is stacked too deep does without passthrough; the
# others keep it.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

on_exit() {
	umount "$work/over2" "$work/over1" "$work/ram" 2>/dev/null
}

for dir in ram over1 over2; do
	need mkdir "$work/$dir"
done
mount -t tmpfs -o size=64M none "$work/ram" 2>/dev/null || skip 'no tmpfs'
for dir in low up1 work1 up2 work2; do
	need mkdir "$work/ram/$dir"
done
mount -t overlay -o "lowerdir=$work/ram/low,upperdir=$work/ram/up1,workdir=$work/ram/work1" \
	none "$work/over1" 2>/dev/null || skip 'no overlayfs'
mount -t overlay -o "lowerdir=$work/over1,upperdir=$work/ram/up2,workdir=$work/ram/work2" \
	none "$work/over2" 2>/dev/null || skip 'no overlayfs on overlayfs'

need do_mount -o limit=a:80K "a=$work/tier:b=$work/over2"
grep -q '"passthrough": true' "$mnt/.ucmfs/stats.json" || skip 'no passthrough'
need mk --count 4 "$mnt/blocks"
need mk --count 12 --seed 9 "$mnt/blocks"
check 'both tiers have blocks' test -n "$(find "$work/over2" -name '*.bin')"
check 'all can be read' mk --count 12 --seed 9 --verify "$mnt/blocks"
logged "$work/over2: passthrough off"
check 'it stays on' grep -q '"passthrough": true' "$mnt/.ucmfs/stats.json"
do_umount
