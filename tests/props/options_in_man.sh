#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# options_in_man.sh - what ucmfs --help lists, ucmfs(8) and ucmfs.conf(5) describe, and
# back.
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
sed '/^Settings/,$d' "$work/help" |
	sed -n 's/^  \(-*[a-z][a-zA-Z0-9_-]*\).*/\1/p' |
	grep -v '^a$' | sort -u >"$work/options" # "  a tier may be named"
sed -n 's/^  \(-.\), \(--[a-z]*\) .*/\2/p' "$work/help" >>"$work/options"
# those of the file: "  name: VALUE   text"
sed '1,/^Settings/d; s/^  \([a-z_]*\): .*/\1/' "$work/help" >"$work/settings"

# tags PAGE: the lines behind .TP and .TQ, without its marks
tags() {
	sed 's/\\-/-/g; s/\\f[BIRP]//g; s/"//g' "$1" |
		sed -n '/^\.T[PQ]/{n;p}' | sed 's/^\.[BIR]* //'
}

# same_names PAGE SIGN LIST LEAST: the names in LIST are tags, and each "name SIGN"
# of the tags is in LIST
same_names() {
	tags "$top_srcdir/man/$1" >"$work/tags"
	while read -r name; do
		grep -q -e "\(^\|[ ,]\)$name\([ ,$2]\|$\)" "$work/tags" || {
			echo "FAIL: $name is not described in $1"
			failed=1
		}
	done <"$3"
	[ "$(wc -l <"$3")" -ge "$4" ] || {
		echo "FAIL: found only these in --help for $1:"
		cat "$3"
		failed=1
	}
	grep -o "^[a-z_-]*$2" "$work/tags" | tr -d "$2" | sort -u >"$work/described"
	while read -r name; do
		grep -q -x -e "$name" "$3" || {
			echo "FAIL: $1 describes $name, which --help does not list"
			failed=1
		}
	done <"$work/described"
}

same_names ucmfs.8 = "$work/options" 10
same_names ucmfs.conf.5 : "$work/settings" 10

# the words of mount(8): in the page or in --help alone, which it refers to
for word in $(sed -n 's/^Handed to libfuse and the kernel: //p' "$work/help"); do
	grep -q -w -e "$word" "$man" || {
		echo "FAIL: $word is not described in ucmfs.8"
		failed=1
	}
done
exit $failed
