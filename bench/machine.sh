# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# machine.sh - with what a figure was measured, and whether the machine was free.
# Sourced by the benches before they read their arguments.
#
#   tell_facts   the commit, the command and the machine, in lines that begin
#                with "#"; sets $UCMFS_BENCH_BUSY for verdicts
#   tell_end     after the last figure
#   switch_uring_on, put_uring_back
#                FUSE over io_uring, the faster transport, where there is one
#
# A verdict (PASS, MISS) needs a machine that does nothing else: where others
# use more than a tenth of its processors, it is "busy". Looked at are a second
# before the first figure and one after the last, in which we do nothing.

bench_command="bench/$(basename "$0")${*:+ $*}"
UCMFS_BENCH_BUSY=
export UCMFS_BENCH_BUSY

# Ticks of all processors since the start: those in use, and all.
cpu_ticks() {
	awk '/^cpu / {
		for (i = 2; i <= 9; i++)
			all += $i
		print all - $5 - $6, all
	}' /proc/stat
}

# How much of the processors is in use, in per cent.
busy_percent() {
	ticks=$(cpu_ticks)
	sleep 1
	# shellcheck disable=SC2046,SC2086 # two numbers each
	set -- $ticks $(cpu_ticks)
	echo $((($3 - $1) * 100 / ($4 - $2 + 1)))
}

bench_commit() {
	git -C "$(dirname "$0")" describe --always --dirty --abbrev=12 \
		2>/dev/null || echo unknown
}

uring_parameter=/sys/module/fuse/parameters/enable_uring
uring_was=

switch_uring_on() {
	if [ -w $uring_parameter ]; then
		uring_was=$(cat $uring_parameter)
		echo Y >$uring_parameter
	else
		echo "$bench_command: no FUSE over io_uring in this kernel" >&2
	fi
}

put_uring_back() {
	[ -z "$uring_was" ] || echo "$uring_was" >$uring_parameter
}

tell_facts() {
	busy=$(busy_percent)
	[ "$busy" -le 10 ] || UCMFS_BENCH_BUSY=$busy
	echo "# $bench_command"
	echo "# $("$ucmfs" --version | head -n 1), commit $(bench_commit)," \
		"$(date -u +%Y-%m-%d)"
	echo "# kernel $(uname -r), $(uname -m)"
	echo "# $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo |
		head -n 1), $(nproc) cores, $(awk '/^MemTotal/ {
			printf "%d GiB", $2 / 1048576 + 0.5 }' /proc/meminfo)"
	echo "# others used $busy % of the processors before it began"
}

tell_end() {
	busy=$(busy_percent)
	echo "# others used $busy % of the processors after it had ended"
	[ "$busy" -le 10 ] || [ -n "$UCMFS_BENCH_BUSY" ] ||
		echo '# the machine was busy: PASS and MISS above do not count'
}
