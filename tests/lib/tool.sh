# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# tool.sh - tests of a command of ucm that needs no mount; sourced by them.
#
#   $ucm, $work, $failed   the program, a folder that goes at the end, the result
#   same 'what' WANT GOT
#   refused STATUS 'text in the line' argument...
#                          of "ucm $command", which reads $input: one line on
#                          standard error, and nothing else

set -u
: "${top_builddir:?}"
ucm=$top_builddir/ucm
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
command=
input=/dev/null
failed=0

same() {
	[ "$2" = "$3" ] && return
	echo "FAIL: $1"
	printf '  | must be: %s\n  | is:      %s\n' "$2" "$3"
	failed=1
}

refused() {
	status=$1
	text=$2
	shift 2
	# shellcheck disable=SC2086
	"$ucm" $command "$@" <"$input" >"$work/out" 2>"$work/err"
	got=$?
	if [ $got != "$status" ] || [ "$(wc -l <"$work/err")" != 1 ] ||
		[ -s "$work/out" ] || ! grep -qF -- "$text" "$work/err"; then
		echo "FAIL: ucm $command $*: status $got, must be $status and name '$text'"
		sed 's/^/  | /' "$work/out" "$work/err"
		failed=1
	fi
}
