#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# mutants.sh - each patch of tests/mutants applies to the tree as it is, says
# what it breaks and which tests must notice, and these exist; tests/README
# has the table of them.
set -u
: "${top_srcdir:?}"

command -v patch >/dev/null || { echo "SKIP: no patch"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
	echo "FAIL: $*"
	failed=1
}

# Nothing is written, so the tree may be read-only.
check_applies() {
	patch --dry-run -d "$top_srcdir" -p1 -F0 <"$1" >"$work/patch" 2>&1 || {
		fail "$(basename "$1") does not apply"
		sed 's/^/  | /' "$work/patch"
	}
}

# A unit test is a program, made of the file of its name; of an engine's test
# a class may be named.
check_tests() {
	for test in $2; do
		file=${test%%::*}
		[ -f "$top_srcdir/$file" ] || [ -f "$top_srcdir/$file.c" ] ||
			fail "$1: there is no $test"
	done
}

"$top_srcdir/tests/mutants/run" --list >"$work/list" || exit 1
number=$(wc -l <"$work/list")
[ "$number" -gt 60 ] || fail "only $number mutants"
for patch in "$top_srcdir"/tests/mutants/*.patch; do
	name=$(basename "$patch" .patch)
	line=$(grep " $name  *[^ ].*[^ ]\. \[tests/.*\]\$" "$work/list") ||
		fail "$name: no sentence that says what is broken, or no Tests:"
	check_applies "$patch"
	check_tests "$name" "$(echo "$line" | sed 's/.*\[\(.*\)\]$/\1/')"
done
exit $failed
