#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The completion for bash, asked as readline asks it.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

command -v bash >/dev/null || { echo "SKIP: no bash"; exit 77; }
failed=0

# completes 'line to complete' 'what must be offered, in a line'
completes() {
	got=$(COMP=$top_srcdir/tools/ucm.bash UCM=$top_builddir/ucm LINE=$1 bash -c '
		set -u
		. "$COMP" || exit
		read -ra COMP_WORDS <<<"$LINE"
		[[ $LINE != *" " ]] || COMP_WORDS+=("")
		COMP_WORDS[0]=$UCM
		COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
		_ucm
		echo "${COMPREPLY[@]-}"' 2>&1)
	[ "$got" = "$2" ] && return
	echo "FAIL: '$1'"
	printf '  | must be: %s\n  | is:      %s\n' "$2" "$got"
	failed=1
}

completes 'ucm st' 'stat status'
completes 'ucm l' 'lookup ls'
completes 'ucm --v' '--version'
completes 'ucm ls --' "$("$top_builddir/ucm" ls --help |
	grep -o -- '--[a-z]*' | sort -u | tr '\n' ' ' | sed 's/ $//')"
completes 'ucm ls --so' '--sort'
completes 'ucm ls --sort a' 'age atime'
completes 'ucm hash --scheme s' 'sha256'
completes 'ucm none --' ''
completes 'ucm ls -m /nowhere -s ' ''
# every command that there is
for command in $("$top_builddir/ucm" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
	completes "ucm $command --hel" '--help'
done
"$top_builddir/ucm" --help | grep -q '^  where ' || {
	echo 'FAIL: found no commands'
	failed=1
}
same=$(bash -c '. "$1" && complete -p ucm' bash "$top_srcdir/tools/ucm.bash")
[ "$same" = 'complete -o bashdefault -o default -F _ucm ucm' ] || {
	echo "FAIL: complete -p ucm: $same"
	failed=1
}
exit $failed
