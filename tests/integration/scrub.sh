#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm scrub: what a disk has not kept is found and quarantined, a second directory's
# copy takes its place, and a run that was killed goes on after its mark. It is no use
# of a block, and what is evicted while it reads is no fault.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse python3 setpriv

# on argument...: of the mount
on() {
	"$ucm" scrub -m "$mnt" --state "$work/mark" "$@"
}

# in_quarantine DIR: number of files
in_quarantine() {
	find "$1/.ucmfs/quarantine" -type f | wc -l
}

last_uses() {
	stat -c '%n %X' "$work"/tier/blocks/*/*.bin "$work"/slow/blocks/*/*.bin
}

cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
as_nobody "$work/ucm" --version >/dev/null ||
	skip "$work/ucm cannot be run by other users"
mkdir -p "$work/slow/blocks"
need mk --count 4 "$work/slow/blocks" # these are in both
source=fast=$work/tier:slow=$work/slow
need do_mount -o allow_other "$source"
need mkdir "$mnt/spaces/other" "$mnt/spaces/bare"
need mk --count 3 "$mnt/spaces/other"
need mk --form bare --method rename --count 2 "$mnt/spaces/bare"
do_umount
mkdir -p "$work/tier/blocks"
need mk --count 60 "$work/tier/blocks"
need do_mount -o allow_other "$source"
check 'the index is whole' wait_until index_is_complete

# ---- what is found ----

find "$work/tier/blocks" "$work/slow/blocks" -name '*.bin' \
	-exec touch -a -d '3 days ago' {} +
uses=$(last_uses)
before=$(stat_of opens)
json 'x["blocks"] == x["intact"] == 69 and x["unchecked"] == 2 and not x["failures"]' \
	on --rate 0 -j
status 'all are good' 0 on --rate 0
says '69 blocks: 69 intact, 2 unchecked; '
absent "$work/mark"
same 'no block was opened' "$before" "$(stat_of opens)"
same 'nor do the files say that it was used' "$uses" "$(last_uses)"

cat "$mnt/blocks/$(nth_path 2)" >/dev/null
flip "$work/tier/blocks/$(nth_path 2)" 5000 # in both
flip "$work/slow/blocks/$(nth_path 3)" 5000 # the second place
flip "$work/tier/blocks/$(nth_path 10)" 5000
need truncate -s 5000 "$work/tier/blocks/$(nth_path 12)"
stray=$work/tier/blocks/7f/$(printf '7f%030d' 1).bin
mkdir -p "${stray%/*}" && echo 'no block' >"$stray"
status 'a scrub finds them' 1 on --rate 0
says "$work/tier/blocks/$(nth_path 10): layer 0 V: plane checksum differs: quarantined"
says "$work/tier/blocks/$(nth_path 2): layer 0 V: plane checksum differs: quarantined; another copy is right"
says "$work/slow/blocks/$(nth_path 3): layer 0 V: plane checksum differs: quarantined; another copy is right"
says "$stray"
says 'no block of the mount, left alone'
says '65 intact, 2 unchecked, 4 quarantined, 2 repaired, 4 damaged; '
same 'three files are set aside' 3 "$(in_quarantine "$work/tier")"
same 'and one of the second directory' 1 "$(in_quarantine "$work/slow")"
logged "block $(basename "$(nth_path 10)" .bin): plane checksum differs (layer 0 V): quarantined"
for n in 2 3; do
	check "served: $n" wait_until cat "$mnt/blocks/$(nth_path $n)"
done
for n in 10 12; do
	check "gone: $n" wait_until is_absent "$mnt/blocks/$(nth_path $n)"
done
same 'and counted' 4 "$(stat_of quarantined)"
need rm "$stray"
json 'x["blocks"] == x["intact"] == 65' on --rate 0 -j
json 'x["blocks"] == 3' on --rate 0 -s other -j
status 'of no space' 1 on -s none
says 'no such space'

# ---- who may, and how ----

status 'others may not' 1 as_nobody "$work/ucm" scrub "$mnt"
says 'only for root and the owner of the mount'
status 'no rate' 2 on --rate fast
says "--rate 'fast'"
status 'no place for the mark' 1 on --state "$work/none/mark"
says 'No such file or directory'

# Not faster than it is told; it may be as slow as the machine is.
json 'x["seconds"] >= 0.9 * x["bytes"] / 262144 - 0.1' on --rate 256K -j

# ---- killed in the middle ----

noted() {
	grep -q '^after=[0-9a-f]' "$work/mark" &&
		[ "$(sed -n 's/^after=//p' "$work/mark")" != "${1-}" ]
}

# killed_scrub [ID]: after it has noted an id, other than this
killed_scrub() {
	"$ucm" scrub -m "$mnt" --state "$work/mark" --rate 16K >/dev/null 2>&1 &
	scrub=$!
	keep_pid $scrub
	check 'its place is noted now and then' wait_until noted "${1-}"
	kill -9 $scrub
	reap $scrub
}

killed_scrub
after=$(sed -n 's/^after=//p' "$work/mark")
left=$(find "$work/tier" "$work/slow" -path '*/.ucmfs' -prune -o -name '*.bin' \
	-printf '%h/%f\n' | awk -F/ -v after="$after" \
	'/\/spaces\// || substr($NF, 1, 32) > after' | wc -l)
killed_scrub "$after"
after=$(sed -n 's/^after=//p' "$work/mark")
json "0 < x['blocks'] < $left" on --rate 0 -j
check 'says where it goes on' grep -qF "goes on after $after in blocks" "$work/err"
absent "$work/mark"
killed_scrub
need sed -i 's/^after=../after=ff/' "$work/mark"
json 'x["blocks"] == 65' on --rate 0 -j
check 'a damaged mark says nothing' grep -qF 'begins at the beginning' "$work/err"
killed_scrub
json 'x["blocks"] == 65' on --anew --rate 0 -j

# ---- what goes while it is read ----

"$ucm" scrub -m "$mnt" --state "$work/mark" --rate 64K >"$work/said" 2>&1 &
scrub=$!
keep_pid $scrub
check 'it reads' wait_until noted
for n in $(seq 20 40); do
	"$ucm" evict -m "$mnt" "$(nth_id "$n")" >/dev/null
done
reap $scrub
same 'what was evicted is no fault' 0 "$reaped"
check 'nor damaged' sh -c "! grep -q damaged '$work/said'"

# ---- without the daemon's help ----

flip "$work/tier/blocks/$(nth_path 15)" 5000
do_umount
need do_mount -o ro "$source"
status 'a mount that is read-only cannot quarantine' 1 on --rate 0
says "$work/tier/blocks/$(nth_path 15): layer 0 V: plane checksum differs: it is mounted read-only"
do_umount
status 'a private daemon can' 1 "$ucm" scrub --tiers "$source" --rate 0 \
	--state "$work/mark"
says "$work/tier/blocks/$(nth_path 15): layer 0 V: plane checksum differs: quarantined"
says ' 1 quarantined, 1 damaged; '
