#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The Python package without a mount: what it imports and needs, its table of
# C functions, layouts, hashing, configurations, sparse retrieval, and what of
# the two ways into vLLM needs no vLLM.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test campaigns python
python_tests test_package test_layout test_hash test_config test_documents test_messages \
	test_connector_parts test_connector_plans test_vllm_options test_vllm_mount \
	test_hugepages test_directories
if [ -f "$top_builddir/libucmsparse.la" ]; then
	python_tests test_arguments test_sparse test_sparse_base test_position \
		test_methods
else
	left_out 'sparse retrieval: it is not built'
fi
