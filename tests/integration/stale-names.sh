#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A name that the kernel remembers of a block which is gone: stat(2) finds it for
# entry_timeout, but whoever opens, creates or renames looks it up again. However a
# damaged block was found out, its name is gone a second later.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# A name that the kernel knows.
known() {
	path=$(nth_path "$1")
	block=$mnt/blocks/$path
	check 'a block is there' stat "$block"
}

is_forgotten() {
	check 'its name is forgotten' wait_until is_absent "$block"
}

# stale N: a known block is evicted, of which there is a copy
stale() {
	need cp "$mnt/blocks/$(nth_path "$1")" "$work/copy"
	known "$1"
	id=${path##*/}
	same 'it is evicted' 0 "$(echo "${id%.bin}" |
		timeout 20 python3 "$top_srcdir/tests/lib/control.py" "$mnt" evict)"
	check 'stat finds it still' stat "$block"
}

need do_mount -c entry_timeout=60 "$work/tier"
need mk "$mnt/blocks"
need index_is_complete
stale 1
refused 'No such file' 'an open does not' cat "$block"
is_forgotten
stale 2
check 'one of its name is created' cp "$work/copy" "$block"
check 'and is that' cmp "$work/copy" "$block"
stale 3
need cp "$work/copy" "$block.tmp"
check 'one is renamed to its name' mv "$block.tmp" "$block"
check 'and is that, too' cmp "$work/copy" "$block"
do_umount

need do_mount "$work/tier"
known 4
truncate -s 5000 "$work/tier/blocks/$path"
refused 'No such file' 'damage is seen when it is opened' cat "$block"
is_forgotten

# its writer goes on writing, and lets go of it
if grep -q '"passthrough": true' "$mnt/.ucmfs/stats.json"; then
	make_src --start 16 --count 1
	path=$(cd "$work/src" && echo ??/*.bin)
	block=$mnt/blocks/$path
	exec 5>"$block"
	cat "$work/src/$path" >&5
	check 'a block that is being written is there' stat "$block"
	echo more >&5
	check 'and still known' stat "$block"
	exec 5>&-
	is_forgotten
else
	left_out 'damage that is seen at the last close: no passthrough'
fi
same 'they are in quarantine' 2 \
	"$(find "$work/tier/.ucmfs/quarantine" -type f | wc -l)"
do_umount
