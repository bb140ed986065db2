#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The daemon is killed under the Python package: calls fail by name, none hangs,
# and a new mount is found.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test root fuse python
need do_mount "$work/tier"
python_tests test_killed
reap "$(daemon_pid)"
umount -l "$mnt"
need do_mount "$work/tier"
python_tests test_index
do_umount
