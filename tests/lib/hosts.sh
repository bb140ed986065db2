# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# hosts.sh - daemons that each take themselves to be on a host of their own.
# mount.sh is read before; $dir is the directory that they share.

unshare -u true 2>/dev/null || skip 'needs unshare -u'
dir=$work/tier

# as-host NAME command...: with that name of the machine
cat >"$work/as-host" <<'END_OF_PROGRAM'
#!/bin/sh
hostname "$1" && shift && exec "$@"
END_OF_PROGRAM
chmod 755 "$work/as-host"

# mount_host NAME [options] SOURCE: at $work/NAME
mount_host() {
	mnt=$work/$1
	mkdir -p "$mnt"
	ucmfs_wrapper="unshare -u $work/as-host $1"
	shift
	need do_mount "$@"
	ucmfs_wrapper=
}

# on NAME: what mount.sh's functions look at from now on
on() {
	mnt=$work/$1
	log=$work/log.$1
}

# unmount_hosts NAME...
unmount_hosts() {
	for host; do
		on "$host"
		do_umount
	done
	mnt=$work/mnt
}

hearts() {
	find "$dir/.ucmfs/hosts" -type f | wc -l
}

has_hearts() {
	[ "$(hearts)" = "$1" ]
}

# within_s SECONDS command...
within_s() {
	within_left=$(($1 * 10))
	shift
	until "$@" >/dev/null 2>&1; do
		within_left=$((within_left - 1))
		[ $within_left -gt 0 ] || return 1
		sleep 0.1
	done
}
