#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Writers, readers, listers and removers at once: every block that is there at the
# end is whole, and nothing is lost.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# in the background, remembered
run() {
	"$@" >>"$work/out" 2>&1 &
	keep_pid $!
	runners="$runners $!"
}

reader() {
	until [ -e "$work/stop" ]; do
		verify --count 100 --seed 100 "$1" || return 1
	done
}

lister() {
	until [ -e "$work/stop" ]; do
		find "$1" -ignore_readdir_race -name '*.bin' -size -8192c |
			grep . && return 1
		ls -R "$1" >/dev/null || return 1
	done
}

remover() {
	small_paths 200 --seed 200 | while read -r path; do
		rm "$1/$path" || return 1
	done
}

mkdir "$work/a" "$work/b" "$work/c"
need do_mount "one=$work/a,$work/b:two=$work/c"
need mk --count 100 --seed 100 "$mnt/blocks"
need mk --count 200 --seed 200 "$mnt/blocks"
runners=
run reader "$mnt/blocks"
run lister "$mnt/blocks"
background=$runners
runners=
for seed in 1 2 3 4; do
	method=create
	[ $((seed % 2)) = 0 ] || method=rename
	run mk --count 300 --seed $seed --method $method "$mnt/blocks"
done
run remover "$mnt/blocks"
for pid in $runners; do
	wait "$pid" || fail "a writer or remover: status $?"
	forget_pid "$pid"
done
: >"$work/stop"
for pid in $background; do
	wait "$pid" || fail "a reader or lister: status $?"
	forget_pid "$pid"
done
same 'nobody complained' '' "$(cat "$work/out")"
for seed in 1 2 3 4; do
	check "all of writer $seed are whole" \
		verify --count 300 --seed $seed "$mnt/blocks"
done
same 'what is there is what was not removed' 1300 "$(blocks_in "$mnt/blocks")"
check 'both directories of the tier are used' test \
	"$(blocks_in "$work/a/blocks")" -gt 300 -a \
	"$(blocks_in "$work/b/blocks")" -gt 300
same 'the second tier is not' 0 "$(blocks_in "$work/c/blocks")"
no_debris "$work/a" "$work/b" "$work/c"
same 'nothing was set aside' 0 "$(stat_of quarantined)"
do_umount
