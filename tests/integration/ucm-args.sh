#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# One line and exit status 2 for whatever is wrong with a command line.
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

commands='doctor du evict ls pin stat status top warm'
id=$(printf %032d 1)
for command in $commands; do
	refused 'unknown option --bogus' $command --bogus
	refused 'unknown option -x' $command -x
	[ $command = doctor ] || refused '--mount: no value' $command --mount
	[ $command = doctor ] || [ $command = status ] ||
		refused "--space 'a/b'" $command --space a/b
	refused '--json=1: takes no value' $command --json=1
done
for command in du ls status top; do
	refused 'too many arguments: b' $command a b
	refused 'a and --mount' $command -m /m a
done
for command in evict pin warm; do
	refused 'no ID, no --file and no --all' $command
	refused 'one of ID, --file and --all' $command -f - "$id"
	refused "'12': not an id" $command "$id" 12
done
refused 'no ID' stat --where
refused "'12': not an id" stat 12 --where
refused 'unknown option --list' stat --list
refused 'no ID' stat
refused "'12': not an id" stat 12
refused "too many arguments: b" stat "$id" b
refused 'too many arguments: b' stat --present a b
refused "--prefix '3G'" ls -p 3G
refused "--limit '-1'" ls -n -1
refused "--sort 'colour': must be name|size|age|uses|atime" ls -o colour
refused "--delay '0': not a valid SECONDS" top -d 0
refused "--delay '1s'" top -d 1s
refused "--blocks '201': must be a number from 0 to 200" top -n 201

shape='--layers 2 --tokens 16 --dtype float16'
for command in put get; do
	refused 'no --mount or --tiers' $command
	refused 'no file RAW' $command --mount /m
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

refused 'no FILE' trace
refused 'too many arguments: b' trace a b
refused 'too many arguments: /b' status --serve /a /b
refused 'must be list, restore or purge' quarantine
refused "no command 'inspect'" inspect
refused "no command 'a/b'" a/b
refused "no command '$(printf %0300d 1)'" "$(printf %0300d 1)"
for what in flush checkpoint rescan; do
	refused 'too many arguments: /b' sync $what /a /b
	refused '/a and --mount' sync -m /m $what /a
done

# Names of earlier versions still do what the new ones do.
names=0
while read -r old now; do
	"$ucm" $old --help >"$work/out" 2>"$work/err"
	"$ucm" $now --help >"$work/want"
	if ! cmp -s "$work/want" "$work/out" || [ ! -s "$work/want" ] ||
		[ "$(cat "$work/err")" != "ucm $old: use 'ucm $now'" ]; then
		echo "FAIL: ucm $old is not ucm $now:"
		sed 's/^/  | /' "$work/err"
		failed=1
	fi
	! "$ucm" --help | grep -q "^  $old " || {
		echo "FAIL: ucm --help lists $old"
		failed=1
	}
	names=$((names + 1))
done <<EOF
checkpoint sync checkpoint
debug trace debug
exporter status --serve
flush sync flush
lookup stat --present
replay trace replay
rescan sync rescan
touch warm --touch
unpin pin --off
where stat --where
EOF
[ $names = 10 ] || failed=1
"$ucm" quarantine inspect --help 2>&1 >"$work/out" | grep -qx \
	"ucm quarantine inspect: use 'ucm quarantine list'" || {
	echo "FAIL: ucm quarantine inspect"
	failed=1
}
# Another name is that of a program.
(
	PATH=$work/bin:/usr/bin:/bin
	refused "it comes with pip install 'ucmfs[bench]'" bench check --help
	mkdir "$work/bin" "$work/ucm-a"
	printf '#!/bin/sh\necho "${0##*/}" "$#" "$@"\nexit 7\n' >"$work/bin/ucm-bench"
	for name in ls 'a b' off; do
		cp "$work/bin/ucm-bench" "$work/bin/ucm-$name"
	done
	chmod 755 "$work/bin/ucm-bench" "$work/bin/ucm-ls" "$work/bin/ucm-a b"
	cp "$work/bin/ucm-bench" "$work/ucm-a/b"
	for name in bench 'a b'; do
		out=$("$ucm" "$name" --help 'c d' -x)
		[ $?:"$out" = "7:ucm-$name 3 --help c d -x" ] || {
			echo "FAIL: ucm $name is not ucm-$name: $out"
			failed=1
		}
	done
	refused 'unknown option --bogus' ls --bogus
	refused "no command 'off'" off
	cd "$work" && refused "no command 'a/b'" a/b
	exit $failed
) || failed=1
# One that is gone is refused, with where it is now.
"$ucm" sparse recall --help >"$work/out" 2>"$work/err"
if [ $? != 2 ] || [ -s "$work/out" ] ||
	! grep -q "'ucm repr'.*bench/recall" "$work/err"; then
	echo "FAIL: ucm sparse"
	failed=1
fi
exit $failed
