#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# mount.sh - what the mount costs, compared with the directory that it shows.
#
# For tmpfs and for a disk: make a tier, start the daemon on it, let
# mount_bench measure, take all of it away again. One table on standard output
# (or its lines, with --tsv), progress on standard error. See
# doc/benchmarking.md.

set -u
LC_ALL=C
export LC_ALL
umask 022

# shellcheck source=bench/machine.sh
. "$(dirname "$0")/machine.sh"
: "${top_builddir:=$PWD}"
ucmfs=$top_builddir/ucmfs
ucm=$top_builddir/ucm
mkblocks=$top_builddir/tests/lib/mkblocks
bench=$top_builddir/bench/mount_bench

rounds=15
count=64
blocks=100000
sizes='2 4'
sections='direct buffered write latency movers list start'
places='tmpfs disk'
tmpfs_dir=/dev/shm
disk_dir=/var/tmp
min_ms=200
more_options=
peer=
tsv=

work=
source=
slow=
pid=
table=

usage() {
	cat <<END
usage: bench/mount.sh [options], as root, in the build directory

  --section LIST  of: $sections
  --place LIST    of: $places
  --rounds N      that count ($rounds)
  --size LIST     MiB of a block, 1 to 1024 ($sizes)
  --count N       blocks of each size ($count)
  --blocks N      small ones, for latency, list and start ($blocks)
  --min-ms N      least time of a side's round of a rate ($min_ms)
  --tmpfs DIR, --disk DIR
                  where the tiers are made ($tmpfs_dir, $disk_dir)
  --options LIST  more mount options for the daemon, as -o takes them
  --peer PROGRAM  libfuse's example, made by tools/install-deps --peer: the
                  same through a file system that only passes everything on
                  (direct, buffered, latency)
  --tsv           lines for machines
END
}

die() {
	echo "mount.sh: $*" >&2
	exit 1
}

progress() {
	echo "mount.sh: $*" >&2
}

list() {
	echo "$1" | tr ',' ' '
}

while [ $# -gt 0 ]; do
	case $1 in
	--help) usage; exit 0 ;;
	--tsv) tsv=1; shift; continue ;;
	esac
	[ $# -gt 1 ] || die "$1: unknown, or no value; see --help"
	case $1 in
	--section) sections=$(list "$2") ;;
	--place) places=$(list "$2") ;;
	--rounds) rounds=$2 ;;
	--size) sizes=$(list "$2") ;;
	--count) count=$2 ;;
	--blocks) blocks=$2 ;;
	--min-ms) min_ms=$2 ;;
	--tmpfs) tmpfs_dir=$2 ;;
	--disk) disk_dir=$2 ;;
	--options) more_options=,$2 ;;
	--peer) peer=$2 ;;
	*) die "$1: unknown; see --help" ;;
	esac
	shift 2
done

# wants SECTION...: is one of them asked for?
wants() {
	for want; do
		case " $sections " in
		*" $want "*) return 0 ;;
		esac
	done
	return 1
}

# ---- the daemon ----

# start_daemon io_uring|dev-fuse
start_daemon() {
	case $1 in
	io_uring) options=io_uring=on ;;
	*) options=io_uring=off ;;
	esac
	rm -f "$work/ready"
	mkfifo "$work/ready" || die 'mkfifo failed'
	"$ucmfs" "$source" "$work/mnt" -f \
		-o "ready-fd=9,log_level=warning,$options$more_options" \
		9>"$work/ready" >"$work/log" 2>&1 &
	pid=$!
	said=
	read -r said <"$work/ready"
	[ "$said" = READY=1 ] || die "the daemon did not start:
$(cat "$work/log")"
	left=3000
	until grep -q '"complete": true' "$work/mnt/.ucmfs/stats.json"; do
		left=$((left - 1))
		[ $left -gt 0 ] || die 'the index does not get complete'
		sleep 0.05
	done
	grep -q '"passthrough": true' "$work/mnt/.ucmfs/stats.json" ||
		progress 'warning: passthrough is off'
}

