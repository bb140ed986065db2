#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A writer may fill its file through a shared mapping. One that goes on storing
# after the commit is found out when it lets go.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

first=$(small_paths 1)
second=$(nth_path 2)
third=$(nth_path 3)
make_src
need do_mount "$work/tier"
# passthrough=off has no shared mappings of files that are written
[ "$(grep -c '"passthrough": true' "$mnt/.ucmfs/stats.json")" = 1 ] ||
	skip 'no passthrough here'

export SRC="$work/src/$first" DST="$mnt/blocks/$first"
check 'a block written through a mapping' python3 -c '
import mmap, os
data = open(os.environ["SRC"], "rb").read()
fd = os.open(os.environ["DST"], os.O_CREAT | os.O_RDWR, 0o644)
os.ftruncate(fd, len(data))
with mmap.mmap(fd, 0) as m:
    m[:] = data
os.close(fd)'
check 'is a block' cmp "$SRC" "$DST"

export SRC="$work/src/$second" DST="$mnt/blocks/$second"
check 'stores after the commit' python3 -c '
import mmap, os
data = open(os.environ["SRC"], "rb").read()
fd = os.open(os.environ["DST"], os.O_CREAT | os.O_RDWR, 0o644)
os.write(fd, data)
m = mmap.mmap(fd, 0)
os.close(fd)
assert open(os.environ["DST"], "rb").read() == data
m[5000] ^= 1'
check 'end it as a block' wait_until is_absent "$DST"
same 'it lies in quarantine' 1 \
	"$(find "$work/tier/.ucmfs/quarantine" -type f | wc -l)"
check 'the other is untouched' cmp "$work/src/$first" "$mnt/blocks/$first"
do_umount
check 'so it is behind the mount' cmp "$work/src/$first" \
	"$work/tier/blocks/$first"

# Its page is mapped for writing since before the commit: the store leaves no
# new time. In memory nothing takes that from it, as the disk's writing would.
need mkdir "$work/ram"
need mount -t tmpfs none "$work/ram"
need do_mount "$work/ram"
export SRC="$work/src/$third" DST="$mnt/blocks/$third"
check 'a store that leaves no trace' python3 -c '
import mmap, os
data = open(os.environ["SRC"], "rb").read()
fd = os.open(os.environ["DST"], os.O_CREAT | os.O_RDWR, 0o644)
os.ftruncate(fd, len(data))
m = mmap.mmap(fd, 0)
m[:] = data
os.close(os.dup(fd))
assert open(os.environ["DST"], "rb").read() == data
m[5000] ^= 1
os.close(fd)'
check 'is found at the end as well' wait_until is_absent "$DST"
same 'and lies in quarantine' 1 \
	"$(find "$work/ram/.ucmfs/quarantine" -type f | wc -l)"
do_umount
