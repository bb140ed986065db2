#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# placement=striped: the blocks of a chain go round the directories of a tier, if
# their writer says who follows whom: the loader does, and others by an attribute
# of the space's folder. They are found wherever they lie.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setfattr

shape='--layers 2 --heads 1 --dim 16 --tokens 16 --dtype float16'
dirs="$work/tier,$work/b,$work/c"
mkdir "$work/b" "$work/c"

# The directories of the blocks of a list, in its order.
places() {
	while read -r id; do
		for found in "$work"/tier "$work"/b "$work"/c; do
			[ ! -e "$found/blocks/${id%"${id#??}"}/$id.bin" ] ||
				basename "$found"
		done
	done <"$1"
}

# Is each the next one's neighbour, in turn?
goes_round() {
	places "$1" | awk '
		BEGIN { n["tier"] = 0; n["b"] = 1; n["c"] = 2 }
		NR > 1 && n[$1] != (last + 1) % 3 { bad++ }
		{ last = n[$1] }
		END { exit bad || NR != '"$2"' }'
}

seq 1 24 | while read -r n; do
	printf '%032x\n' $((n * 7919 * 104729))
done >"$work/ids"
head -c $((24 * 2048)) /dev/urandom >"$work/raw"
head -n 12 "$work/ids" >"$work/first"
tail -n 12 "$work/ids" >"$work/second"
head -c $((12 * 2048)) "$work/raw" >"$work/raw.first"
tail -c $((12 * 2048)) "$work/raw" >"$work/raw.second"

need do_mount -o placement=striped "$dirs"
# shellcheck disable=SC2086 # options
check 'a chain is saved by the loader' "$ucm" put --mount "$mnt" $shape \
	--parents "$work/raw.first" "$work/first"
check 'it goes round the directories' goes_round "$work/first" 12
do_umount

# the next request of a conversation, after a restart
need do_mount -o placement=striped "$dirs"
# shellcheck disable=SC2086
check 'the chain goes on' "$ucm" put --mount "$mnt" $shape \
	--parent "$(tail -n 1 "$work/first")" "$work/raw.second" "$work/second"
check 'round the directories' goes_round "$work/ids" 24
check 'all is read back' "$ucm" get --mount "$mnt" "$work/got" "$work/ids"
check 'as it was' cmp "$work/raw" "$work/got"

# any other writer
paths=$(small_paths 9)
make_src --count 9
for f in $paths; do
	id=${f#*/}
	id=${id%.bin}
	[ -z "${before-}" ] || echo "$id $before"
	before=$id
	echo "$id" >>"$work/small"
done >"$work/parents"
check 'a writer says what it is going to write' \
	setfattr -n user.ucmfs.parents -v "$(cat "$work/parents")" "$mnt/blocks"
for f in $paths; do
	cp "$work/src/$f" "$mnt/blocks/$f" || fail "cp $f"
done
check 'and that goes round' goes_round "$work/small" 9
refused 'Invalid argument' 'what is no chain' \
	setfattr -n user.ucmfs.parents -v 'a b' "$mnt/blocks"
do_umount

need do_mount "$dirs"
check 'another placement finds all' \
	"$ucm" get --mount "$mnt" "$work/got" "$work/ids"
check 'as it was' cmp "$work/raw" "$work/got"
refused 'not supported' 'and is told nothing' \
	setfattr -n user.ucmfs.parents -v "$(cat "$work/parents")" "$mnt/blocks"
do_umount
check 'the loader finds all without a mount' \
	"$ucm" get --tiers "$dirs" "$work/got" "$work/ids"
check 'as it was' cmp "$work/raw" "$work/got"
