#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm with --tiers: the daemon that has the directories is asked, be it a mount or a
# private one that starts for it; evict --keep and --with-space make room.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse python3 setpriv
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

# What the mount says is kept, and compared: keep COMMAND argument...
kept() {
	echo "$work/kept.$(echo "$*" | cksum | cut -d ' ' -f 1)"
}

keep() {
	at "$@" >"$(kept "$@")"
}

alike() {
	of "$@" >"$work/of.tiers" 2>&1
	check "the mount said the same: $*" cmp "$(kept "$@")" "$work/of.tiers"
}

unserved() {
	[ ! -e "$work/tier/.ucmfs/socket" ]
}

# used N DAY: its file says so
used() {
	find "$work/tier" "$work/slow" -path "*/$(nth_path "$1")" \
		-exec touch -a -d "2026-03-$2" {} +
}

listed() {
	of ls "$@" | sed 1d | cut -c 1-32
}

mkdir -p "$work/slow/blocks"
need do_mount -c checkpoint=0 -o policy=none "$tiers"
need mk --count 8 "$mnt/blocks"
need mkdir "$mnt/spaces/one"
need mk --count 4 "$mnt/spaces/one"
do_umount
for n in 1 2 3 4; do
	path=$(nth_path $n)
	mkdir -p "$work/slow/blocks/${path%/*}"
	need mv "$work/tier/blocks/$path" "$work/slow/blocks/$path"
done
for n in 1 2 3 4 5 6 7 8; do
	used $n "0$n"
done
rm -f "$work/tier/.ucmfs/snapshot" "$work/slow/.ucmfs/snapshot" # they differ now
small_paths 8 | sed 's,.*/,,; s/\.bin$//' >"$work/ids"
echo $nobody >>"$work/ids"

# ---- a private daemon says what a mount does, and the mount itself ----

status 'ls without a mount' 0 of ls
same 'has all, each once' 8 "$(listed | sort -u | wc -l)"
check 'a daemon has them' test -e "$work/tier/.ucmfs/socket"
check 'and ends by itself' wait_until unserved
need do_mount -c checkpoint=0 -o policy=none "$tiers"
set -- "$(ids 1)" "$(ids 5 4)" "$(ids 8 7)" $nobody
for turn in keep alike; do
	$turn du
	$turn du --human --space one
	$turn stat --present --list "$work/ids"
	$turn stat --where "$@"
done
same 'lists the same blocks' "$(at ls --sort size --reverse | cut -c 1-61)" \
	"$(of ls --sort size --reverse | cut -c 1-61)" # without their ages
do_umount
alike du
alike du --human --space one
alike stat --present --list "$work/ids"
alike stat --where "$@"
json "x['mount'] == 'tiers=$tiers' and len(x['blocks']) == 8" of ls --json
json 'x["generation"] >= 0 and x["path"].endswith(".bin")' \
	of stat --json "$(ids 8 7)"
status 'the place can be named like a mount' 0 "$ucm" du "tiers=$tiers"
status 'a space that is not there' 1 of ls --space none
says 'spaces/none: no such space'
status 'what is pinned' 0 of pin "$(ids 8 7)"
status 'no directory' 1 "$ucm" ls --tiers "$work/none"
says "tiers=$work/none: No such file or directory"
check 'the daemon ends' wait_until unserved

# ---- what is removed ----

status 'one is pinned, one absent' 1 of evict "$(ids 8 7)" "$(ids 5 4)" $nobody
says "$(ids 8 7): pinned"
says "$nobody: absent"
says '1 block evicted, 2 not'
absent "$work/tier/blocks/$(nth_path 5)"
block=$(stat -c %s "$work/slow/blocks/$(nth_path 1)")
status 'no more than that is there' 0 of evict --keep $((7 * block))
says '0 blocks evicted'
status 'room' 0 of evict --keep $((3 * block))
says '4 blocks evicted'
same 'what was used last stays' "$({ ids 7 6; ids 8 7; ids 6 5; } | sort)" \
	"$(listed | sort)"
status 'all but what is pinned' 1 of evict --keep 0
says '2 blocks evicted, 1 not'
status 'not the default space' 2 of evict --all --with-space
status 'neither by its ids' 2 of evict --space one --with-space "$(ids 1)"
status 'a whole space' 0 of evict --all --space one --with-space
says '4 blocks evicted'
absent "$work/tier/spaces/one"
status 'is no more' 1 of ls --space one
check 'the daemon ends' wait_until unserved

# ---- who may ----

cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
if others_can 'a directory of root' "$work/ucm" --version; then
	status 'not with directories of another user' 1 \
		as_nobody "$work/ucm" ls --tiers "$tiers"
	says "tiers=$tiers: "
fi
