#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A directory that stops answering holds nobody for longer than the deadline:
# new blocks go to the next tier, and it is used again when it answers again.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	fsfreeze -u "$work/frozen" 2>/dev/null
}

start_test root fuse fsfreeze

need mkdir "$work/other"
make_fs ext4 64M "$work/frozen"

need do_mount -o deadline=1 "frozen=$work/frozen:other=$work/other"
need mk "$mnt/blocks"
same 'blocks go to the first tier' 16 "$(blocks_in "$work/frozen/blocks")"

need fsfreeze -f "$work/frozen"
check 'writing goes on while the first tier hangs' \
	timeout 30 "$mkblocks" --quiet --layers 2 --heads 1 --dim 16 \
	--tokens 16 --seed 7 --count 4 "$mnt/blocks"
same 'and goes to the second' 4 "$(blocks_in "$work/other/blocks")"
check 'statfs answers' timeout 10 stat -f "$mnt"
check 'ls answers' timeout 10 ls "$mnt/blocks/00"
logged "$work/frozen: no answer in"
need fsfreeze -u "$work/frozen"

check 'its blocks are read again when it answers' \
	wait_until verify "$mnt/blocks"
do_umount
