#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# .ucmfs/index: a client that maps it sees blocks come and go, without a request
# to the daemon; nobody can write to it; the same calls work where it cannot be
# mapped.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

index=$mnt/.ucmfs/index

ask() {
	small_paths 20 | index_ask ask "$@"
}

# as_told 'what' BACKEND ANSWERS [SPACE]
as_told() {
	same "$1" "$2
$3" "$(ask "$mnt" "${4-}")"
}

# more than the first chunks hold
need mkdir -p "$work/tier/spaces/many"
need mk --form packed --no-crc --count 9000 "$work/tier/spaces/many"
need do_mount -o allow_other "nvme=$work/tier"
require_mapping
need wait_until index_is_complete
as_told 'an empty index' map nnnnnnnnnnnnnnnnnnnn
need mk "$mnt/blocks"
as_told 'has what was committed' map yyyyyyyyyyyyyyyynnnn
gone=$(nth_path 3)
need rm "$mnt/blocks/$gone"
as_told 'and not what was removed' map yynyyyyyyyyyyyyynnnn
first=$(small_paths 1)
need setfattr -n user.ucmfs.pinned -v 1 "$mnt/blocks/$first"
same 'an entry tells size, tier and pin' 'size 8192 tier 0 nvme flags 2
size 8192 tier 0 nvme flags 0
No such file or directory' "$(small_paths 3 | index_ask entry "$mnt")"

same 'everybody may read it' 444 "$(stat -c %a "$index")"
refused 'Operation not permitted' 'and nobody write' \
	dd if=/dev/null of="$index" conv=notrunc
refused 'Permission denied' 'nor change it by a mapping' python3 -c '
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)' "$index"
check 'it says what it is' sh -c 'head -c 8 "$1" | grep -qx UCMINDEX' sh "$index"
same 'it is as long as it says' "$(stat -c %s "$index")" \
	"$(od -An -tu8 -j64 -N8 "$index" | tr -d ' ')"
if others_can "another user's reader" test -x "$index_ask" -a -r "$mnt"; then
	same 'another user maps it as well' map \
		"$(small_paths 1 | as_nobody "$index_ask" ask "$mnt" | head -n 1)"
fi

# a second reader, written from doc/index-format.md
# both_read 'what' 'options of mkblocks' SPACE
# shellcheck disable=SC2086 # options are a list
both_read() {
	"$mkblocks" --list $2 >"$work/names"
	index_ask ask "$mnt" "$3" <"$work/names" | tail -n 1 >"$work/ours"
	check "$1" grep -q 'y.*n' "$work/ours"
	same "$1" "$(cat "$work/ours")" \
		"$(python3 "$top_srcdir/tests/lib/index_read.py" "$mnt" "$3" \
			<"$work/names")"
}

both_read 'the file is as its description says' "$small --count 20" ''
both_read 'and when it has grown' "$small --count 9100" many

# A reader that has asked, and will ask again.
start_reader() {
	rm -f "$work/go" "$work/answers"
	mkfifo "$work/go"
	small_paths 20 >"$work/names"
	index_ask wait "$mnt" '' "$work/names" <"$work/go" >"$work/answers" &
	reader=$!
	keep_pid $reader
	exec 6>"$work/go"
	need wait_until test -s "$work/answers"
}

ask_again() {
	echo go >&6
	exec 6>&-
	reap $reader
}

start_reader
need mk --existing-ok --count 20 "$mnt/blocks"
need rm "$mnt/blocks/$first"
ask_again
same 'a reader sees what has changed since' 'map
yynyyyyyyyyyyyyynnnn
map
nyyyyyyyyyyyyyyyyyyy' "$(cat "$work/answers")"
ioctls() {
	grep 'request_duration_seconds_count.*"ioctl"' "$mnt/.ucmfs/metrics" |
		grep -o '[0-9]*$'
}
no_request() {
	before=$(ioctls)
	small_paths 1 | index_ask ask "$mnt" >/dev/null
	to_open=$(($(ioctls) - before))
	before=$(ioctls)
	lookups=$(stat_of lookups) hits=$(stat_of hits) misses=$(stat_of misses)
	found=$(ask "$mnt" | tail -n 1 | tr -d -c y | wc -c)
	same 'no request is made for a block' $((before + to_open)) "$(ioctls)"
	same 'and all are counted' \
		"$((lookups + 20)) $((hits + found)) $((misses + 20 - found))" \
		"$(stat_of lookups) $(stat_of hits) $(stat_of misses)"
}
no_request
lookups=$(stat_of lookups)
need eval 'yes "" | tr "\n" "\377" |
	dd of="$mnt/.ucmfs/budget" bs=64 count=1 conv=notrunc iflag=fullblock'
same 'a count that makes no sense is none' "$lookups" "$(stat_of lookups)"
refused 'target is busy' 'a reader keeps the mount busy' sh -c '
exec 5<"$1"; umount "$2"' sh "$index" "$mnt"
start_reader
do_umount TERM
ask_again
same 'a reader notices that the daemon has ended' 'map
nyyyyyyyyyyyyyyyyyyy
lookup: Transport endpoint is not connected' "$(cat "$work/answers")"

# the same answers, by other means
need do_mount -o allow_other,passthrough=off "nvme=$work/tier"
refused 'Operation not supported' 'without passthrough it cannot be read' \
	cat "$index"
need wait_until index_is_complete
as_told 'the daemon shows it to its own user' map nyyyyyyyyyyyyyyyyyyy
no_request
if others_can "another user's reader" test -x "$index_ask" -a -r "$mnt"; then
	own_index_ask=$index_ask
	index_ask="as_nobody $index_ask"
	as_told 'and not to others' 'control: the daemon has no passthrough, and this user cannot look into it' \
		nyyyyyyyyyyyyyyyyyyy
	same 'who get entries, too' 'No such file or directory
size 8192 tier -1 nvme flags 0' "$(small_paths 2 | index_ask entry "$mnt")"
	index_ask=$own_index_ask
fi
start_reader
do_umount TERM
ask_again
same 'its reader notices that the daemon has ended' 'map
nyyyyyyyyyyyyyyyyyyy
lookup: Transport endpoint is not connected' "$(cat "$work/answers")"
same 'an empty directory is no mount' 'open: No such file or directory' \
	"$(ask "$mnt")"
