#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two daemons share a directory of an NFS server by two clients, as two hosts do. All
# three are in a user-mode kernel: tests/lib/nfs-tree DIR fetches what that needs, and
# UCMFS_NFS_TREE is then DIR.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
tree=${UCMFS_NFS_TREE-}
[ -x "$tree/usr/bin/linux.uml" ] ||
	skip 'needs UCMFS_NFS_TREE, a folder made by tests/lib/nfs-tree'
! nm -D "$ucmfs" | grep -q '__[at]san' ||
	skip 'a user-mode kernel has no addresses for the memory of a sanitizer'
start_test root python3

preload=
if grep -qw amx_tile /proc/cpuinfo; then
	preload=$work/wide_xstate.so
	${CC:-cc} -shared -fPIC -D_GNU_SOURCE -o "$preload" \
		"$top_srcdir/tests/lib/wide_xstate.c" 2>/dev/null ||
		skip 'a user-mode kernel on a CPU with AMX needs a C compiler'
fi
out=$work/out

# What was said lies in $out/output, the status in $out/status.
run_machine() {
	rm -rf "$out"
	mkdir "$out"
	{
		printf "export top_srcdir='%s' top_builddir='%s'\n" \
			"$(cd "$top_srcdir" && pwd)" "$(cd "$top_builddir" && pwd)"
		cat "$top_srcdir/tests/lib/nfs_shared.sh"
	} >"$out/run"
	cp "$top_srcdir/tests/lib/nfs_init.sh" "$out/init"
	chmod 755 "$out/init"
	: >"$out/output"
	LD_PRELOAD=$preload TMPDIR=$work "$tree/usr/bin/linux.uml" mem=512M \
		root=/dev/root rootfstype=hostfs rootflags=/ ro quiet \
		con=null con0=null,fd:1 ssl=null \
		init="$out/init" nfs_tree="$tree" nfs_out="$out" </dev/null >"$work/console" 2>&1 &
	machine=$!
	timeout 240 tail --pid=$machine -f /dev/null
	# a group of its own, some of which outlive one that dies
	kill -KILL $machine -$machine 2>/dev/null
	wait $machine
}

has_ended() {
	grep -aq '^FAIL\|^ok: nothing was set aside' "$out/output"
}

# a user-mode kernel, or its shell, dies now and then on a busy machine
run_machine
if ! has_ended; then
	echo "# the machine has ended before the test: $(cat "$out/status")"
	run_machine
fi
grep -av '^FAIL' "$out/output"
has_ended || {
	fail "it has come to its end ($(cat "$out/status"))"
	tail -n 40 "$work/console"
}
if grep -aq '^FAIL' "$out/output"; then
	grep -a -A 20 '^FAIL' "$out/output"
	fail 'all of it'
fi
exit $failed
