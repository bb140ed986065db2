# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# mount.sh - a mount to test; sourced by the integration tests, POSIX sh.
#
# A test begins with start_test and what it needs. It arranges with plain
# commands and `need`, acts, and compares with `check`, `same` and `refused`.
# Whatever it started or mounted is ended when the shell exits, however that
# comes about. Exit status: 0, 1, or 77 (cannot run here, and why).
#
#   $work       a directory of the test's own      $mnt    the mount point
#   $log        what the daemon of $mnt has said   $small  options for mkblocks

set -u
LC_ALL=C
export LC_ALL
umask 022

: "${top_srcdir:=$(cd "$(dirname "$0")/../.." && pwd)}"
: "${top_builddir:=$PWD}"
ucmfs=$top_builddir/ucmfs
UCMFS_PROGRAM=$ucmfs # what libucm starts for directories
export UCMFS_PROGRAM
mkblocks=$top_builddir/tests/lib/mkblocks
ucm=$top_builddir/ucm
index_ask=$top_builddir/tests/lib/index_ask
# whether requests come over io_uring, where a test does not say: on or off,
# which is what users get
transport=${UCMFS_TEST_URING:-off}

# 2 layers, 512 bytes a plane: a file of two pages
small='--quiet --layers 2 --heads 1 --dim 16 --tokens 16'
small_size=8192

work=
watchdog=
mnt=
log=
failed=0
pids=

# ---- telling ----

# What has failed before that stays a failure.
skip() {
	echo "SKIP: $*"
	[ $failed = 0 ] || exit 1
	exit 77
}

# A part of the test that cannot run here, and why.
left_out() {
	echo "SKIP: $*"
}

# may_try 'what' COMMAND...: whether a part of the test has what it needs
may_try() {
	may_try_what=$1
	shift
	for cmd; do
		command -v "$cmd" >/dev/null 2>&1 || {
			left_out "$may_try_what: needs $cmd"
			return 1
		}
	done
}

die() {
	echo "FAIL: $*"
	exit 1
}

fail() {
	echo "FAIL: $*"
	failed=1
}

pass() {
	echo "ok: $*"
}

# check 'what must hold' command...
check() {
	check_what=$1
	shift
	"$@" >"$work/check.out" 2>&1
	check_status=$?
	if [ $check_status = 0 ]; then
		pass "$check_what"
		return 0
	fi
	fail "$check_what ($*: status $check_status)"
	sed 's/^/  | /' "$work/check.out"
	return 1
}

# A step without which the rest says nothing.
need() {
	"$@" || die "$*: status $?"
}

# same 'what is compared' expected seen
same() {
	if [ "$2" = "$3" ]; then
		pass "$1"
		return 0
	fi
	fail "$1"
	printf '  | must be: %s\n  | is:      %s\n' "$2" "$3"
	return 1
}

# refused 'Error text' 'what must fail so' command...
refused() {
	refused_text=$1
	refused_what=$2
	shift 2
	if "$@" >"$work/check.out" 2>&1; then
		fail "$refused_what ($*: succeeded)"
		return 1
	fi
	if grep -qF -- "$refused_text" "$work/check.out"; then
		pass "$refused_what"
		return 0
	fi
	fail "$refused_what: no '$refused_text' in what it said ($*)"
	sed 's/^/  | /' "$work/check.out"
	return 1
}

# absent path: ENOENT, and nothing else, is what stat(2) says of it
absent() {
	refused 'No such file or directory' "absent: ${1#"$work"/}" stat "$1"
}

# The same as a question.
is_absent() {
	stat "$1" 2>&1 >/dev/null | grep -q 'No such file or directory'
}

# logged 'text': the daemon has said so
logged() {
	check "the log says: $1" grep -qiF -- "$1" "$log"
}

# Poll a command: every 10 ms, for 10 s.
wait_until() {
	wait_left=1000
	until "$@" >/dev/null 2>&1; do
		wait_left=$((wait_left - 1))
		[ $wait_left -gt 0 ] || return 1
		sleep 0.01
	done
}

# ---- what a test asks for ----

# start_test NEED...: skips the test where one of these is missing, and makes
# $work. "root", "fuse", "namespace", "campaigns", "strace", "python3"
# (and "client" of load.sh, "python" of python.sh) are the functions below; any
# other word is a command.
start_test() {
	for need_word; do
		if type "require_$need_word" >/dev/null 2>&1; then
			"require_$need_word"
		else
			require_cmd "$need_word"
		fi
	done
	make_workdir
}

