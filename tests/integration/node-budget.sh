#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The setting budget: loaders of all processes together read and write no more, none of
# them starves, and one that is killed leaves nothing; they follow when the daemon is
# another one.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse python3 client
clients_are_killed

MIB=1048576
rate=$((64 * MIB))
shape='--plane 65536 --threads 1' # blocks of 256 KiB

# What all loaders say that they have begun.
bytes_of_all() {
	od -An -v -tu8 -j72 -N8 "$held" | tr -d ' '
}

# they_come_to BYTES
they_come_to() {
	[ "$(bytes_of_all)" -ge "$1" ]
}

now_ms() {
	echo $(($(date +%s%N) / 1000000))
}

# A process that loads for as long as it lives, 1 MiB for each line of its output.
start_loader() {
	# shellcheck disable=SC2086 # options
	while :; do echo "load 0 4"; done 2>/dev/null |
		"$load_client" $shape mount "$mnt" >"$work/loader.$1" 2>&1 &
	keep_pid $!
	loaders="$loaders $!"
}

# loads_of NUMBER...: how many each has done, on a line
loads_of() {
	for loads_number; do
		grep -c '^= ok 4 ' "$work/loader.$loads_number"
	done
}

# all_load NUMBER...: each has done some loads
all_load() {
	[ "$(loads_of "$@" | sort -n | head -n 1)" -ge 2 ]
}

# measure BYTES NUMBER...: until they have begun so much more: the parts of these
# loaders in per cent, each on a line, in $work/parts, and $took_ms
measure() {
	measure_end=$(($(bytes_of_all) + $1))
	shift
	loads_of "$@" >"$work/before"
	measure_began=$(now_ms)
	need wait_until they_come_to $measure_end
	took_ms=$(($(now_ms) - measure_began))
	loads_of "$@" | paste "$work/before" - |
		awk '{ part[NR] = $2 - $1; sum += $2 - $1 }
		     END { for (i in part) print int(100 * part[i] / sum) }' \
			>"$work/parts"
}

# none_starves PERCENT
none_starves() {
	awk -v least="$1" '$1 < least { bad = 1 } END { exit bad || !NR }' \
		"$work/parts"
}

for bad in budget=1 budget=-1 inflight=17T budget=some inflight=; do
	refused "${bad%%=*}" "not $bad" timeout 5 "$ucmfs" -f \
		-o "config=$(settings "$bad")" "$work/tier" "$mnt"
done

# ---- without one ----
need mkdir -p "$work/tier"
need do_mount "$work/tier"
hold_memory budget
# shellcheck disable=SC2086 # options
start_client $shape mount "$mnt"
ask save 0 32
answers 'blocks are saved' 32 0 0 0 0
end_client
same 'nothing is counted' 0 "$(bytes_of_all)"
do_umount

# ---- four processes, and one is killed ----
need do_mount -c budget=64M,inflight=16M "$work/tier"
hold_memory budget
same 'it is as long as all know' 4096 "$(stat -L -c %s "$held")"
refused 'Operation not permitted' 'and cannot be made shorter' \
	truncate -s 100 "$held"
# shellcheck disable=SC2086 # options
start_client $shape mount "$mnt"
ask save 32 32
answers 'blocks are saved' 32 0 0 0 0
check 'saves count' they_come_to $((8 * MIB))

loaders=
for number in 1 2 3 4; do
	start_loader $number
done
need wait_until all_load 1 2 3 4
measure $((2 * rate)) 1 2 3 4
check "each of four has its part: $(tr '\n' ' ' <"$work/parts")" \
	none_starves 10
check "and no more than there is: $((2 * rate / MIB)) MiB in $took_ms ms" \
	test "$took_ms" -ge 1800
check 'statistics say so' sh -c 'tr -d " \n" <"$1" | grep -q \
	"\"budget\":{\"rate\":67108864,\"in_flight\":16777216,\"bytes\":[1-9]"' \
	sh "$mnt/.ucmfs/stats.json"
began=$(now_ms)
for number in 0 1 2 3 4 5 6 7 8 9; do
	ask load $number 1
	answers 'one of few blocks' 1 0 0 0 0
done
took_ms=$(($(now_ms) - began))
check "is not kept waiting: ten loads in $took_ms ms" test "$took_ms" -le 3000
end_client

# shellcheck disable=SC2086 # a list
set -- $loaders
kill -9 "$1"
reap "$1"
shift
measure $((2 * rate)) 2 3 4
check "each of three has its part: $(tr '\n' ' ' <"$work/parts")" \
	none_starves 15
check "and no more than there is: $((2 * rate / MIB)) MiB in $took_ms ms" \
	test "$took_ms" -ge 1800

# ---- another daemon ----
crash_daemon
umount -l "$mnt"
need do_mount -c budget=32M "$work/tier"
hold_memory budget
need wait_until they_come_to $MIB
measure $rate 2 3 4
check "they have what the next one gives: $((rate / MIB)) MiB in $took_ms ms" \
	test "$took_ms" -ge 1800
check "each of them: $(tr '\n' ' ' <"$work/parts")" none_starves 15

# ---- whatever is written there ----
while :; do
	dd if=/dev/urandom of="$held" bs=4096 count=1 conv=notrunc status=none
done &
vandal=$!
keep_pid $vandal
for pid; do
	check 'a loader goes on beside it' kill -0 "$pid"
done
# shellcheck disable=SC2086 # options
start_client $shape mount "$mnt"
ask load 0 32
answers 'and loads what is right' 32 0 0 0 0
end_client
check 'nor does the daemon mind' grep -q '"budget"' "$mnt/.ucmfs/stats.json"
kill $vandal
reap $vandal
for pid; do
	kill -0 "$pid" || fail 'a loader has ended'
	kill -9 "$pid"
	reap "$pid"
done
do_umount
