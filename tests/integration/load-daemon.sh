#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The daemon stops, or dies, while blocks are loaded: each block has its cause,
# nothing hangs, what was loaded is right; and the same loader goes on when a
# daemon is there again.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client

failed_blocks() {
	echo "$answer" | sed 's/.* failed //'
}

# It looks for the daemon five times a second at most.
says_gone() {
	ask load 150 1
	grep -qF 'the daemon has gone' "$work/client.err"
}

# All threads of the daemon have stopped.
is_stopped() {
	! grep -h '^State:' "/proc/$1"/task/*/status | grep -qv T
}

stop_daemon() {
	freeze "$(daemon_pid)"
	need wait_until is_stopped "$(daemon_pid)"
}

for io in auto threads; do
	: >"$work/client.err"
	need do_mount "$work/tier"
	start_client --io $io --threads 2 mount "$mnt"
	ask save 0 200
	ask load 0 50
	answers "$io: all is well" 50 0 0 0 0

	# stopped: requests to it hang
	stop_daemon
	ask load 100 20 300
	answers "$io: a deadline ends what hangs" 0 0 0 0 20
	client_said 'Connection timed out'
	ask load 100 20 50
	answers "$io: and the next one" 0 0 0 0 20
	kill -CONT "$(daemon_pid)"
	ask load 100 20
	answers "$io: it goes on when the daemon does" 20 0 0 0 0

	# killed, with requests under way
	stop_daemon
	tell start load 0 200
	hear
	crash_daemon
	ask wait
	check "$io: those that were not open fail" \
		test "$(failed_blocks)" -ge 50
	check "$io: no page is wrong" \
		sh -c 'echo "$1" | grep -q "wrong 0 absent 0"' sh "$answer"
	ask load 150 50
	answers "$io: without a daemon all of them" 0 0 0 0 50
	check "$io: the client says that it has gone" wait_until says_gone
	ask save 300 5
	answers "$io: nothing can be saved" 0 0 0 0 5
	ask lookup 150 200
	check "$io: nothing can be said" test "${answer#= found}" = "$answer"
	ask group other
	same "$io: no group can be added" '= Transport endpoint is not connected' \
		"$answer"
	umount -l "$mnt"

	need do_mount "$work/tier"
	need mkdir "$mnt/spaces/other"
	ask_until '= group 1' group other
	same "$io: with a new daemon, it can" '= group 1' "$answer"
	ask_until '= ok 200 skipped 0 wrong 0 absent 0 failed 0' load 0 200
	answers "$io: a new daemon serves the same loader" 200 0 0 0 0
	ask save 300 5
	answers "$io: and saves" 5 0 0 0 0
	ask lookup 150 200
	same "$io: and tells what it has" '= found 55' "$answer"
	end_client
	no_debris "$work/tier"
	do_umount
	rm -rf "$work/tier"
	mkdir "$work/tier"
done
