#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm ls, du, stat and evict on the directories of a store: they say
# what a mount of them says; beside one, and beside a process that saves, nothing is
# removed; what is no block stays, and so do times and all else.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client python3 setpriv
nobody=00000000000000000000000000000001
tiers="fast=$work/tier:slow=$work/slow"

# of COMMAND argument...: of the directories; at: of the mount
of() {
	of_command=$1
	shift
	"$ucm" "$of_command" --tiers "$tiers" "$@"
}

at() {
	at_command=$1
	shift
	"$ucm" "$at_command" --mount "$mnt" "$@"
}

# All files of blocks and spaces, with their times; by a mount they are read.
everything() {
	find "$work/tier" "$work/slow" ! -path '*/.ucmfs*' \
		! -type d -printf "%P %s %i %T@${1- %A@}\n" | sort
}

# alike COMMAND argument...: the mount says the same
alike() {
	at "$@" >"$work/of.mount"
	of "$@" >"$work/of.tiers"
	check "the mount says the same: $*" \
		cmp "$work/of.mount" "$work/of.tiers"
}

# Such as reading would change.
old_times() {
	find "$work/tier" "$work/slow" -name '*.bin' -exec touch -d 2026-01-05 {} +
}

# into_slow N...: blocks go to the second tier
into_slow() {
	for n; do
		path=$(nth_path "$n")
		mkdir -p "$work/slow/blocks/${path%/*}"
		need mv "$work/tier/blocks/$path" "$work/slow/blocks/$path"
	done
}

# ---- what a mount says ----

mkdir "$work/slow"
status 'a directory that was never used' 1 of ls
says "$work/tier: .ucmfs: No such file or directory"
status 'nothing is removed from one' 1 of evict --all
same 'and nothing is made in it' '' "$(find "$work/tier" "$work/slow" -mindepth 1)"
need do_mount -c checkpoint=0 -o policy=none "$tiers"
need mk --count 8 "$mnt/blocks"
need mkdir "$mnt/spaces/one" "$mnt/spaces/engine"
need mk --count 24 "$mnt/spaces/one"
do_umount
into_slow 1 2 3 4
path=$(nth_path 5)
mkdir -p "$work/slow/blocks/${path%/*}"
need cp -p "$work/tier/blocks/$path" "$work/slow/blocks/$path"
old_times
rm -f "$work/tier/.ucmfs/snapshot" "$work/slow/.ucmfs/snapshot" # they differ now
small_paths 8 | sed 's,.*/,,; s/\.bin$//' >"$work/ids"
echo $nobody >>"$work/ids"
everything >"$work/before"

status 'ls without a mount' 0 of ls
same 'as many as there are, each once' 8 "$(sed 1d "$work/said" | wc -l)"
same 'nobody counts uses' 8 "$(awk '$4 == "-"' "$work/said" | wc -l)"
status 'du, stat, where, lookup' 0 of du
status 'stat' 0 of stat "$(ids 5 4)"
says 'copy       slow'
status 'where: one is absent' 1 of stat --where "$(ids 2 1)" "$(ids 8 7)" $nobody
same 'the others have files' \
	"$(ids 2 1) slow $work/slow/blocks/$(nth_path 2)
$(ids 8 7) fast $work/tier/blocks/$(nth_path 8)
$nobody absent" "$(cat "$work/said")"
status 'lookup: one is absent' 1 of stat --present "$work/ids"
everything >"$work/after"
check 'looking changes nothing' cmp "$work/before" "$work/after"

need do_mount -c checkpoint=0 -o policy=none "$tiers"
need "$ucm" sync rescan "$mnt" >/dev/null
alike du
alike du --human --space one
alike stat --present --list "$work/ids"
alike stat --present "$work/ids"
# shellcheck disable=SC2046 # a word for each
alike stat --where $(ids 8) $nobody
for where in at of; do
	$where ls --sort size --reverse |
		awk '{ $4 = $6 = "-"; print }' >"$work/of.$where"
done
check 'the mount lists the same' cmp "$work/of.at" "$work/of.of"
for n in 1 5 8; do
	at stat "$(ids $n $((n - 1)))" |
		grep -vE '^(children|generation|uses|used|opens) ' \
		>"$work/of.mount"
	of stat "$(ids $n $((n - 1)))" | grep -v '^used ' >"$work/of.tiers"
	check 'and says the same of a block' \
		cmp "$work/of.mount" "$work/of.tiers"
