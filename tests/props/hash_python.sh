#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# hash_python.sh - the ids of every scheme are those that CPython comes to.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || {
	echo "SKIP: no Python 3.9 or later"
	exit 77
}
exec "$python" "$top_srcdir/tests/props/hash_python.py" "$top_builddir/ucm" "$@"
