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

completes 'ucm st' 'status stat'
completes 'ucm l' 'ls'
completes 'ucm --v' '--version'
completes 'ucm ls --so' '--sort'
completes 'ucm ls --sort a' 'age atime'
completes 'ucm hash --scheme s' 'sha256'
completes 'ucm quarantine ' 'list restore purge'
[ ! -f "$top_builddir/libucmsparse.la" ] || {
	completes 'ucm repr ' 'build verify stat'
}
completes 'ucm sync ' 'checkpoint rescan'
completes 'ucm trace replay --po' '--policy'
completes 'ucm trace ' 'replay debug'
completes 'ucm none --' ''
completes 'ucm ls -m /nowhere -s ' ''
completes 'ucm ls --json a' ''
# every command that there is, each of its options, and the words of its values
options=0
for command in $("$top_builddir/ucm" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
	names=
	while read -r name value _; do
		options=$((options + 1))
		names="$names$name "
		case $value in
		*'|'* | vllm) completes "ucm $command $name " \
			"$(echo "$value" | tr '|' ' ')" ;;
		FILE | N) completes "ucm $command $name " '' ;;
		esac
	done <<-EOF
		$("$top_builddir/ucm" $command --help | grep '^  .. *--\|^  -' |
			sed 's/^  -., /  /; s/  \( *\)[^- ].*//')
	EOF
	completes "ucm $command --" "${names% }"
done
[ $options -gt 100 ] || {
	echo "FAIL: found $options options"
	failed=1
}
same=$(bash -c '. "$1" && complete -p ucm' bash "$top_srcdir/tools/ucm.bash")
[ "$same" = 'complete -o bashdefault -o default -F _ucm ucm' ] || {
	echo "FAIL: complete -p ucm: $same"
	failed=1
}
exit $failed
