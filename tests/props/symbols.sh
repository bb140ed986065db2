#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# symbols.sh - what the public headers declare is listed for libucm or
# libucmsparse; each of them exports that; libucm besides what libucmsparse needs
# of it, and nothing else. And each thing that can change is in one of them.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

libs=$top_builddir/.libs
[ -f "$libs/libucm.so" ] || { echo "SKIP: $libs/libucm.so has not been built"; exit 77; }
command -v nm >/dev/null || { echo "SKIP: no nm"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

# differ WHAT: files want and got
differ() {
	[ -s "$work/want" ] || { echo "FAIL: $1: nothing is wanted"; exit 1; }
	diff -u "$work/want" "$work/got" && return
	echo "FAIL: $1, as shown"
	failed=1
}

# exported LIBRARY: without what a sanitizer adds, which begins with "__"
exported() {
	nm -D --defined-only "$libs/$1.so" | awk '{ print $NF }' | grep -v '^__' |
		sort -u
}

# without comments: "ucm_name(" is a function
cat "$top_srcdir"/include/ucm/*.h | tr '\n' ' ' | sed 's,/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/,,g' |
	grep -o '\bucm_[a-z0-9_]* *(' | tr -d ' (' | sort -u >"$work/want"
sort "$top_srcdir/libucm.sym" "$top_srcdir/libucmsparse.sym" >"$work/got"
differ 'the lists (+) differ from the headers (-)'

sort "$top_srcdir/libucm.sym" >"$work/want"
if [ -f "$libs/libucmsparse.so" ]; then
	nm -D --undefined-only "$libs/libucmsparse.so" |
		awk '$NF ~ /^ucm_/ { print $NF }' | sort -u >"$work/needs"
	sort -u "$work/needs" "$work/want" -o "$work/want"
fi
exported libucm >"$work/got"
differ 'libucm exports (+) other than its list and what libucmsparse needs (-)'

[ -f "$libs/libucmsparse.so" ] || {
	echo 'SKIP: libucmsparse: it has not been built'
	exit $failed
}
sort "$top_srcdir/libucmsparse.sym" >"$work/want"
exported libucmsparse >"$work/got"
differ 'libucmsparse exports (+) other than its list (-)'

# what can change, by its name
variables() {
	nm -f sysv "$libs/$1.so" | tr -d ' ' |
		awk -F'|' '$7 ~ /^\.t?(data|bss)$/ && $1 !~ /^(_|completed)/ {
			print $1 }' | sort -u
}
variables libucm >"$work/want"
variables libucmsparse >"$work/got"
both=$(comm -12 "$work/want" "$work/got")
if [ -n "$both" ]; then
	echo "FAIL: in both libraries:" $both
	failed=1
fi
exit $failed
