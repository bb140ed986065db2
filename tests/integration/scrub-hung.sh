#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A scrub of a directory on a file server that stops answering waits for it, and
# goes on where it was; that of the other directory ends, and so does an unmount. The
# server is another mount here, whose daemon is stopped.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse python3
# Whoever looks for leaks stops all threads first, and one of them hangs.
ASAN_OPTIONS=detect_leaks=0
export ASAN_OPTIONS

# is 'expression of python about it, called x': the state of the scrub
is() {
	timeout 60 "$ucm" scrub --status -j "$work/mnt" >"$work/json" 2>&1
	python3 -c 'import json, sys
x = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), x' "$work/json" "$1"
}

mkdir -p "$work/server" "$work/other"
mnt=$work/server
# Over io_uring the kernel gives requests to a server that is stopped, and waits for
# the answers where no signal reaches: a process could not end before that.
need do_mount -o io_uring=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung/blocks"
need mk --count 24 "$hung/blocks"
need mkdir -p "$work/other/blocks"
need mk --start 24 --count 8 "$work/other/blocks"
mnt=$work/mnt
need do_mount -c keep_open=0 -o deadline=1 "other=$work/other:hung=$hung"
check 'the index is whole' wait_until index_is_complete

need "$ucm" scrub -b --rate 64K "$mnt" >/dev/null
check 'some of it is read' wait_until is 'x["directories"][1]["blocks"] > 2'
need freeze "$(cat "$work/run/server.pid")"
check 'it waits' wait_until is 'x["directories"][1]["state"] == "waiting"'
check 'and says why' is 'x["directories"][1]["error"] == "Connection timed out"'
logged "$hung: scrub: Connection timed out: it goes on in 30 s"
check 'the other directory is read to its end' \
	wait_until is 'x["directories"][0]["state"] == "done" and x["directories"][0]["blocks"] == 8'
check 'nothing was called bad or unreadable' \
	is 'x["bad"] == x["missing"] == x["unreadable"] == 0'
before=$(stat_of scrubbed)
need let_go
check 'it goes on when it is asked to' wait_until sh -c \
	'"$1" scrub --rate 0 "$2" && "$1" scrub --status -j "$2" | grep -q "\"running\": false"' \
	sh "$ucm" "$mnt"
check 'to the end' is 'x["blocks"] == 32 and x["directories"][1]["state"] == "done"'
check 'none was read twice' [ "$(($(stat_of scrubbed) - before))" -lt 24 ]

# the end of the mount does not wait for it
need "$ucm" scrub -b --anew --rate 64K "$mnt" >/dev/null
check 'some of it is read' wait_until is 'x["directories"][1]["blocks"] > 2'
need freeze "$(cat "$work/run/server.pid")"
check 'it waits' wait_until is 'x["directories"][1]["state"] == "waiting"'
pid=$(daemon_pid)
need umount "$mnt"
check 'the daemon ends' wait_until is_gone "$pid"
need let_go
reap "$pid"
check 'no report of a sanitizer' no_sanitizer_report
mnt=$work/server
do_umount
