#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The power fails, again and again, while blocks are written to a tier on ext4:
# what was promised to be on disk is there, and no wrong byte is ever served.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/power.sh"
power_limit
start_test campaigns fuse namespace losetup python3
power_test ext4
