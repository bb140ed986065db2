#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two writers of one block: both are let in, both are told that all is well,
# and there is one block.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

first=$(small_paths 1)
make_src
need do_mount "$work/tier"
export SRC="$work/src/$first" DST="$mnt/blocks/$first"
check 'two descriptors, in turn' python3 -c '
import os
data = open(os.environ["SRC"], "rb").read()
fds = [os.open(os.environ["DST"], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
       for _ in range(2)]
for fd in fds:
    os.write(fd, data[:4096])
for fd in fds:
    os.write(fd, data[4096:])
for fd in fds:
    os.close(fd)'
check 'it is the block' cmp "$SRC" "$DST"
same 'one block' 1 "$(blocks_in "$work/tier/blocks")"
no_debris "$work/tier"
same 'one of them was a duplicate' 1 "$(stat_of commit_duplicates)"
refused 'File exists' 'a third that comes too late is told so' \
	dd if="$SRC" of="$DST" conv=excl

writers=
for _ in 1 2 3 4; do
	mk --count 200 --start 1 --existing-ok "$mnt/blocks" \
		>>"$work/writers" 2>&1 &
	writers="$writers $!"
	keep_pid $!
done
for writer in $writers; do
	reap "$writer"
	same 'a writer among four ends well' 0 "$reaped"
done
same 'none of them complained' '' "$(cat "$work/writers")"
check 'every block is whole' verify --count 201 "$mnt/blocks"
same 'and there is one of each' 201 "$(blocks_in "$work/tier/blocks")"
no_debris "$work/tier"
same 'nothing was set aside' 0 "$(stat_of quarantined)"
do_umount
