# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# core.sh - what a mount promises whatever carries its requests and its data;
# sourced behind mount.sh.

core_count=0
core_whole=0

# The next block: $core_src and $core_dst
core_next() {
	core_count=$((core_count + 1))
	core_path=$(nth_path $core_count)
	core_src=$work/core/$core_path
	core_dst=$mnt/blocks/$core_path
}

core_is_block() {
	check "$1: it is the block" cmp "$core_src" "$core_dst"
	core_whole=$((core_whole + 1))
}

core_writes() {
	core_next
	check 'cp' cp "$core_src" "$core_dst"
	core_is_block 'cp'
	core_next
	check 'dd with O_DIRECT' dd if="$core_src" of="$core_dst" bs=4096 \
		oflag=direct
	core_is_block 'dd with O_DIRECT'
	core_next
	check 'in pieces' dd if="$core_src" of="$core_dst" bs=100
	core_is_block 'in pieces'
	core_next
	cp "$core_src" "$core_dst.tmp"
	check 'staging and rename' mv "$core_dst.tmp" "$core_dst"
	core_is_block 'staging and rename'
}

core_refusals() {
	core_next
	check 'half a file' sh -c 'head -c 4096 "$1" >"$2"' sh \
		"$core_src" "$core_dst"
	absent "$core_dst"
	refused 'Invalid argument' 'a wrong file' \
		sh -c 'cat /etc/passwd "$1" >"$2"' sh "$core_src" "$core_dst"
	absent "$core_dst"
	refused 'Operation not permitted' 'writing to a block' \
		dd if=/dev/zero of="$mnt/blocks/$(small_paths 1)" conv=notrunc
}

core_readers() {
	core_next
	exec 5>"$core_dst"
	head -c 5000 "$core_src" >&5
	absent "$core_dst"
	tail -c +5001 "$core_src" >&5
	exec 5>&-
	core_is_block 'written while asked for'
	exec 5<"$core_dst"
	check 'removed while open' rm "$core_dst"
	absent "$core_dst"
	core_whole=$((core_whole - 1))
	check 'it goes on to be read' cmp "$core_src" - <&5
	exec 5<&-
}

core_large() {
	core_shape='--quiet --count 4'
	need mkdir "$mnt/spaces/large"
	# shellcheck disable=SC2086
	check '2 MiB blocks' "$mkblocks" $core_shape "$mnt/spaces/large"
	# shellcheck disable=SC2086
	check 'are read' "$mkblocks" $core_shape --verify "$mnt/spaces/large"
	# shellcheck disable=SC2086
	check 'and with O_DIRECT' \
		"$mkblocks" $core_shape --verify --direct "$mnt/spaces/large"
}

# core_promises [TIER]: on the mount $mnt, over TIER ($work/tier), all empty
core_promises() {
	rm -rf "$work/core"
	mkdir "$work/core"
	core_count=0
	core_whole=0
	need mk "$work/core"
	core_writes
	core_refusals
	core_readers
	core_large
	same 'the whole ones are listed' $core_whole \
		"$(blocks_in "$mnt/blocks")"
	no_debris "${1:-$work/tier}"
}
