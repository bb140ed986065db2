#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm drain: a directory is emptied before it is taken away, all of its blocks are
# served from elsewhere, and it is used again when it is to be.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse python3 setpriv

# on argument...: of the mount
on() {
	"$ucm" drain -m "$mnt" "$@"
}

cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
as_nobody "$work/ucm" --version >/dev/null ||
	skip "$work/ucm cannot be run by other users"
mkdir "$work/a" "$work/b"
need ln -s "$work/a" "$work/link"
need do_mount -o allow_other "all=$work/a,$work/b"
need mk --count 64 "$mnt/blocks"
had=$(blocks_in "$work/a/blocks")

status 'nothing yet' 0 on --status "$work/a"
says "$work/a: in use, $had blocks, $((8 * had))K"
status 'others may not' 1 as_nobody "$work/ucm" drain "$work/a" -m "$mnt"
says 'only for root and the owner of the mount'
status 'another directory' 1 on "$work"
says "$work: no directory of this mount"
status 'no directory' 2 on
says 'no DIRECTORY'
status 'drain, by a link' 0 on "$work/link"
says "$work/a: drained, 0 blocks"
same 'it is empty' 0 "$(blocks_in "$work/a/blocks")"
check 'all are served' verify --count 64 "$mnt/blocks"
json 'x["draining"] and x["state"] == "drained" and x["blocks"] == 0' \
	on -j --status "$work/a"
need mk --start 64 --count 16 "$mnt/blocks"
same 'new ones go elsewhere' 0 "$(blocks_in "$work/a/blocks")"
status 'stop' 0 on --stop "$work/a"
says "$work/a: in use"
need mk --start 80 --count 64 "$mnt/blocks"
check 'new ones lie there again' test "$(blocks_in "$work/a/blocks")" -gt 0
do_umount

# nowhere to go
need do_mount "$work/a"
had=$(blocks_in "$work/a/blocks")
status 'in the background' 0 on --background "$work/a"
says "$work/a: being drained, $had block"
"$ucm" drain -m "$mnt" "$work/a" >"$work/said" 2>&1 &
pid=$!
keep_pid $pid
catches_it() {
	case $(readlink "/proc/$pid/exe") in # not the shell any more
	*/ucm | */lt-ucm) ;;
	*) return 1 ;;
	esac
	[ $((0x$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$pid/status") & 2)) != 0 ]
}
check 'it looks on' wait_until catches_it
need kill -INT $pid
reap $pid
same 'until a signal comes' 1 "$reaped"
says "$work/a: interrupted; the drain goes on"
same 'no block has gone' "$had" "$(blocks_in "$work/a/blocks")"
do_umount
