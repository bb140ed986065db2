#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What keeps a block from being evicted: that it is open or being written; who is
# told of it; and that nothing else does, nor keeps it from being unlinked.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3 getfattr

# on COMMAND argument...: of the mount
on() {
	on_command=$1
	shift
	"$ucm" "$on_command" -m "$mnt" "$@"
}

# stays 'why': the first block is not evicted
stays() {
	check "stays: $1" sh -c '! "$1" evict -m "$2" "$3" >"$4" 2>&1' sh \
		"$ucm" "$mnt" "$first" "$work/said"
	check "stays: $1: says so" grep -qF "$first: $2" "$work/said" ||
		sed 's/^/  | /' "$work/said"
	check "stays: $1: is there" test -e "$mnt/blocks/$path"
}

# goes 'why': it is; and comes again
goes() {
	check "goes: $1" on evict "$first"
	check "goes: $1: absent" wait_until is_absent "$mnt/blocks/$path"
	need mk --count 1 "$mnt/blocks"
}

# RELEASE comes after close(2) has returned.
opens_are() {
	[ "$(xattr opens "$file")" = "$1" ]
}

path=$(small_paths 1)
first=$(ids 1)
file=$mnt/blocks/$path
need do_mount "fast=$work/tier"
need mk --count 4 "$mnt/blocks"
goes 'what nobody uses'

# ---- open ----

exec 3<"$file" 4<"$file"
same 'opens are counted' 2 "$(xattr opens "$file")"
check 'ls shows it' sh -c '"$1" ls -m "$2" | grep -q "^$3.* open$"' sh \
	"$ucm" "$mnt" "$first"
metric_is 1 ucmfs_open_blocks
same 'stat: what it does not open itself' 'opens      2' \
	"$(on stat "$first" | grep ^opens)"
stays 'open' 'open'
exec 3<&-
need wait_until opens_are 1
stays 'open once' 'open'
exec 4<&-
need wait_until opens_are 0
goes 'closed'
exec 3<"$file"
check 'unlink asks nobody' rm "$file"
check 'and the reader reads on' [ "$(wc -c <&3)" = "$small_size" ]
exec 3<&-
need mk --count 1 "$mnt/blocks"

# ---- written ----

# a writer that goes on having it open after the commit
make_src --count 5
fifth=$(nth_path 5)
mkdir -p "$mnt/blocks/${fifth%/*}" 2>/dev/null
python3 - "$work/src/$fifth" "$mnt/blocks/$fifth" "$work/fifo" <<'END' &
import os
import sys
fd = os.open(sys.argv[2], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
os.write(fd, open(sys.argv[1], "rb").read())
os.fsync(fd)
os.mkfifo(sys.argv[3])
open(sys.argv[3]).read()
END
keep_pid $!
need wait_until test -p "$work/fifo"
check 'ls shows a writer' sh -c '"$1" ls -m "$2" | grep -q "^$3.* written$"' sh \
	"$ucm" "$mnt" "$(ids 5 4)"
check 'what is being written stays' sh -c '! "$1" evict -m "$2" "$3"' sh \
	"$ucm" "$mnt" "$(ids 5 4)"
echo >"$work/fifo"
wait $!
forget_pid $!
check 'and goes when it is closed' wait_until on evict "$(ids 5 4)"

do_umount
