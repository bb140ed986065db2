#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm quarantine: what was moved aside is listed with what is wrong with it; what is
# right is a block again, through the mount, and what is wrong never; purge removes
# what is asked for and says what that frees.

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
same 'says so' '0 files, 0 on disk' "$(tail -n 1 "$work/said")"
kill_daemon
flip "$work/tier/blocks/$(nth_path 1)" 5000
need do_mount "fast=$work/tier:slow=$work/slow"
absent "$mnt/blocks/$(nth_path 1)"
check 'all doubts are settled' wait_until stat_is in_doubt 0

# ---- with the daemon ----

bad=$(ls "$work/tier/.ucmfs/quarantine")
status 'list' 0 on list "$mnt"
says "$work/tier/.ucmfs/quarantine:"
says "blocks       $(nth_id 1)  layer 0 V: plane checksum differs"
says '1 file, 8.0K on disk'
status 'list a directory' 0 on list "$work/tier"
says "$(nth_id 1)"
status 'list the other' 0 on list "$work/slow"
says '0 files'
json 'x["files"][0]["verdict"].startswith("layer 0 V") and x["files"][0]["id"] == "'"$(nth_id 1)"'"' \
	on list -j "$mnt"
json 'x["files"][0]["space"] == "" and x["files"][0]["size"] > 4096' \
	on list -j "$mnt" "$(nth_id 1)"
status 'restore: not what is wrong' 1 on restore "$mnt"
says "$bad: layer 0 V: plane checksum differs"
says '0 files restored, 0 on disk'
absent "$mnt/blocks/$(nth_path 1)"
same 'it stays where it is' 1 "$(in_quarantine "$work/tier")"

need mkdir "$work/keep"
need cp "$work/tier/blocks/$(nth_path 2)" "$work/keep/2"
aside "$work/tier" 2
check 'a block that was moved aside is gone' wait_until is_absent "$mnt/blocks/$(nth_path 2)"
status 'list: the other one is right' 0 on list "$mnt"
says "$(nth_id 2)  intact"
status 'restore: through the mount alone' 1 on restore "$work/tier" "$(nth_id 2)"
says 'it is restored through a mount; name that'
status 'restore' 1 on restore "$mnt"
says '1 file restored, 8.0K on disk'
check 'the block is there again, by the mount' cmp "$work/keep/2" "$mnt/blocks/$(nth_path 2)"
same 'its file has left the quarantine' "$bad" "$(ls "$work/tier/.ucmfs/quarantine")"
need cp "$work/keep/2" "$work/tier/.ucmfs/quarantine/@$(nth_id 2).1000000000"
status 'not over a block that is there' 1 on restore "$mnt" "$(nth_id 2)"
says "@$(nth_id 2).1000000000: such a block is there"
json '[f["verdict"] for f in x["files"]] == ["intact"]' on list -j "$mnt" "$(nth_id 2)"
need rm "$work/tier/.ucmfs/quarantine/@$(nth_id 2).1000000000"

# no checksums
aside "$work/tier" bare 1
check 'a bare block is gone' wait_until is_absent "$mnt/spaces/bare/$(nth_path 1)"
json 'x["files"][0]["space"] == "bare"' \
	on list -j "$mnt" "$(ls "$work/tier/.ucmfs/quarantine" | grep bare)"
status 'restore: not what cannot be checked' 1 on restore "$mnt" \
	"$(ls "$work/tier/.ucmfs/quarantine" | grep bare)"
says 'no checksums: cannot be checked'
need rm "$work/tier/.ucmfs/quarantine/$(ls "$work/tier/.ucmfs/quarantine" | grep bare)"

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
status 'purge what is old' 0 on purge --older 1 "$mnt"
says '1 file purged, 8.0K on disk'
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

aside "$work/tier" 4
need do_mount "$work/slow"
status 'list a directory that nobody uses' 0 on list "$work/tier"
says "$(nth_id 4)  intact"
status 'purge in it' 0 on purge "$work/tier" "$(nth_id 4)"
says '1 file purged'
status 'no directory of ucmfs' 1 on list "$work/keep"
says 'neither a mount nor a directory of ucmfs'
status 'no action' 2 on "$mnt"
says 'must be list, restore or purge'
status 'what is no name' 1 on list "$mnt" x
says 'x: not in the quarantine'
status 'no DAYS' 2 on purge --older 5x "$mnt"
says "--older '5x'"
do_umount
