#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A file server that was restarted no longer knows the descriptors that are open; of
# direct reads NFS says EBADF then. The daemon opens the block once more, as the file
# that has its name has its bytes.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

faultfs=$top_builddir/tests/lib/faultfs
[ -x "$faultfs" ] || skip "$faultfs is not built"

mkdir "$work/src" "$work/disk"
need mk --count 2 "$work/src"
need mk --count 2 "$work/disk"
need mkdir "$work/disk/blocks"
need mv "$work/disk"/[0-9a-f][0-9a-f] "$work/disk/blocks"
: >"$work/SIGN.direct"
need "$faultfs" "$work/disk" "$work/tier" "$work/SIGN"
block=$(small_paths 1)
gone=$(nth_path 2)

need do_mount -o passthrough=off "$work/tier"
exec 5<"$mnt/blocks/$block" 6<"$mnt/blocks/$gone"
echo EBADF >"$work/SIGN"
check 'what was open is read' cmp "$work/src/$block" - <&5
rm "$work/disk/blocks/$gone"
refused 'Stale file handle' 'what was removed is not' cat <&6
exec 5<&- 6<&-
do_umount
