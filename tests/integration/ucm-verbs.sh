#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm pin, pin --off and evict of whole spaces, and what holds a block that stays;
# ucm sync: flush, checkpoint and rescan, by root and by others, and what they say
# when a directory cannot be read.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse python3 setpriv

# on COMMAND argument...: of the mount
on() {
	on_command=$1
	shift
	"$ucm" "$on_command" -m "$mnt" "$@"
}

cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
as_nobody "$work/ucm" --version >/dev/null ||
	skip "$work/ucm cannot be run by other users"
mkdir "$work/slow"
need do_mount -c checkpoint=0 -o allow_other "fast=$work/tier:slow=$work/slow"
need mk --count 8 "$mnt/blocks"
need mkdir "$mnt/spaces/full" "$mnt/spaces/empty"
need mk --count 40 "$mnt/spaces/full"

# ---- whole spaces ----

status 'pin --all' 0 on pin --all -s full
same 'it says how many' '40 blocks pinned' "$(cat "$work/said")"
same 'they are' 40 "$(on ls -s full | grep -c ' pinned$')"
same 'and those of other spaces are not' 0 "$(on ls | grep -c ' pinned$')"
status 'evict --all: none goes' 1 on evict --all -s full
same 'each is named, with what holds it' 40 "$(grep -c ': pinned$' "$work/said")"
says '0 blocks evicted, 40 not'
status 'unpin --all' 0 on pin --off --all -s full
status 'evict --all' 0 on evict -a -s full
same 'it says how many' '40 blocks evicted' "$(cat "$work/said")"
check 'they are gone' wait_until [ "$(on ls -s full | sed 1d | wc -l)" = 0 ]
status 'of an empty space' 0 on evict --all -s empty
same 'says so' '0 blocks evicted' "$(cat "$work/said")"
status 'of no space' 1 on evict --all -s none
status '--all and an ID' 2 on evict --all "$(ids 1)"
says 'one of ID, --file and --all'
status 'neither' 2 on pin
says 'no ID, no --file and no --all'

# ---- what holds a block ----

first=$(ids 1)
second=$(ids 2 1)
exec 4<"$mnt/blocks/$(small_paths 1)"
need on pin "$first" "$second" >/dev/null
status 'evict: held blocks stay' 1 on evict "$first" "$second" "$(ids 4 3)"
says "$first: pinned, open"
says "$second: pinned"
says '1 block evicted, 2 not'
ids 2 >"$work/two"
json '[b["held_by"] for b in x["failures"]] == [["pinned", "open"], ["pinned"]]' \
	on evict -j -f "$work/two"
json 'x["evicted"] == 0 and x["failed"] == 2 and x["failures"][1]["error"] == "pinned"' \
	on evict -j -f "$work/two"
exec 4<&-
need on pin --off --all >/dev/null
check 'an open block that was closed is evicted' wait_until on evict "$first"
json 'x["pinned"] == 6 and not x["failures"]' on pin -j --all

# ---- flush, checkpoint, rescan ----

status 'flush' 0 "$ucm" sync flush "$mnt"
says "$mnt: flushed in "
status 'sync alone is a flush' 0 "$ucm" sync "$mnt"
says "$mnt: flushed in "
status 'by its old name' 0 "$ucm" flush "$mnt"
says "ucm flush: use 'ucm sync flush'"
says "$mnt: flushed in "
checkpoints=$(stat_of checkpoints)
status 'checkpoint' 0 on sync checkpoint
says "$mnt: checkpoint made in "
same 'of each directory' $((checkpoints + 2)) "$(stat_of checkpoints)"
json 'x["done"] and x["call"] == "checkpoint" and x["directories"] == []' \
	on sync checkpoint -j
make_src --count 20
late=$(nth_path 20)
mkdir -p "$work/slow/blocks/${late%/*}"
need cp "$work/src/$late" "$work/slow/blocks/$late"
json 'x["blocks"] == x["blocks_before"] + 1 and x["error"] is None' on sync rescan -j
check 'the block is found' cmp "$work/src/$late" "$mnt/blocks/$late"
status 'rescan' 0 on sync rescan
says "$mnt: rescanned in "
says '0 more than before'
# three spaces, two directories; each bucket, twice
same 'all buckets are read anew' $((2 * 3 * 2 * 256)) "$(stat_of rescanned)"
status 'two mounts' 2 "$ucm" sync flush -m "$mnt" "$mnt"
for what in flush checkpoint rescan; do
	status "others: no $what" 1 as_nobody "$work/ucm" sync $what "$mnt"
	says 'only for root and the owner of the mount'
	json 'not x["done"] and x["directories"] == []' \
		as_nobody "$work/ucm" sync $what -j "$mnt"
	status "$what: a directory" 1 "$ucm" sync $what "$work"
	says 'not a mount of ucmfs'
done
do_umount

# ---- a directory that cannot be read ----

rm -rf "$work/slow/blocks/00" && need touch "$work/slow/blocks/00"
need do_mount "fast=$work/tier:slow=$work/slow"
status 'rescan' 1 on sync rescan
says "$work/slow: it has not been read to its end"
status 'checkpoint: no' 1 on sync checkpoint
says "$mnt: not all of it is known to be good"
says "$work/slow: it has not been read to its end"
check 'nor of the others is said that' sh -c '! grep "$1" "$2"' sh "$work/tier:" "$work/said"
json '[d["path"] for d in x["directories"]] == ["'"$work/slow"'"] and not x["done"]' \
	on sync checkpoint -j
need rm "$work/slow/blocks/00"
status 'rescan reads it' 0 on sync rescan
status 'and then it is known' 0 on sync checkpoint
do_umount