require_sparse() {
	[ -f "$top_builddir/libucmsparse.la" ] || skip 'built without sparse'
}

require_root() {
	[ "$(id -u)" = 0 ] || skip 'needs root'
}

require_fuse() {
	[ -x "$ucmfs" ] || skip "$ucmfs is not built"
	[ -x "$mkblocks" ] || skip "$mkblocks is not built"
	[ -c /dev/fuse ] || skip 'no /dev/fuse'
	(: <>/dev/fuse) 2>/dev/null || skip '/dev/fuse cannot be opened'
}

require_cmd() {
	for cmd; do
		command -v "$cmd" >/dev/null 2>&1 || skip "needs $cmd"
	done
}

# Tests that take long, or run no more of our C with sanitizers than others do:
# tools/selftest runs them without sanitizers, and with them in its long form.
require_campaigns() {
	[ "${UCMFS_TEST_CAMPAIGNS-}" != no ] ||
		skip 'not with sanitizers, but in tools/selftest --long'
}

# Without site-packages, of which our scripts need none: they start it thousands of
# times, and it may import much from there. And itself, where the one in PATH is a
# shim that looks for it each time: 0.1 s.
require_python3() {
	require_cmd python3
	UCMFS_TEST_PYTHON3=$(python3 -S -c 'import sys
print(sys.executable)')
	PATH=$top_srcdir/tests/lib/bin:$PATH
	export UCMFS_TEST_PYTHON3 PATH
}

# A tracer in the background, which leaves the daemon our child. Leaks cannot be
# looked for under it.
require_strace() {
	require_cmd strace
	strace -D -f -qq -o /dev/null true 2>/dev/null ||
		skip 'strace cannot trace'
	ASAN_OPTIONS=detect_leaks=0
	export ASAN_OPTIONS
}

# A private mount namespace, for tests that change what is mounted where: run
# the test again inside one. It begins with copies of what other tests have
# mounted, which would keep their daemons running after they have unmounted.
require_namespace() {
	require_root
	require_cmd unshare
	if [ -n "${UCMFS_TEST_INSIDE-}" ]; then
		unmount_below "$(tests_dir)/ucmfs."
		awk '/ - fuse\.ucmfs / { print $5 }' /proc/self/mountinfo |
			unmount_listed
		return 0
	fi
	unshare -m true 2>/dev/null || skip 'needs unshare -m'
	UCMFS_TEST_INSIDE=1 top_srcdir=$top_srcdir top_builddir=$top_builddir
	export UCMFS_TEST_INSIDE top_srcdir top_builddir
	trap - EXIT
	exec unshare -m --propagation private "${SHELL:-/bin/sh}" "$0"
}

# /dev/fuse is root's on some machines; in a namespace it is a file of ours that
# all may open. And without an /etc/mtab fusermount3 does not unmount.
open_fuse_to_others() {
	[ -e /etc/mtab ] || skip 'no /etc/mtab: fusermount3 cannot unmount'
	[ -u "$(command -v fusermount3)" ] || skip 'fusermount3 is not setuid'
	mknod "$work/fuse" c 10 229 && chmod 666 "$work/fuse" &&
		mount --bind "$work/fuse" /dev/fuse ||
		skip '/dev/fuse cannot be replaced'
}

# The daemon as a plain executable file, also where it is a libtool wrapper;
# for users that cannot search the build directory.
copy_ucmfs() {
	copy_from=$ucmfs
	[ ! -x "$top_builddir/.libs/ucmfs" ] ||
		copy_from=$top_builddir/.libs/ucmfs
	cp "$copy_from" "$1" && chmod 755 "$1"
}

tests_dir() {
	(cd "${UCMFS_TEST_DIR:-${TMPDIR:-/tmp}}" && pwd -P)
}

make_workdir() {
	work=$(mktemp -d "$(tests_dir)/ucmfs.XXXXXX") || die 'mktemp failed'
	work=$(cd "$work" && pwd -P)
	chmod 755 "$work"
	mkdir "$work/mnt" "$work/run" "$work/tier"
	mnt=$work/mnt
	log=$work/log.mnt
	XDG_STATE_HOME=$work/state # what ucm scrub notes
	export XDG_STATE_HOME
	start_watchdog
}

# A daemon that hangs makes its clients wait for ever; without it they fail. A
# test that freezes or stops something says in let_go how it moves again, before
# start_test: what waits for that cannot be killed.
start_watchdog() {
	(
		trap - EXIT
		# which ends by itself if nobody is left to end it
		timeout "${UCMFS_TEST_TIMEOUT:-300}" tail -s 0.5 --pid=$$ -f /dev/null &
		sleeper=$!
		trap 'kill $sleeper; exit' TERM
		wait $sleeper
		[ $? = 124 ] || exit
		echo 'FAIL: this takes too long: the daemons are killed'
		! type let_go >/dev/null 2>&1 || let_go
		for pid in $(cat "$work"/run/*.pid); do
			! grep -q ucmfs "/proc/$pid/comm" || kill -9 "$pid"
		done
	) &
	watchdog=$!
}

# ---- processes ----

# Remember a background process, so that it ends with the test.
keep_pid() {
	pids="$pids $1"
}

forget_pid() {
	forget_left=
	for pid in $pids; do
		[ "$pid" = "$1" ] || forget_left="$forget_left $pid"
	done
	pids=$forget_left
}

# Ended, though perhaps not waited for yet.
is_gone() {
	[ ! -d "/proc/$1" ] || grep -q '^State:[[:space:]]*Z' "/proc/$1/status"
}

# reap PID: its exit status, in $reaped; kills it if it does not end
reap() {
	wait_until is_gone "$1" || wait_until is_gone "$1" || {
		fail "process $1 does not end; killed"
		kill -9 "$1"
	}
	wait "$1" 2>/dev/null
	reaped=$?
	forget_pid "$1"
}

# ---- mounts ----

is_mounted() {
	grep -q " ${1:-$mnt} " /proc/self/mountinfo
}

# settings NAME=VALUE,...: a file of ucmfs.conf(5) that has these, for config=
settings() {
	echo "$1" | tr , '\n' | sed 's/=/: /' >"$work/ucmfs.conf"
	echo "$work/ucmfs.conf"
}

# do_mount [-c settings] [-o options] SOURCE: the daemon serves $mnt when this
# returns. settings: those of ucmfs.conf(5), which has them as NAME: VALUE.
# $ucmfs_wrapper: a command that executes the daemon; $mount_flags: more flags.
do_mount() {
	mount_opts=
	[ "$1" != -c ] || {
		mount_opts=,config=$(settings "$2")
		shift 2
	}
	[ "$1" != -o ] || {
		mount_opts=$mount_opts,$2
		shift 2
	}
	mount_key=$(basename "$mnt")
	log=$work/log.$mount_key
	[ ! -f "$log" ] || cat "$log" >>"$work/log.before"
	mount_ready=$work/run/$mount_key.ready
	rm -f "$mount_ready"
	mkfifo "$mount_ready" || return 1
	# the last open end of the FIFO is the daemon's: read ends when it does
	mount_opts=$mount_opts${mount_more:+,$mount_more}
	mount_uring=$transport
	case $mount_opts in
	*io_uring=*) mount_uring= ;;
	*) mount_opts=$mount_opts,io_uring=$transport ;;
	esac
	# shellcheck disable=SC2086 # a wrapper may have arguments
	${ucmfs_wrapper-} "$ucmfs" -f ${mount_flags-} "$1" "$mnt" -o "ready-fd=9$mount_opts" \
		9>"$mount_ready" >"$log" 2>&1 &
	mount_pid=$!
	keep_pid $mount_pid
	echo $mount_pid >"$work/run/$mount_key.pid"
	mount_said=
	read -r mount_said <"$mount_ready"
	rm -f "$mount_ready"
	if [ "$mount_said" = READY=1 ]; then
		# what is to run over io_uring does not run over something else
		[ "$mount_uring" != on ] || ! grep 'io_uring off: ' "$log"
		return
	fi
	reap $mount_pid
	mount_status=$reaped
	echo "ucmfs -o ready-fd=9$mount_opts $1 did not start: status $reaped"
	sed 's/^/  | /' "$log"
	return 1
}

daemon_pid() {
	cat "$work/run/$(basename "$mnt").pid"
}

no_sanitizer_report() {
	if grep -E '(Address|Leak|Thread)Sanitizer|runtime error' "$log"; then
		return 1
	fi
}

# For tests that kill a process in the middle of a request: the kernel then sends
# an interrupt, and one that comes after the answer waits in libfuse (3.18) for the
# next request, to be freed. Where the session ends first, it never is.
clients_are_killed() {
	LSAN_OPTIONS=print_suppressions=0:suppressions=$top_srcdir/tests/lib/lsan-killed.supp
	export LSAN_OPTIONS
}

# do_umount [TERM|INT|HUP]: by umount(8), or by a signal to the daemon; the
# daemon's exit status must be 0.
do_umount() {
	umount_pid=$(daemon_pid)
	if [ $# -gt 0 ]; then
		kill "-$1" "$umount_pid"
	else
		# the ring of a process that was killed ends some time after it
		wait_until umount "$mnt" || {
			fail "umount: $(umount "$mnt" 2>&1)"
			return 1
		}
	fi
	reap "$umount_pid"
	same 'the daemon ended well' 0 "$reaped"
	check 'no report of a sanitizer' no_sanitizer_report
	! is_mounted || fail "$mnt is still mounted"
}

# The daemon dies; what it leaves is a dead mount.
crash_daemon() {
	crash_pid=$(daemon_pid)
	kill -9 "$crash_pid"
	reap "$crash_pid"
}

kill_daemon() {
	crash_daemon
	umount -l "$mnt"
}

# make_fs ext4|xfs SIZE DIR [mount options]: a file system of its own, in a file
# beside DIR that grows as it is written to; the test is skipped where there are
# none. $mkfs_flags: more flags for mkfs.
make_fs() {
	require_root
	require_cmd "mkfs.$1" losetup
	mkdir -p "$3"
	need truncate -s "$2" "$3.image"
	# shellcheck disable=SC2086 # a list
	need "mkfs.$1" -q ${mkfs_flags-} "$3.image"
	mount -o "loop${4+,$4}" "$3.image" "$3" 2>"$work/make_fs.out" ||
		skip "a $1 in a file cannot be mounted here:" \
			"$(cat "$work/make_fs.out")"
}

# ---- looking at things ----

# blocks_in DIR: how many block names it lists, in all buckets
blocks_in() {
	find "$1" -name '*.bin' | wc -l
}

# Names below a directory's .ucmfs/tmp: all that is unfinished.
has_no_temps() {
	for dir; do
		[ -z "$(find "$dir/.ucmfs/tmp" -type f)" ] || return 1
	done
}

# RELEASE comes after close(2) has returned, hence the polling.
no_debris() {
	check 'nothing is left in .ucmfs/tmp' wait_until has_no_temps "$@"
}

# The counter called $1 in stats.json.
stat_of() {
	grep -o "\"$1\": *[0-9]*" "$mnt/.ucmfs/stats.json" | head -n 1 |
		grep -o '[0-9]*$'
}

stat_is() {
	[ "$(stat_of "$1")" = "$2" ]
}

# metric NAME [LABEL="VALUE"...]: the values of all samples that have these
metric() {
	grep -a "^$1{" "$mnt/.ucmfs/metrics" >"$work/metric"
	shift
	for metric_label; do
		grep -aF -- "$metric_label" "$work/metric" >"$work/metric.left"
		mv "$work/metric.left" "$work/metric"
	done
	sed 's/.*} //' "$work/metric"
}

# metric_is VALUE NAME [LABEL="VALUE"...]
metric_is() {
	metric_want=$1
	shift
	same "metric $*" "$metric_want" "$(metric "$@")"
}

# xattr NAME FILE: its value
xattr() {
	getfattr --absolute-names --only-values -n "user.ucmfs.$1" "$2"
}

# make_src [options]: small blocks to copy from, in $work/src
make_src() {
	need mkdir "$work/src"
	need mk "$@" "$work/src"
}

# The names of the first N small blocks, "3f/3f….bin" each.
# shellcheck disable=SC2086 # $small is a list
small_paths() {
	"$mkblocks" $small --list --count "$@"
}

# nth_path N: of the Nth
nth_path() {
	small_paths "$1" | tail -n 1
}

# ids N [M]: of the first N small blocks, without the first M
ids() {
	small_paths "$1" | tail -n +$((${2:-0} + 1)) | sed 's,.*/,,; s/.bin//'
}

# mk [options] DIR: small blocks; 16 if not said otherwise
# shellcheck disable=SC2086
mk() {
	"$mkblocks" $small --count 16 "$@"
}

verify() {
	mk --verify "$@"
}

# manifest LAYERS: a space.json; with 2 that of blocks by mk
manifest() {
	printf '{"model": "test", "hash": "md5", "geometry": {
	"num_layers": %s, "block_size": 16, "dtype": "float16",
	"k_bytes": 512, "v_bytes": 512, "num_kv_heads": 1, "head_dim": 16}}\n' \
		"$1"
}

# shellcheck disable=SC2086 # who asks may stand before it
index_ask() {
	$index_ask "$@"
}

# The scan has ended: what is not in the index is absent.
index_is_complete() {
	grep -q '"complete": true' "$mnt/.ucmfs/stats.json"
}

# hold_memory index|budget: a path to what the daemon's socket passes, in $held,
# for as long as the test runs; root may look there
hold_memory() {
	rm -f "$work/held"
	python3 "$top_srcdir/tests/lib/control.py" "$mnt" "hold-$1" >"$work/held" &
	keep_pid $!
	need wait_until test -s "$work/held"
	held=$(cat "$work/held")
}

# byte FILE OFFSET: turn one bit of it over
flip() {
	flip_was=$(od -An -tu1 -j "$2" -N 1 "$1" | tr -d ' ')
	# shellcheck disable=SC2059 # the format is the byte
	printf "\\$(printf %03o $((flip_was ^ 1)))" |
		dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# rename(2) as it is; mv(1) has words of its own for EINVAL
rename_file() {
	python3 -c 'import os, sys; os.rename(sys.argv[1], sys.argv[2])' \
		"$1" "$2"
}

# as_nobody command...: without any privilege
as_nobody() {
	setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}

# others_can 'what' command...: whether a part of the test has the user it needs
others_can() {
	others_can_what=$1
	shift
	as_nobody "$@" >/dev/null 2>&1 && return
	left_out "$others_can_what: other users cannot get there"
	return 1
}

# ---- who does not answer ----

# A thread that was waiting for a request stops a moment after the signal: one that
# comes in between it takes along, and then not even a kill ends the wait for the
# answer.
all_stopped() {
	! grep -L '^State:	[Tt]' "/proc/$1/task/"*/status | grep -q .
}

# freeze PID: from now on none of its threads takes anything
freeze() {
	kill -STOP "$1" && wait_until all_stopped "$1"
}

# ---- the end ----

# Standard input: places as mountinfo writes them
unmount_listed() {
	sort -r | while read -r where; do
		# \040 and the like
		where=$(printf "%b." "$(printf "%s" "$where" |
			sed 's/\\\([0-7][0-7][0-7]\)/\\0\1/g')")
		where=${where%.}
		# it may be another test's, which has frozen its daemon
		timeout 20 umount "$where" 2>/dev/null || umount -l "$where"
	done
}

# unmount_below PREFIX: what is mounted where the name begins so
unmount_below() {
	awk -v below="$1" 'index($5, below) == 1 { print $5 }' \
		/proc/self/mountinfo | unmount_listed
}

clean_up() {
	[ -n "$work" ] || return
	# more than once: while it starts it may not notice
	until is_gone "$watchdog"; do
		kill -TERM "$watchdog" 2>/dev/null
		sleep 0.01
	done
	for pid in $pids; do # daemons end well here, and the rest dies
		kill -9 "$pid" 2>/dev/null
		wait "$pid" 2>/dev/null
	done
	unmount_below "$work/"
	rm -rf --one-file-system "$work"
}

at_exit() {
	status=$?
	trap '' EXIT HUP INT TERM
	[ $status != 0 ] || status=$failed
	if [ $status != 0 ] && [ $status != 77 ] && [ -s "$log" ]; then
		echo "-- the daemon's log, at most the last 60 lines:"
		tail -n 60 "$log"
	fi
	[ -n "$work" ] && type let_go >/dev/null 2>&1 && let_go
	type on_exit >/dev/null 2>&1 && on_exit
	clean_up
	exit $status
}
trap at_exit EXIT
trap 'exit 1' HUP INT TERM
