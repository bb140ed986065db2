#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tiers and a files/ tree that an earlier version made (tests/data/README): all of
# it is read, with what was said of it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse xz
data=$top_srcdir/tests/data/tree-8c0aa37.tar.xz
need tar -xJf "$data" --same-owner --same-permissions -C "$work"
geometry='--quiet --layers 1 --heads 1 --dim 16 --tokens 16'

# mine SPACE COUNT SEED [OPTION...]: what mkblocks wrote there is there
mine() {
	space=$1
	count=$2
	seed=$3
	shift 3
	# shellcheck disable=SC2086
	check "$space: $count blocks, each byte" \
		"$mkblocks" $geometry --verify --count "$count" --seed "$seed" \
		"$@" "$mnt/$space"
	same "$space: no more" "$count" "$(blocks_in "$mnt/$space")"
}

looks_right() {
	check 'all is found' wait_until index_is_complete
	mine blocks 8 1
	mine spaces/chat 6 2 --form packed
	mine spaces/plain 3 3 --form bare --no-crc
	mine spaces/both 3 4
	mine spaces/low 3 5
	same 'blocks that were put' 3 "$(blocks_in "$mnt/spaces/kv")"
	for space in blocks chat plain both low kv; do
		option="-s $space"
		[ $space != blocks ] || option=
		# shellcheck disable=SC2086
		check "verify $space" "$ucm" verify -m "$mnt" $option --all
	done
	first=$(find "$work/a/.ucmfs/pinned" -name '@*' | sed 's/.*@//')
	same 'a pin' 1 "$(xattr pinned "$mnt/blocks/$(
		echo "$first" | cut -c 1-2)/$first.bin")"
	same 'a quota' 1073741824 "$(xattr quota "$mnt/spaces/chat")"
	same 'a file' top "$(cat "$mnt/files/top")"
	same 'a link' hello "$(cat "$mnt/files/model/link")"
	same 'a mode and a size' '640 5000' "$(stat -c '%a %s' "$mnt/files/model/two")"
	same 'files' 'model/link model/two model/x/one top' \
		"$(cd "$mnt/files" && find . ! -type d | sort | sed 's|^./||' | xargs)"
}

need do_mount "fast=$work/a:slow=$work/b"
looks_right
do_umount
# and once more, with what this version has noted
need do_mount "fast=$work/a:slow=$work/b"
looks_right
do_umount
