# SPDX-License-Identifier: Apache-2.0
# bash completion for ucm(1).
#
# Commands and options are those that ucm --help lists, so that nothing need be
# kept up to date here; needs no bash-completion package.

# The options of a command, as its --help has them.
_ucm_options() {
	"$1" "$2" --help 2>/dev/null | grep -o -- '--[a-z][a-z-]*' | sort -u
}

_ucm_commands() {
	"$1" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p'
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

# The values that an option takes; nothing: a file.
_ucm_values() {
	case $1 in
	-m | --mount) _ucm_mounts ;;
	-s | --space) ls "$(_ucm_mount)/spaces" 2>/dev/null ;;
	-o | --sort) printf '%s\n' name size age uses atime ;;
	--scheme) printf '%s\n' ucm chain prefix hexchain sha256 external ;;
	-e | --engine) echo vllm ;;
	--format) printf '%s\n' text int32 int64 ;;
	esac
}

_ucm() {
	local ucm=${COMP_WORDS[0]} command=${COMP_WORDS[1]-}
	local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]}
	local words

	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		words="$(_ucm_commands "$ucm") --help --version"
	elif [[ $word == -* ]]; then
		words=$(_ucm_options "$ucm" "$command")
	else
		words=$(_ucm_values "$last")
		[[ -n $words || $command != doctor ]] || words=$(_ucm_mounts)
	fi
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

complete -o bashdefault -o default -F _ucm ucm
