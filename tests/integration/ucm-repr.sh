#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm sparse repr: what it makes of blocks is what a program of another hand makes of
# them; what is damaged, or of another block, is found.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test sparse root fuse python3
blocks="python3 $top_srcdir/tests/lib/repr_blocks.py"
nobody=00000000000000000000000000000001

# says STATUS 'text' arguments of ucm sparse repr...
says() {
	says_want=$1
	says_text=$2
	shift 2
	"$ucm" sparse repr "$@" >"$work/out" 2>&1
	says_got=$?
	if same "status of ucm sparse repr $*" "$says_want" $says_got &&
		check "it says: $says_text" \
			grep -qF -- "$says_text" "$work/out"; then
		return
	fi
	sed 's/^/  | /' "$work/out"
}

need do_mount "$work/tier"
need mkdir "$mnt/spaces/hnd" "$mnt/spaces/opaque" "$work/to"
$blocks make "$mnt/blocks" 12 >"$work/paths" || fail 'blocks can be made'
need [ "$(wc -l <"$work/paths")" = 12 ]
first=$(sed -n 1p "$work/paths")
file=$work/to/${first%.bin}.repr

# ---- built ----

says 0 '12 blocks: 12 built;' build --mount "$mnt" --to "$work/to" --all \
	--dtype float32
while read -r path; do
	check "$path is what its keys make" $blocks check \
		"$mnt/blocks/$path" "$work/to/${path%.bin}.repr"
done <"$work/paths"
same 'no other file is left' 12 "$(find "$work/to" -type f | wc -l)"
says 0 '12 blocks: 12 kept;' build --mount "$mnt" --to "$work/to" --all \
	--dtype float32
says 0 '12 blocks: 12 equal;' verify --mount "$mnt" --to "$work/to" --all
for kind in mean max normed; do
	says 0 '3 blocks: 3 built;' build --mount "$mnt" --to "$work/to" \
		--kind $kind --dtype float32 - <<-EOF
		$(sed 3q "$work/paths")
	EOF
	check "$kind is what the keys make" $blocks check \
		"$mnt/blocks/$first" "$file"
done

# the same bytes, whatever the order of the elements
$blocks make "$mnt/spaces/hnd" 2 HND >"$work/hnd"
mkdir "$work/to-hnd"
says 0 '2 blocks: 2 built;' build --mount "$mnt" -s hnd --to "$work/to-hnd" \
	--dtype float32 "$work/hnd"
while read -r path; do
	check "$path of the other order" $blocks check \
		"$mnt/spaces/hnd/$path" "$work/to-hnd/${path%.bin}.repr"
done <"$work/hnd"

# ---- hash codes, and merged channels ----

# told PATTERN: what ucm sparse repr stat says of the first file
told() {
	"$ucm" sparse repr stat "$file" >"$work/out"
	check "stat says: $1" grep -q -- "$1" "$work/out"
}

$blocks sides "$work/centers" "$work/kept" || fail 'sides can be made'
head -c 959 "$work/centers" >"$work/few"
mkdir "$work/to-codes"
codes="--mount $mnt --to $work/to-codes --all"
file=$work/to-codes/${first%.bin}.repr
says 0 '12 blocks: 12 built;' build $codes --kind codes --seed 7
told 'codes   tokens, 40 bits, seed 7$'
says 0 '12 blocks: 12 kept;' build $codes --kind codes --seed 7
says 0 '12 blocks: 12 equal;' verify $codes
says 1 'centers: the file was made without' verify $codes \
	--centers "$work/centers"
cp "$file" "$work/seed-7"
says 0 '12 blocks: 12 built;' build $codes --kind codes --seed 8
check 'another seed makes other codes' eval \
	'! cmp -s "$file" "$work/seed-7"'
says 0 '12 blocks: 12 built;' build $codes --kind codes --bits 64 --norms \
	--centers "$work/centers"
told 'codes   tokens, 64 bits, seed 0, norms$'
told "centers $(sha256sum <"$work/centers" | cut -d' ' -f1)\$"
says 0 '12 blocks: 12 equal;' verify $codes --centers "$work/centers"
says 1 'centers: the file was made with some' verify $codes
says 1 'centers: 959 bytes, where 3 layers, 2 heads and 40 channels take 960' \
	verify $codes --centers "$work/few"
says 1 'centers: 959 bytes' build $codes --kind codes --centers "$work/few"
flip "$work/centers" 17
says 1 'centers: not those that the file was made with' verify $codes \
	--centers "$work/centers"
