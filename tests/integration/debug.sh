#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Debugging is switched on and off while the daemon runs, an area at a time, by
# whoever runs it; a wrong setting changes nothing and is named.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# silent 'text': the daemon has not said so
silent() {
	check "the log does not say: $1" sh -c '! grep -qF -- "$1" "$2"' sh \
		"$1" "$log"
}

# says STATUS 'text' command...: how it ends, and its one line on standard error
says() {
	says_status=$1 says_text=$2
	shift 2
	"$@" >"$work/out" 2>"$work/err"
	same "$*: status" $says_status $?
	same "$*: its lines" 1 "$(wc -l <"$work/err")"
	check "$*: says $says_text" grep -qF -- "$says_text" "$work/err"
}

need do_mount -c debug=fs.scan=1 -o allow_other "$work/tier"
need mk --count 2 "$mnt/blocks"
same 'an area may be on from the start' 1 \
	"$("$ucm" trace debug "$mnt" | sed -n 's/^fs.scan=//p')"
silent 'debug: fs.commit'
check 'one is switched on' "$ucm" trace debug "$mnt" fs.commit=2 fs.tier=1
same 'and listed' 'fs.commit=2
fs.tier=1' "$("$ucm" trace debug "$mnt" | grep 'commit\|tier')"
same 'the file says the same' "$("$ucm" trace debug "$mnt")" "$(cat "$mnt/.ucmfs/debug")"
need mk --count 1 --seed 8 "$mnt/blocks"
hash=$("$mkblocks" $small --list --count 1 --seed 8 | sed 's,.*/,,; s,\.bin,,')
logged "debug: fs.tier: block $hash: new file"
logged "debug: fs.commit: block $hash: committed in $work/tier, $small_size bytes"
silent 'debug: os.call'

echo 'all=0, os.call=1:fs.op=1' >"$mnt/.ucmfs/debug"
same 'the file can be written by itself' 'fs.op=1
os.call=1' "$(grep -v =0 "$mnt/.ucmfs/debug")"
need mk --count 1 --seed 9 "$mnt/blocks"
hash=$("$mkblocks" $small --list --count 1 --seed 9 | sed 's,.*/,,; s,\.bin,,')
silent "fs.commit: block $hash"
truncate -s 5 "$mnt/blocks/$(small_paths 1)" 2>/dev/null
logged 'debug: fs.op: open of block'
need sh -c 'echo all=0 >"$1"' sh "$mnt/.ucmfs/debug"

same 'JSON' '{"fs.op":0,"fs.move":0,"fs.commit":0,"fs.tier":0,"fs.scan":0,"fs.fuse":0,"os.call":0}' \
	"$("$ucm" trace debug --json "$mnt")"
says 2 "no area 'fs.tear'" "$ucm" trace debug "$mnt" fs.tier=1 fs.tear=1
says 2 "fs.tier: depth '9'" "$ucm" trace debug "$mnt" fs.tier=9
says 2 'unknown option --loud' "$ucm" trace debug --loud
says 1 "$work/none/.ucmfs/debug: No such file" "$ucm" trace debug "$work/none"
refused 'Invalid argument' 'the daemon looks for itself' \
	sh -c 'echo fs.tier=1 fs.tear=1 | dd of="$1"' sh "$mnt/.ucmfs/debug"
logged ".ucmfs/debug: no area 'fs.tear'"
refused 'File too large' 'a flood' sh -c 'exec dd bs=8192 if=/dev/zero count=1 of="$1"' \
	sh "$mnt/.ucmfs/debug"
same 'and nothing has changed' '' "$(grep -v =0 "$mnt/.ucmfs/debug")"
same 'it is for root' '600 0' "$(stat -c '%a %u' "$mnt/.ucmfs/debug")"
if may_try 'that it is for root alone' setpriv; then
	refused 'ermission denied' 'not for others' \
		as_nobody sh -c 'echo all=1 >"$1"' sh "$mnt/.ucmfs/debug"
	refused 'ermission denied' 'nor to read' \
		as_nobody cat "$mnt/.ucmfs/debug"
fi
do_umount

need do_mount -o uid=65534,allow_other "$work/tier"
if may_try "that it is not for the owner of blocks/" setpriv; then
	refused 'ermission denied' 'nor for the owner of blocks/' \
		as_nobody sh -c 'echo all=1 >"$1"' sh "$mnt/.ucmfs/debug"
	check 'who may read the rest' as_nobody cat "$mnt/.ucmfs/stats.json"
fi
do_umount
