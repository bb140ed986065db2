#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two daemons on one shared directory, each by a file system that fails now and then
# (tests/lib/faultfs.c): a read is the committed bytes, an error or a miss, and once all is
# well again both have what was committed. One of them gets many reads short: it is beta's
# daemon that reads there, for itself and for programs.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3 unshare
. "$top_srcdir/tests/lib/hosts.sh"
faultfs=$top_builddir/tests/lib/faultfs
[ -x "$faultfs" ] || skip "$faultfs is not built"

operations=1500
[ -z "${UCMFS_TEST_LONG-}" ] || operations=30000

make_src --start 5000 --count 60
mkdir "$work/disk"
: >"$work/sign-beta.direct" # else a short read is the end of a file
through=auto
for host in alpha beta; do
	mkdir "$work/net-$host"
	"$faultfs" "$work/disk" "$work/net-$host" "$work/sign-$host" || skip 'no FUSE'
	mount_host $host -o "passthrough=$through" "shared@$work/net-$host"
	through=off
done

# faults HOST: of reads; on standard input, others
faults() {
	cat >"$work/rules" <<-END
		unlink 3 EIO
		utimens 3 EIO
		open 1 ESTALE
		read $([ "$1" = beta ] && echo 20 short || echo 2 EIO)
		read 2 30
		readdir 5 EIO
		readdir 5 50
	END
	cat >>"$work/rules"
	mv "$work/rules" "$work/sign-$1.faults"
}

met_faults() {
	grep -q 'Input/output error' "$work/log.$1"
}

for host in alpha beta; do
	faults $host </dev/null
done
(
	sleep 4
	for host in alpha beta; do
		printf 'getattr 1 EIO\nlink 1 EIO\nwrite 1 EIO\n' | faults $host
	done
	sleep 2
	for host in alpha beta; do
		within_s 30 met_faults $host
	done
	rm -f "$work"/sign-*.faults
	: >"$work/over"
) &
keep_pid $!
python3 -B "$top_srcdir/tests/lib/shared_ops.py" --faults "$work/over" "$work/src" \
	$operations 40 "$work/alpha/blocks" "$work/beta/blocks" >"$work/played" 2>&1
same 'each read is the committed bytes, an error or a miss; nothing committed is lost' 0 $?
cat "$work/played"
for host in alpha beta; do
	check "$host met faults" met_faults $host
done
unmount_hosts alpha beta
for host in alpha beta; do
	need umount "$work/net-$host"
done
exit $failed
