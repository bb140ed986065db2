#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm repr: what it makes of blocks is what a program of another hand makes of
# them; it lies in the sibling space, as ordinary blocks; what is damaged, or made
# otherwise, is found.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test sparse root fuse python3
blocks="python3 $top_srcdir/tests/lib/repr_blocks.py"
nobody=00000000000000000000000000000001

# says STATUS 'text' arguments of ucm repr...
says() {
	says_want=$1
	says_text=$2
	shift 2
	"$ucm" repr "$@" >"$work/out" 2>&1
	says_got=$?
	if same "status of ucm repr $*" "$says_want" $says_got &&
		check "it says: $says_text" \
			grep -qF -- "$says_text" "$work/out"; then
		return
	fi
	sed 's/^/  | /' "$work/out"
}

# right WHAT BLOCKS SPACE PATH: the representation is what the block's keys make
right() {
	check "$1: $4 is what its keys make" $blocks check "$2/$4" \
		"$mnt/spaces/$3/$4" "$mnt/spaces/$3/space.json"
}

need do_mount "$work/tier"
need mkdir "$mnt/spaces/hnd" "$mnt/spaces/opaque"
$blocks make "$mnt/blocks" 12 >"$work/paths" || fail 'blocks can be made'
need [ "$(wc -l <"$work/paths")" = 12 ]
first=$(sed -n 1p "$work/paths")
file=$mnt/spaces/blocks.repr/$first

# ---- built ----

says 1 'space blocks.repr' verify --mount "$mnt" --all
says 0 '12 blocks: 12 built;' build --mount "$mnt" --all --dtype float32
while read -r path; do
	right minmax "$mnt/blocks" blocks.repr "$path"
done <"$work/paths"
same 'no other file is there' 12 \
	"$(find "$mnt/spaces/blocks.repr" -name '*.bin' | wc -l)"
says 0 '12 blocks: 12 kept;' build --mount "$mnt" --all --dtype float32
says 0 '12 blocks: 12 equal;' verify --mount "$mnt" --all
for kind in mean max normed; do
	says 0 '3 blocks: 3 built;' build --mount "$mnt" --to "of-$kind" \
		--kind $kind --dtype float32 - <<-EOF
		$(sed 3q "$work/paths")
	EOF
	right $kind "$mnt/blocks" of-$kind "$first"
done

# the same bytes, whatever the order of the elements
$blocks make "$mnt/spaces/hnd" 2 HND >"$work/hnd"
says 0 '2 blocks: 2 built;' build --mount "$mnt" -s hnd --dtype float32 \
	"$work/hnd"
while read -r path; do
	right 'the other order' "$mnt/spaces/hnd" hnd.repr "$path"
done <"$work/hnd"

# ---- hash codes, and merged channels ----

# told SPACE PATTERN: what ucm repr stat says
told() {
	"$ucm" repr stat -m "$mnt" --to "$1" >"$work/out"
	check "stat says: $2" grep -q -- "$2" "$work/out"
}

$blocks sides "$work/centers" "$work/kept" || fail 'sides can be made'
head -c 959 "$work/centers" >"$work/few"
codes="--mount $mnt --all --to"
says 0 '12 blocks: 12 built;' build $codes seed-7 --kind codes --seed 7
told seed-7 'codes   tokens, 40 bits, seed 7$'
says 0 '12 blocks: 12 kept;' build $codes seed-7 --kind codes --seed 7
says 0 '12 blocks: 12 equal;' verify $codes seed-7
says 1 'centers: the space was made without' verify $codes seed-7 \
	--centers "$work/centers"
says 1 'space seed-7: params: not that of the request' build $codes seed-7 \
	--kind codes --seed 8
says 1 'space seed-7: kind: not that of the request' build $codes seed-7
says 0 '12 blocks: 12 built;' build $codes seed-8 --kind codes --seed 8
check 'another seed makes other codes' eval \
	'! cmp -s "$mnt/spaces/seed-7/$first" "$mnt/spaces/seed-8/$first"'
says 0 '12 blocks: 12 built;' build $codes centers --kind codes --bits 64 \
	--norms --centers "$work/centers"
told centers 'codes   tokens, 64 bits, seed 0, norms$'
told centers "centers $(sha256sum <"$work/centers" | cut -d' ' -f1)\$"
says 0 '12 blocks: 12 equal;' verify $codes centers --centers "$work/centers"
says 1 'centers: the space was made with some' verify $codes centers
says 1 'centers: 959 bytes, where 3 layers, 2 heads and 40 channels take 960' \
	verify $codes centers --centers "$work/few"
says 1 'centers: 959 bytes' build $codes few --kind codes \
	--centers "$work/few"
flip "$work/centers" 17
says 1 'centers: not those that the space was made with' verify $codes \
	centers --centers "$work/centers"
