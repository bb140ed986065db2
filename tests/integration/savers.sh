#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Several processes save blocks into the same directories at the same time, some of
# them the same ones, and are killed meanwhile: every file is whole, nothing is left
# of the dead but what the next one removes, and a daemon serves all of it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client python3
shape='--layers 4 --plane 16384' # 128 KiB and a header
tiers="fast=$work/tier,$work/twin:slow=$work/slow"
mkdir "$work/twin" "$work/slow"

# saver NUMBER: a process that waits for what to do; told by its name
saver() {
	mkfifo "$work/in.$1"
	# shellcheck disable=SC2086 # options
	"$load_client" $shape --space engine --threads 2 tiers "$tiers" \
		<"$work/in.$1" >"$work/out.$1" 2>>"$work/client.err" &
	eval "saver$1=$!"
	keep_pid $!
}

pid_of() {
	eval "echo \$saver$1"
}

said_by() {
	[ "$(grep -c "^= $2" "$work/out.$1")" = "$3" ]
}

# answered NUMBER NTH NUM: its nth answer; so many are saved, or were there
answered() {
	need wait_until said_by "$1" ok "$2"
	same "saver $1 has all" "$3 0" "$(grep '^= ok' "$work/out.$1" |
		tail -n 1 | awk '{ print $3 + $5, $7 + $9 + $11 }')"
}

all_blocks() {
	find "$work/tier" "$work/twin" "$work/slow" -name '*.bin' \
		-printf '%f\n' | sort
}

some_saved() {
	[ "$(all_blocks | wc -l)" -ge "$1" ]
}

temps() {
	find "$work/tier/.ucmfs/tmp" "$work/twin/.ucmfs/tmp" -type f
}

# whole NUM: there are so many blocks, each once, with the right bytes
whole() {
	same 'all are there' "$1" "$(all_blocks | wc -l)"
	same 'none of them twice' "$1" "$(all_blocks | uniq | wc -l)"
	status 'all are whole' 0 "$ucm" verify --tiers "$tiers" --all
}

# served NUM: a daemon that starts now serves them, and doubts nothing
served() {
	need do_mount -o policy=none "$tiers"
	check 'nothing is in doubt' test "$(grep -c 'not closed cleanly' \
		"$log")" = 0
	no_debris "$work/tier" "$work/twin" "$work/slow"
	# shellcheck disable=SC2086 # options
	start_client $shape --space engine mount "$mnt"
	ask load 0 "$1"
	answers 'a daemon serves all' "$1" 0 0 0 0
	end_client
	do_umount
	check 'and leaves a snapshot' test -e "$work/tier/.ucmfs/snapshot"
}

# A mount that is refused.
start_in_vain() {
	"$ucmfs" "$1" "$mnt"
}

# ---- one is killed, others go on ----

need do_mount -o policy=none "$tiers"
need mkdir "$mnt/spaces/engine"
# shellcheck disable=SC2086 # options
start_client $shape --space engine mount "$mnt"
ask save 0 20
end_client
do_umount
check 'a daemon has left a snapshot' test -e "$work/tier/.ucmfs/snapshot"

saver 1
saver 2
saver 3
exec 5>"$work/in.1" 6>"$work/in.2" 7>"$work/in.3"
for n in 1 2 3; do
	need wait_until said_by $n ready 1
done
echo 'save 0 100' >&5
echo 'save 50 100' >&6
echo 'save 0 300' >&7
need wait_until some_saved 60
kill -9 "$(pid_of 3)"
answered 1 1 100
answered 2 1 100
exec 7>&-
reap "$(pid_of 3)"
check 'the snapshot is gone' test ! -e "$work/tier/.ucmfs/snapshot"
check 'the state says who was there' grep -q savers "$work/tier/.ucmfs/state"

status 'two have the directories' 1 "$ucm" evict --tiers "$tiers" --all
for n in 1 2; do
	says "process $(pid_of $n), load_client"
done
status 'nor can they be mounted' 2 start_in_vain "$tiers"
says "process $(pid_of 1), load_client"

# what the dead one was writing goes; what the others write stays
echo 'layers 400 4 0 1' >&5
answered 1 2 4
saver 4
exec 7>"$work/in.4"
echo 'save 150 10' >&7
answered 4 1 10
same 'what the living write is left' 4 "$(temps | wc -l)"
echo 'save 0 300' >&6
answered 2 2 300
for n in 5 6 7; do
	eval "echo quit >&$n; exec $n>&-"
done
for n in 1 2 4; do
	reap "$(pid_of $n)"
	same "saver $n ended well" 0 "$reaped"
done
whole 300
check 'the last one has left them clean' \
	grep -q clean=1 "$work/tier/.ucmfs/state"
check 'with no snapshot' test ! -e "$work/tier/.ucmfs/snapshot"
same 'and no unfinished file' '' "$(temps)"
served 300

# ---- all are killed ----

rm -rf "$work/tier/spaces/engine"/?? "$work/twin/spaces/engine"/?? \
	"$work/in".* "$work/out".*
saver 5
saver 6
exec 5>"$work/in.5" 6>"$work/in.6"
echo 'save 0 300' >&5
echo 'save 0 300' >&6
need wait_until some_saved 60
kill -9 "$(pid_of 5)" "$(pid_of 6)"
exec 5>&- 6>&-
reap "$(pid_of 5)"
reap "$(pid_of 6)"
status 'what is there is whole' 0 "$ucm" verify --tiers "$tiers" --all
# shellcheck disable=SC2086 # options
start_client $shape --space engine tiers "$tiers"
seen=$(all_blocks | wc -l)
ask save 0 300
answers 'the next one saves the rest' $((300 - seen)) "$seen" 0 0 0
kill -9 "$client"
exec 8>&-
reap "$client"
whole 300
served 300
