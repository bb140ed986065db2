# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# load.sh - a process that loads and saves; sourced behind mount.sh.
#
#   start_client [options] mount|tiers SOURCE    see load_client.c
#   ask 'load 0 16'        its answer is in $answer, all it said in $said
#   end_client

load_client=$top_builddir/tests/integration/load_client
client=
answers=0
answer=

require_client() {
	[ -x "$load_client" ] || skip "$load_client is not built"
}

has_answered() {
	[ "$(grep -c '^=' "$work/client.out")" -gt $answers ] ||
		is_gone "$client"
}

# What it says next; in vain for 20 s.
hear() {
	wait_until has_answered || wait_until has_answered || {
		fail "the client hangs"
		answer='= nothing'
		return 1
	}
	answers=$((answers + 1))
	answer=$(grep '^=' "$work/client.out" | sed -n ${answers}p)
	said=$work/client.out
}

tell() {
	echo "$*" >&8
}

ask() {
	tell "$@"
	hear
}

start_client() {
	rm -f "$work/client.in"
	mkfifo "$work/client.in"
	: >"$work/client.out"
	answers=0
	"$load_client" "$@" <"$work/client.in" >"$work/client.out" \
		2>>"$work/client.err" &
	client=$!
	keep_pid $client
	exec 8>"$work/client.in"
	hear
	[ "$answer" = '= ready' ] || {
		sed 's/^/  | /' "$work/client.err"
		die "the client does not start: $*"
	}
}

end_client() {
	tell quit
	exec 8>&-
	reap "$client"
	same 'the client ended well' 0 "$reaped"
}

# ask_until '= answer' command...: again and again, for 10 s
ask_until() {
	ask_want=$1
	shift
	ask_left=1000
	ask "$@"
	until [ "$answer" = "$ask_want" ] || [ $ask_left = 0 ]; do
		ask_left=$((ask_left - 1))
		sleep 0.01
		ask "$@"
	done
}

# answers 'what was asked' ok skipped wrong absent failed
answers() {
	same "$1" "= ok $2 skipped $3 wrong $4 absent $5 failed $6" "$answer"
}

# The client has said so of a block.
client_said() {
	check "the client says: $1" grep -qF -- "$1" "$said" "$work/client.err" ||
		tail -n 5 "$work/client.err" | sed 's/^/  | /'
}
