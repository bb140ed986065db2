#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A loader on a mount opens blocks in the directories that have them, where it may;
# and in the mount where it may not, or where a block is not what the index says.
# What it loads is right in any case, and the daemon learns of the opens.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test namespace fuse client setpriv

# opened 'what' OPENS LOCATED: since the client was started
opened() {
	ask opens
	same "$1" "= opens $2 located $3" "$answer"
}

# block NUMBER: its path below a directory, in $path
block() {
	ask path "$1"
	path=blocks/${answer#= }
}

# uses_are N PATH
uses_are() {
	[ "$(getfattr --only-values -n user.ucmfs.uses "$2")" = "$1" ]
}

# One block after another, from 64 on, until one of them is located.
located_again() {
	located_next=64
	ask opens
	located_before=${answer##* }
	until [ "${answer##* }" -gt "$located_before" ]; do
		[ $located_next -lt 256 ] || return 1
		sleep 0.01
		ask load $located_next 1
		ask opens
		located_next=$((located_next + 1))
	done
}

mkdir "$work/other"
need do_mount -o allow_other "all=$work/tier,$work/other"
start_client --in-mount mount "$mnt"
block 40
file=$path
ask save 0 256
answers 'blocks are saved' 256 0 0 0 0
ask load 0 8
answers 'asked to, all are opened in the mount' 8 0 0 0 0
opened 'and none beside it' 8 0
end_client

for io in auto threads; do
	start_client --io $io mount "$mnt"
	ask load 0 64
	answers "$io: all are loaded" 64 0 0 0 0
	opened "$io: from both directories" 64 64
	end_client
done
check 'the daemon counts these as opens' wait_until uses_are 2 "$mnt/$file"

# ---- where a block is not what the index says ----

start_client mount "$mnt"
block 0
rm -f "$work/tier/$path" "$work/other/$path"
block 1
for dir in tier other; do
	[ ! -f "$work/$dir/$path" ] || truncate -s 4096 "$work/$dir/$path"
done
ask load 0 8
answers 'one that is gone is absent, and so is one cut off' 6 0 0 2 0
opened 'the mount was asked for these' 8 6

# one moves while it can be located: the index follows
need "$ucm" drain -m "$mnt" "$work/other" >"$work/said"
same 'all have left a directory' 0 "$(blocks_in "$work/other/blocks")"
ask load 8 56
answers 'blocks that were moved are loaded' 56 0 0 0 0
end_client
start_client mount "$mnt"
ask load 8 56
opened 'and located where they are, after a first look by the daemon' 56 56
need "$ucm" drain -m "$mnt" --stop "$work/other" >"$work/said"
end_client

# ---- where directories cannot be opened ----

cp "$load_client" "$work/client" 2>/dev/null
[ ! -x "$top_builddir/tests/integration/.libs/load_client" ] || {
	cp "$top_builddir/tests/integration/.libs/load_client" "$work/client"
	LD_LIBRARY_PATH=$work/lib
	mkdir "$work/lib"
	cp "$top_builddir"/.libs/libucm.so* "$work/lib/"
	export LD_LIBRARY_PATH
}
chmod 755 "$work/client"
printf '#!/bin/sh\nexec setpriv --reuid 1234 --regid 1234 --clear-groups %s "$@"\n' \
	"$work/client" >"$work/as_other"
chmod 755 "$work/as_other"
own_client=$load_client

load_client=$work/as_other
chmod 700 "$work/tier" "$work/other"
start_client mount "$mnt"
ask load 8 8
answers 'another user loads through the mount' 8 0 0 0 0
opened 'as he may not enter the directories' 8 0
end_client
chmod 755 "$work/tier" "$work/other"
chmod 700 "$work/tier/blocks" "$work/other/blocks"
start_client mount "$mnt"
ask load 8 8
answers 'nor a folder in them' 8 0 0 0 0
opened 'he loads through the mount' 8 0
end_client
chmod 755 "$work/tier/blocks" "$work/other/blocks"
load_client=$own_client

# what lies under the same path elsewhere is another directory, a copy even
mkdir "$work/copy"
cp -a "$work/tier/." "$work/copy"
find "$work/copy/blocks" -name '*.bin' -exec sh -c \
	'for file; do printf wrong 1<>"$file"; done' sh {} +
printf '#!/bin/sh\nexec unshare -m sh -c %s sh "$@"\n' \
	"'mount --bind $work/copy $work/tier && exec $own_client \"\$@\"'" \
	>"$work/contained"
chmod 755 "$work/contained"
load_client=$work/contained
start_client mount "$mnt"
ask load 8 56
answers 'a container with a copy loads through the mount' 56 0 0 0 0
opened 'and takes nothing from there' 56 0
end_client
load_client=$own_client

# ---- spaces ----

start_client mount "$mnt"
ask load 8 8
opened 'before a space is made' 8 8
need mkdir "$mnt/spaces/more"
ask load 16 8
answers 'while it is looked at anew all are loaded' 8 0 0 0 0
check 'and located again' located_again
end_client
chmod 700 "$mnt/spaces/more"
start_client --space more mount "$mnt"
ask save 0 8
ask load 0 8
answers 'blocks of a private space are loaded' 8 0 0 0 0
opened 'in the mount' 8 0
end_client

# ---- the daemon ----

start_client mount "$mnt"
need freeze "$(daemon_pid)"
ask load 8 8 10000
kill -CONT "$(daemon_pid)"
answers 'a daemon that has stopped keeps nobody' 8 0 0 0 0
crash_daemon
ask load 16 8
check 'a dead one is noticed' sh -c 'echo "$1" | grep -q "wrong 0 absent 0"' \
	sh "$answer"
umount -l "$mnt"
need do_mount -o allow_other "all=$work/tier,$work/other"
ask_until '= ok 56 skipped 0 wrong 0 absent 0 failed 0' load 8 56
answers 'with a new one all are loaded' 56 0 0 0 0
end_client
start_client mount "$mnt"
ask load 8 56
answers 'and by a new loader' 56 0 0 0 0
opened 'that opens beside it what has been looked at' 56 56
end_client
do_umount

exit $failed
