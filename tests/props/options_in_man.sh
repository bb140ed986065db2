#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# options_in_man.sh - what ucmfs --help lists, ucmfs(8) describes, and back.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

ucmfs=$top_builddir/ucmfs
man=$top_srcdir/man/ucmfs.8
[ -x "$ucmfs" ] || { echo "SKIP: $ucmfs has not been built"; exit 77; }
[ -f "$man" ] || { echo "SKIP: $man is not there"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

"$ucmfs" --help >"$work/help" 2>&1 || {
	echo "FAIL: ucmfs --help exits with $?"
	exit 1
}
# "  name=VALUE   text", "  -h, --help   text": two blanks, then a name
sed -n 's/^  \(-*[a-z][a-zA-Z0-9_-]*\).*/\1/p' "$work/help" |
	grep -v '^a$' | sort -u >"$work/options" # "  a tier may be named"
sed -n 's/^  \(-.\), \(--[a-z]*\) .*/\2/p' "$work/help" >>"$work/options"
# of the man page: the lines behind .TP and .TQ, without its marks
sed 's/\\-/-/g; s/\\f[BIRP]//g; s/"//g' "$man" |
	sed -n '/^\.T[PQ]/{n;p}' | sed 's/^\.[BIR]* //' >"$work/tags"

while read -r option; do
	if ! grep -q -e "\(^\|[ ,]\)$option\([ ,=]\|$\)" "$work/tags"; then
		echo "FAIL: $option is not described in ucmfs(8)"
		failed=1
	fi
done <"$work/options"
if [ "$(wc -l <"$work/options")" -lt 10 ]; then
	echo "FAIL: found only these options in --help:"
	cat "$work/options"
	failed=1
fi

# and back: name=... that the page describes is one that --help knows
grep -o '^[a-z_-]*=' "$work/tags" | tr -d '=' | sort -u >"$work/described"
while read -r option; do
	if ! grep -q -x -e "$option" "$work/options"; then
		echo "FAIL: ucmfs(8) describes $option, which --help does not list"
		failed=1
	fi
done <"$work/described"
exit $failed
