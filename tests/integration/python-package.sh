#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The Python package without a mount: what it imports and needs, its table of
# C functions, layouts, hashing, configurations, sparse retrieval, results of
# ucmfs.bench, and what of the two ways into vLLM needs no vLLM.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test campaigns python
python_tests test_package test_layout test_hash test_config test_documents test_messages \
	test_connector_parts test_connector_plans test_vllm_options test_vllm_mount \
	test_hugepages test_directories test_bench test_adapter
if [ -f "$top_builddir/libucmsparse.la" ]; then
	python_tests test_arguments test_sparse test_sparse_base test_position \
		test_methods
	# the tests' driver, under the name of NVIDIA's
	fake=$top_builddir/tests/unit/.libs/libfakecuda.so
	if [ -f "$fake" ]; then
		mkdir "$work/driver"
		cp "$fake" "$work/driver/libcuda.so.1"
		export LD_LIBRARY_PATH="$work/driver"
		python_tests test_sparse_cuda
		unset LD_LIBRARY_PATH
	else
		left_out "sparse retrieval on a GPU: the tests' driver is not built"
	fi
else
	left_out 'sparse retrieval: it is not built'
fi
