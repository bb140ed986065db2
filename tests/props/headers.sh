#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# headers.sh - every public header compiles alone, as strict C17 and as C++.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
checked=0

# $1 compiler, $2 language, $3 standard, $4 header
compiles() {
	if ! "$1" -x "$2" "-std=$3" -pedantic-errors -Wall -Wextra -Werror \
		-I"$top_srcdir/include" -I"$top_builddir/include" \
		-c -o "$work/out.o" "$work/alone.c" 2>"$work/log"; then
		echo "FAIL: $4 alone as $2 ($3):"
		cat "$work/log"
		failed=1
	fi
	checked=$((checked + 1))
}

cc=${CC:-cc}
cxx=${CXX:-c++}
command -v "$cc" >/dev/null || { echo "SKIP: no C compiler"; exit 77; }
command -v "$cxx" >/dev/null || echo 'SKIP: as C++: no C++ compiler'
for header in "$top_srcdir"/include/ucm/*.h "$top_builddir"/include/ucm/*.h; do
	[ -f "$header" ] || continue
	name=ucm/${header##*/}
	# twice: a header may be included again
	printf '#include <%s>\n#include <%s>\nextern int ucm_alone;\n' \
		"$name" "$name" >"$work/alone.c"
	compiles "$cc" c c17 "$name"
	if command -v "$cxx" >/dev/null; then
		compiles "$cxx" c++ c++11 "$name"
		compiles "$cxx" c++ c++17 "$name"
	fi
done
if [ $checked -lt 2 ]; then
	echo "FAIL: found no headers in $top_srcdir/include/ucm"
	exit 1
fi
echo "$checked compilations"
exit $failed
