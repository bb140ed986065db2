#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A block can be mapped, privately and shared, and shows its bytes.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

first=$(small_paths 1)
make_src
need do_mount "$work/tier"
need mk "$mnt/blocks"
export SRC="$work/src/$first" DST="$mnt/blocks/$first"
check 'a mapped block has its bytes' python3 -c '
import mmap, os
data = open(os.environ["SRC"], "rb").read()
fd = os.open(os.environ["DST"], os.O_RDONLY)
for flags in mmap.MAP_SHARED, mmap.MAP_PRIVATE:
    with mmap.mmap(fd, 0, flags, mmap.PROT_READ) as m:
        assert len(m) == len(data) and m[:] == data'
check 'a mapping outlives the descriptor and the name' python3 -c '
import mmap, os
data = open(os.environ["SRC"], "rb").read()
fd = os.open(os.environ["DST"], os.O_RDONLY)
m = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
os.close(fd)
os.unlink(os.environ["DST"])
assert m[:] == data'
absent "$DST"
do_umount