done
# "used" is what reading them has changed
at du --json >"$work/json.du"
at ls --json >"$work/json.ls"
at stat --json "$(ids 1)" >"$work/json.stat"
also() {
	echo "(lambda m: $1)(json.load(open('$work/json.$2')))"
}
json "$(also 'x["spaces"] == m["spaces"] and x["total"] == m["total"]' du)" \
	of du --json
json "$(also 'all(a[k] == b[k] for a, b in zip(x["blocks"], m["blocks"]) for k in a if k != "used")' ls)" \
	of ls --json
json "$(also 'all(x[k] == m[k] for k in x if k != "used") and len(m) == len(x) + 4' stat)" \
	of stat --json "$(ids 1)"
status 'a space that is not there' 1 of ls --space none
says 'spaces/none: no such space'
status 'both' 2 of ls --mount "$mnt"
says '--mount or --tiers'
status 'nobody counts uses' 2 of ls --sort uses

# ---- who has the directories ----

need at pin "$(ids 8 7)" >/dev/null
status 'evict beside a mount' 1 of evict --all
says "$work/tier: mounted at $mnt: use ucm evict --mount $mnt"
status 'of one of its directories' 1 "$ucm" evict --tiers "$work/slow" --keep 0
says "$work/slow: mounted at $mnt"
status '--keep of a mount' 2 at evict --keep 0
says '--keep and --with-space need --tiers'
do_umount

everything '' >"$work/before"
start_client --space engine tiers "$tiers"
ask save 0 4
same 'an engine saves' '= ok 4 skipped 0 wrong 0 absent 0 failed 0' "$answer"
status 'ls beside it' 0 of ls --space engine
same 'sees what it has saved' 4 "$(sed 1d "$work/said" | wc -l)"
status 'evict beside it' 1 of evict --all --space engine
says "$work/tier: in use by another ucmfs (process $client, "
end_client
start_client --space engine tiers "$tiers"
ask load 0 1
first=$(of ls --space engine | sed -n 2p | cut -c 1-32)
status 'evict beside one that only reads' 0 of evict --space engine "$first"
ask load 0 4
same 'which goes on with what is there' \
	'= ok 3 skipped 0 wrong 0 absent 1 failed 0' "$answer"
ask save 4 1
same 'and can save now' '= ok 1 skipped 0 wrong 0 absent 0 failed 0' "$answer"
end_client
status 'evict, of a whole space' 0 of evict --all --space engine
says '4 blocks evicted'
everything '' >"$work/after"
check 'of others nothing was removed' cmp "$work/before" "$work/after"

# ---- what goes ----

status 'one is pinned, one absent' 1 of evict "$(ids 8 7)" "$(ids 5 4)" $nobody
says "$(ids 8 7): pinned"
says "$nobody: absent"
says '1 block evicted, 2 not'
absent "$work/slow/blocks/$(nth_path 5)"
absent "$work/tier/blocks/$(nth_path 5)"
json 'x["evicted"] == 0 and x["failures"][0]["held_by"] == ["pinned"]' \
	of evict --json "$(ids 8 7)"

# no blocks, whatever their names; what a process that was killed has left
bad=$work/slow/blocks/$(nth_path 9)
need mk --count 1 --start 8 --spoil header-crc "$work/slow/blocks"
need mkdir -p "$work/tier/blocks/$(nth_path 10)" "$work/slow/blocks/zz"
need touch "$work/tier/.ucmfs/tmp/left" "$work/slow/blocks/zz/x" \
	"$work/tier/blocks/README" "$work/tier/files/x"
find "$work/tier" "$work/slow" -type f ! -name '*.bin' ! -path '*/.ucmfs/[ls]*' \
	-printf '%P %i %T@\n' | sort >"$work/before"
status 'what is no block is told' 0 of ls
says "$work/tier/blocks/$(nth_path 10): no plain file: left alone"
says '1 more files are named as blocks and are none'
same 'and is not listed' 7 "$(grep -c '^[0-9a-f]\{32\} ' "$work/said")"
status 'nor evicted' 1 of evict "$(ids 9 8)"
says "$(ids 9 8): absent"

