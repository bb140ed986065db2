#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A folder of files/ that has a quota keeps to it: the oldest files go, by use
# or by age, and none that is open, young or outside. The mark survives.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr setfattr python3

mkdir "$work/a" "$work/slow"
source=fast=$work/a:slow=$work/slow
files=$mnt/files

# make FOLDER FIRST LAST: files of 64 KiB, f.FIRST to f.LAST; the first fails
make() {
	python3 - "$@" <<'END'
import os, sys
folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for i in range(first, last + 1):
    path = f"{folder}/f.{i:04d}"
    with open(path + ".tmp", "wb") as file:
        file.write(b"%08d" % i * 8192)
    os.rename(path + ".tmp", path)
END
}

# old FOLDER FIRST LAST: f.FIRST is the oldest, and all are from the past
old() {
	python3 - "$@" <<'END'
import os, sys
folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for i in range(first, last + 1):
    os.utime(f"{folder}/f.{i:04d}", (1600000000 + i, 1600000000 + i))
END
}

# the numbers of the files that are there
there() {
	ls "$1" | sed -n 's/^f\.0*//p' | tr '\n' ' '
}

# there_are FOLDER 'NUMBERS '
there_are() {
	[ "$(there "$1")" = "$2" ]
}

# mark FOLDER QUOTA ORDER GRACE
mark() {
	need setfattr -n user.ucmfs.quota -v "$2" "$1"
	need setfattr -n user.ucmfs.order -v "$3" "$1"
	need setfattr -n user.ucmfs.grace -v "$4" "$1"
}

used() {
	xattr used "$1"
}

# whether what it takes is within a quota, for the mount
is_within() {
	[ "$(used "$1")" -le "$2" ]
}

# what its files take on disk
on_disk() {
	find "$work/a/$1" -type f -printf '%b\n' | awk '{ sum += $1 } END { print sum * 512 }'
}

is_settled() {
	[ "$(used "$files/$1")" = "$(on_disk "files/$1")" ]
}

# whole FOLDER: all files in it have their right bytes
whole() {
	python3 - "$@" <<'END'
import os, sys
for name in os.listdir(sys.argv[1]):
    if name.startswith("f."):
        text = open(f"{sys.argv[1]}/{name}", "rb").read()
        assert text == b"%08d" % int(name[2:6]) * 8192, name
END
}

fs_tier() {
	python3 "$top_srcdir/tests/lib/fs_tier.py" "$@"
}

