#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A descriptor of a committed block that outlives the daemon: what was written
# through it is found at the next mount.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3
make_src --count 2
one=$(small_paths 1)
need do_mount "$work/tier"
mkfifo "$work/go" || exit 1
python3 - "$work/src/$one" "$mnt/blocks/$one" "$work/go" <<'PY' &
import os, sys
fd = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)
os.write(fd, open(sys.argv[1], "rb").read())
os.fsync(fd)
open(sys.argv[3]).read()
try:
    os.pwrite(fd, b"\xff" * 64, 5000)
except OSError:
    pass
PY
writer=$!
keep_pid $writer
check 'committed' wait_until cmp "$work/src/$one" "$mnt/blocks/$one"
do_umount TERM
echo go >"$work/go"
reap $writer
need do_mount "$work/tier"
if cmp -s "$work/src/$one" "$work/tier/blocks/$one"; then
	pass 'nothing could be written'
else
	absent "$mnt/blocks/$one"
	same 'it is in quarantine' 1 "$(stat_of quarantined)"
fi
do_umount
