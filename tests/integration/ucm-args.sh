#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The commands that ask a mount: one line and exit status 2 for whatever is wrong
# with the command line; and ucm(1) has every option that --help lists.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

ucm=$top_builddir/ucm
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0

# refused 'text in the line' argument...
refused() {
	text=$1
	shift
	"$ucm" "$@" </dev/null >"$work/out" 2>"$work/err"
	got=$?
	if [ $got != 2 ] || [ "$(wc -l <"$work/err")" != 1 ] ||
		[ -s "$work/out" ] || ! grep -qF -- "$text" "$work/err"; then
		echo "FAIL: ucm $*: status $got, must be 2 and name '$text'"
		sed 's/^/  | /' "$work/out" "$work/err"
		failed=1
	fi
}

commands='doctor du evict lookup ls pin stat status top touch unpin warm where'
id=$(printf %032d 1)
for command in $commands; do
	refused 'unknown option --bogus' $command --bogus
	refused 'unknown option -x' $command -x
	[ $command = doctor ] || refused '--mount: no value' $command --mount
	[ $command = doctor ] || [ $command = status ] ||
		refused "--space 'a/b'" $command --space a/b
done
for command in du ls status top; do
	refused 'too many arguments: a' $command a
done
for command in evict pin touch unpin warm; do
	refused 'no ID and no --file' $command
	refused 'both ID and --file' $command -f - "$id"
	refused "'12': not an id" $command "$id" 12
done
refused 'no ID' where
refused "'12': not an id" where 12
refused 'no ID' stat
refused "'12': not an id" stat 12
refused "too many arguments: b" stat "$id" b
refused 'too many arguments: b' lookup a b
refused "--prefix '3G'" ls -p 3G
refused "--sort 'colour'" ls --sort colour
refused "--limit '-1'" ls -n -1
refused "--delay '0'" top -d 0
refused "--delay '1s'" top -d 1s
refused "--blocks '201'" top -n 201

# of the man page: the part of a command and what all share, without marks
for command in $commands; do
	"$ucm" $command --help >"$work/help" || {
		echo "FAIL: ucm $command --help"
		failed=1
	}
	grep -q "^usage: ucm $command " "$work/help" || {
		echo "FAIL: ucm $command --help has no usage"
		failed=1
	}
	awk -v command="$command" '
		/^\.S[SH] / { on = $0 ~ "(^| )(\"[a-z, ]*)?" command "(,|\"| and|$)" ||
			$0 == ".SS \"Options of these commands\"" }
		on' "$top_srcdir/man/ucm.1" |
		sed 's/\\-/-/g; s/\\f[BIRP]//g; s/\\ / /g' >"$work/man"
	grep -o '^  .*' "$work/help" | grep -o -- '--[a-z-]*' |
		sort -u >"$work/options"
	[ "$(wc -l <"$work/options")" -ge 2 ] || {
		echo "FAIL: few options in ucm $command --help"
		failed=1
	}
	while read -r option; do
		grep -q -e "$option\([ ,.]\|\$\)" "$work/man" && continue
		echo "FAIL: ucm(1) does not describe $option of $command"
		failed=1
	done <"$work/options"
done
exit $failed
