#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A directory that other machines may use is not locked, but has an owner: a second
# daemon is refused, and one that is gone is taken over. Savers may be there beside it:
# so a start removes only those unfinished files that cannot be in use. (It is
# stored in files/ of another mount here: FUSE may be anything.)

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# mount_as NAME: the shared directory, once more
mount_as() {
	mnt=$work/$1
	mkdir -p "$mnt"
	need do_mount "$shared"
}

# a_file NAME AGE: an unfinished file, so old in seconds
a_file() {
	: >"$tmp/$1"
	touch -d "@$(($(date +%s) - $2))" "$tmp/$1"
}

names() {
	find "$tmp" -type f -printf '%f\n' | sort
}

has_five() {
	[ "$(names | wc -l)" = 5 ]
}

need do_mount "$work/tier"
shared=$mnt/files/shared
tmp=$shared/.ucmfs/tmp
mkdir "$shared"
mount_as one
check 'it counts as one that others use' \
	grep -q '"network": true' "$mnt/.ucmfs/stats.json"
exec 5>"$mnt/blocks/$(small_paths 1)"
echo half >&5
mine=$(names)
host=${mine%%-*}
rest=${mine#*-}
boot=${rest%%-*}
up=$(cut -d. -f1 /proc/uptime)
earlier=$host-00000001-00000003-4
twin=$host-00000001-00000003-5
other=11111111-00000001-00000003-4
old=11111111-00000001-00000003-5
fellow=$host-$boot-00000003-4
unknown=0badf00d-4
a_file "$earlier" $((up + 1000))
a_file "$twin" $((up < 7200 ? up / 2 : 3600)) # of a copied machine
a_file "$other" 7200
a_file "$fellow" 7200
a_file "$unknown" 7200
a_file "$old" 100000

# ---- one daemon at a time ----

mkdir "$work/two"
mnt=$work/two
refused "in use by another ucmfs: host $(uname -n), process $(cat "$work/run/one.pid"), since " \
	'a second daemon is refused' "$ucmfs" -f "$shared" "$mnt"
"$ucm" doctor "$work/one" >"$work/said"
check 'ucm doctor names the first' grep -q \
	"^OK .*its daemon: host .*, process $(cat "$work/run/one.pid"), since " \
	"$work/said"
mnt=$work/one
kill_daemon
exec 5>&-

# ---- after a crash, at once ----

mount_as two
same 'one that is gone is not waited for' 0 "$(grep -c 'waiting whether' "$log")"
logged 'taken over from an ucmfs that is gone: host '
same 'what can be in use stays' "$(printf '%s\n' "$mine" "$twin" "$other" \
	"$fellow" "$unknown" | sort)" "$(names)"
logged 'removed 2 unfinished files'
exec 5>"$mnt/blocks/$(small_paths 1)"
exec 5>&-
check "one's own goes with its writer" wait_until has_five
do_umount
absent "$shared/.ucmfs/owner"
mnt=$work/mnt
do_umount
