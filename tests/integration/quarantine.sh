#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm quarantine: what was moved aside is listed and inspected; what is right is a
# block again, through the mount or without one, and what is wrong never; purge
# removes what is asked for and says what that frees.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse python3

# on ACTION argument...
on() {
	"$ucm" quarantine "$@"
}

# aside DIR [SPACE] N [SECONDS]: the Nth block of a space is moved aside, by hand,
# so long ago
aside() {
	aside_dir=$1
	aside_space=
	aside_from=blocks
	case $2 in
	[a-z]*)
		aside_space=$2
		aside_from=spaces/$2
		shift
		;;
	esac
	need mv "$aside_dir/$aside_from/$(nth_path "$2")" \
		"$aside_dir/.ucmfs/quarantine/$aside_space@$(nth_id "$2").$(($(date +%s) - ${3:-0}))000000001"
	# who opens it finds out
	cat "$mnt/$aside_from/$(nth_path "$2")" >/dev/null 2>&1
}

# in_quarantine DIR: number of files
in_quarantine() {
	find "$1/.ucmfs/quarantine" -type f | wc -l
}

need mkdir "$work/slow"
need do_mount "fast=$work/tier:slow=$work/slow"
need mk "$mnt/blocks"
need mkdir "$mnt/spaces/bare" "$mnt/spaces/gone"
need mk --form bare --method rename --count 2 "$mnt/spaces/bare"
need mk --count 1 "$mnt/spaces/gone"
status 'nothing is there' 0 on list "$mnt"
same 'says so' '0 files, 0 on disk' "$(cat "$work/said")"
kill_daemon
flip "$work/tier/blocks/$(nth_path 1)" 5000
need do_mount "fast=$work/tier:slow=$work/slow"
absent "$mnt/blocks/$(nth_path 1)"
check 'all doubts are settled' wait_until stat_is in_doubt 0

# ---- with the daemon ----

bad=$(ls "$work/tier/.ucmfs/quarantine")
status 'list' 0 on list "$mnt"
says "$work/tier/.ucmfs/quarantine/$bad"
says '1 file, 8.0K on disk'
status 'list a directory' 0 on list "$work/tier"
says "/$bad"
status 'list the other' 0 on list "$work/slow"
says '0 files'
status 'inspect' 0 on inspect "$mnt"
says "/$bad: layer 0 V: plane checksum differs"
json 'x["files"][0]["intact"] is False and x["files"][0]["id"] == "'"$(nth_id 1)"'"' \
	on inspect -j "$mnt"
json 'x["files"][0]["space"] == "" and not x["files"][0]["there"]' \
	on inspect -j "$mnt" "$(nth_id 1)"
for force in '' --force; do
	# shellcheck disable=SC2086 # none or one
	status "restore: not what is wrong $force" 1 on restore $force "$mnt"
	says "$bad: refused: layer 0 V: plane checksum differs"
	says '0 files restored, 0 freed, 1 not'
done
absent "$mnt/blocks/$(nth_path 1)"
same 'it stays where it is' 1 "$(in_quarantine "$work/tier")"

need mkdir "$work/keep"
need cp "$work/tier/blocks/$(nth_path 2)" "$work/keep/2"
aside "$work/tier" 2
check 'a block that was moved aside is gone' wait_until is_absent "$mnt/blocks/$(nth_path 2)"
status 'inspect: the other one is right' 0 on inspect "$mnt"
says "$(nth_id 2)"
says ': intact'
status 'restore' 1 on restore "$mnt"
says '1 file restored, 8.0K freed, 1 not'
check 'the block is there again, by the mount' cmp "$work/keep/2" "$mnt/blocks/$(nth_path 2)"
same 'its file has left the quarantine' "$bad" "$(ls "$work/tier/.ucmfs/quarantine")"
need cp "$work/keep/2" "$work/tier/.ucmfs/quarantine/@$(nth_id 2).1000000000"
status 'not over a block that is there' 1 on restore "$work/tier" "$(nth_id 2)"
says "@$(nth_id 2).1000000000: such a block is there"
json 'x["files"][0]["there"] and x["files"][0]["intact"]' on inspect -j "$mnt" "$(nth_id 2)"
need rm "$work/tier/.ucmfs/quarantine/@$(nth_id 2).1000000000"

# no checksums
aside "$work/tier" bare 1
check 'a bare block is gone' wait_until is_absent "$mnt/spaces/bare/$(nth_path 1)"
json 'x["files"][0]["intact"] is None and x["files"][0]["space"] == "bare"' \
	on inspect -j "$mnt" "$(ls "$work/tier/.ucmfs/quarantine" | grep bare)"
status 'restore: not what cannot be checked' 1 on restore "$mnt" \
	"$(ls "$work/tier/.ucmfs/quarantine" | grep bare)"
says 'refused; see --force'
status 'restore --force' 0 on restore --force "$mnt" \
	"$(ls "$work/tier/.ucmfs/quarantine" | grep bare)"
check 'the bare block is there again' test -s "$mnt/spaces/bare/$(nth_path 1)"

# a space that is gone
aside "$work/tier" gone 1
check 'its space is empty' wait_until rmdir "$mnt/spaces/gone"
status 'restore: no space' 1 on restore "$mnt" \
	"$(ls "$work/tier/.ucmfs/quarantine" | grep gone)"
says 'its space is gone'

# ---- purge ----

aside "$work/tier" 3 100000
status 'purge: nothing is meant' 2 on purge "$mnt"
says 'no NAME, no --older and no --all'
status 'purge what is old' 0 on purge --older 1d "$mnt"
says '1 file purged, 8.0K freed'
same 'the others stay' 2 "$(in_quarantine "$work/tier")"
status 'purge by name' 0 on purge "$mnt" "$bad"
says "purged $bad"
status 'which is gone then' 1 on purge "$mnt" "$bad"
says "$bad: not in the quarantine"
json 'x["action"] == "purge" and x["done"] == 1 and x["bytes"] == 8192' \
	on purge -j --all "$mnt"
same 'purge --all' 0 "$(in_quarantine "$work/tier")"
need touch "$work/tier/.ucmfs/quarantine/somebody's"
status 'what has another name stays' 0 on purge --all "$mnt"
same 'it does' 1 "$(in_quarantine "$work/tier")"
do_umount

# ---- without the daemon ----

need cp "$work/tier/blocks/$(nth_path 4)" "$work/keep/4"
aside "$work/tier" 4
need do_mount "$work/slow"
status 'restore into a directory that nobody uses' 0 on restore "$work/tier"
says '1 file restored'
check 'the block is in it' cmp "$work/keep/4" "$work/tier/blocks/$(nth_path 4)"
check 'which is clean' grep -qx clean=1 "$work/tier/.ucmfs/state"
status 'no directory of ucmfs' 1 on list "$work/keep"
says 'neither a mount nor a directory of ucmfs'
status 'no action' 2 on "$mnt"
says 'must be list, inspect, restore or purge'
status 'what is no name' 2 on list "$mnt" x
status 'no AGE' 2 on purge --older 5x "$mnt"
says "--older '5x'"
do_umount
need do_mount "fast=$work/tier:slow=$work/slow"
check 'and served' cmp "$work/keep/4" "$mnt/blocks/$(nth_path 4)"
do_umount