says 0 '12 blocks: 12 built;' build $codes counts --kind codes --counts \
	--rope-dim 8
told counts 'codes   counts, 32 bits and 8 of the last 8 channels, seed 0$'
same 'JSON of codes' 'codes opaque counts 32 8 8 0 False None' "$(
	"$ucm" repr stat -j -m "$mnt" --to counts |
		python3 -c 'import json, sys
f = json.load(sys.stdin)
print(f["kind"], f["dtype"], *f["codes"].values())')"
says 1 'norms: there are none of counts' build $codes few --kind codes \
	--counts --norms
says 2 "--bits '4'" build $codes few --kind codes --bits 4

says 0 '12 blocks: 12 built;' build $codes kept --kind channels \
	--dtype float32 --merge-tokens 2 --channels "$work/kept"
told kept 'merged  2 tokens, 10 of 40 channels$'
while read -r path; do
	right channels "$mnt/blocks" kept "$path"
done <"$work/paths"
says 0 '12 blocks: 12 equal;' verify $codes kept --channels "$work/kept"
says 1 'channels: the space was made with some' verify $codes kept
says 1 'channels: 959 bytes, where the space keeps 10' verify $codes kept \
	--channels "$work/few"
says 1 'channels: 959 bytes, where 3 layers of 2 heads keep up to 40 each' \
	build $codes few --kind channels --channels "$work/few"
head -c 120 "$work/centers" >"$work/few"
says 1 'channels: head 0, number' build $codes few --kind channels \
	--channels "$work/few"
says 0 '12 blocks: 12 built;' build $codes int8 --kind channels --dtype int8
same 'JSON of channels' 'channels int8 4 40 None' "$(
	"$ucm" repr stat -j -m "$mnt" --to int8 |
		python3 -c 'import json, sys
f = json.load(sys.stdin)
print(f["kind"], f["dtype"], *f["channels"].values())')"
says 0 '12 blocks: 12 equal;' verify $codes int8
says 1 "$work/none: No such file" build $codes few --kind codes \
	--centers "$work/none"
check 'what was refused has made no space' [ ! -e "$mnt/spaces/few" ]

# ---- shown ----

says 0 'kind    normed, float32' stat -m "$mnt" --to of-normed
same 'JSON' "normed float32 2 40 4 3 512" "$(
	"$ucm" repr stat -j -m "$mnt" --to of-normed |
		python3 -c 'import json, sys
f = json.load(sys.stdin)
print(f["kind"], f["dtype"], f["num_heads"], f["head_dim"], f["block_size"],
      f["num_layers"], f["layer_bytes"])')"
says 1 'space none' stat -m "$mnt" --to none
says 1 'space blocks: blocks.repr is that of the default space' \
	stat -m "$mnt" -s blocks

# ---- refused ----

$blocks make "$mnt/spaces/opaque" 1 opaque >"$work/opaque"
says 1 'does not say in which order its keys lie' build --mount "$mnt" \
	-s opaque --all
echo $nobody >"$work/absent"
says 1 "$nobody: no such block" build --mount "$mnt" "$work/absent"
says 1 "not a mount of ucmfs" build --mount "$work" --all
says 2 'no --mount or --tiers' build --all
says 2 'must be build, stat or verify' list
says 2 "--kind 'median'" build --kind median

# ---- ordinary blocks: they go on their own, and one without the other is a miss ----

need rm "$file"
says 1 '"absent": 1' verify --mount "$mnt" --all -j
says 1 '12 blocks: 11 equal, 1 absent;' verify --mount "$mnt" --all
check 'its block is there' [ -e "$mnt/blocks/$first" ]
says 0 '12 blocks: 1 built, 11 kept;' build --mount "$mnt" --all \
	--dtype float32
need mv "$mnt/blocks/$first" "$work/block"
check 'a representation outlives its block' [ -e "$file" ]
need cp "$work/block" "$mnt/blocks/$first"
do_umount

# ---- damaged ----

flip "$work/tier/spaces/blocks.repr/$first" $((4096 + 1024))
third=$(sed -n 3p "$work/paths")
flip "$work/tier/blocks/$third" $((4096 + 1))
says 1 'layer 1 K: plane checksum differs' verify --tiers "$work/tier" --all
says 1 "layer 0 K: plane checksum differs" verify --tiers "$work/tier" --all
says 1 '12 blocks: 10 equal, 2 damaged;' verify --tiers "$work/tier" --all

# a block whose keys are damaged has none made of it
says 1 "layer 0 K: plane checksum differs" build --tiers "$work/tier" --all \
	--to alone
same 'the others are built' 11 \
	"$(find "$work/tier/spaces/alone" -name '*.bin' | wc -l)"
