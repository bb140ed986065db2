#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A memory tier (mem@SIZE): its blocks are there again after a restart and after a
# crash of the daemon, another store never finds them, its size holds, what others
# plant in /dev/shm is not used, and files/ does not lie there.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test namespace fuse setpriv

# our own, so that nothing of others is in the way and nothing stays
need mount -t tmpfs -o size=32m,mode=1777 tmpfs /dev/shm
own=/dev/shm/ucmfs-0

# the one place of this user that begins with $1
place() {
	for found in "$own/$1"-*; do
		echo "$found"
	done
}

make_src --count 18
last=$(nth_path 17)
later=$(nth_path 18)
stay=write=mem:stay
need do_mount -o $stay "mem@8M:$work/tier"
mem=$(place mem)
check 'its place is the daemon'\''s alone' \
	test "$(stat -c %a:%u "$own" "$mem" | sort -u)" = 700:0
check 'blocks are written' mk "$mnt/blocks"
same 'all lie in memory' 16 "$(blocks_in "$mem/blocks")"
same 'none on disk' 0 "$(blocks_in "$work/tier/blocks")"
check 'status calls it memory' sh -c "$ucm status -m $mnt | grep -qF '$mem, memory'"
check 'ucm doctor looks at it' sh -c "$ucm doctor $mnt | grep -q 'OK *$mem: mode 0700'"
check 'so does stats.json' grep -q '"volatile": true' "$mnt/.ucmfs/stats.json"
check 'the settings name its size' grep -q "'mem@8M'" "$mnt/.ucmfs/config.yaml"
cp "$mnt/.ucmfs/config.yaml" "$work/settings.yaml"
need sh -c "echo text >'$mnt/files/text'"
check 'a file of files/ is not in memory' test -f "$work/tier/files/text"
do_umount

# a restart adopts it
need do_mount -o $stay "mem@8M:$work/tier"
check 'all blocks are there after a restart' verify "$mnt/blocks"
same 'nothing was in doubt' 0 "$(stat_of doubts_settled)"
check 'one more' sh -c "cp $work/src/$last $mnt/blocks/$last"
crash_daemon
umount -l "$mnt"
need do_mount -o "config=$work/settings.yaml" none
check 'and after a crash, by a file of settings' verify --count 17 "$mnt/blocks"
check 'the file in files/ as well' grep -qx text "$mnt/files/text"
do_umount

# the sync of a memory tier is nothing
need do_mount -o durability=full,$stay "mem@8M:$work/tier"
check 'a sync' sync -f "$mnt/files"
check 'a block more, durable' cp "$work/src/$later" "$mnt/blocks/$later"
do_umount

# other stores
mkdir "$work/other"
need do_mount "mem@8M:$work/other"
same 'another store has none of it' 0 "$(blocks_in "$mnt/blocks")"
check 'it has memory of its own' test "$(ls -d "$own"/mem-* | wc -l)" = 2
logged "$mem: memory that no store uses"
do_umount
need do_mount "fast=mem@8M:$work/tier"
same 'nor has a tier of another name' 0 "$(blocks_in "$mnt/blocks")"
do_umount
check 'ucm doctor tells what is left' \
	sh -c "$ucm doctor $work/tier | grep -q 'WARN $mem: a memory tier that no store uses'"
rm -rf "$own"/mem-* "$own"/fast-*

# after a restart of the machine it is empty
need do_mount -o $stay "mem@8M:$work/tier"
same 'gone memory is an empty tier' 0 "$(blocks_in "$mnt/blocks")"
same 'nothing else is said' 0 "$(grep -c 'not closed cleanly' "$log")"
do_umount

# by itself it is written back
all_below() {
	[ "$(blocks_in "$work/tier/blocks")" = 16 ]
}
need do_mount "mem@8M:$work/tier"
check 'blocks are written' mk "$mnt/blocks"
check 'and copied below' wait_until all_below
same 'they lie in memory, too' 16 "$(blocks_in "$(place mem)/blocks")"
do_umount
rm -rf "$own"/mem-*
need do_mount "mem@8M:$work/tier"
check 'so that they are there when the machine restarts' verify "$mnt/blocks"
do_umount
rm -rf "$work/tier/blocks"

