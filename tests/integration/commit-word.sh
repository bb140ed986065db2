#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A commit reads all of the file, unless its writer says what it has summed
# (user.ucmfs.written). That is believed of the file as it was then, and of nothing
# else.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse python3 client

# 8 layers of 1 MiB
large='--quiet --layers 8 --heads 8 --dim 128 --tokens 256'

mkdir "$work/src"
need do_mount "$work/tier"
# shellcheck disable=SC2086 # lists
need "$mkblocks" $large --count 6 "$work/src"
# shellcheck disable=SC2086
"$mkblocks" $large --list --count 6 >"$work/paths"
bytes=$(stat -c %s "$work/src/$(head -n 1 "$work/paths")")

# What the daemon has read, whatever of.
read_so_far() {
	sed -n 's/^rchar: //p' "/proc/$(daemon_pid)/io"
}

# read_less|read_more BYTES, since $before
read_less() {
	[ $(($(read_so_far) - before)) -lt "$1" ]
}
read_more() {
	! read_less "$1"
}

next_block() {
	block=$(head -n 1 "$work/paths")
	sed -i 1d "$work/paths"
	source=$work/src/$block
	target=$mnt/blocks/$block
}

# write_block SOURCE TARGET STEP...: what happens between open and close
write_block() {
	python3 - "$@" <<'END'
import os, sys
source, target, *steps = sys.argv[1:]
data = open(source, 'rb').read()
head = data[:4096]
fd = os.open(target, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
for step in steps:
    if step == 'all':
        os.pwrite(fd, data, 0)
    elif step == 'half':
        os.pwrite(fd, data[:len(data) // 2], 0)
    elif step == 'spoil':
        os.pwrite(fd, b'wrong', len(data) // 2)
    elif step == 'word':
        os.setxattr(fd, 'user.ucmfs.written', head)
    elif step == 'short-word':
        os.setxattr(fd, 'user.ucmfs.written', head[:100])
    elif step == 'wrong-word':
        wrong = bytearray(head)
        wrong[300] ^= 1
        os.setxattr(fd, 'user.ucmfs.written', bytes(wrong))
os.close(fd)
END
}

# ---- the loader ----

need mkdir "$mnt/spaces/llama"
start_client --layers 40 --plane 65536 --space llama mount "$mnt"
before=$(read_so_far)
ask save 0 8
answers 'saved by a loader' 8 0 0 0 0
check 'the daemon has not read them' read_less $((5 << 20))
ask load 0 8
answers 'they are right' 8 0 0 0 0
end_client

# ---- others ----

next_block
before=$(read_so_far)
check 'one that nobody speaks for' write_block "$source" "$target" all
check 'is read' read_more "$bytes"
check 'and is a block' cmp "$source" "$target"

next_block
before=$(read_so_far)
check 'one that its writer speaks for' write_block "$source" "$target" all word
check 'is not read' read_less $((bytes / 2))
check 'and is a block' cmp "$source" "$target"

next_block
check 'one that is changed after the word' \
	write_block "$source" "$target" all word spoil
check 'is no block' wait_until has_no_temps "$work/tier"
absent "$target"
check 'half of one, with a word' write_block "$source" "$target" half word
check 'is dropped' wait_until has_no_temps "$work/tier"
absent "$target"
refused 'Invalid argument' 'a word that is wrong in itself' \
	write_block "$source" "$target" all wrong-word
check 'then the checksums decide' wait_until cmp "$source" "$target"

next_block
refused 'Invalid argument' 'a word that is cut short' \
	write_block "$source" "$target" all short-word
check 'likewise' wait_until cmp "$source" "$target"
other=$source
next_block
refused 'Invalid argument' 'the word of another block' \
	write_block "$other" "$target" all word
check 'which is dropped' wait_until has_no_temps "$work/tier"
absent "$target"

# staging is believed likewise, when it is renamed
rm "$mnt/blocks/${other#"$work/src/"}"
staging=$mnt/blocks/${other#"$work/src/"}.tmp
before=$(read_so_far)
check 'staging, with a word' write_block "$other" "$staging" all word
check 'becomes a block' mv "$staging" "${staging%.tmp}"
check 'without being read' read_less $((bytes / 2))
check 'and is right' cmp "$other" "${staging%.tmp}"

# without checksums there is nothing to be said
rm -rf "$work/src"
mkdir "$work/src"
# shellcheck disable=SC2086
need "$mkblocks" $large --no-crc --count 1 --seed 7 "$work/src"
# shellcheck disable=SC2086
"$mkblocks" $large --no-crc --count 1 --seed 7 --list >"$work/paths"
next_block
refused 'Invalid argument' 'a word without checksums' \
	write_block "$source" "$target" all word
