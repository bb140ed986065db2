#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Representations that an earlier version had beside their blocks: a start removes
# them, and nothing takes them for blocks. What was set aside of them can be purged.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse
alone=$(small_paths 1 | sed 's/....\.bin$/0000.bin/')

# of every directory, files of representations
old() {
	find "$work/tier" -name '*.repr'
}

need do_mount "$work/tier"
need mkdir "$mnt/spaces/s"
need mk --count 3 "$mnt/blocks"
need mk --count 3 "$mnt/spaces/s"
do_umount
for path in $(cd "$work/tier" && find blocks spaces -name '*.bin'); do
	need cp "$work/tier/$path" "$work/tier/${path%.bin}.repr"
done
name=${path##*/}
need mkdir -p "$work/tier/blocks/${alone%/*}"
need cp "$work/tier/$path" "$work/tier/blocks/${alone%.bin}.repr"
need cp "$work/tier/$path" \
	"$work/tier/.ucmfs/quarantine/s@${name%.bin}.repr.1700000000000000000"
same 'so many are there' 7 "$(old | wc -l)"

need do_mount "$work/tier"
check 'they go' wait_until eval '[ -z "$(old)" ]'
check 'the blocks are there' verify --count 3 "$mnt/blocks"
check 'and those of the other space' verify --count 3 "$mnt/spaces/s"
same 'the mount has the blocks alone' 6 \
	"$(find "$mnt/blocks" "$mnt/spaces" -type f | wc -l)"
same 'none is a stray' 0 "$(stat_of strays)"
"$ucm" quarantine list "$work/tier" >"$work/out" 2>&1
check 'what was set aside is listed' grep -q "${name%.bin}" "$work/out"
check 'and purged' "$ucm" quarantine purge --all "$work/tier"
same 'it is gone' '' "$(ls "$work/tier/.ucmfs/quarantine")"
refused 'Invalid argument' 'such a name is none' touch \
	 "$mnt/blocks/$(small_paths 1 | sed 's/bin$/repr/')"

# those that come later go with their space
need find "$mnt/spaces/s" -name '*.bin' -delete
bucket=$(ls "$work/tier/spaces/s" | sed 1q)
need cp "$work/tier/blocks/$(small_paths 1)" \
	"$work/tier/spaces/s/$bucket/$(basename "${alone%.bin}").repr"
check 'a space without blocks can be removed' rmdir "$mnt/spaces/s"
check 'and leaves nothing' [ ! -e "$work/tier/spaces/s" ]
