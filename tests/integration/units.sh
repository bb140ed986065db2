#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The units of systemd: they are understood, give away what they need not, and the mount's
# has no view of its own of files, in which nobody else would see the mount.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test systemd-analyze

mkdir "$work/units"
cp "$top_srcdir"/tools/*.socket "$top_srcdir"/tools/*.timer "$work/units"
for unit in "$top_srcdir"/tools/*.service.in; do
	name=$(basename "$unit" .in)
	# what is not installed here cannot be started, which is an error there
	sed 's,@sysconfdir@,/etc,; s,@bindir@/ucm[a-z]*,/bin/true,' "$unit" >"$work/units/$name"
done
for unit in "$work"/units/*.service; do
	name=$(basename "$unit")
	systemd-analyze security --offline=true --threshold=70 "$unit" >"$work/said" 2>&1
	same "$name: what it gives away" 0 $? || tail -n 1 "$work/said"
	same "$name: is understood" '' "$(SYSTEMD_UNIT_PATH=$work/units: systemd-analyze verify \
		--man=no "$work/units/${name%.service}a.service" 2>&1)"
done
same 'three units' 3 "$(find "$work/units" -name '*.service' | wc -l)"
# each of these makes a mount namespace
same "the mount is everybody's" '' "$(grep -E '^(Private|ReadOnly|ReadWrite|Inaccessible|Bind|Mount|Root|TemporaryFile|Protect(System|Home=[^n]|Kernel|Control|Proc|Host))' \
	"$work/units/ucmfs@.service")"
exit $failed