status 'no more than that is there' 0 of evict --space one --keep 192K
says '0 blocks evicted; 196608 bytes left'
status 'room in a space' 0 of evict --space one --keep 160K
same 'the chain goes from its end' "$(ids 20 | sort)" \
	"$(of ls --space one 2>/dev/null | sed 1d | cut -c 1-32)"
old_times
# one was read later, and so were all that lead to it
need touch -a -d 2026-03-01 "$work/slow/blocks/$(nth_path 4)"
status 'room in all' 0 of evict --keep 40K
says '22 blocks evicted; 40960 bytes left'
same 'the oldest have gone' "$({ ids 4; ids 8 7; } | sort)" \
	"$(of ls 2>/dev/null | sed 1d | cut -c 1-32)"
status 'no parent goes before its child' 0 of evict --keep 24K
same 'though that was read last' "$({ ids 2; ids 8 7; } | sort)" \
	"$(of ls 2>/dev/null | sed 1d | cut -c 1-32)"
status 'what is pinned stays' 1 of evict --keep 0
says 'pinned blocks: 1'
says '2 blocks evicted; 8192 bytes left'
json 'x == {"evicted": 0, "failed": 0, "failures": [], "left": 8192}' \
	of evict --keep 0 --json
find "$work/tier" "$work/slow" -type f ! -name '*.bin' ! -path '*/.ucmfs/[ls]*' \
	-printf '%P %i %T@\n' | sort >"$work/after"
check 'what is none of ours is as it was' cmp "$work/before" "$work/after"
check 'the damaged block too' test -f "$bad"

# ---- a whole space ----

need mk --count 4 "$work/tier/spaces/one"
need touch "$work/tier/spaces/one/notes"
status 'a stranger in a space' 1 of evict --all --space one --with-space
says "$work/tier/spaces/one: Directory not empty"
need rm "$work/tier/spaces/one/notes"
status 'the space goes' 0 of evict --all --space one --with-space
absent "$work/tier/spaces/one"
status 'and is no more' 1 of ls --space one
status 'not the default one' 2 of evict --all --with-space
need do_mount -c checkpoint=0 -o policy=none "$tiers"
at du >/dev/null # reads what has changed
alike du 2>"$work/err"
check 'the mount has what is left' cmp \
	"$work/tier/blocks/$(nth_path 8)" "$mnt/blocks/$(nth_path 8)"
do_umount

# ---- what cannot be read ----

status 'a directory and its copy' 1 "$ucm" du --tiers "$work/tier:$work/tier"
says "$work/tier: the same directory as $work/tier"
cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
if others_can 'directories of several users' "$work/ucm" --version; then
	need cp -r "$work/tier" "$work/own"
	need mk --count 3 "$work/own/blocks"
	chown -R 65534:65534 "$work/own"
	tiers=$work/own:$work/slow
	bucket=$work/own/blocks/$(dirname "$(nth_path 2)")
	need chmod 0 "$bucket"
	status 'one is of somebody else' 1 \
		as_nobody "$work/ucm" ls --tiers "$tiers"
	says "$work/slow: .ucmfs: Permission denied"
	says "$bucket: Permission denied"
	same 'the rest is shown' 3 \
		"$(grep -c '^[0-9a-f]\{32\} ' "$work/said")"
	status 'du' 1 as_nobody "$work/ucm" du --tiers "$tiers"
	status 'not known' 1 as_nobody "$work/ucm" stat --present --tiers "$tiers" \
		"$work/ids"
	says 'unknown '
	status 'nothing is evicted' 1 \
		as_nobody "$work/ucm" evict --tiers "$tiers" --all
	check 'from the others' test -f "$work/own/blocks/$(nth_path 1)"
	status 'not by another user, not even root' 1 \
		"$ucm" evict --tiers "$work/own" --keep 0
	says 'it belongs to user 65534, and ucmfs runs as 0'
	status 'of the others alone' 1 \
		as_nobody "$work/ucm" evict --tiers "$work/own" --keep 0
	says '2 blocks evicted; 8192 bytes left'
fi
