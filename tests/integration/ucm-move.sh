#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm put and ucm get: pages of a file become blocks of a store and come back,
# through the mount and through the tiers; what is absent or damaged is named,
# and no incomplete file appears.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse
shape='--layers 2 --heads 1 --dim 16 --tokens 16 --dtype float16'
payload=2048
nobody=00000000000000000000000000000001

is_empty() {
	[ -z "$(ls -A "$1")" ]
}

# exits STATUS command...
exits() {
	exits_want=$1
	shift
	"$@" >"$work/out" 2>"$work/err"
	exits_got=$?
	same "status of: ${*#"$top_builddir/"}" "$exits_want" $exits_got ||
		sed 's/^/  | /' "$work/out" "$work/err"
}

says() {
	check "says: $1" grep -qF -- "$1" "$work/out" "$work/err"
}

# The payload of the blocks of a list, read without us.
payloads() {
	while read -r path; do
		tail -c +4097 "$1/$path" | head -c $payload
	done <"$2"
}

mkdir "$work/raw"
cd "$work/raw" || exit 1
need do_mount "fast=$work/tier"
need mk "$mnt/blocks"
small_paths 16 >"$work/paths"
sed 's,.*/,,; s/\.bin$//' "$work/paths" >"$work/ids"

# ---- get ----

exits 0 "$ucm" get --mount "$mnt" got "$work/ids"
says '16 blocks: 16 loaded'
payloads "$mnt/blocks" "$work/paths" >"$work/want"
check 'pages are the payloads, in order' cmp "$work/want" got
same 'mode of the file' 644 "$(stat -c %a got)"
for how in '--io uring' '--io threads' '--threads 1' '--verify none' \
	'--verify header' "$shape" "--like $mnt/blocks/$(head -n 1 "$work/paths")"; do
	rm got
	# shellcheck disable=SC2086 # options
	"$ucm" get --mount "$mnt" $how got - <"$work/paths" >"$work/out" 2>&1
	check "with $how" cmp "$work/want" got
done
echo other >got
exits 0 "$ucm" get --mount "$mnt" got "$work/ids"
check 'an old file is replaced' cmp "$work/want" got
exits 0 "$ucm" get --mount "$mnt" none /dev/null
same 'no blocks, no bytes' 0 "$(stat -c %s none)"
rm none

# ---- put ----

need mkdir "$mnt/spaces/copy"
exits 1 "$ucm" put --mount "$mnt" --space copy got "$work/ids"
says 'give its geometry'
# shellcheck disable=SC2086
exits 0 "$ucm" put --mount "$mnt" --space copy $shape got "$work/ids"
says '16 saved'
payloads "$mnt/spaces/copy" "$work/paths" | cmp - "$work/want" ||
	fail 'the files in the other space differ'
exits 0 "$ucm" put --mount "$mnt" --space copy got "$work/ids"
says '16 skipped'
exits 0 "$ucm" get --mount "$mnt" --space copy back "$work/ids"
check 'there and back' cmp "$work/want" back

# from tokens to blocks, without a list in between
need mkdir "$mnt/spaces/chain"
seq 0 79 >"$work/tokens"
hash() {
	"$ucm" hash --meta test:1:float16:0 --block-size 16 "$@" "$work/tokens"
}
head -c $((5 * payload)) got >five
# shellcheck disable=SC2086
hash | "$ucm" put --mount "$mnt" --space chain $shape --parents five \
	>"$work/out" 2>&1
check 'ucm hash | ucm put' grep -q '5 blocks: 5 saved' "$work/out"
hash --paths | "$ucm" get --mount "$mnt" --space chain back >"$work/out" 2>&1
check 'ucm hash --paths | ucm get' cmp five back
second=$(hash --paths | sed -n 2p)
if may_try 'parents' getfattr; then
	same 'the second names the first' "$(hash | head -n 1)" \
		"$(xattr parent "$mnt/spaces/chain/$second")"
	first=$(hash --paths | sed -n 1p)
	same 'the first names none' '' \
		"$(xattr parent "$mnt/spaces/chain/$first" 2>/dev/null)"
	same 'and is the parent of one' 1 \
		"$(xattr children "$mnt/spaces/chain/$first")"
	same 'the last is of none' 0 "$(xattr children \
		"$mnt/spaces/chain/$(hash --paths | sed -n 5p)")"
	need mkdir "$mnt/spaces/later"
	hash | tail -n 4 >"$work/four"
	tail -c $((4 * payload)) five >four
	# shellcheck disable=SC2086
	exits 0 "$ucm" put --mount "$mnt" --space later $shape \
		--parent "$(hash | head -n 1)" four "$work/four"
	same 'and --parent says so' "$(hash | head -n 1)" \
		"$(xattr parent "$mnt/spaces/later/$second")"
	rm four
