#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A file that has its full size before it has its bytes is no block, whoever
# closes a descriptor of it meanwhile: the half block is never seen.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

mkdir "$work/blocks"
need mk "$work/blocks"
need do_mount "$work/tier"

# write PATH HOW: header, then a FLUSH: the end of a fork, or of an open as that
# of /dev/stdout; prints what others see meanwhile, and after the close
write() {
	python3 - "$work/blocks/$1" "$mnt/blocks/$1" "$2" <<'END'
import os, sys
source, target, how = sys.argv[1:]
data = open(source, 'rb').read()
fd = os.open(target, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
if how == 'truncate':
    os.ftruncate(fd, len(data))
elif how == 'zeros':
    os.write(fd, bytes(len(data)))
else:
    os.posix_fallocate(fd, 0, len(data))
os.pwrite(fd, data[:4096], 0)
if how == 'zeros':
    os.close(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY))
elif os.fork() == 0:
    os._exit(0)
else:
    os.wait()
seen = os.path.exists(target)
if how != 'die':
    os.pwrite(fd, data[4096:], 4096)
os.close(fd)
print('seen' if seen else 'unseen', os.path.exists(target))
END
}

small_paths 4 >"$work/paths"
{
	read -r first
	read -r second
	read -r third
	read -r fourth
} <"$work/paths"
same 'made by ftruncate: not seen before it is whole' 'unseen True' \
	"$(write "$first" truncate)"
same 'made by fallocate: the same' 'unseen True' "$(write "$second" allocate)"
same 'made of zeros, then opened once more and closed: the same' \
	'unseen True' "$(write "$fourth" zeros)"
check 'both are right' cmp "$work/blocks/$first" "$mnt/blocks/$first"
check 'both are right' cmp "$work/blocks/$second" "$mnt/blocks/$second"
check 'and that one' cmp "$work/blocks/$fourth" "$mnt/blocks/$fourth"
same 'a writer that dies half-way leaves nothing' 'unseen False' \
	"$(write "$third" die)"
check 'nor later' wait_until is_absent "$mnt/blocks/$third"
has_settled() { has_no_temps "$work/tier"; }
check 'nor debris' wait_until has_settled
absent "$mnt/blocks/$third"
do_umount
