#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm status by root, by another user, as JSON; and which mount is meant when
# none is named.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test fuse python3 setpriv namespace
# those of others are none of ours
awk '/ - fuse\.ucmfs / { print $5 }' /proc/self/mountinfo |
	while read -r other; do
		umount -l "$other"
	done

has() {
	check "$1" grep -q "$2" "$work/said"
}

refused 'nothing is mounted' 'no mount' "$ucm" status
mkdir "$work/slow" "$work/mnt2" "$work/tier2"
cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
as_nobody "$work/ucm" --version >/dev/null ||
	skip "$work/ucm cannot be run by other users"
need do_mount -o allow_other,passthrough=off "fast=$work/tier:slow=$work/slow"
need mk "$mnt/blocks"
need mkdir "$mnt/spaces/other"
need test -f "$mnt/blocks/$(small_paths 1)"

"$ucm" status >"$work/said" || fail 'status'
has 'the only mount needs no name' "^mount  *$mnt\$"
has 'passthrough, and why not' '^passthrough  *off: switched off$'
has 'the index' '^index  *16 blocks, complete$'
has 'hits' '^hits  *[0-9.]* % of [1-9][0-9]* lookups$'
has 'counters' 'commits 16, '
has 'a tier' '^slow  *[0-9.]*[KMGT] '
has 'its directory' "^  $work/slow, [0-9.]*[KMGT]* used\$"
has 'a space with its geometry' '^blocks  *16  *[0-9]*K  *-  2 layers of 16 tokens, float16'
has 'one without' '^other  *0  *0  *-  -$'
"$ucm" status --json >"$work/said" || fail 'status --json'
check 'JSON' python3 -c 'import json, sys
x = json.load(open(sys.argv[1]))
assert x["missing"] is None and 0 <= x["hit_rate"] < 1, x
assert x["stats"]["counters"]["commits"] == 16, x
assert len(x["stats"]["spaces"]) == 2, x' "$work/said"

as_nobody "$work/ucm" status >"$work/said" || fail 'status by another'
has 'another: passthrough' '^passthrough  *off$'
has 'another: the index' '^index  *16 blocks, complete$'
has 'another: a tier' '^slow  *[0-9.]*[KMGT] '
has 'another: what is missing' '^missing: .*directories, spaces; '
check 'another: no paths' sh -c '! grep -q "$1" "$2"' sh "$work/slow" "$work/said"
as_nobody "$work/ucm" status -j >"$work/said" || fail 'status --json by another'
check 'another: JSON' python3 -c 'import json, sys
x = json.load(open(sys.argv[1]))
assert "spaces" in x["missing"], x
assert x["stats"]["index"] == {"blocks": 16, "complete": True}, x
assert [t["name"] for t in x["stats"]["tiers"]] == ["fast", "slow"], x' "$work/said"

first=$mnt
mnt=$work/mnt2
need do_mount "$work/tier2"
need mk --start 1 --count 1 "$mnt/blocks"
for command in status ls du; do
	check "$command: two mounts, one after the other" \
		sh -c '"$1" "$2" >"$3"' sh "$ucm" $command "$work/said"
	has "$command: both, in the order of the table" \
		"^\(mount *\)\?$first:\?\$"
	has "$command: both, in the order of the table" \
		"^\(mount *\)\?$mnt:\?\$"
	same "$command MOUNT: that one" "$mnt" \
		"$("$ucm" $command --json "$mnt" |
			python3 -c 'import json, sys; print(json.load(sys.stdin)["mount"])')"
	check "$command --json: an object each" sh -c '"$1" "$2" --json |
		python3 -c "import json, sys
d, t = json.JSONDecoder(), sys.stdin.read().strip()
x, end = d.raw_decode(t)
y, end = d.raw_decode(t[end:].strip())
assert [x[\"mount\"], y[\"mount\"]] == sys.argv[1:], (x, y)" "$3" "$4"' \
		sh "$ucm" $command "$first" "$mnt"
done
refused "several are mounted; name one of $first, $mnt" \
	'what changes blocks wants to be told which' "$ucm" \
	evict 00000000000000000000000000000000
check 'one is named' "$ucm" status -m "$mnt"
do_umount
mnt=$first
check 'one is left' "$ucm" status
do_umount
