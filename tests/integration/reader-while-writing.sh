#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# While a block is being written nobody else sees it: its name is absent until
# it is whole.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse
clients_are_killed

first=$(small_paths 1)
make_src
need do_mount "$work/tier"
src=$work/src/$first
dst=$mnt/blocks/$first

absent "$dst" # and the kernel may remember that
exec 5>"$dst"
head -c 5000 "$src" >&5
absent "$dst"
refused 'No such file or directory' 'it cannot be read' cat "$dst"
same 'it is not listed' 0 "$(blocks_in "$mnt/blocks")"
tail -c +5001 "$src" | head -c 3191 >&5
absent "$dst"
tail -c 1 "$src" >&5
exec 5>&-
check 'at its last byte it is there' cmp "$src" "$dst"
same 'and listed' 1 "$(blocks_in "$mnt/blocks")"

# a writer that dies leaves nothing
second=$(nth_path 2)
mkfifo "$work/fifo"
cat "$work/fifo" >"$mnt/blocks/$second" &
writer=$!
keep_pid $writer
exec 5>"$work/fifo"
head -c 5000 "$work/src/$second" >&5
temp_is_half() {
	[ "$(find "$work/tier/.ucmfs/tmp" -type f -size +4999c | wc -l)" = 1 ]
}
need wait_until temp_is_half
absent "$mnt/blocks/$second"
kill -9 $writer
exec 5>&-
reap $writer
absent "$mnt/blocks/$second"
no_debris "$work/tier"
do_umount
