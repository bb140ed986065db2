#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A configuration file with UCM's names: pipelines, policies and stages become
# tiers, fast to slow by what directories stand on.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test namespace fuse

need mount -t tmpfs -o size=32m,mode=1777 tmpfs /dev/shm
mkdir "$work/b" "$work/fast"
need mount -t tmpfs -o size=16m tmpfs "$work/fast"

settings() {
	printf '%s\n' "$@" >"$work/settings.yaml"
}

preset_mount() {
	settings "$@"
	need do_mount -o "config=$work/settings.yaml" none
}

# The directories of all tiers in their order; "/" between tiers.
tiers() {
	awk '
		/- name:/ { line = line (line ? " / " : "") }
		/^      - / { sub(/^ *- (path: )?/, ""); line = line $0 " " }
		END { gsub(/\047/, "", line); gsub(/ +/, " ", line); print line }
	' "$mnt/.ucmfs/config.yaml" | sed "s,$work/,,g; s, $,,"
}

# the list is slow to fast
preset_mount 'pipeline: Cache|Posix' 'cache_size: 8M' 'storage_policy: tiered' \
	"storage_backends: $work/tier:$work/b:$work/fast"
same 'tiers are ordered by kind' 'mem@8M / fast / tier / b' "$(tiers)"
check 'blocks are written' mk "$mnt/blocks"
same 'to memory' 16 "$(blocks_in /dev/shm/ucmfs-0/mem-*/blocks)"
do_umount
preset_mount 'store_pipeline: Cache|Nfs' 'cache: {cache_size: 8M}' \
	'nfs:' "  storage_backends: [$work/fast, $work/tier, $work/b]" \
	'  storage_policy: tiered' 'checkpoint: 0'
same 'the same in maps of stages' 'mem@8M / fast / tier / b' "$(tiers)"
check 'the same memory is found' verify "$mnt/blocks"
do_umount

preset_mount 'pipeline: Posix' "storage_backends: $work/tier:$work/b" \
	'storage_policy: round_robin'
same 'one tier of directories' 'tier b' "$(tiers)"
check 'placed by turns' grep -qx 'placement: round_robin' "$mnt/.ucmfs/config.yaml"
check 'blocks are written' mk --count 8 "$mnt/blocks"
same 'half of them here' 4 "$(blocks_in "$work/tier/blocks")"
do_umount

preset_mount 'pipeline: Cache|Empty' 'cache_size: 4M'
same 'nothing but memory' 'mem@4M' "$(tiers)"
do_umount

refuses() {
	refuses_text=$1
	shift
	settings "$@"
	refused "$refuses_text" "refused: $*" \
		do_mount -o "config=$work/settings.yaml" none
}
refuses 'settings.yaml:1: ' 'pipeline: Fake'
refuses 'it keeps nothing' 'pipeline: Empty'
refuses 'Cache comes first' 'pipeline: Posix|Cache' "storage_backends: $work/tier"
refuses "storage_policy 'best'" 'pipeline: Posix' "storage_backends: $work/tier" \
	'storage_policy: best'
refuses 'tiers are listed' 'tiers:' "  - directories: [$work/b]" 'pipeline: Posix' \
	"storage_backends: $work/tier"
