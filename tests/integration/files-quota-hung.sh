#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A folder of files/ keeps to its quota while one of its tiers does not answer:
# what lies on the other goes, what lies on the hung one counts and stays, and
# goes when that is back. The hung tier is another mount, whose daemon is stopped.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse getfattr setfattr python3

# make FOLDER FIRST LAST: files of 64 KiB, f.FIRST to f.LAST; the first fails
make() {
	python3 - "$@" <<'END'
import sys
folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for i in range(first, last + 1):
    with open(f"{folder}/f.{i:04d}", "wb") as file:
        file.write(b"%08d" % i * 8192)
END
}

is_within() {
	[ "$(timeout 10 getfattr --absolute-names --only-values \
		-n user.ucmfs.used "$mnt/files/kv")" -le "$1" ]
}

mkdir "$work/healthy" "$work/server"
mnt=$work/server
need do_mount -o io_uring=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung/files/kv"
make "$hung/files/kv" 1 4
mnt=$work/mnt
need do_mount -o deadline=1,entry_timeout=0 \
	"healthy=$work/healthy:hung=$hung"
need setfattr -n user.ucmfs.quota -v 1M "$mnt/files/kv"
need setfattr -n user.ucmfs.grace -v 0 "$mnt/files/kv"
make "$mnt/files/kv" 10 10 # the folder is on both
check 'what lies there counts' wait_until sh -c "[ \"\$(getfattr \
	--absolute-names --only-values -n user.ucmfs.used '$mnt/files/kv')\" = \
	327680 ]"
need freeze "$(cat "$work/run/server.pid")"

check 'three times the quota is written while it hangs' \
	timeout 120 python3 - "$mnt/files/kv" <<'END'
import sys
for i in range(100, 148):
    with open(f"{sys.argv[1]}/f.{i:04d}", "wb") as file:
        file.write(b"%08d" % i * 8192)
END
check 'and it is kept' wait_until is_within 1048576
check 'by files of the other tier' \
	test "$(find "$work/healthy/files/kv" -type f | wc -l)" -le 12
check 'the last is there' test -e "$work/healthy/files/kv/f.0147"
same 'nobody was refused a file' 0 "$(metric ucmfs_folder_files_refused_total)"

need kill -CONT "$(cat "$work/run/server.pid")"
answers() {
	! getfattr -n user.ucmfs.missing "$mnt/files/kv"
}
check 'it is back' wait_until answers
make "$mnt/files/kv" 200 240
check 'then its files go, as they are the oldest' \
	wait_until sh -c '! ls "$1" | grep -q f.000' sh "$hung/files/kv"
check 'and the quota is kept' wait_until is_within 1048576
do_umount
mnt=$work/server
do_umount
