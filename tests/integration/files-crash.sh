#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The daemon is killed while files of files/ are renamed over each other, and a
# folder to and fro: each name leads to a whole file, the old or the new one,
# and never back behind what was once acknowledged; the folder is whole.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

rounds=12
mkdir "$work/a" "$work/b" "$work/slow"

# Writes "version" over and over, and what was acknowledged to a file outside.
cat >"$work/writer.py" <<'END'
import os, sys
files, acked, name = sys.argv[1:4]
version = 0
if os.path.exists(acked):
    version = int(open(acked).read() or 0)
log = open(acked, "r+" if os.path.exists(acked) else "w")
try:
    while True:
        version += 1
        temporary = f"{files}/{name}.{version}.tmp"
        with open(temporary, "w") as file:
            file.write(f"{version:08d}" * 512)
        os.rename(temporary, f"{files}/{name}")
        log.seek(0)
        log.write(str(version))
        log.flush()
except OSError:
    pass
END
cat >"$work/folder.py" <<'END'
import os, sys
files = sys.argv[1]
try:
    while True:
        os.rename(f"{files}/here", f"{files}/there")
        os.rename(f"{files}/there", f"{files}/here")
except OSError:
    pass
END

mount_it() {
	need do_mount -o "$1" "fast=$work/a,$work/b:slow=$work/slow"
}

# The acknowledged version of x is this or a later one; all have one.
has_come_to() {
	[ -s "$work/acked.y" ] && [ -s "$work/acked.z" ] &&
		[ "$(cat "$work/acked.x" 2>/dev/null || echo 0)" -ge "$1" ]
}

# 0: the name leads to one whole version, not older than the acknowledged one
is_good() {
	python3 - "$mnt/files/$1" "$work/acked.$1" <<'END'
import sys
text = open(sys.argv[1]).read()
acked = int(open(sys.argv[2]).read() or 0)
assert text == text[:8] * 512, "a mixture"
# the one after it may have been renamed and not acknowledged any more
assert acked <= int(text[:8]) <= acked + 1, (text[:8], acked)
END
}

whole_folder() {
	if [ -d "$mnt/files/here" ]; then
		where=$mnt/files/here
		[ ! -e "$mnt/files/there" ] || return 1
	else
		where=$mnt/files/there
	fi
	[ "$(cat "$where/1" "$where/sub/2")" = 12 ]
}

mkdir -p "$work/a/files/here/sub"
printf 1 >"$work/a/files/here/1"
printf 2 >"$work/a/files/here/sub/2"

i=0
bad=0
while [ $i -lt $rounds ]; do
	i=$((i + 1))
	mount_it "passthrough=$([ $((i % 2)) = 0 ] && echo off || echo auto)"
	before=$(cat "$work/acked.x" 2>/dev/null || echo 0)
	writers=
	for name in x y z; do
		python3 "$work/writer.py" "$mnt/files" "$work/acked.$name" $name &
		keep_pid $!
		writers="$writers $!"
	done
	python3 "$work/folder.py" "$mnt/files" &
	keep_pid $!
	writers="$writers $!"
	wait_until has_come_to $((before + i * 7 % 30 + 1))
	crash_daemon
	for pid in $writers; do
		wait "$pid"
		forget_pid "$pid"
	done
	umount -l "$mnt"
	mount_it passthrough=auto
	for name in x y z; do
		is_good $name 2>"$work/why" || {
			bad=$((bad + 1))
			tail -n 1 "$work/why"
		}
	done
	whole_folder || {
		bad=$((bad + 1))
		find "$mnt/files/here" "$mnt/files/there"
	}
	[ ! -d "$mnt/files/there" ] || mv "$mnt/files/there" "$mnt/files/here"
	rm -f "$mnt"/files/*.tmp
	do_umount >/dev/null
done
same "after $rounds kills all names led to old or new" 0 $bad
check "of many: $(cat "$work/acked.x") versions" \
	test "$(cat "$work/acked.x")" -ge $rounds
