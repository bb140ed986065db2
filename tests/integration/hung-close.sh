#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A tier whose server stops while sixteen files are being written on it, and are
# closed: close(2) of each ends at the deadline, and meanwhile the other tier is
# used from every processor as if nothing had happened. Nothing that hangs keeps
# the mount from ending, nor the other tier from being left clean. The server is
# one that implements flush, as those of network file systems do.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/EIO.pid")" 2>/dev/null
}

start_test root fuse python3
server=$top_builddir/tests/lib/faultfs
[ -x "$server" ] || skip "$server is not built"
mkdir -p "$work/disk" "$work/fast/blocks" "$work/src"
deadline=5

# Lines of what the closers have said.
closers_said() {
	grep -c "$1" "$work/closed"
}

have_written() {
	[ "$(closers_said written)" = 1 ]
}

have_closed() {
	[ "$(grep -cv written "$work/closed")" = 16 ]
}

use_fast() {
	# shellcheck disable=SC2046 # paths without blanks
	python3 "$top_srcdir/tests/lib/opens.py" "$1" "$work" \
		$(small_paths 16 --start 100 | sed "s|^|$mnt/blocks/|") \
		>"$work/opens"
}

not_clean() {
	! grep -q '^clean=1' "$work/disk/.ucmfs/state"
}

is_unmounted() {
	! is_mounted "$mnt"
}

need mk --start 100 "$work/fast/blocks"
need mk "$work/src"
need "$server" "$work/disk" "$work/tier" "$work/EIO"
# Over io_uring a directory that hangs holds up the requests of a processor.
need do_mount -c entry_timeout=0 -o deadline=$deadline,io_uring=off \
	"slow=$work/tier:fast=$work/fast"
# shellcheck disable=SC2046 # names without blanks
python3 "$top_srcdir/tests/lib/closers.py" "$work/close" "$work/src" \
	"$mnt/blocks" $(small_paths 16) >"$work/closed" &
keep_pid $!
check 'sixteen files have been written' wait_until have_written
need freeze "$(cat "$work/EIO.pid")"

since=$(date +%s)
use_fast "$work/over" &
user=$!
keep_pid $user
: >"$work/close"
check 'each close ends' wait_until have_closed
took=$(($(date +%s) - since))
same 'none says that all is well' 0 "$(closers_said closed)"
: >"$work/over"
wait $user
check 'the other tier can be used meanwhile' test $? = 0
# where the disk of both takes long itself, nothing can be said of the mount
read -r slowest num disk <"$work/opens"
check "none of $num opens took long: the slowest $slowest ms, the disk $disk ms" \
	test "$slowest" -lt $((1000 + 2 * disk))
check "they end at the deadline, in $took s" \
	test $took -lt $((2 * deadline + 2 * disk / 1000))
logged "$work/tier: no answer in ${deadline}000 ms"
check 'a new block goes to the other tier' \
	mk --start 200 --count 1 "$mnt/blocks"
same 'it does' 17 "$(blocks_in "$work/fast/blocks")"

# ---- the end, with all of that still hanging ----

# Of what hangs nothing is claimed to be clean; of the rest, all.
is_clean() {
	grep -q '^clean=1' "$work/$1/.ucmfs/state"
}

pid=$(daemon_pid)
need kill -TERM "$pid"
check 'the mount goes' wait_until is_unmounted
check 'the other tier is left clean' wait_until is_clean fast
check 'and the one that hangs is not' not_clean
# Files that are open on such a server keep any process until it answers.
need let_go
check 'the process goes when the server answers' wait_until is_gone "$pid"