stop_daemon() {
	[ -n "$pid" ] || return 0
	kill "$pid"
	wait "$pid" || die "the daemon ended badly: $(cat "$work/log")"
	pid=
	[ ! -s "$work/log" ] || sed 's/^/mount.sh: log: /' "$work/log" >&2
}

# start_peer io_uring|dev-fuse: the example serves the same tier
start_peer() {
	options=fsname=peer
	[ "$1" != io_uring ] || options=$options,io_uring
	LD_LIBRARY_PATH=$(dirname "$peer") "$peer" --foreground -o $options \
		"$work/tier" "$work/mnt" >"$work/log" 2>&1 &
	pid=$!
	left=1000
	until grep -q " $work/mnt " /proc/self/mountinfo &&
		ls "$work/mnt" >/dev/null 2>&1; do
		left=$((left - 1))
		[ $left -gt 0 ] || die "the peer did not start:
$(cat "$work/log")"
		sleep 0.01
	done
}

# Its log says nothing of interest, and its exit status neither.
stop_peer() {
	umount "$work/mnt" || die 'the peer cannot be unmounted'
	wait "$pid"
	pid=
}

# ---- directories ----

make_work() {
	case $1 in
	tmpfs) where=$tmpfs_dir ;;
	*) where=$disk_dir ;;
	esac
	work=$(mktemp -d "$where/ucmfs-bench.XXXXXX") || die 'mktemp failed'
	mkdir "$work/tier" "$work/plain" "$work/mnt" "$work/empty"
	source=$work/tier
	place=$(stat -f -c %T "$work")
	[ "$place" != ext2/ext3 ] || place=$(awk -v dev="$(stat -c %d "$work")" '
		{ split($3, d, ":"); if (d[1] * 256 + d[2] == dev) {
			for (i = 7; $i != "-"; i++);
			print $(i + 1); exit } }' /proc/self/mountinfo)
}

remove_work() {
	[ -n "$work" ] || return 0
	if grep -q " $work/mnt " /proc/self/mountinfo; then
		umount "$work/mnt" 2>/dev/null || umount -l "$work/mnt"
	fi
	rm -rf --one-file-system "$work" ${slow:+"$slow"}
	work=
	slow=
}

at_exit() {
	status=$?
	trap '' EXIT HUP INT TERM
	if [ -n "$pid" ]; then
		kill "$pid" 2>/dev/null
		wait "$pid" 2>/dev/null
	fi
	remove_work
	end_table
	put_uring_back
	exit $status
}

# ---- the table ----

# Standard output goes through the formatter. Not by a pipe: this shell is the
# one that knows what must be undone.
start_table() {
	table=$(mktemp -d "$tmpfs_dir/ucmfs-bench.XXXXXX") || die 'mktemp failed'
	mkfifo "$table/lines" || die 'mkfifo failed'
	"$bench" --format <"$table/lines" &
	table_pid=$!
	exec >"$table/lines"
}

end_table() {
	[ -n "$table" ] || return 0
	exec >&2
	wait "$table_pid"
	rm -rf "$table"
}

# ---- what is measured ----

measure() {
	"$bench" --tsv --rounds "$rounds" --min-ms "$min_ms" "$@"
}

# measure_peer io_uring|dev-fuse LABEL "SECTION..." N
measure_peer() {
	[ -n "$peer" ] || return 0
	start_peer "$1"
	for section in $3; do
		wants "$section" || continue
		measure --label "$2, $(basename "$peer")" --section "$section" \
			--count "$4" "$work/tier" "$work/mnt" ||
			die "$section failed"
	done
	stop_peer
}

