#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The file of representations that a block may have: it is taken only if it is
# that block's, is seen only while the block is, and counts, moves and goes with
# it; over remounts, kills, and whatever is found in the directories.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test sparse root fuse python3 getfattr setfattr
blocks="python3 $top_srcdir/tests/lib/repr_blocks.py"
count=40

mkdir "$work/a" "$work/b" "$work/slow"
source=fast=$work/a,$work/b:slow=$work/slow
s=$mnt/spaces/one

# how many such files a directory lists
reprs_in() {
	find "$1" -name '*.repr' | wc -l
}

# what the daemon counts, and what du says, each file once
used() {
	xattr used "$1"
}

du_says() {
	find "$1" -name '*.bin' -printf '%b\n' -o -name '*.repr' -printf '%b\n' |
		awk '{ sum += $1 } END { print sum * 512 }'
}

counts_right() {
	same "what is counted of $1 is what du says" "$(du_says "$1")" \
		"$(used "$1")"
	same 'of each directory, too' "$(for dir in a b slow; do
		echo "$(reprs_in "$work/$dir/spaces") $(find \
			"$work/$dir/spaces" -name '*.repr' -printf '%b\n' |
			awk '{ sum += $1 } END { print sum * 512 }')"
	done)" "$(dirs_say)"
}

# files and bytes of each directory
dirs_say() {
	python3 - "$mnt/.ucmfs/stats.json" <<'END'
import json, sys
for tier in json.load(open(sys.argv[1]))["tiers"]:
    for dir in tier["directories"]:
        print(dir["reprs"], dir["repr_bytes"])
END
}

# each block of the space has its file, and all are right
all_there() {
	same "$1: each block has its file" "$2" "$(reprs_in "$s")"
	check "$1: they are right" \
		"$ucm" sparse repr verify --mount "$mnt" -s one --all
}

# no file without its block, in any directory
no_orphans() {
	find "$work/a" "$work/b" "$work/slow" -name '*.repr' >"$work/found"
	while read -r found; do
		[ -f "${found%.repr}.bin" ] || fail "$1: $found has no block"
	done <"$work/found"
}

need do_mount "$source"
need mkdir "$s"
$blocks make "$s" $count >"$work/paths" || fail 'blocks can be made'
bare=$(used "$s")
check 'build' "$ucm" sparse repr build --mount "$mnt" -s one --all
all_there 'at first' $count
counts_right "$s"
same 'they count' $((bare * 2)) "$(used "$s")"
"$ucm" status -m "$mnt" >"$work/said"
check 'for people' grep -q 'of it representations of [1-9][0-9]* blocks' \
	"$work/said"
metric_is "$(reprs_in "$work/b/spaces")" ucmfs_directory_reprs 'directory="1"'
check 'a block is shown with what it takes alone' [ "$(stat -c %b \
	"$s/$(sed -n 1p "$work/paths")")" = 16 ]

# ---- taken, and refused ----

one=$s/$(sed -n 1p "$work/paths") two=$s/$(sed -n 2p "$work/paths")
r=${one%.bin}.repr
cp "$r" "$work/right"
cp "${two%.bin}.repr" "$work/other"
refused 'Operation not permitted' 'one that is there is not written to' \
	sh -c "echo >'$r'"
refused 'Operation not permitted' 'nor cut' truncate -s 0 "$r"
refused 'Operation not permitted' 'nor renamed' mv "$r" "$r.tmp"
need rm "$r"
is_absent "$r"
same 'its room is given back' $((bare * 2 - 8192)) "$(used "$s")"
refused 'Invalid argument' 'of another block' cp "$work/other" "$r"
logged 'not taken: block_hash is not the block'
is_absent "$r"
cp "$work/right" "$work/wrong" && flip "$work/wrong" 5000
refused 'Invalid argument' 'damaged' cp "$work/wrong" "$r"
logged 'not taken: layer 1: checksum differs'
head -c 8191 "$work/right" >"$work/short"
check 'half of one: nothing is said' cp "$work/short" "$r"
is_absent "$r"
refused 'Invalid argument' 'no such file' cp "$one" "$r"
refused 'No such file' 'without its block' cp "$work/right" \
	"$s/00/00000000000000000000000000000001.repr"
