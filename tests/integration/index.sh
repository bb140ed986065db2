#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The index: a client that maps it sees blocks come and go, without a request to
# the daemon; nobody can write to it; the same calls work where it cannot be
# mapped, and where there is no way to the daemon's socket.

let_go() {
	[ -z "${frozen-}" ] || kill -CONT "$frozen"
}

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

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

hold_memory index
refused 'Operation not permitted' 'nobody can write to it' \
	dd if=/dev/zero of="$held" bs=8 count=1 conv=notrunc
refused 'Operation not permitted' 'nor make it shorter' truncate -s 4096 "$held"
refused 'Operation not permitted' 'nor change it by a mapping' python3 -c '
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)' "$held"
check 'what is passed is open for reading' python3 -c '
import fcntl, os, sys
sys.path.append(sys.argv[1])
import control
flags = fcntl.fcntl(control.memory(sys.argv[2], "index"), fcntl.F_GETFL)
sys.exit(flags & os.O_ACCMODE != os.O_RDONLY)' "$top_srcdir/tests/lib" "$mnt"
check 'it says what it is' sh -c 'head -c 8 "$1" | grep -qx UCMINDEX' sh "$held"
same 'it is as long as it says' "$(stat -L -c %s "$held")" \
	"$(od -An -tu8 -j64 -N8 "$held" | tr -d ' ')"
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

# a daemon that cannot answer
no_request() {
	start_reader
	frozen=$(daemon_pid)
	need freeze "$frozen"
	ask_again
	kill -CONT "$frozen"
	frozen=
	same 'no request is made for a block' "map
$1
map
$1" "$(cat "$work/answers")"
	lookups=$(stat_of lookups) hits=$(stat_of hits) misses=$(stat_of misses)
	found=$(ask "$mnt" | tail -n 1 | tr -d -c y | wc -c)
	same 'and all are counted' \
		"$((lookups + 20)) $((hits + found)) $((misses + 20 - found))" \
		"$(stat_of lookups) $(stat_of hits) $(stat_of misses)"
}
no_request nyyyyyyyyyyyyyyyyyyy
hold_memory budget
lookups=$(stat_of lookups)
need eval 'yes "" | tr "\n" "\377" |
	dd of="$held" bs=64 count=1 conv=notrunc iflag=fullblock'
same 'a count that makes no sense is none' "$lookups" "$(stat_of lookups)"
start_reader
do_umount
ask_again
same 'a reader does not keep the mount busy, and notices its end' 'map
nyyyyyyyyyyyyyyyyyyy
lookup: Transport endpoint is not connected' "$(cat "$work/answers")"

# the same answers, by other means
need do_mount -o allow_other,passthrough=off "nvme=$work/tier"
need wait_until index_is_complete
as_told 'it needs no passthrough' map nyyyyyyyyyyyyyyyyyyy
no_request nyyyyyyyyyyyyyyyyyyy
if others_can "another user's reader" test -x "$index_ask" -a -r "$mnt"; then
	same 'and others map it as well' map \
		"$(small_paths 1 | as_nobody "$index_ask" ask "$mnt" | head -n 1)"
fi
if ! unshare -m true 2>/dev/null; then
	left_out 'a daemon whose socket is out of sight: needs unshare -m'
else
	printf '%s\n' '#!/bin/sh' 'mount -t tmpfs none /run/ucmfs && exec "$@"' \
		>"$work/out-of-sight"
	same 'out of sight there is nobody to ask' 'open: No such file or directory' \
		"$(unshare -m sh "$work/out-of-sight" "$index_ask" ask "$mnt" \
			</dev/null)"
fi
do_umount TERM

# A limit on the size of files holds for memory that is passed.
if may_try 'an index that cannot be passed' prlimit; then
	ucmfs_wrapper='prlimit --fsize=1073741824'
	need do_mount "nvme=$work/tier"
	ucmfs_wrapper=
	need wait_until index_is_complete
	as_told 'not passed: by requests' \
		"socket: the daemon's memory cannot be mapped" \
		nyyyyyyyyyyyyyyyyyyy
	same 'entries, too' 'No such file or directory
size 8192 tier 0  flags 0' "$(small_paths 2 | index_ask entry "$mnt")"
	start_reader
	do_umount
	ask_again
	same 'its reader notices that the daemon has ended' \
		"socket: the daemon's memory cannot be mapped
nyyyyyyyyyyyyyyyyyyy
lookup: Transport endpoint is not connected" "$(cat "$work/answers")"
fi
same 'an empty directory is no mount' 'open: No such file or directory' \
	"$(ask "$mnt")"
