#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tiers and a files/ tree that each earlier version made (tests/data/README): all of
# it is read, byte for byte, with what was noted of it, and the tree goes on.
#
# What must hold in every later version: names of folders, blocks and files; the
# three forms of a block; space.json; pins, quotas, owners, modes and attributes. A
# tree is never made again, and this test never expects less of it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse xz getfattr
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

# looks_right BLOCKS: how many blocks/ has
looks_right() {
	check 'all is found' wait_until index_is_complete
	mine blocks "$1" 1
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
	same 'nothing in quarantine' '' "$(find "$work"/[ab]/.ucmfs/quarantine -type f)"
}

# What 0.1.0 has beside that.
looks_released() {
	manifest 1 | check 'a manifest' cmp - "$mnt/spaces/kv/space.json"
	same 'a private space' 700 "$(stat -c %a "$mnt/spaces/kv")"
	rm -f "$work/got"
	check 'blocks of a private space' "$ucm" get -m "$mnt" -s kv "$work/got" \
		"$work/ids"
	same 'as they were put' "$(head -c 3072 /dev/zero | tr '\0' '<')" \
		"$(cat "$work/got")"
	[ ! -f "$top_builddir/libucmsparse.la" ] ||
		check 'representations' "$ucm" repr verify -m "$mnt" -s kv --all \
			--to kv.repr
	same 'a quota of files' 1073741824 "$(xattr quota "$mnt/files/model")"
	same "a user's attribute" 17 "$(getfattr --absolute-names --only-values \
		-n user.sum "$mnt/files/top")"
}

printf '%032x\n' $((0xabc0)) $((0xabc1)) $((0xabc2)) >"$work/ids"
for version in 8c0aa37 0.1.0; do
	echo "-- $version"
	rm -rf "$work/a" "$work/b"
	need tar -xJf "$top_srcdir/tests/data/tree-$version.tar.xz" --same-owner \
		--same-permissions --xattrs --xattrs-include='user.*' -C "$work"
	# once more, with what this version has noted and added
	for blocks in 8 9; do
		need do_mount "fast=$work/a:slow=$work/b"
		looks_right $blocks
		[ $version = 8c0aa37 ] || looks_released
		# shellcheck disable=SC2086
		check 'a block is added' "$mkblocks" $geometry --seed 1 --start 8 \
			--count 1 --existing-ok "$mnt/blocks"
		do_umount
	done
done
