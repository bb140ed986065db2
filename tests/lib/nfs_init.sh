#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# nfs_init.sh - the first process of a user-mode kernel (nfs.sh): a file server and two
# clients of it on one machine, which have caches of their own and so are two hosts. Then
# the program of the kernel's command line runs, and its status is written.
#
# The machine's root is here, read-only; $nfs_tree has the packages.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
bin=/mnt/tree/bin/busybox
export LD_LIBRARY_PATH=/mnt/tree/lib/x86_64-linux-gnu:/mnt/tree/usr/lib/x86_64-linux-gnu

# module NAME: with those that it needs
module() {
	modules=$nfs_tree/usr/lib/uml/modules/$(uname -r)
	for file in $(sed -n "s|^\(.*/$1.ko\): *\(.*\)|\2 \1|p" "$modules/modules.dep" |
		tr ' ' '\n' | sed '/^$/d' | awk -v self="$1" '
			{ all[NR] = $0 }
			END {
				for (i = NR - 1; i > 0; i--)
					print all[i]
				print all[NR]
			}'); do
		"$bin" insmod "$modules/$file" 2>/dev/null
	done
}

folders() {
	mount -t proc proc /proc
	mount -t sysfs sys /sys
	mount -t devtmpfs dev /dev
	mount -t tmpfs none /mnt
	mkdir /mnt/tree
	mount --bind "$nfs_tree" /mnt/tree
	nfs_tree=/mnt/tree
	for folder in /run /tmp /var/lib /srv /media; do
		mount -t tmpfs none $folder
	done
	mkdir -p /tmp/etc /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs
	for file in passwd group hosts nsswitch.conf ld.so.cache ld.so.conf.d services \
		protocols ssl machine-id fuse.conf alternatives; do
		cp -a /etc/$file /tmp/etc 2>/dev/null
	done
	cp "$nfs_tree/etc/netconfig" /tmp/etc
	ln -s /proc/mounts /tmp/etc/mtab
	mount --bind /tmp/etc /etc
	mkdir -p "$nfs_out"
	mount -t hostfs -o "$nfs_out" none "$nfs_out"
}

# On loopback alone. Clients that reclaim are not waited for: there are none.
server() {
	"$bin" ifconfig lo 127.0.0.1 up
	hostname server
	module nfsd
	module nfsv4
	module fuse
	mount -t nfsd nfsd /proc/fs/nfsd
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	"$nfs_tree/usr/sbin/exportfs" -i \
		-o rw,fsid=0,no_root_squash,no_subtree_check,insecure 127.0.0.1:/srv
	"$nfs_tree/usr/sbin/rpc.mountd" --no-nfs-version 3 2>/dev/null
	"$nfs_tree/usr/sbin/rpc.nfsd" -N 3 -U 4
	echo Y >/proc/fs/nfsd/v4_end_grace
}

clients() {
	for name in a b; do
		mkdir /media/$name
		mount -i -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1,nosharecache,softerr \
			127.0.0.1:/ /media/$name || return
	done
}

folders >/dev/null
server
clients
cd "$nfs_out" && sh "$nfs_out/run" >"$nfs_out/output" 2>&1
echo $? >"$nfs_out/status"
"$bin" poweroff -f