says 0 '12 blocks: 12 built;' build $codes --kind codes --counts --rope-dim 8
told 'codes   counts, 32 bits and 8 of the last 8 channels, seed 0$'
same 'JSON of codes' 'codes opaque counts 32 8 8 0 False None' "$(
	"$ucm" sparse repr stat -j "$file" | python3 -c 'import json, sys
f, = json.load(sys.stdin)["files"]
print(f["kind"], f["dtype"], *f["codes"].values())')"
says 1 'norms: there are none of counts' build $codes --kind codes --counts \
	--norms
says 2 "--bits '4'" build $codes --kind codes --bits 4

says 0 '12 blocks: 12 built;' build $codes --kind channels --dtype float32 \
	--merge-tokens 2 --channels "$work/kept"
told 'merged  2 tokens, 10 of 40 channels$'
while read -r path; do
	check "$path: channels are what its keys make" $blocks check \
		"$mnt/blocks/$path" "$work/to-codes/${path%.bin}.repr"
done <"$work/paths"
says 0 '12 blocks: 12 equal;' verify $codes --channels "$work/kept"
says 1 'channels: the file was made with some' verify $codes
says 1 'channels: 959 bytes, where the file keeps 10' verify $codes \
	--channels "$work/few"
says 1 'channels: 959 bytes, where 3 layers of 2 heads keep up to 40 each' \
	build $codes --kind channels --channels "$work/few"
head -c 120 "$work/centers" >"$work/few"
says 1 'channels: head 0, number' build $codes --kind channels \
	--channels "$work/few"
flip "$file" $((4096 + 5))
says 1 '12 blocks: 11 equal, 1 damaged;' verify $codes --channels "$work/kept"
says 0 '12 blocks: 12 built;' build $codes --kind channels --dtype int8
same 'JSON of channels' 'channels int8 4 40 None' "$(
	"$ucm" sparse repr stat -j "$file" | python3 -c 'import json, sys
f, = json.load(sys.stdin)["files"]
print(f["kind"], f["dtype"], *f["channels"].values())')"
says 0 '12 blocks: 12 equal;' verify $codes
says 1 "$work/none: No such file" build $codes --kind codes \
	--centers "$work/none"
file=$work/to/${first%.bin}.repr

# ---- shown ----

says 0 'kind    normed, float32' stat "$file"
same 'JSON' "normed float32 2 40 4 3 512 8192" "$("$ucm" sparse repr stat -j "$file" |
	python3 -c 'import json, sys
f, = json.load(sys.stdin)["files"]
print(f["kind"], f["dtype"], f["num_heads"], f["head_dim"], f["block_size"],
      f["num_layers"], f["layer_bytes"], f["bytes"])')"
says 1 'magic: not a file of representations' stat "$mnt/blocks/$first"
says 1 'No such file' stat "$work/none"

# ---- refused ----

$blocks make "$mnt/spaces/opaque" 1 opaque >"$work/opaque"
says 1 'does not say in which order its keys lie' build --mount "$mnt" \
	-s opaque --to "$work/to" --all
echo $nobody >"$work/absent"
says 1 "$nobody: no such block" build --mount "$mnt" --to "$work/to" \
	"$work/absent"
says 1 "no mount of ucmfs" build --mount "$work" --to "$work/to" --all
says 1 "$work/none" build --mount "$mnt" --to "$work/none" --all
says 2 'no --mount or --tiers' build --to "$work/to" --all
says 2 'must be build, stat or verify' list
says 2 'no FILE' stat
says 2 "--kind 'median'" build --kind median

# ---- wrong ----

third=$(sed -n 3p "$work/paths")
cp "$work/to/${third%.bin}.repr" "$file"
says 1 'its header is not of this block' verify --mount "$mnt" \
	--to "$work/to" "$work/paths"
flip "$file" $((4096 + 512))
says 1 'layer 1: checksum differs' verify --mount "$mnt" --to "$work/to" \
	"$work/paths"
says 1 '12 blocks: 11 equal, 1 damaged;' verify --mount "$mnt" \
	--to "$work/to" --all
says 1 'layer 1: checksum differs' stat "$file"
rm "$file"
says 1 '"absent": 1' verify --mount "$mnt" --to "$work/to" --all -j
says 1 '12 blocks: 11 equal, 1 absent;' verify --mount "$mnt" \
	--to "$work/to" --all
do_umount

# without a daemon; a block whose keys are damaged
flip "$work/tier/blocks/$third" $((4096 + 1))
rm -r "$work/to" && mkdir "$work/to"
says 1 "layer 0 K: plane checksum differs" build --tiers "$work/tier" \
	--to "$work/to" --all
same 'the others are built' 11 "$(find "$work/to" -name '*.repr' | wc -l)"
