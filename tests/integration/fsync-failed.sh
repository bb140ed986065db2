#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A file whose fsync(2) has failed becomes no block, though nothing else fails:
# pages that could not be written count as written from then on.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse strace python3

# write_and_sync NAME [committed]: all of a block into NAME, committed by the
# close of a dup(2) or not, and two fdatasync(2); says how these and close end
write_and_sync() {
	python3 - "$work/src/$path" "$mnt/blocks/$1" "${2-}" <<'END'
import errno, os, sys
src, dst, committed = sys.argv[1:]


def result(call, fd):
    try:
        call(fd)
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


fd = os.open(dst, os.O_CREAT | os.O_WRONLY, 0o644)
os.write(fd, open(src, "rb").read())
if committed:
    os.close(os.dup(fd))
    assert os.path.exists(dst)
print(*(result(call, fd) for call in (os.fdatasync, os.fdatasync, os.close)))
END
}

# next N: the Nth block
next() {
	path=$(nth_path "$1")
}

# The tracer ends after the daemon.
traced() {
	grep -q 'exited with' "$work/trace"
}

# durability=none: the commit itself syncs nothing, and would succeed
make_src
ucmfs_wrapper="strace -D -f -q -o $work/trace -e trace=fdatasync
	-e inject=fdatasync:error=EIO"
need do_mount -o durability=none "$work/tier"
next 1
same 'fsync and close fail' 'EIO EIO EIO' "$(write_and_sync "$path")"
absent "$mnt/blocks/$path"
logged 'fsync: Input/output error: the file will not become a block'
no_debris "$work/tier"
next 2
same 'staging as well' 'EIO EIO ok' "$(write_and_sync "$path.tmp")"
refused 'Input/output error' 'and no rename makes it a block' \
	rename_file "$mnt/blocks/$path.tmp" "$mnt/blocks/$path"
absent "$mnt/blocks/$path"
next 3
same 'of a block it is told as well' 'EIO EIO' \
	"$(write_and_sync "$path" committed | cut -d ' ' -f -2)"
check 'which is one no longer' wait_until is_absent "$mnt/blocks/$path"
same 'it is in quarantine' 1 \
	"$(find "$work/tier/.ucmfs/quarantine" -type f | wc -l)"
check 'others become blocks' mk --start 3 --count 4 "$mnt/blocks"
do_umount
ucmfs_wrapper=
need wait_until traced
same 'the disk was asked once for each' 3 \
	"$(grep -c 'fdatasync.*INJECTED' "$work/trace")"

need do_mount "$work/tier"
same 'nor are they blocks at the next mount' 4 "$(blocks_in "$mnt/blocks")"
check 'all that are there are whole' verify --start 3 --count 4 "$mnt/blocks"
do_umount
