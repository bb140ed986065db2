#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A system call of the daemon fails, or it is killed at it: the nth, for n from
# 1 until the operation is not met any more. The operation is done then, or not
# done, as it was said; the daemon lives, or another one serves what is whole.
#
# UCMFS_TEST_LONG=1 tries every error with every call; otherwise EIO, and a
# kill, and of the other errors a sample, which follows from a seed that is
# printed; UCMFS_TEST_SEED=... makes it again.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
long=${UCMFS_TEST_LONG-}
[ "${long:-0}" != 0 ] || long=
limit=540
[ -z "$long" ] || limit=7200
: "${UCMFS_TEST_TIMEOUT:=$limit}"
start_test campaigns root fuse strace python3
mount_more=policy=none # what is full is full

errnos='ENOSPC EDQUOT EROFS ENOMEM EMFILE EINTR ESTALE EACCES'
seed=${UCMFS_TEST_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "seed: $seed (UCMFS_TEST_SEED=$seed takes the same sample)"

nth() {
	python3 "$top_srcdir/tests/lib/nth.py" "$work" "$mnt" "$seed" "$@"
}

# One thread for requests, so that its calls are those of one operation.
start() {
	do_mount -c threads=1,checkpoint=86400 \
		-o durability=full "fast=$work/a,$work/b"
}

# try CALL...: what it says is told; without it nothing more is worth trying
try() {
	check "$*" nth "$@" || exit 1
	sed 's/^/  | /' "$work/check.out"
}

# After a start that is not disturbed nothing is left, and all that is served is
# right.
starts_clean() {
	restart
	try all
	no_debris "$work/a" "$work/b"
}

# ---- one operation ----

restart() {
	do_umount >"$work/umount" || exit 1
	need start
	need wait_until index_is_complete
}

# with_error OPERATION SYSCALL ERRNO
with_error() {
	n=1
	while :; do
		nth errors "$(daemon_pid)" "$@" $n >"$work/errors.out" 2>&1
		case $? in
		0) break ;;
		4) n=$(tail -n 1 "$work/errors.out") ;;
		*)
			cat "$work/errors.out"
			die "errors $*" ;;
		esac
		restart
	done
	n=$(tail -n 1 "$work/errors.out")
	pass "$1: $3 from $2, $((n - 1)) times"
}

with_errors() {
	for syscall in $(echo "$2" | tr '+' ' '); do
		with_error "$1" "$syscall" EIO
		[ -n "$long" ] || continue
		for errno in $errnos; do
			with_error "$1" "$syscall" "$errno"
		done
	done
	restart
	try sample "$(daemon_pid)" "$1" "$2" "$errnos"
	restart
}

# killed_at OPERATION SYSCALL N: false if it lives
killed_at() {
	nth kill "$(daemon_pid)" "$@" >"$work/kill.out" 2>&1
	case $? in
	0) return 1 ;;
	3) ;;
	*)
		cat "$work/kill.out"
		die "kill $*" ;;
	esac
	reap "$(daemon_pid)"
	umount -l "$mnt"
	need start
	try verify
}

with_kills() {
	for syscall in $(echo "$2" | tr '+' ' '); do
		n=1
		while killed_at "$1" "$syscall" $n; do
			n=$((n + 1))
		done
		echo "$1: $((n - 1)) kills at $syscall"
	done
}

# ---- a start ----

# The calls of a start, and the highest number that is tried of each: a thread
# counts its own.
start_calls='openat2 40
?fstat,?newfstatat 40
getdents64 40
pread64 10
pwrite64 3
fsync 4
utimensat 2
?renameat,?renameat2 3
unlinkat 3
mkdirat 6'

# disturbed_start SYSCALL INJECTION: does it serve, and is what it serves right?
disturbed_start() {
	rm -f "$work/strace"
	ucmfs_wrapper="strace -D -f -qq -o $work/strace -e trace=$1"
	ucmfs_wrapper="$ucmfs_wrapper -e inject=$1:$2"
	served=no
	if start >"$work/start.out" 2>&1; then
		served=yes
		check "start, $1:$2" nth all disturbed || exit 1
		kill -9 "$(daemon_pid)" 2>/dev/null
		reap "$(daemon_pid)"
	fi
	ucmfs_wrapper=
	umount -l "$mnt" 2>/dev/null
	! grep -q -e INJECTED -e 'killed by' "$work/strace" || met=$((met + 1))
}

# A block that was cut, as the power may have done.
tear_block() {
	need nth tear
}

# end_before KIND: as the daemon has ended before that start
end_before() {
	if [ "$1" = scan ]; then
		do_umount >"$work/umount" || exit 1
		rm -f "$work"/[ab]/.ucmfs/snapshot
	else
		kill_daemon
		tear_block
	fi
}

# disturb KIND SYSCALL INJECTION
disturb() {
	end_before "$1"
	disturbed_start "$2" "$3"
	need start
	need wait_until index_is_complete
	check "$1, $2:$3, served: $served: all of it afterwards" \
		nth all complete || exit 1
}

random_upto() {
	python3 -c 'import random, sys
print(random.Random(sys.argv[1]).randint(1, int(sys.argv[2])))' \
		"$seed $1" "$2"
}

disturb_all() {
	echo "$start_calls" >"$work/calls"
	while read -r syscall most <&7; do
		n=$(random_upto "$1 $syscall" "$most")
		[ -z "$long" ] || n=1
		while :; do
			disturb "$1" "$syscall" "error=EIO:when=$n"
			disturb "$1" "$syscall" "signal=SIGKILL:when=$n"
			n=$((n + 1))
			[ -n "$long" ] && [ $n -le "$most" ] || break
		done
	done 7<"$work/calls"
}

# ---- all ----

mkdir "$work/a" "$work/b"
need nth new "$mkblocks"
need start
nth operations >"$work/operations"
while read -r operation syscalls <&6; do
	with_errors "$operation" "$syscalls"
	with_kills "$operation" "$syscalls"
	starts_clean
done 6<"$work/operations"
# also the second try, when the file is closed for the last time
try every "$(daemon_pid)" commit '?fstat,?newfstatat' EINTR 3+2
starts_clean
met=0
disturb_all scan
disturb_all recovery
echo "$met starts were disturbed"
check 'enough for a test' test $met -ge 10
starts_clean
do_umount
