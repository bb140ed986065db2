# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# limited.sh COMMAND... - run a test, and end it if it hangs.
#
# A test has limits of its own (mount.sh's watchdog, check's timeouts). Where
# these do not help, a run would wait for ever and say nothing. This one says
# what each process of the test is waiting for, ends them, and the test fails.

set -u
limit=${UCMFS_TEST_LIMIT:-600}
began=$(date +%s)

# What is true of the sources is not tried twice.
case ${UCMFS_TEST_CAMPAIGNS-}:$* in
no:*/tests/props/*)
	echo 'SKIP: not with sanitizers: it looks at the tree, not at what runs'
	exit 77 ;;
esac

# below PID: it and all its descendants
below() {
	echo "$1"
	for child in $(cat /proc/"$1"/task/*/children); do
		below "$child"
	done
}

# Those in the background are nobody's children, but have our word.
of_test() {
	below "$test_pid"
	grep -l -z -x "UCMFS_TEST_OF=$$" /proc/[0-9]*/environ | cut -d/ -f3
}

# where TASK: the last calls that the kernel is in, on one line
where() {
	awk '{ sub(/\+.*/, "", $2); printf " < %s", $2 } NR == 4 { exit }' "$1/stack"
}

# A line for each thread, but for those that wait for a child: where this is
# read there may be room for no more than a few thousand characters.
tell_waits() {
	echo "FAIL: $* has not ended after $limit s; its processes:"
	for pid in $(of_test | sort -n -u); do
		for task in "/proc/$pid/task"/*; do
			calls=$(where "$task")
			case $calls in
			'' | *do_wait* | *sigsuspend*) continue ;;
			esac
			echo "  | $pid/${task##*/} $(cat "$task/comm"):$calls"
		done
	done
}

# What a test that was ended has left.
end_the_rest() {
	for pid in $(of_test); do
		[ "$pid" = $$ ] || kill -KILL "$pid"
	done
}

# A group of its own: a signal reaches all that the test has started there.
UCMFS_TEST_OF=$$
export UCMFS_TEST_OF
timeout --kill-after=30 "$limit.5" "$@" &
test_pid=$!
trap 'kill "$test_pid"' HUP INT TERM
(
	timeout "$limit" tail -s 0.1 --pid="$test_pid" -f /dev/null
	[ $? != 124 ] || tell_waits "$@"
) 2>/dev/null &
wait "$test_pid"
status=$?
wait
case $status in
124 | 137) end_the_rest 2>/dev/null ;;
esac
echo "# took $(($(date +%s) - began)) s"
exit "$status"
