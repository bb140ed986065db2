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

# below PID: it and all its descendants
below() {
	echo "$1"
	for child in $(cat /proc/"$1"/task/*/children); do
		below "$child"
	done
}

tell_waits() {
	echo "FAIL: $* has not ended after $limit s; its processes:"
	for pid in $(below "$test_pid"); do
		echo "  | $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
		for task in "/proc/$pid/task"/*; do
			echo "  |   $(cat "$task/comm"): $(cat "$task/syscall")"
			sed 's/^/  |     /' "$task/stack"
		done
	done
}

# A group of its own: a signal reaches all that the test has started there.
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
echo "# took $(($(date +%s) - began)) s"
exit "$status"
