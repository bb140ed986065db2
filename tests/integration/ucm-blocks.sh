#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm ls, stat, where, du, lookup, pin, unpin, warm, evict and touch on two tiers
# and several spaces, by root and by others; every --json is JSON.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse python3 setpriv

# on COMMAND argument...: of the mount
on() {
	on_command=$1
	shift
	"$ucm" "$on_command" -m "$mnt" "$@"
}

# by_other COMMAND argument...; the program as others can run it
by_other() {
	by_command=$1
	shift
	setpriv --reuid=1234 --regid=1234 --clear-groups \
		"$work/ucm" "$by_command" -m "$mnt" "$@"
}

cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
as_nobody "$work/ucm" --version >/dev/null ||
	skip "$work/ucm cannot be run by other users"
mkdir -p "$work/slow/blocks"
need mk --count 12 "$work/slow/blocks"
for path in $(small_paths 8); do # those are in the first tier only
	rm "$work/slow/blocks/$path"
done
export UCM_PROFILE=1 UCM_PROFILE_OUTPUT="$work/profile"
need do_mount -o allow_other,promote=never "fast=$work/tier:slow=$work/slow"
unset UCM_PROFILE UCM_PROFILE_OUTPUT
need mk --count 8 "$mnt/blocks"
need mkdir "$mnt/spaces/big" "$mnt/spaces/empty"
need as_nobody mkdir -m 700 "$mnt/spaces/mine"
# shellcheck disable=SC2086
need "$mkblocks" --quiet --layers 4 --count 3 "$mnt/spaces/big"
need mk --count 2 "$mnt/spaces/mine"
first=$(ids 1)
absent=$(printf %032d 0)

# ---- ls ----

same 'ls lists what there is' "$(ids 12 | sort)" \
	"$(on ls | sed 1d | cut -d' ' -f1)"
same 'ls: sizes and tiers' "8 $small_size fast
4 $small_size slow" "$(on ls | sed 1d | awk '{ print $2, $3 }' | sort | uniq -c |
	sed 's/^ *//')"
same 'ls -H' 8.0K "$(on ls -H -n 1 | sed 1d | awk '{ print $2 }')"
same 'ls -p: a prefix' "$(ids 12 | grep "^${first%"${first#?}"}" | sort)" \
	"$(on ls -p "${first%"${first#?}"}" | sed 1d | cut -d' ' -f1)"
same 'ls -p: a whole id' "$first" "$(on ls -p "$first" | sed 1d | cut -d' ' -f1)"
same 'ls of another space' 3 "$(on ls -s big | sed 1d | wc -l)"
same 'ls of an empty one' 0 "$(on ls -s empty | sed 1d | wc -l)"
need on warm --touch "$first" "$first" >/dev/null
same 'ls -o uses' "$first" "$(on ls -o uses -n 1 | sed 1d | cut -d' ' -f1)"
same 'ls -r' "$first" "$(on ls -o uses -r | tail -n 1 | cut -d' ' -f1)"
touch -d '2020-01-01' "$mnt/blocks/$(small_paths 1)"
same 'ls -o age' "$first" "$(on ls -o age | tail -n 1 | cut -d' ' -f1)"
json 'x["found"] == 12 and len(x["blocks"]) == 5' on ls -j -n 5
json 'x["space"] == "spaces/big" and not x["failed"]' on ls -j -s big
json '{b["tier"] for b in x["blocks"]} == {"fast", "slow"}' on ls -j
json 'sum(b["children"] for b in x["blocks"]) == 11' on ls -j # all but the last
json 'not any(b["copy"] for b in x["blocks"])' on ls -j
lookups=$(stat_of lookups)
need on ls >/dev/null
same 'ls is no lookup' "$lookups" "$(stat_of lookups)"
status 'ls of no space' 1 on ls -s none
says 'no such space'
status 'another lists them' 0 by_other ls
status 'but not a private space' 1 by_other ls -s mine
says 'the space is private'
status 'of which root sees all' 0 on ls -s mine

# ---- du ----

