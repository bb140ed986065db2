#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A shared tier between two local ones, of which the last is only read, hangs, cannot be
# searched, turns read-only, or is replaced by an empty folder. Each time saves go on
# above it, and the other tiers are read; a reader that waits for it can be killed;
# status and metrics show it, and the log has some lines, not one for each block; threads
# stay within their cap, and memory as it is; and once it is back, the other host has
# what was written before that.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/EIO.pid")" 2>/dev/null
}

start_test fuse namespace setpriv unshare
. "$top_srcdir/tests/lib/hosts.sh"
server=$top_builddir/tests/lib/faultfs
[ -x "$server" ] || skip "$server is not built"
# root, but for whom permissions hold
cat >"$work/as-host" <<'END_OF_PROGRAM'
#!/bin/sh
hostname "$1" && shift &&
	exec setpriv --bounding-set=-dac_override,-dac_read_search "$@"
END_OF_PROGRAM

# shows NAME TEXT STATE: ucm status and metrics both do
shows() {
	"$ucm" status "$work/$1" | grep -q "$dir: $2" &&
		[ "$(on "$1" && metric ucmfs_tier_directories 'tier="shared"' \
			"state=\"$3\"")" = 1 ]
}

all_saved() {
	on alpha
	[ "$(metric ucmfs_unsaved_blocks)" = 0 ]
}

memory_kib() {
	awk '/^RssAnon:/ { print $2 }' "/proc/$(daemon_pid)/status"
}

log_lines() {
	cat "$work/log.alpha" "$work/log.beta" | wc -l
}

# while_it WHAT NUMBER TEXT STATE: what holds while the tier is so
while_it() {
	what=$1 first=$2
	check "$what: saves go on above it" \
		mk --start "$first" --count 8 "$work/alpha/blocks"
	check "$what: and are read" verify --start "$first" --count 8 "$work/alpha/blocks"
	check "$what: what was there above it, too" \
		verify --start 100 --count 8 "$work/alpha/blocks"
	check "$what: so is the tier below it" \
		verify --start 700 --count 8 "$work/alpha/blocks"
	check "$what: status and metrics show it" within_s 15 shows alpha "$3" "$4"
	check "$what: a block there is read, or an error" \
		never_wrong "$work/beta/blocks/$(small_paths 1)"
	same "$what: none is lost above it" 8 "$(metric ucmfs_unsaved_blocks)"
}

never_wrong() {
	! timeout 20 cat "$1" >"$work/read" || cmp "$work/read" "$work/first"
}

# once_back WHAT: and what was written meanwhile is there
once_back() {
	check "$1: once it is back, what has waited is written" within_s 40 all_saved
	check "$1: and the other host has it" within_s 15 \
		verify --start "$first" --count 8 "$work/beta/blocks"
	check "$1: nothing is lost" verify --count 8 "$work/beta/blocks"
	check "$1: it is good again" within_s 20 not_bad
	said=$(log_lines)
	check "$1: the log has a line for each change: $((said - lines))" \
		test $((said - lines)) -le 12
	lines=$said
}

not_bad() {
	shows alpha "" good || "$ucm" status "$work/alpha" | grep -q "$dir, "
}

# ---- by a server, so that it can hang ----

mkdir "$work/disk" "$work/fast" "$work/last"
mount_host alpha "$work/last"
need mk --start 700 --count 8 "$work/alpha/blocks"
unmount_hosts alpha
need "$server" "$work/disk" "$dir" "$work/EIO"
mount_host alpha -o deadline=3,io_uring=off,readonly=last \
	"fast=$work/fast:shared=shared@$dir:last=$work/last"
mount_host beta -o deadline=3,io_uring=off "shared=shared@$dir"
need mk --count 8 "$work/beta/blocks"
need cp "$work/beta/blocks/$(small_paths 1)" "$work/first"
need mk --start 100 --count 8 "$work/alpha/blocks"
need within_s 15 verify --count 8 "$work/alpha/blocks"
check 'all is saved' within_s 20 all_saved
lines=$(log_lines)

need freeze "$(cat "$work/EIO.pid")"
cat "$work/beta/blocks/$(nth_path 2)" >"$work/read" 2>&1 &
reader=$!
keep_pid $reader
sleep 0.3
since=$(date +%s%N)
kill -9 $reader
wait $reader 2>/dev/null
forget_pid $reader
took=$((($(date +%s%N) - since) / 1000000))
check "a reader that waits can be killed: after $took ms" test $took -lt 2000
while_it hung 200 'does not answer' unresponsive
threads=$(find "/proc/$(daemon_pid)/task" -maxdepth 1 | wc -l)
memory=$(memory_kib)
for round in 1 2 3 4 5; do
	for path in $(small_paths 8); do
		timeout 20 cat "$work/alpha/blocks/$path" >/dev/null 2>&1 &
		keep_pid $!
	done
	need mk --start $((250 + round)) --count 1 "$work/alpha/blocks"
done
refused 'timed out' 'hung: a host that has nothing else is not told that it is full' \
	cp "$work/alpha/blocks/$(nth_path 201)" "$work/beta/blocks/$(nth_path 201)"
check 'hung: threads stay within their cap' \
	test "$(find "/proc/$(daemon_pid)/task" -maxdepth 1 | wc -l)" -le $((threads + 32))
check "hung: memory does not grow: $memory KiB, $(memory_kib) now" \
	test "$(memory_kib)" -le $((memory + 8192))
need let_go
once_back hung

need mkdir "$work/aside"
find "$work/disk" -mindepth 1 -maxdepth 1 -exec mv -t "$work/aside" {} +
while_it 'empty' 300 'failed lately' set_aside
check 'empty: no block was made there' \
	test -z "$(find "$work/disk" -type f)"
rm -rf "$work/disk/"* "$work/disk/.ucmfs"
find "$work/aside" -mindepth 1 -maxdepth 1 -exec mv -t "$work/disk" {} +
once_back 'empty'
unmount_hosts alpha beta
need wait_until umount "$dir"

# ---- a file system of its own ----

need mount -t tmpfs -o mode=755 none "$dir"
rm -r "$work/fast"
mkdir "$work/fast"
mount_host alpha -o readonly=last "fast=$work/fast:shared=shared@$dir:last=$work/last"
mount_host beta "shared=shared@$dir"
need mk --count 8 "$work/beta/blocks"
need mk --start 100 --count 8 "$work/alpha/blocks"
need within_s 15 verify --count 8 "$work/alpha/blocks"
check 'all is saved' within_s 20 all_saved
lines=$(log_lines)

need chmod 700 "$dir"
need chown 65534 "$dir"
while_it 'not permitted' 300 'failed lately' set_aside
need chown 0 "$dir"
once_back 'not permitted'

need within_s 10 mount -o remount,ro "$dir"
while_it 'read-only' 400 'failed lately' set_aside
need mount -o remount,rw "$dir"
once_back 'read-only'

same 'nothing was set aside' 0 \
	"$(find "$dir/.ucmfs/quarantine" -type f | wc -l)"
unmount_hosts alpha beta
need wait_until umount "$dir"
