#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm trace replay: figures that can be worked out by hand, and one line for whatever is
# wrong with a trace or a command line. $UCMFS_TRACE: the public trace of a chat
# service (Mooncake's conversation_trace.jsonl), for figures that are known of it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/tool.sh"
command='trace replay'
trace=$work/trace.jsonl

# requests 'ID ID' ...: one a second
requests() {
	second=0
	: >"$trace"
	for chain; do
		echo "{\"timestamp\": $((second * 1000)), \"output_length\": 5," \
			"\"hash_ids\": [$(echo $chain | sed 's/ /, /g')]}" \
			>>"$trace"
		second=$((second + 1))
	done
}

# figures POLICY CAPACITY [OPTION...]: hit rate, writes, Belady's hit rate
figures() {
	policy=$1
	capacity=$2
	shift 2
	"$ucm" trace replay "$trace" --json -p "$policy" -c "$capacity" "$@" |
		sed 's/[{}"]//g; s/,/ /g; s/[a-z_]*://g' |
		awk '{ printf "%.4f %.4f %.4f\n", $3, $4, $5 }'
}

# ---- by hand ----

# Three blocks in turn, room for two: LRU always lets go what comes next. Who
# knows that keeps the first two.
requests 1 2 3 1 2 3
same 'three in turn, room for two' '0.0000 1.0000 0.3333' "$(figures lru 2)"
same 'three in turn, room for three' '0.5000 0.5000 0.5000' "$(figures lru 3)"

# The head is the newest: of 1 2 3, 3 goes for 4; then 1 2 are there for 3.
requests '1 2 3' '1 2 4' '1 2 3'
same 'a tail is replaced' '0.4444 0.5556 0.5556' "$(figures lru 3)"

# 9 makes room by the tail of 1 2; the second 1 2 hits its head.
requests '1 2' 9 '1 2'
same 'the tail goes before the head' '0.2000 0.8000 0.4000' "$(figures lru 2)"

# 1 goes for 8 9, and 2, which is there, lies behind the hole: no hit.
requests '1 2' 2 '8 9' '1 2'
same 'what lies behind a hole is no hit' '0.1429 0.7143 0.4286' \
	"$(figures lru 3)"

requests '1 2 3 4' 5 '1 2 3 4'
same 'a chain that does not fit keeps nothing else' '0.0000' \
	"$(figures lru 1 | cut -d' ' -f1)"

requests 1 2 1 2 3 4 5 6 1 2
same 'LRU forgets what was used twice' '0.2000' \
	"$(figures lru 4 | cut -d' ' -f1)"

# ---- forms ----

same 'names may be strings' '0.5000 0.5000 0.5000' "$(
	printf '%s\n' '{"timestamp": 0, "hash_ids": ["a", "b"]}' '' \
		'{"timestamp": 1.5, "hash_ids": ["a", "b"]}' >"$trace"
	figures hazard 9)"
"$ucm" trace replay "$trace" -c 1,2 -p lru,hazard >"$work/out"
same 'a table' '2 requests for 4 blocks, 2 of them different, in 0s' \
	"$(head -n 1 "$work/out")"
same 'a line for each size and policy' '1 lru,1 hazard,2 lru,2 hazard' \
	"$(awk 'NR > 3 { print $1, $2 }' "$work/out" | paste -sd,)"
same 'all policies, unless some are named' 'hazard,lru' \
	"$("$ucm" trace replay "$trace" -c 3 | awk 'NR > 3 { print $2 }' | paste -sd,)"
same 'and their share of the best' '100.0 %' \
	"$(awk '$2 == "lru" && $1 == 2 { print $4, $5 }' "$work/out")"

# ---- what is written ----

# 200 blocks that come once each: with a chance asked for, none is written. The
# rates say so after the first 64 requests.
many=$(seq 1 2000)
requests $many
same 'LRU writes all' '0.0000 1.0000 0.0000' "$(figures lru 100)"
same 'who asks for a chance writes little' 1 \
	"$(figures hazard 100 --admit 0.9 | awk '{ print ($2 < 0.1) }')"
