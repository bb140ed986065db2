#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Several daemons on one directory that is shared, each as a host of its own: what one
# commits or removes the others see within three seconds; what each reads is what was
# committed, or a miss; and one that is gone keeps no other from anything.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr setfattr python3 unshare

. "$top_srcdir/tests/lib/hosts.sh"

# ---- who may ----

mount_host alpha "shared@$dir"
mount_host beta -o "files=$dir" "$dir"
same 'a second daemon is admitted, as the directory says that it is shared' 2 \
	"$(hearts)"
# counts NAME: its status and metrics have both
counts() {
	"$ucm" status "$work/$1" | grep -q "$dir.*, shared by 2 daemons" &&
		grep -q '^ucmfs_directory_daemons{.*} 2$' "$work/$1/.ucmfs/metrics"
}
for name in alpha beta; do
	check "$name counts both" within_s 10 counts $name
done
mkdir "$work/own" "$work/alone"
on alone
need do_mount "$work/own"
refused 'in use by another ucmfs' 'not where a daemon is alone' \
	"$ucmfs" -f "shared@$work/own" "$work/mnt"
need crash_daemon
umount -l "$mnt"
refused 'cannot be shared yet, as it was not closed cleanly' \
	'nor where blocks may be torn' \
	"$ucmfs" -f "shared@$work/own" "$work/mnt"
absent "$work/own/.ucmfs/hosts"
refused 'memory cannot be shared' 'nor memory' \
	"$ucmfs" -f "shared@mem@1G" "$work/mnt"

# ---- commits and removals ----

is_absent "$work/beta/blocks/$(small_paths 1)" || fail 'it is there already'
need mk "$work/alpha/blocks"
check 'what one commits the other has within 3 s' within_s 3 \
	verify "$work/beta/blocks"
same 'and lists' 16 "$(blocks_in "$work/beta/blocks")"
paths=$(small_paths 4)
for path in $paths; do
	need rm "$work/alpha/blocks/$path"
done
for path in $paths; do
	refused 'No such file' 'what one removes is a miss in the other at once' \
		cat "$work/beta/blocks/$path"
done
check 'and the rest is there' mk --verify --start 4 --count 12 "$work/beta/blocks"
need rm "$work/alpha/blocks/$(nth_path 5)"
check 'what nobody opens is forgotten soon' within_s 15 \
	is_absent "$work/beta/blocks/$(nth_path 5)"
same 'no name was set aside' 0 \
	"$(find "$dir/.ucmfs/quarantine" -type f | wc -l)"

# ---- without a mount ----

mkdir "$work/local"
export UCMFS_PROGRAM="$ucmfs"
refused 'names no directory of this machine alone' \
	'a private daemon needs one that is not shared' \
	"$ucm" ls -m "tiers=shared@$dir"
same 'behind one it has what the others have' 11 \
	"$("$ucm" ls --json -m "tiers=fast=$work/local:shared@$dir" | grep -c '"id"')"
check 'and ends' wait_until is_absent "$work/local/.ucmfs/socket"
mount_host gamma "fast=$work/local:slow=shared@$dir"
need mk --start 900 --count 4 "$work/gamma/blocks"
check 'what is written to a tier above it the others have, too' within_s 8 \
	mk --verify --start 900 --count 4 "$work/alpha/blocks"
unmount_hosts gamma
for path in $(small_paths 904 | tail -n 4); do
	need rm "$work/alpha/blocks/$path"
done

# ---- both at the same time ----

# both_create FROM COUNT: the same blocks, made in both before either commits
cat >"$work/both.py" <<'END'
import os, sys
source, *mounts = sys.argv[1:]
for folder, _, files in os.walk(source):
    for name in files:
        path = os.path.join(folder, name)
        data = open(path, "rb").read()
        outs = []
        for mount in mounts:
            to = os.path.join(mount, os.path.relpath(path, source))
            os.makedirs(os.path.dirname(to), exist_ok=True)
            outs.append(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        for out in outs:
            os.write(out, data)
        for out in outs:
            os.close(out)
END
need mkdir "$work/both"
need mk --start 100 --count 100 "$work/both"
check 'two that write the same blocks both succeed' python3 "$work/both.py" \
	"$work/both" "$work/alpha/blocks" "$work/beta/blocks"
on beta
same 'the second finds them there' 100 "$(stat_of commit_duplicates)"
for host in alpha beta; do
	check "$host reads them" mk --verify --start 100 --count 100 \
		"$work/$host/blocks"
done
same 'no name was set aside' 0 \
	"$(find "$dir/.ucmfs/quarantine" -type f | wc -l)"
no_debris "$dir"

# ---- spaces: one geometry ----

manifest 2 >"$work/two.json"
manifest 3 >"$work/three.json"
need mkdir "$work/alpha/spaces/one"
check 'a space of one is one of the other' within_s 3 \
	test -d "$work/beta/spaces/one"
need cp "$work/two.json" "$work/alpha/spaces/one/space.json"
refused 'File exists' 'the other cannot say something else' \
	cp "$work/three.json" "$work/beta/spaces/one/space.json"
check 'but the same' cp "$work/two.json" "$work/beta/spaces/one/space.json"
check 'it is what was said first' \
	cmp "$work/two.json" "$dir/spaces/one/space.json"
need mk "$work/beta/spaces/one"
check 'its blocks are seen' within_s 3 verify "$work/alpha/spaces/one"

# ---- a daemon that is killed ----

exec 5>"$work/alpha/blocks/$(nth_path 900)"
echo half >&5
on alpha
kill_daemon
exec 5>&-
same 'its unfinished file stays' 1 "$(find "$dir/.ucmfs/tmp" -type f | wc -l)"
mount_host alpha "$dir"
same 'it comes back, and nothing is checked for it' 0 \
	"$(grep -c 'not closed cleanly' "$log")"
check 'all is there' mk --verify --start 100 --count 100 "$work/alpha/blocks"
check 'the heart that stands still is removed' within_s 30 has_hearts 2
check 'which is said' grep -h 'is gone: its part of the buckets' \
	"$work/log.alpha" "$work/log.beta"
unmount_hosts alpha beta
same 'who ends takes its heart away' 0 "$(hearts)"
same 'there is no state that one could leave for others' '' \
	"$(find "$dir/.ucmfs" -name 'state*' -o -name 'snapshot*')"
# ---- a thousand operations ----

dir=$work/many
mkdir "$dir"
make_src --start 5000 --count 40
mount_host alpha "shared@$dir"
mount_host beta "shared@$dir"
check 'each read is the committed bytes or a miss' \
	python3 -B "$top_srcdir/tests/lib/shared_ops.py" "$work/src" 1000 3 \
	"$work/alpha/blocks" "$work/beta/blocks"
same 'no name was set aside' 0 \
	"$(find "$dir/.ucmfs/quarantine" -type f | wc -l)"
unmount_hosts alpha beta
exit $failed
