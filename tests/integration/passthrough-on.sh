#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# With passthrough, where it can be had, the mount promises the same.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/core.sh"
start_test root fuse

need do_mount -o passthrough=on "$work/tier"
grep -q '"passthrough": true' "$mnt/.ucmfs/stats.json" ||
	skip "$(grep -o 'passthrough off.*' "$log")"
core_promises
do_umount
