#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What a block tells of itself in extended attributes, to root and to others, and
# which of them may be set.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr setfattr setpriv

names() {
	getfattr --absolute-names "$@" | sed -n 's/^user\.ucmfs\.//p' | sort |
		tr '\n' ' '
}

need do_mount -o allow_other "nvme=$work/tier"
need mk "$mnt/blocks"
path=$(nth_path 2)
before=$(small_paths 1)
f=$mnt/blocks/$path

same 'root sees' 'children crc32c opens parent path pinned tier uses ' \
	"$(names "$f")"
same 'tier' nvme "$(xattr tier "$f")"
same 'path' "$work/tier/blocks/$path" "$(xattr path "$f")"
same 'crc32c is that of the header' \
	"$(od -An -tx4 -j56 -N4 "$work/tier/blocks/$path" | tr -d ' ')" \
	"$(xattr crc32c "$f")"
same 'parent is the block before' "$(basename "$before" .bin)" \
	"$(xattr parent "$f")"
same 'uses' 0 "$(xattr uses "$f")"
for _ in 1 2 3; do
	cat "$f" >/dev/null
done
same 'uses counts opens' 3 "$(xattr uses "$f")"

same 'pinned' 0 "$(xattr pinned "$f")"
check 'pinned can be set' setfattr -n user.ucmfs.pinned -v 1 "$f"
same 'and is' 1 "$(xattr pinned "$f")"
same 'in the directory behind as well' 1 \
	"$(find "$work/tier/.ucmfs/pinned" -type f | wc -l)"
refused 'Invalid argument' 'but to 0 and 1 only' \
	setfattr -n user.ucmfs.pinned -v 7 "$f"
check 'and be taken back' setfattr -n user.ucmfs.pinned -v 0 "$f"
same 'and is' 0 "$(xattr pinned "$f")"
same 'in the directory behind as well' 0 \
	"$(find "$work/tier/.ucmfs/pinned" -type f | wc -l)"
same 'children: the blocks that name it' 1 "$(xattr children "$mnt/blocks/$before")"
same 'a block without a copy says nothing of one' '' \
	"$(xattr copy "$f" 2>/dev/null)"
for name in tier path crc32c parent children copy uses opens; do
	refused 'Operation not permitted' "$name cannot be set" \
		setfattr -n user.ucmfs.$name -v x "$f"
done
refused 'Operation not supported' 'nor any other attribute' \
	setfattr -n user.other -v x "$f"
refused 'Operation not supported' 'nor one of the system' \
	setfattr -n security.other -v x "$f"

if others_can 'attributes for others' test -r "$f"; then
	same 'others see all but the path' 'children crc32c opens parent pinned tier uses ' \
		"$(as_nobody getfattr --absolute-names "$f" |
			sed -n 's/^user\.ucmfs\.//p' | sort | tr '\n' ' ')"
	refused 'Operation not permitted' 'they cannot ask for the path' \
		as_nobody getfattr -n user.ucmfs.path "$f"
	refused 'Permission denied' 'they cannot pin' \
		as_nobody setfattr -n user.ucmfs.pinned -v 1 "$f"
fi

# a block that has neither checksums nor a parent; staging; directories
need mk --form packed --no-crc --method rename --seed 1 --count 1 "$mnt/blocks"
f=$mnt/blocks/$(small_paths 1 --seed 1)
same 'without checksums and parent' 'children opens path pinned tier uses ' "$(names "$f")"
: >"$mnt/blocks/00/.staging"
same 'staging has none' '' "$(names "$mnt/blocks/00/.staging")"
same 'a bucket has none' '' "$(names "$mnt/blocks/00")"
refused 'No such attribute' 'nor if asked by name' \
	getfattr -n user.ucmfs.tier "$mnt/blocks/00/.staging"

do_umount
