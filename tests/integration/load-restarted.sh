#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A daemon is killed, and started again, while a loader saves and loads by its socket:
# what was reported as saved is there, what was not is missing or whole, no page is
# wrong, and the same loader continues with the next daemon.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test client

socket=$work/socket

serve() {
	: >"$work/ready"
	"$ucmfs" serve "$work/tier" --socket "$socket" -f -o ready-fd=3 \
		3>"$work/ready" 2>>"$work/log" &
	daemon=$!
	keep_pid $daemon
	need wait_until grep -q READY=1 "$work/ready"
}
log=$work/log

# What it has been asked is under way.
kill_stopped() {
	kill -9 $daemon
	reap $daemon
}

let_go() {
	kill -CONT $daemon 2>/dev/null
}

some_saved() {
	[ "$(blocks_in "$work/tier/blocks")" -ge "$1" ]
}

# one_of NAME: this number of the answer
one_of() {
	echo "$answer" | sed "s/.* $1 \([0-9]*\).*/\1/"
}

right='= ok 200 skipped 0 wrong 0 absent 0 failed 0'
for io in auto threads; do
	serve
	start_client --io $io --threads 2 --layers 4 --plane 32768 mount "$socket"

	tell start save 0 200
	hear
	need wait_until some_saved 10
	need freeze $daemon
	kill_stopped
	ask wait
	saved=$(one_of ok)
	same "$io: each block has its cause" 200 $((saved + $(one_of failed)))
	serve
	no_debris "$work/tier"
	check "$io: what was reported as saved is there" some_saved "$saved"
	there=$(blocks_in "$work/tier/blocks")
	ask_until "= ok $there skipped 0 wrong 0 absent $((200 - there)) failed 0" \
		load 0 200
	answers "$io: what is there is whole, and the rest is missing" \
		"$there" 0 0 $((200 - there)) 0
	ask save 0 200
	answers "$io: the rest is saved with the next daemon" \
		$((200 - there)) "$there" 0 0 0

	for again in 1 2; do
		need freeze $daemon
		tell start load 0 200
		hear
		kill_stopped
		serve
		ask wait
		same "$io: $again: a load is right, or has failed" '0 0 200' \
			"$(one_of wrong) $(one_of absent) $(($(one_of ok) + $(one_of failed)))"
		ask_until "$right" load 0 200
		answers "$io: $again: the next daemon serves all" 200 0 0 0 0
	done
	end_client
	need kill -TERM $daemon
	reap $daemon
	same "$io: the daemon ends well" 0 "$reaped"
	no_debris "$work/tier"
	absent "$socket"
	rm -rf "$work/tier"
	mkdir "$work/tier"
done
