#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# .ucmfs: not listed, but there; stats.json is JSON; config.yaml is what the mount
# was told, and another mount can be made from it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

mkdir "$work/fast" "$work/slow 'two'"
need do_mount -c threads=3,checkpoint=7,staging_age=77 \
	-o limit=fast:80%,durability=data "fast=$work/fast:slow=$work/slow 'two'"
need mk "$mnt/blocks"
same 'the root lists three directories' 'blocks
files
spaces' "$(ls -A "$mnt")"
same '.ucmfs lists its files' 'config.yaml
debug
metrics
socket
stats.json' "$(ls -A "$mnt/.ucmfs")"
check 'stats.json is JSON' python3 -m json.tool "$mnt/.ucmfs/stats.json"
same 'it counts commits' 16 "$(stat_of commits)"
same 'and blocks' 16 "$(stat_of blocks)"
check 'it names the tiers' grep -q '"name": "fast"' "$mnt/.ucmfs/stats.json"
size=$(stat -c %s "$mnt/.ucmfs/config.yaml")
same 'st_size is that of the text' "$size" "$(wc -c <"$mnt/.ucmfs/config.yaml")"
refused 'Operation not permitted' 'they cannot be written' \
	dd if=/dev/null of="$mnt/.ucmfs/config.yaml"
refused 'ermi' 'nor removed' rm -f "$mnt/.ucmfs/stats.json"
refused 'ermi' 'nor others made' dd if=/dev/null of="$mnt/.ucmfs/x"
need cp "$mnt/.ucmfs/config.yaml" "$work/config.yaml"
do_umount

need do_mount -o config="$work/config.yaml" none
check 'a mount made from config.yaml has the blocks' verify "$mnt/blocks"
check 'and the same configuration' \
	cmp "$work/config.yaml" "$mnt/.ucmfs/config.yaml"
do_umount
need do_mount -o "config=$work/config.yaml,durability=full" none
check 'an option wins over it' \
	grep -qx 'durability: full' "$mnt/.ucmfs/config.yaml"
do_umount
need do_mount -o config="$work/config.yaml" "$work/fast"
same 'so does SOURCE' 1 "$(grep -c 'name:' "$mnt/.ucmfs/config.yaml")"
do_umount
need do_mount -c endurance=a:3K,limit=a:80% -o limit=a:70% "a=$work/fast"
check 'settings of the file are of tiers of SOURCE' \
	grep -qx '    endurance: 3072' "$mnt/.ucmfs/config.yaml"
check 'and options win' grep -qx '    limit: 70%' "$mnt/.ucmfs/config.yaml"
do_umount
