#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Each command line of README.md, doc/ and the manual pages' examples runs as it is
# printed: tests/python/test_documents.py. In a namespace, since some of them mean
# the only mount that there is, and with a /dev/shm for their tiers of memory.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test campaigns namespace fuse python fusermount3 setfattr
need mount -t tmpfs -o size=10g documents /dev/shm
mkdir "$work/documents"
UCMFS_TEST_PLACE=$work/documents
export UCMFS_TEST_PLACE
python_tests test_documents
exit $failed
