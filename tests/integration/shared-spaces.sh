#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Spaces of daemons that share a directory below one of their own: what a space is
# they agree on in the shared one, and each keeps its quota.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setfattr unshare
. "$top_srcdir/tests/lib/hosts.sh"

quota=$((50 * small_size))

used() {
	getfattr --only-values -n user.ucmfs.used "$work/$1/spaces/q"
}

is_kept() {
	[ "$(used alpha)" -le $quota ] && [ "$(used beta)" -le $quota ]
}

for host in alpha beta; do
	need mkdir "$work/own-$host"
	mount_host $host -o "space_quota=$quota" \
		"own=$work/own-$host:shared@$dir"
done

# ---- what a space is ----

manifest 2 >"$work/two.json"
manifest 3 >"$work/three.json"
need mkdir "$work/alpha/spaces/s"
check 'a space of one is one of the other' within_s 5 test -d "$work/beta/spaces/s"
need cp "$work/two.json" "$work/alpha/spaces/s/space.json"
refused 'File exists' 'the other cannot say something else' \
	cp "$work/three.json" "$work/beta/spaces/s/space.json"
check 'but the same' cp "$work/two.json" "$work/beta/spaces/s/space.json"

# ---- quotas ----

need mkdir "$work/alpha/spaces/q"
refused 'Operation not supported' 'a quota cannot be set' \
	setfattr -n user.ucmfs.quota -v 1M "$work/alpha/spaces/q"
on alpha
logged 'its quota cannot be set: hosts share a directory'
check 'so there may be a manifest later' \
	cp "$work/two.json" "$work/alpha/spaces/q/space.json"
check 'the other finds it' within_s 5 test -d "$work/beta/spaces/q"
for round in 1 2 3 4; do
	for host in alpha beta; do
		mk --start $((round * 1000)) --count 30 "$work/$host/spaces/q" \
			>>"$work/refusals" 2>&1 || echo "$host" >>"$work/refused"
		round=$((round + 100))
	done
done
check 'no save was refused' test ! -s "$work/refused"
[ ! -s "$work/refused" ] || tail -n 20 "$work/refusals"
check 'both keep the quota, which the blocks of both are compared with' \
	within_s 20 is_kept
check 'much of it is used' test "$(used alpha)" -ge $((quota / 4))
unmount_hosts alpha beta
exit $failed