refused 'Invalid argument' 'in another bucket' cp "$work/right" \
	"$s/00/${r##*/}"
check 'the right one' cp "$work/right" "$r"
check 'it is there' cmp "$work/right" "$r"
check 'in place of it, by a rename' sh -c "cp '$work/right' '$r.tmp' &&
	mv '$r.tmp' '$r'"
check 'it is there' cmp "$work/right" "$r"
need cp "$work/wrong" "$r.tmp"
refused 'Invalid argument' 'a wrong one, by a rename' rename_file "$r.tmp" "$r"
check 'the other one is still there' cmp "$work/right" "$r"
need rm -f "$r.tmp"
exec 9<"$r"
need rm "$r"
check 'who has it open reads on' cmp "$work/right" - <&9
exec 9<&-
check 'once more' cp "$work/right" "$r"
all_there 'afterwards' $count
counts_right "$s"
no_debris "$work/a" "$work/b" "$work/slow"

# closed more than once: taken once, unless there is something new
for kind in mean max; do
	mkdir "$work/$kind"
	basename "$one" .bin >"$work/id"
	check "$kind, beside the mount" "$ucm" sparse repr build -m "$mnt" -s one \
		--kind $kind --to "$work/$kind" "$work/id"
done
check 'what is new at a close is taken by it' python3 - "$r" \
	"$work/mean/${r#"$s"/}" "$work/max/${r#"$s"/}" \
	"$work/a/spaces/one/${r#"$s"/}" "$work/b/spaces/one/${r#"$s"/}" <<'END'
import os, sys
name, mean, max_, *places = sys.argv[1:]
mean, max_ = open(mean, "rb").read(), open(max_, "rb").read()
def file():
    return [os.stat(p).st_ino for p in places if os.path.exists(p)]
def there():
    return open([p for p in places if os.path.exists(p)][0], "rb").read()
def fails(fd):
    try:
        os.close(fd)
    except OSError as error:
        return error.errno
assert len(mean) == len(max_) and mean != max_
os.unlink(name)
fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.close(os.dup(fd))
assert not file(), "an empty one is none"
os.pwrite(fd, mean, 0)
os.close(os.dup(fd))
first = file()
assert there() == mean
for _ in range(3):
    os.close(os.dup(fd))
assert file() == first, "put once"
os.pwrite(fd, max_, 0)
os.close(os.dup(fd))
assert there() == max_ and file() != first
second = file()
os.pwrite(fd, bytes([max_[5000] ^ 1]), 5000)
other = os.dup(fd)
assert fails(other) == fails(fd) == 22
assert there() == max_ and file() == second, "a wrong one changes nothing"
END
check 'while one is open, all see that one' python3 - "$r" \
	"$work/right" <<'END'
import os, sys
name, right = sys.argv[1:]
def seen(st):
    return st.st_ino, st.st_size, st.st_mtime_ns, st.st_nlink
fd = os.open(name, os.O_RDONLY)
was = os.read(fd, 1 << 20)
before = seen(os.fstat(fd))
open(name + ".tmp", "wb").write(open(right, "rb").read())
os.rename(name + ".tmp", name)
assert seen(os.fstat(fd)) == seen(os.stat(name)) == before
assert open(name, "rb").read() == os.pread(fd, 1 << 20, 0) == was
os.close(fd)
assert seen(os.stat(name)) != before
assert open(name, "rb").read() != was
END
rm -r "$work/mean" "$work/max"
need cp "$work/right" "$r.tmp"
need mv "$r.tmp" "$r"

# ---- with its block ----

need rm "$one"
is_absent "$r"
no_orphans 'unlinked'
check 'evicted' "$ucm" evict -m "$mnt" -s one "$(basename "$two" .bin)"
is_absent "${two%.bin}.repr"
no_orphans 'evicted'
left=$((count - 2))
all_there 'the others' $left
counts_right "$s"

