#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A loader reads blocks by descriptors that the daemon passes, and needs no rights in
# the directories, nor sees them. What it loads is right, also where a block is not
# what the index says; and the daemon counts the opens.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test namespace fuse client setpriv

# opened 'what' OPENS: since the client was started
opened() {
	ask opens
	same "$1" "= opens $2" "$answer"
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

mkdir "$work/other"
need do_mount -o allow_other "all=$work/tier,$work/other"
start_client mount "$mnt"
block 40
file=$path
ask save 0 256
answers 'blocks are saved' 256 0 0 0 0
end_client

for io in auto threads; do
	start_client --io $io mount "$mnt"
	ask load 0 64
	answers "$io: all are loaded" 64 0 0 0 0
	opened "$io: of both directories" 64
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
opened 'all were asked for' 8

# all move
need "$ucm" drain -m "$mnt" "$work/other" >"$work/said"
same 'all have left a directory' 0 "$(blocks_in "$work/other/blocks")"
ask load 8 56
answers 'blocks that were moved are loaded' 56 0 0 0 0
end_client
need "$ucm" drain -m "$mnt" --stop "$work/other" >"$work/said"

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
answers 'another user may not enter the directories, and loads' 8 0 0 0 0
opened 'by the daemon' 8
end_client
chmod 755 "$work/tier" "$work/other"
chmod 700 "$work/tier/blocks" "$work/other/blocks"
start_client mount "$mnt"
ask load 8 8
answers 'nor a folder in them' 8 0 0 0 0
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
answers 'a container takes nothing from a copy' 56 0 0 0 0
end_client
load_client=$own_client

# ---- spaces ----

need mkdir "$mnt/spaces/more"
chmod 700 "$mnt/spaces/more"
start_client --space more mount "$mnt"
ask save 0 8
ask load 0 8
answers 'blocks of a private space are loaded' 8 0 0 0 0
opened 'likewise' 8
end_client
do_umount

exit $failed
