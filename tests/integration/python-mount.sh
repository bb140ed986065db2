#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The Python package on a mount: loader, tasks, stores, index, spaces.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test root fuse python
need do_mount "$work/tier"
python_tests test_loader test_loader_tasks test_store test_index test_blocks \
	test_namespace test_log test_profile test_vllm_mount test_vllm_expected
if [ -f "$top_builddir/libucmsparse.la" ]; then
	python_tests test_repr_load
else
	left_out 'sparse retrieval: it is not built'
fi
do_umount
