#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Without passthrough the writer's own descriptor changes nothing after the
# commit: write(2), ftruncate(2) and fallocate(2) are refused.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# change_late CALL: commit by closing a dup(2), then CALL; says how it ends
change_late() {
	python3 - "$work/src/$path" "$mnt/blocks/$path" "$1" <<'END'
import errno, os, sys
src, dst, call = sys.argv[1:]
data = open(src, "rb").read()
calls = {
    "write": lambda: os.pwrite(fd, b"XX", 5000),
    "append": lambda: os.write(fd, b"XX"),
    "cut": lambda: os.ftruncate(fd, 5000),
    "grow": lambda: os.ftruncate(fd, len(data) + 1),
    "allocate": lambda: os.posix_fallocate(fd, 0, len(data) + 4096),
}
fd = os.open(dst, os.O_CREAT | os.O_RDWR, 0o644)
os.write(fd, data)
os.close(os.dup(fd))
assert open(dst, "rb").read() == data, "not committed"
try:
    calls[call]()
    print("done")
except OSError as error:
    print(errno.errorcode[error.errno])
END
}

make_src
need do_mount -o passthrough=off "$work/tier"
number=0
for call in write append cut grow allocate; do
	number=$((number + 1))
	path=$(nth_path $number)
	same "$call after the commit" EPERM "$(change_late $call)"
	check 'the block is as it was' cmp "$work/src/$path" "$mnt/blocks/$path"
	check 'also in its tier' cmp "$work/src/$path" "$work/tier/blocks/$path"
done
no_debris "$work/tier"
same 'none is set aside' 0 "$(stat_of quarantined)"
do_umount
