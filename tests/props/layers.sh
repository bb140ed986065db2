#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# layers.sh - no layer knows of one above it: in what it includes, and in what
# its objects call.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

failed=0

# $1 folder, $2 what it may include beside the system: a pattern
may_include() {
	found=$(grep -n '^#include "' "$top_srcdir/$1"/*.[ch] |
		grep -v "#include \"\($2\)/")
	if [ -n "$found" ]; then
		echo "FAIL: $1/ includes what is above it:"
		echo "$found"
		failed=1
	fi
}

may_include common 'common'
may_include hashing 'hashing\|common'
may_include fs 'fs\|hashing\|common'
may_include gpu 'gpu\|fs\|hashing\|common'
# the commands use the loader by its public header alone
may_include tools 'tools\|fs\|hashing\|common'
grep -q '^#include "' "$top_srcdir"/fs/*.c || {
	echo "FAIL: found no sources in $top_srcdir/fs"
	exit 1
}
# one door to each library
for door in 'openssl/:hashing/digest.c' 'isa-l:fs/format.c' \
	'yaml\.h:fs/config_yaml.c' 'microhttpd\.h:tools/ucm_http.c' \
	'cuda\.h:gpu/cuda_api.h'; do
	found=$(cd "$top_srcdir" && grep -l "#include <${door%%:*}" common/*.[ch] \
		hashing/*.[ch] fs/*.[ch] gpu/*.[ch] tools/*.[ch] |
		grep -vx "${door#*:}")
	if [ -n "$found" ]; then
		echo "FAIL: ${door%%:*} is included by $found, not by ${door#*:} alone"
		failed=1
	fi
done
exit $failed
