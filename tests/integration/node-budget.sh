#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The options budget and inflight: loaders of all processes together read and write
# no more, each has its part, and that of one that is killed is the others'; they
# follow when the daemon is another one.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse python3 client
clients_are_killed

MIB=1048576
rate=$((64 * MIB))
shape='--plane 65536 --threads 1' # blocks of 256 KiB

# sharers: "OWNER BYTES BEAT" of each loader, in the order of their places
sharers() {
	od -An -v -tu8 -w64 "$held" |
		awk 'NR > 1 && $1 != "0" { print $1, $5, $2 }'
}

bytes_of_all() {
	sharers | awk '{ sum += $2 } END { printf "%.0f", sum }'
}

# they_come_to BYTES
they_come_to() {
	[ "$(bytes_of_all)" -ge "$1" ]
}

num_sharers_is() {
	[ "$(sharers | wc -l)" -eq "$1" ]
}

now_ms() {
	echo $(($(date +%s%N) / 1000000))
}

# A process that loads for as long as it lives.
start_loader() {
	# shellcheck disable=SC2086 # options
	while :; do echo "load 0 32"; done 2>/dev/null |
		"$load_client" $shape mount "$mnt" >/dev/null 2>&1 &
	keep_pid $!
	loaders="$loaders $!"
}

# measure BYTES: until they have begun so much more: the parts in per cent, each
# on a line, in $work/parts, and $took_ms
measure() {
	sharers >"$work/before"
	measure_end=$(($(bytes_of_all) + $1))
	measure_began=$(now_ms)
	need wait_until they_come_to $measure_end
	took_ms=$(($(now_ms) - measure_began))
	sharers >"$work/after"
	awk 'NR == FNR { before[$1] = $2; next }
	     $1 in before { part[$1] = $2 - before[$1]; sum += part[$1] }
	     END { for (i in part) print int(100 * part[i] / sum) }' \
		"$work/before" "$work/after" >"$work/parts"
}

# parts_are NUM LEAST MOST
parts_are() {
	awk -v num="$1" -v least="$2" -v most="$3" '
		$1 > 0 { there++ } $1 > 0 && ($1 < least || $1 > most) { bad = 1 }
		END { exit bad || there != num }' "$work/parts"
}

for bad in budget=1 budget=-1 inflight=17T budget=some inflight=; do
	refused "${bad%%=*}" "not $bad" timeout 5 "$ucmfs" -f \
		-o "config=$(settings "$bad")" "$work/tier" "$mnt"
done

# ---- without one ----
need mkdir -p "$work/tier"
need do_mount "$work/tier"
hold_memory budget
check 'there is nothing to share' num_sharers_is 0
do_umount

# ---- four processes, and one is killed ----
need do_mount -c budget=64M,inflight=16M "$work/tier"
hold_memory budget
same 'it is as long as all know' 16384 "$(stat -L -c %s "$held")"
refused 'Operation not permitted' 'and cannot be made shorter' \
	truncate -s 100 "$held"
# shellcheck disable=SC2086 # options
start_client $shape mount "$mnt"
ask save 0 32
answers 'blocks are saved' 32 0 0 0 0
check 'saves count' they_come_to $((8 * MIB))
end_client
check 'and who leaves is forgotten' num_sharers_is 0

loaders=
for _ in 1 2 3 4; do
	start_loader
done
need wait_until num_sharers_is 4
measure $((rate / 2)) # they find each other
measure $((rate / 2))
check "four have a quarter each: $(tr '\n' ' ' <"$work/parts")" \
	parts_are 4 20 30
check "and no more than there is: $((rate / 2 / MIB)) MiB in $took_ms ms" \
	test "$took_ms" -ge 400
check 'statistics say so' sh -c 'tr -d " \n" <"$1" | grep -q \
	"\"budget\":{\"rate\":67108864,\"in_flight\":16777216,\"loaders\":4,"' \
	sh "$mnt/.ucmfs/stats.json"

# shellcheck disable=SC2086 # a list
set -- $loaders
kill -9 "$1"
reap "$1"
shift
measure $((rate / 2)) # a second of what three have without its part
measure $((rate / 2))
check "three have a third each: $(tr '\n' ' ' <"$work/parts")" \
	parts_are 3 27 40

# ---- another daemon ----
crash_daemon
umount -l "$mnt"
need do_mount -c budget=64M "$work/tier"
hold_memory budget
need wait_until num_sharers_is 3
measure $((rate / 2))
measure $((rate / 2))
check "they share what the next one has: $(tr '\n' ' ' <"$work/parts")" \
	parts_are 3 27 40

# ---- whatever is written there ----
while :; do
	dd if=/dev/urandom of="$held" bs=16384 count=1 conv=notrunc status=none
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
