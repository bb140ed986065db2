#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Without passthrough the mount promises the same.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/core.sh"
start_test root fuse

need do_mount -o passthrough=off "$work/tier"
check 'it is off' grep -q '"passthrough": false' "$mnt/.ucmfs/stats.json"
core_promises
do_umount
