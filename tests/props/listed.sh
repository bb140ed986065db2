#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# listed.sh - every test is in its folder's Makefile.inc; one that is not never runs. What
# Python has of tests/ is in one, too: else a release lacks it.
set -u
: "${top_srcdir:?}"
status=0
num=0

for test in "$top_srcdir"/tests/integration/*.sh "$top_srcdir"/tests/props/*.sh \
	"$top_srcdir"/tests/unit/*/test_*.c "$top_srcdir"/tests/gpu/test_*.c; do
	num=$((num + 1))
	test=${test#"$top_srcdir"/tests/}
	folder=${test%%/*} # its Makefile.inc has the tests of its rooms, too
	name=${test#*/}
	grep -qE "%D%/${name%.c}( |$)" \
		"$top_srcdir/tests/$folder/Makefile.inc" || {
		echo "FAIL: $test is not listed"
		status=1
	}
done
for file in "$top_srcdir"/tests/python/*.py "$top_srcdir"/tests/lib/*.py \
	"$top_srcdir"/tests/engines/*.py; do
	name=${file#"$top_srcdir"/tests/}
	grep -qE "(%D%/|tests/)(${name}|${name##*/})( |\$)" "$top_srcdir"/tests/Makefile.inc \
		"$top_srcdir"/tests/*/Makefile.inc || {
		echo "FAIL: tests/$name is not listed"
		status=1
	}
done
echo "$num tests"
[ $num -ge 300 ] || status=1
exit $status
