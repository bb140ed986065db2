#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# XFS allocates more than is written and takes it back when a file is closed:
# what is counted as used, and against a limit, is what stays.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse
mount_more=policy=none # what is full is full

# 4 layers, 128 KiB a plane: 1 MiB and a page
mk_large() {
	"$mkblocks" --quiet --layers 4 --heads 8 --dim 128 --tokens 64 "$@"
}

# copies N: so many blocks, of the first of $paths, by cp(1); how many it took
copies() {
	head -n "$1" "$work/paths" | while read -r path; do
		cp "$work/blocks/$path" "$mnt/blocks/$path" 2>/dev/null || break
		echo "$path"
	done | wc -l
}

# within_5_percent WHAT EXPECTED
within_5_percent() {
	test $((100 * $1)) -ge $((95 * $2)) -a $((100 * $1)) -le $((105 * $2))
}

make_fs xfs 512M "$work/xfs"
mkdir "$work/blocks"
need mk_large --count 100 "$work/blocks"
need mk_large --list --count 100 >"$work/paths"
size=$(stat -c %s "$work/blocks/$(head -n 1 "$work/paths")")

need do_mount "fast=$work/xfs"
same 'blocks are copied' 100 "$(copies 100)"
used=$(stat_of used_bytes)
check "used, $used, is what they are" within_5_percent "$used" $((100 * size))
du=$(du -s --block-size=1 "$mnt/blocks" | cut -f 1)
check "and so is du, $du" within_5_percent "$du" $((100 * size))
mkdir "$mnt/files/d"
i=0
while [ $i -lt 20 ]; do
	need cp "$work/blocks/$(head -n 1 "$work/paths")" "$mnt/files/d/$i"
	i=$((i + 1))
done
files_are() { within_5_percent "$(stat_of files_bytes)" "$1"; }
check 'files are counted likewise' wait_until files_are $((20 * size))
rm -r "$mnt/files/d"
same 'and given back' 0 "$(stat_of files_bytes)"
do_umount

need do_mount "fast=$work/xfs"
check 'the index is filled again' wait_until index_is_complete
used=$(stat_of used_bytes)
check "and the same is used, $used" within_5_percent "$used" $((100 * size))
need rm -r "$mnt"/blocks/*/*
same 'nothing is left' 0 "$(stat_of used_bytes)"
do_umount

need do_mount -o limit=fast:50M "fast=$work/xfs"
same 'a limit takes as many as fit' $(((50 << 20) / size)) "$(copies 100)"
do_umount
