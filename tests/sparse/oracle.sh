#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# oracle.sh - representations, codes, scores and selections are those of numpy:
# oracle.py and its parts, oracle_*.py
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || {
	echo "SKIP: no Python 3.9 or later"
	exit 77
}
"$python" -c 'import numpy' 2>/dev/null || {
	echo "SKIP: $python has no numpy"
	exit 77
}
library=$top_builddir/tests/sparse/.libs/libsparseall.so
[ -f "$library" ] || {
	echo "SKIP: $library has not been built"
	exit 77
}
! nm "$library" | grep -q '__[at]san' || {
	echo "SKIP: the library is built with a sanitizer, Python is not"
	exit 77
}
export PYTHONDONTWRITEBYTECODE=1 # the source tree may be read-only
result=0
for part in oracle oracle_code oracle_position oracle_star; do
	"$python" "$top_srcdir/tests/sparse/$part.py" "$library" || result=1
done
exit $result