fi

# ---- what is wrong ----

rm back
{ cat "$work/ids"; echo $nobody; } >"$work/more"
exits 1 "$ucm" get --mount "$mnt" back "$work/more"
says "$nobody: absent"
absent back
exits 0 "$ucm" get --mount "$mnt" --missing zero back "$work/more"
says "$nobody: absent"
{ cat "$work/want"; head -c $payload /dev/zero; } >"$work/zeros"
check 'zeros for the absent one' cmp "$work/zeros" back
rm back

flip "$work/tier/blocks/$(sed -n 3p "$work/paths")" $((4096 + 1536 + 7))
exits 1 "$ucm" get --mount "$mnt" --missing zero back "$work/ids"
says "$(sed -n 3p "$work/ids"): layer 1 V: plane checksum differs"
says '16 blocks: 15 loaded, 1 damaged'
absent back
exits 0 "$ucm" get --mount "$mnt" --verify none back "$work/ids"
rm back
exits 1 "$ucm" put --mount "$mnt" --space copy five "$work/ids"
says '10240 bytes; 16 blocks of 2048 are 32768'
head -n 4 "$work/ids" >"$work/first"
exits 1 "$ucm" put --mount "$mnt" --space copy five "$work/first"
says '10240 bytes; 4 blocks of 2048 are 8192'
exits 1 "$ucm" put --mount "$mnt" --space none five "$work/ids"
says "space 'none'"
exits 1 "$ucm" put --mount "$work" five "$work/ids"
says 'not a mount of ucmfs'
exits 1 "$ucm" get --mount "$mnt" /dev/null "$work/ids"
says 'not a regular file'
echo "$nobody $nobody" >"$work/two"
exits 1 "$ucm" get --mount "$mnt" back "$work/two"
says 'line 1: not an id'
# shellcheck disable=SC2086
exits 1 "$ucm" get --mount "$mnt" $shape --order HND back "$work/ids"
says 'geometry differs'
absent back
if may_try 'JSON' python3; then
	"$ucm" get --mount "$mnt" --json back "$work/more" >"$work/json"
	same 'JSON' '17 15 1 1 absent damaged' "$(python3 -c 'import json, sys
d = json.load(sys.stdin)
print(d["blocks"], d["loaded"], d["absent"], d["damaged"],
      *sorted(f["outcome"] for f in d["failures"]))' <"$work/json")"
	same 'the plane' '3 1 V' "$(python3 -c 'import json, sys
for f in json.load(sys.stdin)["failures"]:
    if "plane" in f:
        print(f["plane"], f["layer"], f["part"])' <"$work/json")"
fi
hash >"$work/five"
head -c "$payload" five >"$work/page"
head -n 1 "$work/five" >"$work/one"
# shellcheck disable=SC2086
exits 0 "$ucm" put --tiers "$work/tier" $shape "$work/page" "$work/one"
check 'the mount that has the directory has it' \
	test -e "$mnt/blocks/$(hash --paths | head -n 1)"
do_umount

# ---- the tiers ----

exits 0 "$ucm" get --tiers "$work/tier" --space chain back "$work/five"
check 'a space, from its directory' cmp five back
exits 0 "$ucm" put --tiers "$work/tier" five "$work/five"
says '4 saved'
exits 0 "$ucm" get --tiers "$work/tier" back "$work/five"
check 'there and back, without a mount' cmp five back
need do_mount "$work/tier"
exits 0 "$ucm" get --mount "$mnt" back "$work/five"
check 'the mount has them' cmp five back
do_umount

rm five got back
check 'nothing else was left' is_empty "$work/raw"
