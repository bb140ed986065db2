#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm scrub: what a disk has not kept is found and set aside, a second directory's
# copy takes its place, and a run goes on where it was: after a stop, an unmount,
# and after the daemon was killed in the middle.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse python3 setpriv

# on argument...: of the mount
on() {
	"$ucm" scrub -m "$mnt" "$@"
}

# in_quarantine DIR: number of files
in_quarantine() {
	find "$1/.ucmfs/quarantine" -type f | wc -l
}

cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
as_nobody "$work/ucm" --version >/dev/null ||
	skip "$work/ucm cannot be run by other users"
mkdir -p "$work/slow/blocks"
need mk --count 4 "$work/slow/blocks" # these are in both
need do_mount -o allow_other "fast=$work/tier:slow=$work/slow"
need mkdir "$mnt/spaces/other" "$mnt/spaces/bare"
need mk --count 3 "$mnt/spaces/other"
need mk --form bare --method rename --count 2 "$mnt/spaces/bare"
do_umount
mkdir -p "$work/tier/blocks"
need mk --count 60 "$work/tier/blocks"
need do_mount -o allow_other "fast=$work/tier:slow=$work/slow"
check 'the index is whole' wait_until index_is_complete

# ---- what is found ----

status 'nothing yet' 0 on --status
same 'says so' 'none none ' "$(sed 1d "$work/said" | awk '{ printf "%s ", $1 }')"
status 'all are good' 0 on --rate 0
says "$work/tier"
json 'not x["running"] and x["blocks"] == x["total_blocks"] == 69 and x["bytes"] == x["total_bytes"]' \
	on --status -j
json 'x["bad"] == x["missing"] == x["unreadable"] == 0 and x["unchecked"] == 2' \
	on --status -j
json '[(d["state"], d["blocks"]) for d in x["directories"]] == [("done", 65), ("done", 4)]' \
	on --status -j
same 'they are counted' 69 "$(stat_of scrubbed)"
metric_is 1 ucmfs_directory_scrub_progress 'directory="0"'
metric_is 0 ucmfs_directory_scrub_running 'directory="1"'

cat "$mnt/blocks/$(nth_path 2)" >/dev/null
flip "$work/tier/blocks/$(nth_path 2)" 5000 # in both
flip "$work/tier/blocks/$(nth_path 10)" 5000
need rm "$work/tier/blocks/$(nth_path 11)"
need truncate -s 5000 "$work/tier/blocks/$(nth_path 12)"
status 'a scrub finds them' 1 on --rate 0
json 'x["bad"] == 3 and x["missing"] == 1 and x["repaired"] == 1' on --status -j
same 'three files are set aside' 3 "$(in_quarantine "$work/tier")"
logged "block $(basename "$(nth_path 10)" .bin): plane checksum differs (layer 0 V), found by a scrub: quarantined"
logged "block $(basename "$(nth_path 2)" .bin): the copy in $work/slow takes its place"
check 'which is served' wait_until cmp "$work/slow/blocks/$(nth_path 2)" "$mnt/blocks/$(nth_path 2)"
for n in 10 11 12; do
	check "gone: $n" wait_until is_absent "$mnt/blocks/$(nth_path $n)"
done
metric_is 3 ucmfs_scrub_bad_total
metric_is 1 ucmfs_scrub_repaired_total
status 'then all is well' 0 on --rate 0
json 'x["blocks"] == 65 and x["bad"] == 0' on --status -j
status 'of one space' 0 on --rate 0 -s other
json 'x["blocks"] == 3' on --status -j
status 'of no space' 1 on -s none
says 'no such space'

# ---- who may ----

status 'others may not' 1 as_nobody "$work/ucm" scrub "$mnt"
says 'only for root and the owner of the mount'
status 'nor see how it is' 1 as_nobody "$work/ucm" scrub --status "$mnt"
status '--status and --stop' 2 on --status --stop
says '--status and --stop stand alone'
status 'no rate' 2 on --rate fast
says "--rate 'fast'"

# ---- stop, and go on ----

# some are read: more than three, in tier
some_are_read() {
	holds 'x["directories"][0]["blocks"] > 3' on --status -j
}

is_done() {
	holds 'not x["running"]' on --status -j
}

status 'in the background' 0 on --background --rate 40K
says 'running'
check 'it is slow' wait_until some_are_read
status 'of another space: not now' 1 on -s other
says 'a scrub of other blocks is going on'
status 'stop' 0 on --stop
says 'stopped'
before=$(stat_of scrubbed)
status 'it goes on' 0 on --rate 0
json 'x["blocks"] == 65' on --status -j
check 'with those that are left' [ $(($(stat_of scrubbed) - before)) -lt 62 ]
status 'anew' 0 on --rate 0 --anew
status 'in the background once more' 0 on -b --rate 40K
check 'it is slow again' wait_until some_are_read
do_umount
check 'the directory is clean' grep -qx clean=1 "$work/tier/.ucmfs/state"
check 'its place is noted' grep -q '^after=[0-9a-f]' "$work/tier/.ucmfs/scrub"
need do_mount -o allow_other "fast=$work/tier:slow=$work/slow"
json 'x["running"] and x["directories"][0]["blocks"] > 3' on --status -j
check 'it goes on after the last one' wait_until \
	grep -qF "$work/tier: scrub: goes on after" "$log"
status 'to the end' 0 on --rate 0
json 'x["blocks"] == 65' on --status -j
check 'none was read twice' [ "$(stat_of scrubbed)" -lt 62 ]

# ---- killed in the middle ----

# not by the run before
noted() {
	grep -qx state=running "$work/tier/.ucmfs/scrub" &&
		grep -q '^after=[0-9a-f]' "$work/tier/.ucmfs/scrub"
}

# noted_blocks: that both directories' notes have
noted_blocks() {
	echo $(($(sed -n 's/^blocks=/+/p' "$work/tier/.ucmfs/scrub" \
		"$work/slow/.ucmfs/scrub" | tr -d '\n')))
}

status 'in the background' 0 on -b --rate 40K
check 'its place is noted now and then' wait_until noted
kill_daemon
before=$(noted_blocks)
need do_mount -o allow_other "fast=$work/tier:slow=$work/slow"
flip "$(ls "$work"/tier/blocks/*/*.bin | tail -n 1)" 5000 # the last one
check 'it goes on by itself' holds 'x["running"]' on --status -j
status 'faster' 1 on --rate 0
json 'x["blocks"] == 65 and x["bad"] == 1 and x["directories"][0]["state"] == "done"' \
	on --status -j
same 'what the note has is not read again' $((65 - before)) \
	"$(stat_of scrubbed)"
do_umount

# ---- read-only ----

need do_mount -o ro "fast=$work/tier:slow=$work/slow"
status 'not when it is mounted read-only' 1 on
says 'it is mounted read-only'
do_umount
