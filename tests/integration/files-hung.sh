#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# While the directory of files/ does not answer, each call in files/ fails by the
# deadline, and at once after that; blocks of other tiers go on; and all is there
# again when it answers. The directory is in another mount, whose daemon is
# stopped.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse python3

# calls FILES: what each of many calls comes to
cat >"$work/calls.py" <<'END'
import errno
import os
import sys

files = sys.argv[1]
calls = {
    "open": lambda: open(f"{files}/there/seen").close(),
    "stat": lambda: os.stat(f"{files}/there/seen"),
    "create": lambda: open(f"{files}/new", "w").close(),
    "mkdir": lambda: os.mkdir(f"{files}/folder"),
    "symlink": lambda: os.symlink("x", f"{files}/link"),
    "link": lambda: os.link(f"{files}/there/seen", f"{files}/hard"),
    "unlink": lambda: os.unlink(f"{files}/there/seen"),
    "rmdir": lambda: os.rmdir(f"{files}/there"),
    "rename": lambda: os.rename(f"{files}/there", f"{files}/moved"),
    "listdir": lambda: os.listdir(files),
    "chmod": lambda: os.chmod(f"{files}/there", 0o700),
    "getxattr": lambda: os.getxattr(f"{files}/there/seen", "user.x"),
    "setxattr": lambda: os.setxattr(f"{files}/there/seen", "user.x", b"x"),
}
bad = []
for name, call in calls.items():
    try:
        call()
        bad.append(f"{name} succeeds")
    except OSError as error:
        if error.errno not in (errno.ETIMEDOUT, errno.EIO):
            bad.append(f"{name}: {error}")
sys.exit("; ".join(bad) if bad else 0)
END

mkdir "$work/server" "$work/healthy"
mnt=$work/server
need do_mount -o io_uring=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung/files/there"
echo seen >"$hung/files/there/seen"
mnt=$work/mnt
need do_mount -c entry_timeout=0 -o "deadline=1,files=$hung" \
	"healthy=$work/healthy:hung=$hung"
same 'it is read' seen "$(cat "$mnt/files/there/seen")"
need mk --count 3 "$mnt/blocks"
check 'no thread of all requests has waited' \
	sh -c '! grep "a defect of ucmfs" "$1"' sh "$log"
need freeze "$(cat "$work/run/server.pid")"

check 'each call fails' timeout 60 python3 "$work/calls.py" "$mnt/files"
check 'and soon, after the first' \
	timeout 10 python3 "$work/calls.py" "$mnt/files"
check 'blocks are read' verify --count 3 "$mnt/blocks"
check 'and written' mk --start 3 --count 6 "$mnt/blocks"
logged 'no answer in 1000 ms'

need let_go
is_back() {
	[ "$(timeout 10 cat "$mnt/files/there/seen")" = seen ]
}
check 'it is back' wait_until is_back
same 'nothing has changed' there "$(ls "$mnt/files")"
check 'and a file is made' touch "$mnt/files/new"
do_umount
mnt=$work/server
do_umount
