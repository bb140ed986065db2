#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The ways in which programs open, write, flush and close a file. close(2) alone
# is no sign that a file is whole: some close before the first byte, some in
# mid-stream. Whole files become blocks, all others leave no trace.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

make_src --count 40
small_paths 40 >"$work/paths"
need do_mount "$work/tier"
number=0
whole=0

# The next block: $src, and $dst, where it is to be
next() {
	number=$((number + 1))
	path=$(sed -n "${number}p" "$work/paths")
	src=$work/src/$path
	dst=$mnt/blocks/$path
	export src dst
}

# becomes_block 'how' command...
becomes_block() {
	check "$@"
	check "$1: it is the block" cmp "$src" "$dst"
	whole=$((whole + 1))
}

# leaves_nothing 'how' command...
leaves_nothing() {
	check "$@"
	absent "$dst"
}

next; becomes_block 'sh: cat >' sh -c 'cat "$src" >"$dst"'
if may_try 'bash: cat >' bash; then
	next; becomes_block 'bash: cat >' bash -c 'cat "$src" >"$dst"'
fi
next; becomes_block 'dd' dd if="$src" of="$dst"
next; becomes_block 'dd, 64 bytes at a time' dd if="$src" of="$dst" bs=64
next; becomes_block 'cp' cp "$src" "$dst"
next; becomes_block 'cp -a' cp -a "$src" "$dst"
next; becomes_block 'install' install -m 644 "$src" "$dst"
next; becomes_block 'tee' sh -c 'tee "$dst" <"$src" >/dev/null'
next; becomes_block 'two programs, one descriptor' \
	sh -c '{ head -c 4096 "$src"; tail -c +4097 "$src"; } >"$dst"'
next; becomes_block 'a shell and its children' sh -c 'exec 5>"$dst"
	head -c 100 "$src" >&5
	(tail -c +101 "$src" | head -c 5000 >&5)
	tail -c +5101 "$src" >&5
	exec 5>&-'
next; becomes_block 'two programs that append' \
	sh -c '{ head -c 4096 "$src"; tail -c +4097 "$src"; } >>"$dst"'
next; becomes_block 'a dup(2) closed in mid-stream' python3 -c '
import os
data = open(os.environ["src"], "rb").read()
fd = os.open(os.environ["dst"], os.O_CREAT | os.O_WRONLY, 0o644)
os.write(fd, data[:5000])
os.close(os.dup(fd))
os.write(fd, data[5000:])
os.close(fd)'
next; becomes_block 'a fork(2) in mid-stream' python3 -c '
import os
data = open(os.environ["src"], "rb").read()
fd = os.open(os.environ["dst"], os.O_CREAT | os.O_WRONLY, 0o644)
os.write(fd, data[:4096])
pid = os.fork()
if pid == 0:
    os.write(fd, data[4096:5000])
    os._exit(0)
os.waitpid(pid, 0)
os.write(fd, data[5000:])
os.close(fd)'
next; becomes_block 'pwrite(2) from the end' python3 -c '
import os
data = open(os.environ["src"], "rb").read()
fd = os.open(os.environ["dst"], os.O_CREAT | os.O_RDWR, 0o644)
for at in range(len(data) - 512, -1, -512):
    os.pwrite(fd, data[at:at + 512], at)
os.close(fd)'
next; becomes_block 'fsync(2) commits before close(2)' python3 -c '
import os
data = open(os.environ["src"], "rb").read()
dst = os.environ["dst"]
fd = os.open(dst, os.O_CREAT | os.O_WRONLY, 0o644)
os.write(fd, data)
os.fsync(fd)
assert open(dst, "rb").read() == data
os.close(fd)'

next; leaves_nothing 'an empty file' sh -c ': >"$dst"'
next; leaves_nothing 'touch' touch "$dst"
next; leaves_nothing 'half a header' sh -c 'head -c 32 "$src" >"$dst"'
next; leaves_nothing 'a header alone' sh -c 'head -c 64 "$src" >"$dst"'
next; leaves_nothing 'all but a byte' sh -c 'head -c 8191 "$src" >"$dst"'
next; leaves_nothing 'the first half, appended' \
	sh -c 'head -c 4096 "$src" >>"$dst"'
refused 'Invalid argument' 'the second half by another open is no block' \
	sh -c 'tail -c +4097 "$src" >>"$dst"'
absent "$dst"
next; refused 'Invalid argument' 'a byte in front is told at close' \
	sh -c '{ echo; cat "$src"; } >"$dst"'
absent "$dst"
logged 'wrong magic'
next; refused 'Invalid argument' 'a byte too many is told at close' \
	sh -c '{ head -c 8000 "$src"; tail -c +8001 "$src" | cat - "$src"; } >"$dst"'
absent "$dst"

# whole when cat has closed it, too long when echo has: first a block, then not
next; check 'a byte behind, after the commit' \
	sh -c '{ cat "$src"; echo; } >"$dst"'
check 'it does not stay a block' wait_until is_absent "$dst"

next; refused 'failed to clone' 'cp --reflink=always is refused' \
	cp --reflink=always "$src" "$dst"
absent "$dst"
path=$(sed -n 1p "$work/paths")
export dst="$mnt/blocks/$path"
refused 'Operation not permitted' 'appending to a block is refused' \
	dd if=/dev/zero of="$dst" bs=1 count=1 oflag=append conv=notrunc
check 'it is as it was' cmp "$work/src/$path" "$dst"

same 'the whole ones are blocks, and no others' $whole \
	"$(blocks_in "$mnt/blocks")"
same 'behind the mount as well' $whole "$(blocks_in "$work/tier/blocks")"
no_debris "$work/tier"
do_umount