same 'du: by space and tier' "blocks fast 8 $((8 * small_size))
blocks slow 4 $((4 * small_size))
spaces/big fast 3 $((3 * $(stat -c %s "$mnt"/spaces/big/*/*.bin | head -n 1)))
spaces/mine fast 2 $((2 * small_size))
total 17" "$(on du | sed 1d | awk '$1 == "total" { print $1, $2; next }
	{ print $1, $2, $3, $4 }')"
same 'du -s' "$(printf 'spaces/big\ntotal')" "$(on du -s big | sed 1d | cut -d' ' -f1)"
json 'x["total"]["blocks"] == 17 and len(x["spaces"]) == 4' on du -j
status 'another is told what he may not see' 1 by_other du
says "$mnt/spaces/mine: the space is private"
check 'and gets the rest' grep -q '^total  *15 ' "$work/said"

# ---- stat and where ----

late=$(ids 12 11)
status 'stat' 0 on stat "$late"
says "path       $work/slow/blocks/$(nth_path 12)"
says 'tier       slow'
says "parent     $(ids 11 10)"
says 'children   0'
says "crc32c     $(xattr crc32c "$mnt/blocks/$(nth_path 12)")"
same 'stat: planes' 4 "$(sed '1,/LAYER/d' "$work/said" | grep -c ' [0-9a-f]\{8\}$')"
need dd if="$mnt/blocks/$(nth_path 12)" of="$work/plane" bs=512 \
	skip=8 count=1 status=none
same 'stat: the first plane has the checksum that is told' \
	"$(sed '1,/LAYER/d' "$work/said" | awk 'NR == 1 { print $5 }')" \
	"$(python3 -c 'import sys
table = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82f63b78 if n & 1 else 0)
    table.append(n)
crc = 0xffffffff
for byte in open(sys.argv[1], "rb").read():
    crc = table[(crc ^ byte) & 255] ^ crc >> 8
print("%08x" % (crc ^ 0xffffffff))' "$work/plane")"
json 'len(x["planes"]) == 4 and x["planes"][3]["part"] == "V"' on stat -j "$late"
json 'x["size"] == 8192 and x["pinned"] is False' on stat -j "$late"
status 'stat of a block that is not there' 1 on stat "$absent"
says "$absent: absent"
status 'another: without the path' 0 by_other stat "$late"
check 'no path' sh -c '! grep -q ^path "$1"' sh "$work/said"
# bare and packed have neither table nor parent
need mkdir "$mnt/spaces/bare"
need mk --form bare --method rename --count 1 "$mnt/spaces/bare"
# its last close is its writer's word, which the daemon hears a moment later
has_bare() { on stat -s bare "$first" >"$work/bare" 2>&1; }
need wait_until has_bare
status 'stat of a bare block' 0 on stat -s bare "$first"
says 'form       bare'
same 'no checksums' 4 "$(sed '1,/LAYER/d' "$work/said" | grep -c ' -$')"

status 'where' 1 on stat --where "$first" "$absent" "$late"
same 'where: each' "$first fast $work/tier/blocks/$(small_paths 1)
$absent absent
$late slow $work/slow/blocks/$(nth_path 12)" "$(cat "$work/said")"
status 'where: paths will do' 0 on stat --where "$mnt/blocks/$(small_paths 1)"
status 'where: by another' 0 by_other stat --where "$late"
same 'where: the tier only' "$late slow -" "$(cat "$work/said")"
json '[b.get("tier") for b in x] == ["fast", None] and x[1]["error"] == "absent"' \
	on stat --where -j "$first" "$absent"
status 'where: a private space' 1 by_other stat --where -s mine "$first"
says "$mnt/spaces/mine: the space is private"

# ---- lookup ----

ids 14 >"$work/ids"
status 'lookup: not all' 1 on stat --present "$work/ids"
same 'prefix, present, bitmap' 'blocks  14
prefix  12
present 12
bitmap  11111111111100' "$(cat "$work/said")"
status 'lookup: all' 0 sh -c 'head -n 12 "$1" | "$2" lookup -m "$3"' sh \
	"$work/ids" "$ucm" "$mnt"
(echo "$absent"; cat "$work/ids") >"$work/hole"
json 'x["prefix"] == 0 and x["present"] == 12 and x["bitmap"] == "0" + 12 * "1" + "00"' \
	on stat --present -j "$work/hole"
same 'lookup --list' "$absent 0
$first 1" "$(on stat --present --list "$work/hole" | head -n 2)"
small_paths 3 >"$work/paths"
status 'lookup: paths' 0 on stat --present "$work/paths"
ids 2500 >"$work/many"
same 'lookup: more than a batch' 'present 12' "$(on stat --present "$work/many" | grep present)"
status 'lookup of nothing' 0 on stat --present /dev/null
status 'lookup of what is no id' 1 on stat --present /etc/hostname
says 'line 1: not an id'

# ---- pin, evict and the like ----

status 'pin' 0 on pin "$first" "$late"
same 'pin: says' '2 blocks pinned' "$(cat "$work/said")"
same 'ls shows it' 2 "$(on ls | grep -c ' pinned$')"
status 'evict: not what is pinned' 1 on evict "$first"
says "$first: pinned"
json 'x["evicted"] == 0 and x["failures"][0]["error"] == "pinned"' \
	on evict -j "$first"
status 'unpin' 0 on pin --off "$first"
status 'evict' 1 on evict "$first" "$absent"
says "$absent: absent"
says '1 block evicted, 1 not'
check 'it is gone' wait_until is_absent "$mnt/blocks/$(small_paths 1)"
sed 1d "$work/ids" | head -n 5 >"$work/five"
json 'x["touched"] == 5 and not x["failed"]' on warm --touch -j -f "$work/five"
same 'touch: uses' 5 "$(on ls | awk '$4 == 1' | grep -cFf "$work/five")"
status 'evict by a list' 0 sh -c '"$1" evict -m "$2" --file - <"$3"' sh \
	"$ucm" "$mnt" "$work/five"
same 'evict: they are gone' 6 "$(on ls | sed 1d | wc -l)"
status 'warm' 0 on warm "$late"
is_warm() { [ "$(on stat --where "$late" | awk '{ print $2 }')" = fast ]; }
check 'it comes to the fastest tier' wait_until is_warm
status 'others: touch' 0 by_other warm --touch "$late"
for what in pin 'pin --off' evict warm; do
	# shellcheck disable=SC2086 # a word or two
	status "others: no $what" 1 by_other $what "$late"
	says 'only for root and the owner of the mount'
done
status 'others: nothing to do is refused as well' 1 by_other evict -f /dev/null
do_umount
has_move() {
	python3 -c 'import json, sys
assert [e for e in json.load(open(sys.argv[1])) if e["name"] == "move"
        and e["args"].get("block") == sys.argv[2] and e["args"]["bytes"] > 0]' \
		"$work/profile" "$late"
}
check 'the profile of the daemon has the move' wait_until has_move

# ---- no mount ----

status 'a directory' 1 on ls
says "$mnt: not a mount of ucmfs"
need do_mount "$work/tier"
crash_daemon
status 'a dead mount' 1 on ls
says 'its daemon is gone'
umount -l "$mnt"
need do_mount -o ro "$work/tier"
status 'read-only: no evict' 1 on evict "$late"
says 'it is mounted read-only'
do_umount
