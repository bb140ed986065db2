#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# mount(8) and an fstab line mount through the installed helper. In a mount
# namespace, where the installation lies over /usr; the machine is left alone.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns fuse make findmnt namespace

lay_over() {
	mount -t overlay -o "lowerdir=$1:$2" overlay "$2"
}

daemon_of() {
	for process in /proc/[0-9]*; do
		tr '\0' ' ' <"$process/cmdline" 2>/dev/null |
			grep -q "^[^ ]*ucmfs .* *$mnt" && basename "$process"
	done
}

has_no_daemon() {
	[ -z "$(daemon_of)" ]
}

# mounted_by 'how': serves, and ends with umount(8)
mounted_by() {
	same "$1: the type is" fuse.ucmfs "$(findmnt -n -o FSTYPE "$mnt")"
	same "$1: the source is" "$source" "$(findmnt -n -o SOURCE "$mnt")"
	check "$1: it takes blocks" mk --existing-ok "$mnt/blocks"
	check "$1: it serves blocks" verify "$mnt/blocks"
	for pid in $(daemon_of); do
		keep_pid "$pid"
	done
	check "$1: umount" umount "$mnt"
	check "$1: the daemon ends" wait_until has_no_daemon
	pids=
	check "$1: cleanly" grep -qx clean=1 "$work/a/.ucmfs/state"
}

mkdir "$work/a" "$work/b" "$work/c"
source=$work/a,$work/b:$work/c
MAKEFLAGS= MAKELEVEL= make -s -C "$top_builddir" install \
	DESTDIR="$work/root" >"$work/install.log" 2>&1 || {
	tail -n 5 "$work/install.log"
	skip 'make install does not work here'
}
helper=$(find "$work/root" -name mount.fuse.ucmfs)
[ -n "$helper" ] || die 'no mount.fuse.ucmfs was installed'
program=$(find "$work/root" -path '*bin/ucmfs')
for file in $helper $program; do
	dir=$(cd "$(dirname "${file#"$work/root"}")" && pwd -P)
	lay_over "$(dirname "$file")" "$dir" || skip "no overlay over $dir"
done

check 'mount -t fuse.ucmfs' mount -t fuse.ucmfs "$source" "$mnt" \
	-o rw,nofail,_netdev,x-systemd.automount,allow_other,promote=7
check 'options arrive' grep -qx 'promote: 7' "$mnt/.ucmfs/config.yaml"
mounted_by 'mount -t fuse.ucmfs'

echo "$source $mnt fuse.ucmfs defaults,noauto,nofail,_netdev,x-y=z,durability=data 0 0" \
	>"$work/fstab"
touch /etc/fstab 2>/dev/null
need mount --bind "$work/fstab" /etc/fstab
check 'mount of an fstab line' mount "$mnt"
check 'options arrive' grep -qx 'durability: data' "$mnt/.ucmfs/config.yaml"
mounted_by 'fstab'

refused 'threads is a setting of ucmfs.conf(5) now' \
	'an option that has moved says where to' \
	mount -t fuse.ucmfs "$source" "$mnt" -o threads=2
refused "$work/nowhere" 'a mount that fails says why' \
	mount -t fuse.ucmfs "$work/nowhere" "$mnt"
check 'and leaves nothing mounted' sh -c '! findmnt "$1"' sh "$mnt"
