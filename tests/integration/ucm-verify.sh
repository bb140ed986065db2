#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm verify: blocks of a mount, of tiers, and files; which plane is damaged.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# A damaged block is there for the next daemon.
put_back() {
	need wait_until is_absent "$work/tier/.ucmfs/socket"
	need cp "$work/copy" "$work/slow/blocks/$third"
}

nobody=00000000000000000000000000000001

# finds STATUS 'text' arguments of ucm verify...
finds() {
	finds_want=$1
	finds_text=$2
	shift 2
	"$ucm" verify "$@" >"$work/out" 2>&1
	finds_got=$?
	if same "status of ucm verify $*" "$finds_want" $finds_got &&
		check "it says: $finds_text" \
			grep -qF -- "$finds_text" "$work/out"; then
		return
	fi
	sed 's/^/  | /' "$work/out"
}

mkdir "$work/slow"
tiers="$work/tier:$work/slow"
need do_mount "$tiers"
need mk "$mnt/blocks"
small_paths 16 >"$work/paths"
need mkdir "$mnt/spaces/bare"
need mk --form packed --no-crc --method rename "$mnt/spaces/bare"
finds 0 '16 blocks: 16 intact;' --mount "$mnt" --all
finds 0 '16 blocks: 16 intact;' --mount "$mnt" "$work/paths"
finds 0 '16 blocks: 16 intact, 16 unchecked;' --mount "$mnt" --space bare --all
finds 0 '0 blocks;' --mount "$mnt" /dev/null
echo $nobody >"$work/absent"
finds 1 "$nobody: absent" --mount "$mnt" "$work/absent"
finds 1 'not a mount of ucmfs' --mount "$work" --all
finds 1 "space 'none'" --mount "$mnt" --space none --all
do_umount

# one damaged in each way that mkblocks knows, as files
for way in magic version name field flags header-crc extension plane long short; do
	mkdir "$work/$way"
	need mk --count 1 --spoil $way "$work/$way"
	finds 1 '1 block: 1 damaged' "$work/$way/$(small_paths 1)"
done
finds 1 'layer 0 K: plane checksum differs' "$work/plane/$(small_paths 1)"

# the last byte of the payload, of a block in the second tier
third=$(sed -n 3p "$work/paths")
mkdir -p "$work/slow/blocks/${third%/*}"
mv "$work/tier/blocks/$third" "$work/slow/blocks/$third"
flip "$work/slow/blocks/$third" $((4096 + 2047))
cp "$work/slow/blocks/$third" "$work/copy"
finds 1 "$work/slow/blocks/$third: layer 1 V: plane checksum differs" \
	--tiers "$tiers" --all
put_back # it may have been quarantined by now
finds 1 '16 blocks: 15 intact, 1 damaged' --tiers "$tiers" --threads 1 \
	"$work/paths"
finds 1 'layer 1 V' "$work/copy"
if may_try 'JSON' python3; then
	put_back
	"$ucm" verify --tiers "$tiers" --json --all >"$work/json"
	same 'JSON' "16 15 1 3 1 V $work/slow/blocks/$third" \
		"$(python3 -c 'import json, sys
d = json.load(sys.stdin)
f, = d["failures"]
print(d["blocks"], d["intact"], d["damaged"], f["plane"], f["layer"],
      f["part"], f["path"])' <"$work/json")"
fi
fourth=$work/tier/blocks/$(sed -n 4p "$work/paths")
cp "$fourth" "$work/copy"
finds 0 '2 blocks: 2 intact' "$work/copy" "$fourth"
# a good block under another's name is none
cp "$fourth" "$work/$(basename "$third")"
finds 1 "block_hash in the header is not the file's name" \
	"$work/$(basename "$third")"
# the zeros after the payload
flip "$work/copy" $((small_size - 1))
finds 1 'bytes after the payload are not zero' "$work/copy"
finds 1 "$work/none: absent" "$work/none"
finds 1 'Is a directory' "$work"
finds 1 'not a block: wrong magic' "$work/paths"
