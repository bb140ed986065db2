# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# power.sh - a file system whose power is cut again and again while blocks are
# written to it through a mount; sourced behind mount.sh.
#
#   power_test ext4|xfs
#
# The cut is the shutdown call of the file system: nothing comes to the disk any
# more. Then the daemon is killed, the file system is mounted again (which
# replays its log) and a daemon is started on it. power.py has the writers, and
# what must be there afterwards. 20 cuts, over the three durabilities by turns, each
# on one of the two file systems; UCMFS_TEST_LONG=N: N cuts of each durability on
# both (1: 50). The choices follow from a seed,
# which is printed; UCMFS_TEST_SEED=... makes the same again.

# What is done before each cut, by turns; see power.py. rush and kill: a cut,
# and then another one, or a kill, before all is checked.
power_plans_none='rush cut checkpoint slow rush clean rush'
power_plans_data='cut checkpoint closing cut clean kill'
power_plans_full='cut kill checkpoint clean rush closing'

# Before start_test: how long it may take.
power_limit() {
	[ "${UCMFS_TEST_LONG:-0}" != 0 ] || : "${UCMFS_TEST_TIMEOUT:=540}"
	: "${UCMFS_TEST_TIMEOUT:=7200}"
}

power() {
	python3 "$top_srcdir/tests/lib/power.py" "$work" "$mnt" \
		"$disk" "$mkblocks" "$power_seed" "$power_cut" "$@"
}

# Recovery tells a crash from a restart of the machine by its boot id.
power_machine_starts() {
	cat /proc/sys/kernel/random/uuid >"$work/boot_id"
}

power_fake_boot_id() {
	power_machine_starts
	mount --bind "$work/boot_id" /proc/sys/kernel/random/boot_id ||
		skip 'the boot id cannot be replaced here'
}

power_settings() {
	power_seed=${UCMFS_TEST_SEED:-$(od -An -N4 -tu4 /dev/urandom |
		tr -d ' ')}
	echo "seed: $power_seed (UCMFS_TEST_SEED=$power_seed for the same cuts)"
	power_cuts=20
	case ${UCMFS_TEST_LONG:-0} in
	0) ;;
	1) power_cuts=150 ;;
	*) power_cuts=$((3 * UCMFS_TEST_LONG)) ;;
	esac
	power_slow=strace
	(require_strace) >"$work/no_strace" || {
		power_slow=
		sed 's/$/: no slow syncs, and no slow quarantine/' \
			"$work/no_strace"
	}
}

# power_start DURABILITY [CALL MICROSECONDS]: with a disk on which this call is
# slow
power_start() {
	ucmfs_wrapper=
	[ $# = 1 ] || [ -z "$power_slow" ] ||
		ucmfs_wrapper="strace -D -f --seccomp-bpf -qq -o /dev/null
			-e trace=$2 -e inject=$2:delay_exit=$3"
	power_passthrough=auto
	[ $((power_cut % 4)) != 3 ] || power_passthrough=off
	power_checkpoint=86400
	[ $((power_cut % 3)) = 1 ] || power_checkpoint=1
	[ $# = 1 ] || power_checkpoint=86400
	power_options=durability=$1,passthrough=$power_passthrough
	need do_mount -c checkpoint=$power_checkpoint -o "$power_options" \
		"fast=$disk/a,$disk/b"
	ucmfs_wrapper=
}

disk_is_unmounted() {
	umount "$disk"
}

# The daemon is dead. The disk comes back with what it has.
power_comes_back() {
	reap "$(daemon_pid)"
	umount -l "$mnt" 2>/dev/null # or it has ended well
	disk_comes_back
}

disk_comes_back() {
	need wait_until disk_is_unmounted
	need mount -o loop "$disk.image" "$disk"
	power_machine_starts
}

# The daemon is told: power CALL
power_tell() {
	check "cut $power_cut: $1" power "$@" || exit 1
	sed '/: line /d; s/^/  | /' "$work/check.out" # not: "Killed"
}

# power_once DURABILITY PLAN
power_once() {
	need power make
	case $2 in
	slow) power_start "$1" syncfs 3000000 ;;
	*) power_start "$1" ;;
	esac
	power_tell check
	case $2 in
	clean)
		power_tell write "$1" "$(daemon_pid)" quiet
		do_umount
		power_tell cut
		disk_comes_back
		return ;;
	kill) power_tell write "$1" "$(daemon_pid)" cut ;;
	*) power_tell write "$1" "$(daemon_pid)" "$2" ;;
	esac
	power_comes_back
	case $2 in
	rush)
		need power grow_old
		power_start "$1" renameat 200000 # to quarantine
		power_tell rush "$(daemon_pid)"
		power_comes_back ;;
	kill)
		power_start "$1"
		power_tell kill "$(daemon_pid)"
		reap "$(daemon_pid)"
		umount -l "$mnt" ;;
	esac
}

# nth N WORDS: the Nth of them, beginning again after the last
nth() {
	nth_number=$1
	shift
	shift $((nth_number % $#))
	echo "$1"
}

# power_is_ours TYPE: is this cut one for that file system?
power_is_ours() {
	[ "${UCMFS_TEST_LONG:-0}" = 0 ] || return 0
	case $1:$((power_cut / 3 % 2)) in
	ext4:0 | xfs:1) ;;
	*) return 1 ;;
	esac
}

power_test() {
	power_settings
	disk=$work/disk
	make_fs "$1" 512M "$disk"
	mkdir "$disk/a" "$disk/b"
	power_fake_boot_id
	power_cut=0
	need power new
	while [ $power_cut -lt $power_cuts ]; do
		power_is_ours "$1" || {
			power_cut=$((power_cut + 1))
			continue
		}
		durability=$(nth $power_cut none data full)
		eval "plans=\$power_plans_$durability"
		# shellcheck disable=SC2154,SC2086 # set above; a list
		power_once "$durability" "$(nth $((power_cut / 3)) $plans)"
		power_cut=$((power_cut + 1))
	done
	power_start none
	power_tell check
	do_umount
	power_tell sum
}
