# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# verbs.sh - what a command of ucm says, and how it ends; sourced behind mount.sh.
#
#   status 'what' N command...   its exit status; it said $work/said
#   says 'text'                  ... there
#   holds 'test' command...      an expression of Python about its JSON, called x
#   json 'test' command...       a check that it holds; it wrote $work/json
#   nth_id N                     of the Nth small block

status() {
	status_what=$1
	status_want=$2
	shift 2
	"$@" >"$work/said" 2>&1
	status_got=$?
	same "$status_what: status" "$status_want" $status_got ||
		sed 's/^/  | /' "$work/said"
}

says() {
	check "says $1" grep -F -- "$1" "$work/said" || sed 's/^/  | /' "$work/said"
}

holds() {
	holds_test=$1
	shift
	"$@" >"$work/json" 2>"$work/err"
	python3 -c 'import json, sys
x = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), x' "$work/json" "$holds_test"
}

json() {
	check "--json: $1" holds "$@"
}

nth_id() {
	basename "$(nth_path "$1")" .bin
}
