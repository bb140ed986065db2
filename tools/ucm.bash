# SPDX-License-Identifier: Apache-2.0
# bash completion for ucm(1).
#
# Commands, options and the values to choose from are those that --help lists,
# so that nothing need be kept up to date here; needs no bash-completion package.

_ucm_commands() {
	"$1" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p'
}

# The options of a command, one a line: its letter or "-", its name, its value.
_ucm_options() {
	# shellcheck disable=SC2086 # a word or two
	"$1" $2 --help 2>/dev/null | sed -n '
		s/^  \(-.\), --/\1 --/
		s/^      --/- --/
		s/^\(-.\{0,1\} --[a-z-]* \{0,1\}[^ ]*\).*/\1/p'
}

# What some commands do first of all: a word of each form of their usage.
_ucm_actions() {
	"$1" "$2" --help 2>/dev/null | sed -n "
		/^\$/q
		s/^.* ucm $2 \[options\] \([a-z][a-z]*\)\( .*\)*\$/\1/p" |
		uniq
}

# Mount points; one with white space in its name is not offered.
_ucm_mounts() {
	awk '$3 == "fuse.ucmfs" && $2 !~ /\\/ { print $2 }' /proc/self/mounts
}

# The mount that the line names, or the first one.
_ucm_mount() {
	local i

	for ((i = 2; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		-m | --mount)
			printf '%s\n' "${COMP_WORDS[i + 1]}"
			return
			;;
		esac
	done
	_ucm_mounts | head -n 1
}

# What to offer for the value of an option; nothing: a file.
_ucm_values() {
	local value

	value=$(_ucm_options "$1" "$2" |
		awk -v option="$3" '$1 == option || $2 == option { print $3 }')
	case $value in
	MOUNT) _ucm_mounts ;;
	NAME) ls "$(_ucm_mount)/spaces" 2>/dev/null ;;
	[[:lower:]]* | *'|'*) printf '%s\n' "${value//|/ }" ;;
	esac
}

_ucm() {
	local ucm=${COMP_WORDS[0]} command=${COMP_WORDS[1]-}
	local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]}
	local words

	COMPREPLY=()
	if ((COMP_CWORD > 2)) &&
		_ucm_actions "$ucm" "$command" | grep -qx -e "${COMP_WORDS[2]}"; then
		command+=" ${COMP_WORDS[2]}"
	fi
	if ((COMP_CWORD == 1)); then
		words="$(_ucm_commands "$ucm") --help --version"
	elif ((COMP_CWORD == 2)) && [[ $word != [-/.]* ]] &&
		words=$(_ucm_actions "$ucm" "$command") && [[ $words ]]; then
		:
	elif [[ $word == -* ]]; then
		words=$(_ucm_options "$ucm" "$command" | awk '{ print $2 }')
	elif [[ $last == -* ]]; then
		words=$(_ucm_values "$ucm" "$command" "$last")
	elif "$ucm" $command --help 2>/dev/null | grep -q '^usage:.*\[MOUNT'; then
		words=$(_ucm_mounts)
	fi
	mapfile -t COMPREPLY < <(compgen -W "${words-}" -- "$word")
}

complete -o bashdefault -o default -F _ucm ucm
