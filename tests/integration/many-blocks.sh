#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# 20 000 blocks are found, counted and listed, each once.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

shape='--quiet --layers 1 --heads 1 --dim 8 --tokens 1 --form packed --count 20000'

# a disk would take longer
need mount -t tmpfs none "$work/tier"
mkdir "$work/tier/blocks"
# shellcheck disable=SC2086
need "$mkblocks" $shape "$work/tier/blocks"
need do_mount "$work/tier"
# shellcheck disable=SC2086
"$mkblocks" $shape --list | sort >"$work/expected"
(cd "$mnt/blocks" && find . -type f -printf '%P\n') | sort >"$work/found"
check 'find lists every block once' cmp "$work/expected" "$work/found"
(cd "$mnt/blocks" && ls -U ./*) | grep -c '\.bin$' >"$work/listed"
same 'so does ls' 20000 "$(cat "$work/listed")"
is_complete() { grep -q '"complete": true' "$mnt/.ucmfs/stats.json"; }
check 'the scan comes to its end' wait_until is_complete
same 'the index has them all' 20000 "$(stat_of blocks)"
same 'df counts them' 20000 "$(df --output=iused "$mnt" | tail -n 1 | tr -d ' ')"
# shellcheck disable=SC2086
check 'they can be read' "$mkblocks" $shape --count 500 --verify "$mnt/blocks"
do_umount
