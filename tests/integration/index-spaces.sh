#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The index knows spaces by name, finds one that was made again, and has nothing
# of a private one: not after it became private, nor before it was made public.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setpriv python3

private='socket: the space is, or was, private'

ask() {
	small_paths 2 | index_ask ask "$mnt" "$1"
}

# as_told 'what' SPACE BACKEND ANSWERS
as_told() {
	same "$1" "$3
$4" "$(ask "$2")"
}

# The hash of the first block, as bytes of the index?
index_has() {
	python3 -c '
import sys
data = open(sys.argv[1], "rb").read()
sys.exit(bytes.fromhex(sys.argv[2]) not in data)' "$held" "$1"
}

first=$(small_paths 1 | sed 's,.*/,,; s,\.bin,,')
need do_mount -o allow_other "$work/tier"
hold_memory index
need wait_until index_is_complete
need mkdir "$mnt/spaces/a"
need mkdir -m 700 "$mnt/spaces/mine"
need mk --count 1 "$mnt/spaces/mine"
index_has "$first" && fail 'a private block is in the index'
as_told 'a private space, for who may read it' mine "$private" yn
as_told 'another has not got its block' a map nn
need mk --count 2 "$mnt/spaces/a"
as_told 'a public space' a map yy
as_told 'the default one' '' map nn
same 'one that is not there' 'open: No such file or directory' "$(ask b)"
check 'a public block is in it' index_has "$first"

if others_can 'private spaces and others' \
	test -x "$index_ask" -a -r "$mnt"; then
	same 'others learn nothing of a private space' \
		'open: Permission denied' "$(small_paths 2 |
			as_nobody "$index_ask" ask "$mnt" mine)"
fi

# while a reader has it open
follow_change() {
	small_paths 2 >"$work/names"
	rm -f "$work/go" "$work/answers"
	mkfifo "$work/go"
	index_ask wait "$mnt" a "$work/names" <"$work/go" \
		>"$work/answers" 2>&1 &
	waiter=$!
	keep_pid $waiter
	exec 6>"$work/go"
	need wait_until test -s "$work/answers"
	need "$@"
	echo go >&6
	exec 6>&-
	reap $waiter
	tail -n +3 "$work/answers"
}

made_again() {
	rm -r "$mnt"/spaces/a/??/*.bin && rmdir "$mnt/spaces/a" &&
		mkdir "$mnt/spaces/a" && mk --count 1 "$mnt/spaces/a"
}

removed() {
	rm -r "$mnt"/spaces/a/??/*.bin && rmdir "$mnt/spaces/a"
}

same 'a space that was made again is found' 'map
yn' "$(follow_change made_again)"
same 'one that becomes private is asked for' "$private
yn" "$(follow_change chmod 700 "$mnt/spaces/a")"
index_has "$first" && fail 'a block is in the index after its space was closed'
same 'and goes on to be when it is opened' "$private
yn" "$(follow_change chmod 755 "$mnt/spaces/a")"
same 'one that is gone is gone' 'lookup: No such file or directory' \
	"$(follow_change removed)"
do_umount

# private in a former life
need do_mount -o allow_other "$work/tier"
need chmod 755 "$mnt/spaces/mine"
do_umount
need do_mount -o allow_other "$work/tier"
need wait_until index_is_complete
as_told 'at the next mount a public space is in it again' mine map yn
do_umount
