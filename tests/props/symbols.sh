#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# symbols.sh - libucm.so exports what libucm.sym lists, and nothing else; and
# what the public headers declare is listed.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

lib=$top_builddir/.libs/libucm.so
[ -f "$lib" ] || { echo "SKIP: $lib has not been built"; exit 77; }
command -v nm >/dev/null || { echo "SKIP: no nm"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

sort -u "$top_srcdir/libucm.sym" >"$work/want"
[ -s "$work/want" ] || { echo "FAIL: libucm.sym is empty"; exit 1; }
# a sanitizer adds names of its own to every library; they begin with "__"
nm -D --defined-only "$lib" | awk '{ print $NF }' | grep -v '^__' |
	sort -u >"$work/got"
if ! diff -u "$work/want" "$work/got"; then
	echo "FAIL: exported names differ from libucm.sym (-) as shown"
	failed=1
fi

# without comments: "ucm_name(" is a function
cat "$top_srcdir"/include/ucm/*.h | tr '\n' ' ' | sed 's,/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/,,g' |
	grep -o '\bucm_[a-z0-9_]* *(' | tr -d ' (' | sort -u >"$work/declared"
[ -s "$work/declared" ] || { echo "FAIL: found no declarations"; exit 1; }
if ! diff -u "$work/declared" "$work/want"; then
	echo "FAIL: libucm.sym differs from the headers (-) as shown"
	failed=1
fi
exit $failed
