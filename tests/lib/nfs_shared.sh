# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# nfs_shared.sh - two daemons on one directory of an NFS server, each by a client of its
# own. Run by nfs_init.sh; its lines are shared-nfs.sh's.

ucmfs=$top_builddir/ucmfs
log=/tmp/log
mkdir /tmp/alpha /tmp/beta /media/a/tier

# check WHAT command...
check() {
	check_what=$1
	shift
	if "$@" >/tmp/said 2>&1; then
		echo "ok: $check_what"
		return
	fi
	echo "FAIL: $check_what"
	sed 's/^/  | /' /tmp/said | tail -n 80
}

not() {
	! "$@"
}

# within_s SECONDS command...
within_s() {
	until=$(($(date +%s%N) + $1 * 1000000000))
	shift
	until "$@"; do
		[ "$(date +%s%N)" -lt $until ] || return 1
		sleep 0.1
	done
}

# start NAME DIR
start() {
	unshare -u sh -c "hostname $1 && exec $ucmfs shared@$2 /tmp/$1" 2>>"$log"
}

# pid_of NAME: its daemon
pid_of() {
	pgrep -f "ucmfs shared@[^ ]* /tmp/$1\$"
}

mkblocks() {
	"$top_builddir/tests/lib/mkblocks" --quiet --layers 2 --heads 1 --dim 16 \
		--tokens 16 "$@"
}

# has NAME FIRST COUNT: all of these blocks can be read, and are right
has() {
	mkblocks --verify --start "$2" --count "$3" "/tmp/$1/blocks"
}

make_in() {
	mkblocks --start "$2" --count "$3" "/tmp/$1/blocks"
}

restart_server() {
	sleep 2
	"$nfs_tree/usr/sbin/rpc.nfsd" 0
	sleep 1
	"$nfs_tree/usr/sbin/rpc.nfsd" -N 3 -U 4
	echo Y >/proc/fs/nfsd/v4_end_grace
}

play() {
	# shellcheck disable=SC2086 # an option or none
	python3 -B "$top_srcdir/tests/lib/shared_ops.py" ${3-} /tmp/src "$1" "${2:-15}" \
		/tmp/alpha/blocks /tmp/beta/blocks && return
	date +%T.%N
	find /srv/tier/ -name '*.bin' -printf '%f %TT %CT\n' | sort
	return 1
}

check 'two clients of a server may share a directory' start alpha /media/a/tier
check 'and both are there' start beta /media/b/tier
check 'a block is absent' not has beta 0 8
check 'one commits it' make_in alpha 0 8
check 'the other, whose kernel remembers that it is absent, has it within 3 s' \
	within_s 3 has beta 0 8
first=$(mkblocks --list --count 1 /tmp/beta/blocks)
check 'what one removes' rm "/tmp/alpha/blocks/$first"
check 'is a miss in the other once its kernel has asked the server' \
	within_s 6 not wc -c "/tmp/beta/blocks/$first"

mkdir /tmp/src
mkblocks --start 5000 --count 40 /tmp/src
check 'of random operations each read is the committed bytes or a miss' play 200
restart_server &
# what fails is set aside for 10 s, and a file that could not be read for 30
check 'also while the server is restarted' play 1000 40 --restarted
wait

check 'a daemon that is killed' kill -KILL "$(pid_of beta)"
umount -l /tmp/beta
check 'comes back' start beta /media/b/tier
check 'and has what was there' within_s 3 has beta 1 7
check 'the heart that it has left is removed' \
	within_s 30 test "$(ls /media/a/tier/.ucmfs/hosts | wc -l)" -ge 2
check 'one ends' umount /tmp/alpha
check 'so does the other' umount /tmp/beta
check 'nothing was set aside' test -z "$(find /media/a/tier/.ucmfs/quarantine -type f)"
cat "$log"
