#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# symbols_in_man.sh - each exported name is in the SYNOPSIS of one man page of
# section 3, and described below it; and no page has a function that is not
# exported.
set -u
: "${top_srcdir:?}"

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

for page in "$top_srcdir"/man/*.3; do
	name=${page##*/}
	awk '/^\.SH/ { on = /SYNOPSIS/ } on' "$page" |
		grep -o '\bucm_[a-z0-9_]*(' | tr -d '(' |
		sed "s/\$/ $name/" >>"$work/synopses"
	awk '/^\.SH/ { on = !/NAME|SYNOPSIS|SEE ALSO/ } on' "$page" |
		sed 's/\\f[BIRP]//g' | grep -o '\bucm_[a-z0-9_]*' | sed "s/\$/ $name/" >>"$work/texts"
done
[ -s "$work/synopses" ] || { echo "FAIL: found no functions"; exit 1; }
sort -o "$work/synopses" "$work/synopses"
sort -u -o "$work/texts" "$work/texts"

cut -d' ' -f1 "$work/synopses" >"$work/got"
sort "$top_srcdir/libucm.sym" "$top_srcdir/libucmsparse.sym" >"$work/want"
if ! diff -u "$work/want" "$work/got"; then
	echo "FAIL: functions of the man pages differ from libucm.sym and libucmsparse.sym (-)"
	failed=1
fi
comm -23 "$work/synopses" "$work/texts" >"$work/bare"
while read -r name page; do
	echo "FAIL: $page does not describe $name"
	failed=1
done <"$work/bare"
echo "$(wc -l <"$work/got") functions of $(wc -l <"$work/want")"
exit $failed
