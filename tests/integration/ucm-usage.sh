#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm put, get and verify: one line and exit status 2 for whatever is wrong with
# the command line; and ucm(1) has every option that --help lists.
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

shape='--layers 2 --tokens 16 --dtype float16'
for command in put get; do
	refused 'no --mount or --tiers' $command
	refused 'no file RAW' $command --mount /m
	refused '--mount or --tiers' $command --mount /m --tiers /t raw
	refused 'too many arguments: c' $command --mount /m a b c
	refused 'unknown option --all' $command --all
	refused '--layers is missing' $command --mount /m --heads 1 raw
	refused '--dtype is missing' $command --mount /m --layers 1 --tokens 1 raw
	# shellcheck disable=SC2086
	refused '--heads is missing' $command --mount /m $shape raw
	# shellcheck disable=SC2086
	refused '--dim is missing' $command --mount /m $shape --heads 1 raw
	# shellcheck disable=SC2086
	refused 'bytes of a plane' $command --mount /m $shape --heads 1 --dim 16 \
		--k-bytes 100 raw
	# shellcheck disable=SC2086
	refused 'planes of 0 bytes' $command --mount /m $shape --heads 0 --dim 1 raw
	# shellcheck disable=SC2086
	refused '--like, or' $command --mount /m $shape --k-bytes 1 --like f raw
	refused "--layers '0'" $command --layers 0
	refused "--heads '65536'" $command --heads 65536
	refused "--dtype 'float17'" $command --dtype float17
	refused "--order 'DHN'" $command --order DHN
	refused "--io 'aio'" $command --io aio
	refused "--threads '0'" $command --threads 0
done
refused "--missing 'skip'" get --missing skip
refused "--verify 'most'" get --verify most
refused 'unknown option --parents' get --parents
refused "--parent '12'" put --parent 12
refused 'unknown option --missing' put --missing zero
refused 'no FILE' verify
refused 'no FILE' verify --json
refused '--all and --space need' verify --all
refused '--all and --space need' verify --space a FILE
refused 'too many arguments: ids' verify --mount /m --all ids
refused 'too many arguments: b' verify --tiers /t a b
refused 'unknown option --like' verify --like FILE
refused '--mount: no value' verify --mount

# of the man page: the parts of a command and what all share, without marks
for command in put get verify; do
	for part in $command Store Geometry; do
		awk -v head=".SS $part" \
			'/^\.S[SH] / { on = $0 == head } on' \
			"$top_srcdir/man/ucm.1"
	done | sed 's/\\-/-/g; s/\\f[BIRP]//g; s/\\ / /g' >"$work/man"
	"$ucm" $command --help >"$work/help" || {
		echo "FAIL: ucm $command --help"
		failed=1
	}
	grep -o '^  .*' "$work/help" | grep -o -- '--[a-z-]*' |
		sort -u >"$work/options"
	[ "$(wc -l <"$work/options")" -ge 6 ] || {
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
