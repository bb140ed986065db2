#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A disk that takes writes and loses them: cp(1) ends well, and the kernel finds
# later that pages cannot be written. The disk is a file in a tmpfs that is full.
# No wrong byte is served; what is wrong is moved aside; new blocks go to the
# other tier until a sync succeeds; and all that is told.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test fuse namespace getfattr losetup python3
[ -w /proc/sys/vm/drop_caches ] || skip 'the page cache cannot be dropped here'

# It goes when its last user does.
on_exit() {
	[ -z "$log_device" ] || losetup -d "$log_device"
}
log_device=

# Data only are to be lost: a file system that cannot write its log or its
# tables ends itself, which every write sees at once. So their place is taken
# before, and the log is elsewhere, or there is none.
make_ext4() {
	mkfs_flags='-O ^has_journal -E nodiscard,lazy_itable_init=1'
	need dd if=/dev/zero of="$work/disk/fs.image" bs=1M count=12 status=none
	make_fs ext4 512M "$work/disk/fs" noinit_itable
}

make_xfs() {
	need dd if=/dev/zero of="$work/log" bs=1M count=80 status=none
	log_device=$(losetup --find --show "$work/log") || die losetup
	mkfs_flags="-K -l logdev=$log_device,size=76m"
	make_fs xfs 512M "$work/disk/fs" "logdev=$log_device"
}

checkpoint() {
	python3 "$top_srcdir/tests/lib/control.py" "$mnt" checkpoint
}

# 2 MiB each
blocks() {
	"$mkblocks" --quiet --layers 32 --heads 8 --dim 128 --tokens 16 "$@"
}

paths() {
	blocks --list "$@"
}

tier_state_is() {
	[ "$(metric ucmfs_tier_directories 'tier="fast"' "state=\"$1\"")" = 1 ]
}

tier_of() {
	xattr tier "$mnt/blocks/$(paths --start "$1" --count 1)"
}

# no_wrong_byte FIRST COUNT: each is served as it is, or not there
no_wrong_byte() {
	seen=0
	for path in $(paths --start "$1" --count "$2"); do
		cat "$mnt/blocks/$path" >"$work/read" 2>/dev/null || continue
		cmp "$work/src/$path" "$work/read" || return 1
		seen=$((seen + 1))
	done
	echo "$seen of $2 are served"
}

try() {
	echo "---- $1"
	need mkdir "$work/disk"
	need mount -t tmpfs -o size=64M tmpfs "$work/disk"
	"make_$1"
	for path in $(paths --count 14); do
		mkdir -p "$work/disk/fs/blocks/${path%/*}"
	done
	# only when it is asked for
	need do_mount -c checkpoint=86400 "fast=$work/disk/fs:slow=$work/slow"
	need blocks --count 4 "$mnt/blocks"
	need checkpoint
	dd if=/dev/zero of="$work/disk/fill" bs=64k status=none 2>/dev/null

	for path in $(paths --start 4 --count 8); do
		check 'cp(1) ends well' cp "$work/src/$path" "$mnt/blocks/$path"
	done
	same 'the first lie on that disk' fast "$(tier_of 4)"
	same 'writes were lost' EIO "$(checkpoint 2>&1)"
	check 'that is noted' tier_state_is sync_failed
	logged "$work/disk/fs: sync: No space left on device: writes may be lost"
	"$ucm" status --mount "$mnt" >"$work/status"
	check 'ucm status tells' \
		grep -q 'disk/fs: a sync failed' "$work/status"
	# the page cache may still have them
	check 'no wrong byte is served' no_wrong_byte 4 8
	echo 3 >/proc/sys/vm/drop_caches
	check 'nor from the disk' no_wrong_byte 4 8
	check 'what was lost is moved aside' \
		test "$(stat_of quarantined)" -gt 0
	check 'and nothing that was on disk before' verify_old
	same 'nothing is in doubt any more' 0 "$(stat_of in_doubt)"

	need blocks --start 12 --count 1 "$mnt/blocks"
	same 'a new block goes elsewhere' slow "$(tier_of 12)"
	check 'and is served' no_wrong_byte 12 1
	check 'still no place for new ones' tier_state_is sync_failed

	need mount -o remount,size=600M "$work/disk"
	# the first may tell of what failed since
	check 'with room a sync succeeds' wait_until checkpoint
	check 'and it is good again' tier_state_is good
	logged "$work/disk/fs: a sync has succeeded"
	need blocks --start 13 --count 1 "$mnt/blocks"
	same 'and takes blocks' fast "$(tier_of 13)"
	do_umount
	check 'it is left clean' grep -q clean=1 "$work/disk/fs/.ucmfs/state"
	need do_mount "fast=$work/disk/fs:slow=$work/slow"
	need wait_until index_is_complete
	echo 3 >/proc/sys/vm/drop_caches
	check 'no wrong byte after that' no_wrong_byte 4 10
	do_umount
	# the kernel closes what it held for the mount a moment later
	need wait_until umount "$work/disk/fs"
	need umount "$work/disk"
	rm -r "$work/disk" "$work/slow"
	mkdir "$work/slow"
}

verify_old() {
	blocks --verify --count 4 "$mnt/blocks"
}

mkdir "$work/src" "$work/slow"
need blocks --count 14 "$work/src"
try ext4
try xfs