# from one directory to the other, and down a tier
check 'a directory is drained' "$ucm" drain -m "$mnt" "$work/a"
same 'nothing is left there' 0 "$(find "$work/a/spaces" -type f | wc -l)"
all_there 'drained' $left
no_orphans 'drained'
counts_right "$s"
check 'the other one is' "$ucm" drain -m "$mnt" "$work/b"
same 'nothing is left there' 0 "$(find "$work/b/spaces" -type f | wc -l)"
same 'all of it lies below' "$left $left" "$(blocks_in "$work/slow/spaces") \
$(reprs_in "$work/slow/spaces")"
all_there 'below' $left
need "$ucm" drain -m "$mnt" --stop "$work/a"
need "$ucm" drain -m "$mnt" --stop "$work/b"
check 'warmed' "$ucm" warm -m "$mnt" -s one --all
check 'they come up' wait_until sh -c \
	"[ \"\$(find '$work/a' '$work/b' -name '*.bin' | wc -l)\" = $left ]"
same 'with their files' $left "$(($(reprs_in "$work/a/spaces") + \
$(reprs_in "$work/b/spaces")))"
all_there 'above' $left
counts_right "$s"

# ---- over remounts and kills ----

do_umount
need do_mount "$source"
all_there 'remounted' $left
counts_right "$s"
kill_daemon
need do_mount "$source"
check 'the scan ends' wait_until index_is_complete
all_there 'after a kill' $left
counts_right "$s"

# what is wrong in the directories, after a kill
third=$(sed -n 3p "$work/paths")
fourth=$(sed -n 4p "$work/paths")
for dir in a b slow; do
	f=$work/$dir/spaces/one/${third%.bin}.repr
	[ ! -f "$f" ] || flip "$f" 5000
	f=$work/$dir/spaces/one/$fourth
	rm -f "$f"
done
fifth=$(sed -n 5p "$work/paths")
lower=$work/slow/spaces/one/${fifth%.bin}.repr
need cp "$lower" "$work/fifth"
need flip "$lower" 5000
mkdir -p "$work/slow/spaces/one/00"
cp "$work/right" "$work/slow/spaces/one/00/${r##*/}"
kill_daemon
need do_mount "$source"
check 'the scan ends' wait_until index_is_complete
is_absent "$s/${third%.bin}.repr"
logged 'layer 1: checksum differs: quarantined'
hash=$(basename "$third" .bin)
check 'the quarantine has it' sh -c \
	"'$ucm' quarantine list '$mnt' $hash >'$work/said'"
check 'as what it is' grep -q "one *$hash  representations" "$work/said"
check 'it is not restored' sh -c \
	"! '$ucm' quarantine restore '$mnt' $hash >'$work/said' 2>&1"
check 'as it can be made again' grep -q 'which can be made again' "$work/said"
is_absent "$s/${fourth%.bin}.repr"
logged 'which is not there: removed'
check 'of two places, the wrong one gets the right one again' \
	cmp "$lower" "$work/fifth"
rm "$work/slow/spaces/one/00/${r##*/}"
no_orphans 'after the scan'
same 'the others are there' $((left - 2)) "$(reprs_in "$s")"
check 'they can be made again' "$ucm" sparse repr build --mount "$mnt" -s one --all
all_there 'again' $((left - 1))
counts_right "$s"

# a file that went behind our back
f=$(find "$work/a" "$work/b" "$work/slow" -name "${third##*/}")
for f in $f; do
	rm "${f%.bin}.repr"
done
is_absent "$s/${third%.bin}.repr"
same 'it counts no more' $(((left - 1) * 2 * 8192 - 8192)) "$(used "$s")"
counts_right "$s"

# ---- kept to a quota, and gone with the space ----

need setfattr -n user.ucmfs.quota -v $((10 * 16384)) "$s"
check 'a quota is reached' wait_until sh -c \
	"[ \"\$(getfattr --only-values -n user.ucmfs.used '$s')\" -le 163840 ]"
check 'blocks have gone, with their files' [ "$(blocks_in "$s")" -le 11 ]
no_orphans 'evicted for a quota'
counts_right "$s"
find "$s" -name '*.bin' -delete
no_orphans 'all removed'
need rmdir "$s"
same 'and nothing is left' 0 "$(find "$work" -name '*.repr' | wc -l)"
do_umount
