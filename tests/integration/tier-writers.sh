#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Many files are made before the first of them is written: room is promised
# once, so those for which the fast tier has none go to the slow one, and none
# is lost; nor does a limit give way to a space's first blocks, whose size is
# not known.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3
mount_more=policy=none # what is full is full

# 8 MiB and a page
mk_large() {
	"$mkblocks" --quiet --layers 8 --heads 8 --dim 128 --tokens 256 "$@"
}

# writers FROM COUNT [LATE]: of the blocks in $work/blocks, makes all files but
# the last LATE, writes nine tenths of each, makes the others, and writes what
# is missing; prints how many are whole, and what befell the others. $tell: how a
# file that is made is told its size
tell=
writers() {
	python3 - "$work" "$mnt/blocks" "$tell" "$1" "$2" "${3-0}" <<'END'
import collections, os, sys
work, tree, tell = sys.argv[1:4]
first, count, late = map(int, sys.argv[4:])
paths = open(f'{work}/paths').read().split()[first:first + count]
failures = collections.Counter()

class Writer:
    def __init__(self, path):
        self.path, self.at, self.fd = path, 0, None
        with open(f'{work}/blocks/{path}', 'rb') as file:
            self.data = file.read()

    def make(self):
        self.fd = os.open(f'{tree}/{self.path}',
                          os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        if tell == 'ftruncate':
            os.ftruncate(self.fd, len(self.data))
        elif tell == 'fallocate':
            os.posix_fallocate(self.fd, 0, len(self.data))

    def write(self, end):
        while self.at < end:
            self.at += os.pwrite(self.fd, self.data[self.at:end], self.at)

    def is_whole(self):
        with open(f'{tree}/{self.path}', 'rb') as file:
            return file.read() == self.data

def each(writers, step):
    good = []
    for writer in writers:
        try:
            step(writer)
            good.append(writer)
        except OSError as error:
            failures[os.strerror(error.errno)] += 1
            if writer.fd is not None:
                os.close(writer.fd)
    return good

writers = [Writer(path) for path in paths]
early, others = writers[:count - late], writers[count - late:]
early = each(early, Writer.make)
early = each(early, lambda w: w.write(len(w.data) * 9 // 10))
writers = early + each(others, Writer.make)
writers = each(writers, lambda w: w.write(len(w.data)))
writers = each(writers, lambda w: os.close(w.fd))
print(sum(w.is_whole() for w in writers),
      *sorted(f'{text}: {n}' for text, n in failures.items()), sep=', ')
END
}

# What lies in the bucket directories of a tier.
taken() {
	du -s --block-size=1 "$1/blocks" | cut -f 1
}

nothing_is_promised() {
	[ "$(stat_of writing_bytes)" = 0 ]
}

empty() {
	need rm -rf "$mnt"/blocks/*/*
	check 'no promise is left' wait_until nothing_is_promised
}

mkdir "$work/blocks"
need mk_large --count 20 "$work/blocks"
need mk_large --list --count 20 >"$work/paths"
size=$(stat -c %s "$work/blocks/$(head -n 1 "$work/paths")")

# ---- disks of their own ----

make_fs ext4 64M "$work/fast"
make_fs ext4 512M "$work/slow"
need do_mount "fast=$work/fast:slow=$work/slow"
same '19 writers of first blocks, on 64 MiB and 512 MiB' 19 "$(writers 0 19)"
check 'and the fast tier is used' test "$(blocks_in "$work/fast/blocks")" -ge 1
empty
do_umount

need do_mount "fast=$work/fast:slow=$work/slow"
same 'one block' 1 "$(writers 19 1)"
same '19 writers of blocks whose size is known' 19 "$(writers 0 19)"
in_fast=$(blocks_in "$work/fast/blocks")
check "as many as fit, $in_fast, are in the fast tier" test "$in_fast" -ge 5
empty
do_umount

# two tiers, and two directories, share a disk
mkdir "$work/fast/a" "$work/fast/b" "$work/fast/c"
need do_mount "a=$work/fast/a,$work/fast/b:c=$work/fast/c:slow=$work/slow"
same 'one block' 1 "$(writers 19 1)"
same '19 writers where tiers share a disk' 19 "$(writers 0 19)"
empty
do_umount
umount "$work/fast"

# what a file has on disk already is not counted twice
mkdir "$work/small"
need mount -t tmpfs -o size=44m tmpfs "$work/small"
need do_mount "$work/small"
same 'one block' 1 "$(writers 19 1)"
same 'when three are nearly written, there is room for a fourth' 4 \
	"$(writers 0 4 1)"
refused 'No space left on device' 'and then no more' \
	cp "$work/blocks/$(sed -n 5p "$work/paths")" \
	"$mnt/blocks/$(sed -n 5p "$work/paths")"
empty
do_umount

umount "$work/small"

# A block that is larger than the fast disk: the first fails there, as nobody
# knew; the next one is not sent after it.
mkdir "$work/tiny"
need mount -t tmpfs -o size=4m tmpfs "$work/tiny"
mkdir "$work/new"
need do_mount "tiny=$work/tiny:slow=$work/new"
same 'nobody knew' '0, No space left on device: 1' "$(writers 0 1)"
same 'the next finds its place' 1 "$(writers 0 1)"
same 'and all after it' 18 "$(writers 1 18)"
empty
do_umount
umount "$work/tiny"

# ---- limits ----

rm -rf "$work/slow"/* "$work/slow"/.ucmfs
mkdir "$work/limited"
limit=$((40 << 20))
need do_mount -o limit=limited:40M "limited=$work/limited:slow=$work/slow"
same '19 writers of first blocks, with a limit' 19 "$(writers 0 19)"
check 'the limit is kept' test "$(taken "$work/limited")" -le $limit
same '1 more' 1 "$(writers 19 1)"
empty
same '19 writers, size known' 19 "$(writers 0 19)"
same 'as many as fit are in the tier with the limit' $((limit / size)) \
	"$(blocks_in "$work/limited/blocks")"
empty
do_umount

# One guess at a time: the last one does not fit, but for that it was let in.
for tell in ftruncate fallocate; do
	rm -rf "$work/limited"/* "$work/limited"/.ucmfs
	need do_mount -o limit=limited:40M "limited=$work/limited"
	same "writers of first blocks that tell their size by $tell" \
		'5, No space left on device: 14' "$(writers 0 19)"
	check 'the limit is exceeded by one block at most' \
		test "$(taken "$work/limited")" -le $((limit + size))
	do_umount
done
tell=

# ucm put: 40 blocks of 2 MiB
shape='--layers 32 --heads 8 --dim 64 --tokens 32'
# shellcheck disable=SC2086 # a list
"$mkblocks" --list --count 40 $shape | sed 's,.*/,,; s/\.bin$//' >"$work/ids"
need truncate -s 80M "$work/raw"
# put SOURCE: how it ends
put() {
	rm -rf "$work/limited" "$work/slow"/* "$work/slow"/.ucmfs
	mkdir "$work/limited"
	need do_mount -o limit=limited:40M "$1"
	# shellcheck disable=SC2086 # a list
	put=$("$ucm" put --mount "$mnt" $shape --dtype float16 "$work/raw" \
		"$work/ids" 2>"$work/err" | sed 's/;.*//')
	check 'the limit is kept' test "$(taken "$work/limited")" -le $limit
	same 'and made use of' 19 "$(blocks_in "$work/limited/blocks")"
	do_umount
}

put "limited=$work/limited:slow=$work/slow"
same 'ucm put of 80 MiB, 40 of them in a tier' '40 blocks: 40 saved' "$put"
put "limited=$work/limited"
same 'where there is no other tier' '40 blocks: 19 saved, 21 failed' "$put"
check 'the others had no room' grep -q 'No space left on device' "$work/err"