# serve OPTIONS
serve() {
	rm -rf "$work"/a/files/*
	need do_mount -o "$1" "$source"
	echo "-- $1: $(grep -o '"passthrough": [a-z]*' "$mnt/.ucmfs/stats.json")"
	mkdir "$files/kv" "$files/kv/deep" "$files/other"
	make "$files/other" 1 10
	mark "$files/kv" 1M fifo 0
	check 'twice the quota is written, and no write fails' \
		make "$files/kv" 1 32
	check 'and it is kept' wait_until is_within "$files/kv" 1048576
	check 'the count is right' wait_until is_settled kv
	check 'the last file is there' test -e "$files/kv/f.0032"
	check 'and the first is not' is_absent "$files/kv/f.0001"
	check 'what is there has the right bytes' whole "$files/kv"
	same 'nothing else has gone' 10 "$(find "$files/other" -type f | wc -l)"
	check 'files were counted' test "$(stat_of files_evicted)" -ge 15
	check 'bytes, too' test "$(stat_of bytes_evicted)" -ge 900000
	mkdir "$files/vllm"
	# twice what 16 threads can have open at a time: that cannot go
	mark "$files/vllm" 64M lru 0
	check 'writers and readers at once, of chunks that come and go' \
		fs_tier bounded "$files/vllm" 8 64
	check 'which are within the quota' \
		wait_until is_within "$files/vllm" 67108864
	# a file that changes while it is counted is right at the next count
	need setfattr -n user.ucmfs.quota -v 64M "$files/vllm"
	check 'and counted' wait_until is_settled vllm
	same 'nobody was refused a file' 0 "$(metric ucmfs_folder_files_refused_total |
		sort -u)"
	do_umount
}

serve passthrough=auto
serve passthrough=off

# the oldest go: by their last use, or as they were written
need do_mount -o passthrough=auto "$source"
for order in lru fifo; do
	mkdir "$files/$order"
	make "$files/$order" 1 8
	old "$files/$order" 1 8
	cat "$files/$order/f.0001" >/dev/null
	mark "$files/$order" 288K $order 0
done
check 'lru: what was read stays' \
	wait_until there_are "$files/lru" '1 6 7 8 '
check 'fifo: what was written first goes, read or not' \
	wait_until there_are "$files/fifo" '5 6 7 8 '
check 'the kernel forgets its name' wait_until is_absent "$files/lru/f.0002"
refused 'No such file or directory' 'it cannot be opened' \
	cat "$files/lru/f.0002"
check 'and its name is free' make "$files/lru" 2 2

# attributes
same 'quota' 294912 "$(xattr quota "$files/lru")"
same 'order' lru "$(xattr order "$files/lru")"
same 'grace' 0 "$(xattr grace "$files/lru")"
refused 'No such attribute' 'a folder without a mark has none' \
	getfattr -n user.ucmfs.quota "$files"
refused 'Invalid argument' 'a wrong quota is refused' \
	setfattr -n user.ucmfs.quota -v 12Q "$files/lru"
logged 'files/lru: user.ucmfs.quota: "12Q" is not what is wanted'
refused 'Invalid argument' 'and an order' \
	setfattr -n user.ucmfs.order -v random "$files/lru"
logged 'files/lru: user.ucmfs.order: "random" is not what is wanted: lru or fifo'
refused 'Invalid argument' 'and a grace time' \
	setfattr -n user.ucmfs.grace -v soon "$files/lru"
logged 'files/lru: user.ucmfs.grace: "soon"'
mkdir "$files/lru/deep"
for path in "$files/lru/deep" "$files"; do
	refused 'Operation not supported' 'only folders right in files/ have one' \
		setfattr -n user.ucmfs.quota -v 1G "$path"
done
logged 'files/lru/deep: user.ucmfs.quota: only folders right in files/ have quotas'
rmdir "$files/lru/deep"
refused 'Not a directory' 'a file has no quota' \
	setfattr -n user.ucmfs.quota -v 1G "$files/lru/f.0001"
need setfattr -x user.ucmfs.grace "$files/lru"
same 'without a grace time it has the default' 10 "$(xattr grace "$files/lru")"
same 'df shows the quota' 288 \
	"$(df --output=size -B 1K "$files/lru" | tail -n 1 | tr -d ' ')"
check 'and not outside' test 288 -lt \
	"$(df --output=size -B 1K "$files" | tail -n 1)"
number=$(python3 -c 'import json, sys
print(*[quota["number"] for quota in json.load(open(sys.argv[1]))["quotas"]
        if quota["folder"] == "files/lru"])' "$mnt/.ucmfs/stats.json")
metric_is 294912 ucmfs_folder_quota_bytes "folder=\"$number\""

# a file that is open stays, and its reader has it to the end
mkdir "$files/open"
make "$files/open" 1 4
old "$files/open" 1 4
exec 5<"$files/open/f.0001"
mark "$files/open" 100K lru 0
check 'all go but the one that is open' wait_until there_are "$files/open" '1 '
check 'which can be read' sh -c 'cmp - "$1" <&5' - "$files/open/f.0001"
exec 5<&-
mark "$files/open" 10K lru 0
check 'when it is closed it goes' wait_until there_are "$files/open" ''

# young files stay; when nothing may go, no file is made
mkdir "$files/young"
make "$files/young" 1 4
mark "$files/young" 256K lru 3600
refused 'Disk quota exceeded' 'a file that would be over the quota' \
	touch "$files/young/x"
told=$(grep -c 'files/young: its quota of 262144 bytes is used up' "$log")
check 'which the log explains' test "$told" -ge 1
refused 'Disk quota exceeded' 'and another' touch "$files/young/y"
same 'which is not told again' "$told" \
	"$(grep -c 'files/young: its quota of 262144 bytes is used up' "$log")"
same 'the young ones are there' '1 2 3 4 ' "$(there "$files/young")"
check 'a file that is there can be written' \
	dd if=/dev/zero of="$files/young/f.0001" bs=4K count=1 conv=notrunc
rm "$files/young/f.0004"
check 'after a removal there is room' touch "$files/young/x"
check 'and elsewhere always' touch "$files/free"

# marks survive a restart, a kill and a rename
mv "$files/lru" "$files/renamed"
need setfattr -n user.ucmfs.grace -v 0 "$files/renamed"
do_umount
need do_mount "$source"
same 'the quota is there after a restart' 294912 "$(xattr quota "$files/renamed")"
same 'the order of another' fifo "$(xattr order "$files/fifo")"
check 'what it takes is counted' wait_until is_settled fifo
need setfattr -n user.ucmfs.quota -v 160K "$files/fifo"
kill_daemon
need do_mount "$source"
same 'after a kill as well' 163840 "$(xattr quota "$files/fifo")"
check 'it is kept' wait_until there_are "$files/fifo" '7 8 '
make "$files/renamed" 20 40
check 'and so is the renamed one' wait_until is_within "$files/renamed" 294912
rm -r "$files/fifo"
mkdir "$files/fifo"
refused 'No such attribute' 'a new folder of an old name has no mark' \
	getfattr -n user.ucmfs.quota "$files/fifo"
need setfattr -x user.ucmfs.quota "$files/renamed"
check 'without a quota all stay' make "$files/renamed" 50 70
same 'each of them' 21 "$(find "$files/renamed" -name 'f.00[567]*' | wc -l)"
do_umount
need do_mount "$source"
refused 'No such attribute' 'and there is none after a restart' \
	getfattr -n user.ucmfs.quota "$files/renamed"
do_umount
