#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# space.json says what a space is for: written through the mount, checked when it
# is closed, kept over a remount, and binding for blocks.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

s=$mnt/spaces/one
need do_mount "$work/tier"
need mkdir "$s"
absent "$s/space.json"
manifest 2 >"$work/two.json"
manifest 3 >"$work/three.json"
check 'it is written with cp' cp "$work/two.json" "$s/space.json"
check 'and read' cmp "$work/two.json" "$s/space.json"
check 'it lies in the directory behind' \
	cmp "$work/two.json" "$work/tier/spaces/one/space.json"
same 'it is listed' 1 "$(find "$s" -name space.json | wc -l)"
refused 'close: Invalid argument' 'a block of another geometry is refused' \
	mk --layers 3 --count 1 "$s"
check 'one of its geometry is taken' mk --count 2 "$s"
refused 'Invalid argument' 'it cannot be changed under its blocks' \
	cp "$work/three.json" "$s/space.json"
check 'and is not' cmp "$work/two.json" "$s/space.json"
for bad in '{' '[]' '{}' '{"geometry": {"num_layers": 2}}' \
	'{"geometry": {"num_layers": "2", "block_size": 16, "dtype": "float16", "k_bytes": 512, "v_bytes": 512}}' \
	'{"geometry": {"num_layers": 2, "block_size": 16, "dtype": "float99", "k_bytes": 512, "v_bytes": 512}}' \
	'{"x": 1.5, "geometry": {"num_layers": 2, "block_size": 16, "dtype": "float16", "k_bytes": 512, "v_bytes": 512}}'; do
	echo "$bad" >"$work/bad.json"
	refused 'Invalid argument' "not accepted: $bad" \
		cp "$work/bad.json" "$s/space.json"
	check 'the old one stays' cmp "$work/two.json" "$s/space.json"
done
logged 'not accepted'
head -c 70000 /dev/zero | tr '\0' ' ' >"$work/bad.json"
refused 'File too large' 'too much of it' cp "$work/bad.json" "$s/space.json"
check 'the old one stays' cmp "$work/two.json" "$s/space.json"
do_umount

need do_mount "$work/tier"
check 'a remount finds it' cmp "$work/two.json" "$s/space.json"
for path in $(small_paths 2); do
	need rm "$s/$path"
done
refused 'close: Invalid argument' 'it holds for an empty space as well' \
	mk --layers 3 --count 1 "$s"
check 'which it may be changed for' cp "$work/three.json" "$s/space.json"
check 'then the other is taken' mk --layers 3 --count 1 "$s"
need rm "$s/$(small_paths 1 --layers 3)"
check 'rmdir takes it along' rmdir "$s"
absent "$work/tier/spaces/one"
check 'blocks/ may have one as well' cp "$work/two.json" "$mnt/blocks/space.json"
refused 'close: Invalid argument' 'which holds there' \
	mk --layers 3 --count 1 "$mnt/blocks"
do_umount