# memory alone belongs to the mount point
need do_mount mem@8M
check 'blocks in nothing but memory' mk "$mnt/blocks"
crash_daemon
need do_mount mem@8M
check 'are found again over a dead mount' verify "$mnt/blocks"
need sh -c "echo text >'$mnt/files/text'"
check 'files/ lies there, too' grep -qx text "$mnt/files/text"
check 'ucm doctor finds it' sh -c "$ucm doctor $mnt | grep -q 'OK *$own/mem-.*: mode 0700'"
do_umount

# sizes
rm -rf "${own:?}"/*
need do_mount -o $stay,policy=none "mem@64K:$work/tier"
check 'more than its size' mk "$mnt/blocks"
used=$(du -s --block-size=1 "$(place mem)/blocks" | cut -f 1)
check "its size holds ($used)" test \
	"$(find "$(place mem)/blocks" -type f | wc -l)" = 8
check 'the rest went below' test "$(blocks_in "$work/tier/blocks")" = 8
do_umount
refused 'is more than /dev/shm has' 'what can never fit' do_mount "mem@64M:$work/tier"
refused 'status 2' 'which is a wrong setting' do_mount "mem@64M:$work/tier"
refused 'not a size such as mem@8G' 'no size' do_mount "mem@big:$work/tier"
refused 'memory is a separate tier' 'memory beside a directory' \
	do_mount "mem@8M,$work/tier"

# what others plant
refuses() {
	refused "$1" "refused: $2" do_mount "mem@8M:$work/tier"
}
mem=$(place mem)
rm -rf "${own:?}"
mkdir -m 700 "$work/elsewhere"
ln -s "$work/elsewhere" "$own"
refuses 'it is no directory' 'a link instead of the folder'
same 'nothing was made there' 0 "$(ls -A "$work/elsewhere" | wc -l)"
rm "$own"
mkdir -m 700 "$own"
chown 65534 "$own"
refuses "it is another user's" "another user's folder"
chown 0 "$own"
chmod 755 "$own"
refuses 'others may enter it' 'a folder that others may enter'
chmod 700 "$own"
ln -s "$work/elsewhere" "$mem"
refuses 'it is no directory' 'a link instead of the place'
same 'nothing was made there, either' 0 "$(ls -A "$work/elsewhere" | wc -l)"
rm "$mem"
mkdir -m 700 "$mem"
chown 65534 "$mem"
refuses "it is another user's" "another user's place"
rmdir "$mem"
chmod 777 /dev/shm
refuses 'no sticky bit' 'where anyone may rename it'
chmod 1777 /dev/shm
touch "$mem"
refuses 'it is no directory' 'a file'
rm "$mem"

# a user without privileges has a folder of his own
copy_ucmfs "$work/ucmfs"
if others_can 'an unprivileged user' test -x "$work/ucmfs"; then
	ucmfs=$work/ucmfs
	mkdir "$work/his"
	chown 65534:65534 "$work/his" "$mnt"
	ucmfs_wrapper='setpriv --reuid=65534 --regid=65534 --clear-groups'
	# he cannot mount here, but his store is opened before that
	as_nobody timeout 20 "$ucmfs" -f "mem@8M:$work/his" "$mnt" >"$work/his.log" 2>&1 &
	his=$!
	keep_pid $his
	check 'his memory' wait_until test -d /dev/shm/ucmfs-65534
	check 'is his alone' wait_until sh -c \
		"[ \"\$(stat -c %a:%u /dev/shm/ucmfs-65534/mem-*)\" = 700:65534 ]"
	kill -TERM $his 2>/dev/null
	wait $his 2>/dev/null
	forget_pid $his
	! is_mounted || umount "$mnt"
fi