# 4 KiB each, 1 a second, are 337 MiB a day; a tenth of that, and an hour's worth
same 'a budget is kept' 1 "$(figures lru 100 --endurance 34M/day \
	--block-bytes 4K | awk '{ print ($2 > 0.05 && $2 < 0.3) }')"
same 'a seed is a run' "$(figures hazard 50 --seed 7)" \
	"$(figures hazard 50 --seed 7)"

# ---- what is wrong ----

refused 2 'no TRACE' -c 1
refused 2 'no --capacity' "$trace"
refused 2 "--capacity '0'" "$trace" -c 0
refused 2 "--capacity '1,x'" "$trace" -c 1,x
refused 2 "--policy 'mru'" "$trace" -c 1 -p mru
refused 2 "--policy 'arc'" "$trace" -c 1 -p arc
refused 2 "--admit '2'" "$trace" -c 1 --admit 2
refused 2 "--endurance 'all'" "$trace" -c 1 --endurance all
refused 2 '--endurance without --block-bytes' "$trace" -c 1 --endurance 1G
refused 2 'too many arguments: b' "$trace" b -c 1
refused 1 "$work/none: No such file" "$work/none" -c 1
: >"$trace"
refused 1 "$trace: no blocks in it" "$trace" -c 1

# bad_line 'text in the line' LINE: as the third line
bad_line() {
	requests 1 2
	printf '%s\n' "$2" >>"$trace"
	refused 1 "$trace:3: $1" "$trace" -c 1
}
bad_line '' '{"timestamp": 1, "hash_ids": [1, 2'
bad_line 'not a JSON object' '[1]'
bad_line 'no number "timestamp"' '{"hash_ids": [1]}'
bad_line 'no number "timestamp"' '{"timestamp": "1", "hash_ids": [1]}'
bad_line '"timestamp" is no time' '{"timestamp": -5, "hash_ids": [1]}'
bad_line 'no list "hash_ids"' '{"timestamp": 5}'
bad_line '"hash_ids" has what is neither' '{"timestamp": 5, "hash_ids": [1.5]}'
printf 'UCMTRACE, but no more' >"$trace"
refused 1 "$trace: " "$trace" -c 1

# ---- known figures ----

trace=${UCMFS_TRACE-}
if [ -z "$trace" ]; then
	echo 'SKIP: figures of a public trace: UCMFS_TRACE is not set'
	exit $failed
fi
same 'LRU, 3000' '0.0653 0.9347 0.2945' "$(figures lru 3000)"
same 'LRU, 10000' '0.2116 0.7884 0.3664' "$(figures lru 10000)"
same 'LRU, 30000' '0.3257 0.6743 0.3664' "$(figures lru 30000)"
same 'LRU, 100000' '0.3637 0.6363 0.3664' "$(figures lru 100000)"

# mean POLICY CAPACITY [OPTION...]: hit rate and writes, of five seeds
mean() {
	for seed in 1 2 3 4 5; do
		figures "$@" --seed $seed
	done | awk '{ hits += $1; writes += $2 }
		END { printf "%.4f %.4f\n", hits / 5, writes / 5 }'
}

# within 'what' MEAN FROM TO WRITES
within() {
	echo "$2 $3 $4 $5" | awk '{ exit !($1 >= $3 && $1 <= $4 && $2 <= $5) }' &&
		return
	echo "FAIL: $1: $2, must be $3 to $4, writes at most $5"
	failed=1
}
within 'hazard, 3000' "$(mean hazard 3000)" 0.130 1 0.45
within 'hazard, 10000' "$(mean hazard 10000)" 0.226 1 0.8
within 'hazard, 30000' "$(mean hazard 30000)" 0.328 1 0.68
within 'hazard, 100000' "$(mean hazard 100000)" 0.361 1 0.65
within 'endurance, 3000' "$(mean hazard 3000 --admit 0.4)" 0.132 1 0.13
within 'endurance, 10000' "$(mean hazard 10000 --admit 0.4)" 0.195 1 0.16
exit $failed
