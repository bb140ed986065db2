#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A second descriptor that writes after the commit cannot leave a wrong block:
# what it has done is found when it is closed.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# write_again BYTES OFFSET: commit by closing a dup(2), then write once more
write_again() {
	python3 -c '
import os, sys
data = open(os.environ["SRC"], "rb").read()
at = int(sys.argv[2])
fd = os.open(os.environ["DST"], os.O_CREAT | os.O_WRONLY, 0o644)
os.write(fd, data)
os.close(os.dup(fd))
assert open(os.environ["DST"], "rb").read() == data, "not committed"
os.pwrite(fd, data[at:at + 1] if sys.argv[1] == "same" else b"XX", at)
os.close(fd)' "$1" "$2"
}

in_quarantine() {
	find "$work/tier/.ucmfs/quarantine" -type f | wc -l
}

quarantined_is() {
	[ "$(in_quarantine)" = "$1" ]
}

make_src
need do_mount "$work/tier"
count=0
# in the payload, in the header, in the extension, behind the end
for at in 5000 3 80 8192; do
	count=$((count + 1))
	path=$(nth_path $count)
	export SRC="$work/src/$path" DST="$mnt/blocks/$path"
	check "other bytes at $at after the commit" write_again other $at
	check 'put it into quarantine' wait_until quarantined_is $count
	check 'and its name is gone a second later' wait_until is_absent "$DST"
	check 'and it can be written again' cp "$SRC" "$DST"
	check 'as a whole block' cmp "$SRC" "$DST"
done
logged 'written to after its commit'

path=$(nth_path 16)
export SRC="$work/src/$path" DST="$mnt/blocks/$path"
check 'the same byte after the commit' write_again same 5000
check 'changes nothing' cmp "$SRC" "$DST"

# read_between CHANGE: commit by closing a dup(2), write, and read by the name
# while the writer is still open
read_between() {
	python3 - "$1" <<'END'
import mmap, os, sys
data = open(os.environ['SRC'], 'rb').read()
target = os.environ['DST']
fd = os.open(target, os.O_CREAT | os.O_RDWR, 0o644)
os.write(fd, data)
if sys.argv[1] == 'mapping':
    view = mmap.mmap(fd, len(data))
os.close(os.dup(fd))
assert open(target, 'rb').read() == data, 'not committed'
if sys.argv[1] == 'mapping':
    view[5000] ^= 1
else:
    os.pwrite(fd, b'XX', 5000)
try:
    seen = open(target, 'rb').read()
except FileNotFoundError:
    seen = None
print('absent' if seen is None else 'right' if seen == data else 'wrong')
END
}

for how in write mapping; do
	count=$((count + 1))
	path=$(nth_path $count)
	export SRC="$work/src/$path" DST="$mnt/blocks/$path"
	same "wrong bytes by $how are not read before the last close" absent \
		"$(read_between $how)"
	check 'they are in quarantine' wait_until quarantined_is $count
done

# A second open(2) of the file, by way of /proc, is no dup(2): the daemon sees it.
path=$(nth_path 7)
export SRC="$work/src/$path" DST="$mnt/blocks/$path"
same 'a whole block is committed while another open is left' True "$(
	python3 - <<'END'
import os
data = open(os.environ['SRC'], 'rb').read()
target = os.environ['DST']
fd = os.open(target, os.O_CREAT | os.O_WRONLY, 0o644)
os.write(fd, data)
other = os.open('/proc/self/fd/%d' % fd, os.O_WRONLY)
os.close(fd)
print(os.path.exists(target))
os.pwrite(other, b'XX', 5000)
os.close(other)
END
)"
check 'what that one does to it is found' wait_until quarantined_is 7
check 'and its name is gone a second later' wait_until is_absent "$DST"
do_umount