# measure_data MIB
measure_data() {
	set -- "$1" --quiet --count "$count" --tokens $(($1 * 8))
	mib=$1
	shift
	make_work "$current"
	progress "$place: whole blocks of $mib MiB"
	start_daemon io_uring
	"$mkblocks" "$@" "$work/mnt/blocks" || die 'mkblocks failed'
	sync -f "$work/tier"
	for section in direct buffered write; do
		wants $section || continue
		measure --label "$place, $mib MiB" --section $section \
			--count "$count" --plain "$work/plain" \
			"$work/tier" "$work/mnt" || die "$section failed"
	done
	for side in "$work/mnt/blocks" "$work/tier/blocks"; do
		"$mkblocks" "$@" --verify "$side" || die 'verify failed'
	done
	stop_daemon
	measure_peer io_uring "$place, $mib MiB" 'direct buffered' "$count"
	remove_work
}

measure_names() {
	make_work "$current"
	progress "$place: $blocks names"
	mkdir "$work/tier/blocks"
	"$mkblocks" --quiet --layers 1 --heads 1 --dim 16 --count "$blocks" \
		"$work/tier/blocks" || die 'mkblocks failed'
	sync -f "$work/tier"
	for transport in io_uring /dev/fuse; do
		wants latency list || continue
		start_daemon $transport
		for section in latency list; do
			wants $section || continue
			measure --label "$place, $transport" \
				--section $section --count "$blocks" \
				"$work/tier" "$work/mnt" ||
				die "$section failed"
		done
		stop_daemon
		! wants latency ||
			measure_peer $transport "$place, $transport" latency \
				"$blocks"
	done
	if wants start; then
		measure --label "$place, $blocks blocks" --section start \
			--daemon "$ucmfs" \
			--options "io_uring=on$more_options" \
			--count "$blocks" --empty "$work/empty" \
			"$work/tier" "$work/mnt" || die 'start failed'
	fi
	remove_work
}

# Blocks of a tier that nothing leaves, alone and while others move to the disk.
measure_movers() {
	make_work "$current"
	progress "$place: opens beside movers"
	slow=$(mktemp -d "$disk_dir/ucmfs-bench.XXXXXX") || die 'mktemp failed'
	mkdir -p "$work/tier/blocks" "$work/away/blocks"
	"$mkblocks" --quiet --count "$count" --tokens 16 "$work/tier/blocks" &&
		"$mkblocks" --quiet --count $((count * 16)) --seed 1 --tokens 16 \
			"$work/away/blocks" || die 'mkblocks failed'
	source="stays=$work/tier:goes=$work/away:slow=$slow"
	more_options=$more_options,promote=never
	start_daemon /dev/fuse
	for beside in alone 'beside movers'; do
		[ "$beside" = alone ] ||
			"$ucm" drain -b -m "$work/mnt" "$work/away" >"$work/drain" ||
			die 'the drain did not start'
		measure --label "$place, $beside" --section movers \
			--count "$count" "$work/tier" "$work/mnt" ||
			die 'movers failed'
	done
	find "$work/away/blocks" -name '*.bin' | grep -q . ||
		die 'the movers were done first: give a larger --count'
	stop_daemon
	remove_work
	more_options=${more_options%,promote=never}
}

facts() {
	tell_facts
	for dir in "$tmpfs_dir" "$disk_dir"; do
		echo "# $dir: $(df --output=fstype,source "$dir" | tail -n 1)"
	done
	echo "# rounds $rounds, at least $min_ms ms each; $count blocks of a size"
}

measure_all() {
	for current in $places; do
		if wants direct buffered write; then
			for size in $sizes; do
				measure_data "$size"
			done
		fi
		if wants latency list start; then
			measure_names
		fi
		! wants movers || measure_movers
	done
}

# ---- once for all ----

[ "$(id -u)" = 0 ] || die 'passthrough and dropping caches need root'
for program in "$ucmfs" "$mkblocks" "$bench"; do
	[ -x "$program" ] || die "$program is not built"
done
trap at_exit EXIT
trap 'exit 1' HUP INT TERM
switch_uring_on

[ -n "$tsv" ] || start_table
facts
measure_all
tell_end
