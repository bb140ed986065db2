#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Several processes save blocks into directories that no daemon has: one private
# daemon serves them all, outlives those that are killed, is started again when it is
# killed itself, and ends with the last of them. A mount then serves all of it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client python3
shape='--layers 4 --plane 16384' # 128 KiB and a header
tiers="fast=$work/tier,$work/twin:slow=$work/slow"
mkdir "$work/twin" "$work/slow"
mkdir -p "$work/tier/spaces/engine"

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

# whole NUM: there are so many blocks, each once
whole() {
	same 'all are there' "$1" "$(all_blocks | wc -l)"
	same 'none of them twice' "$1" "$(all_blocks | uniq | wc -l)"
}

private_pid() {
	pgrep -f "^ucmfs serve $tiers --private\$"
}

has_ended() {
	! private_pid >/dev/null
}

# served NUM: a mount that starts now serves them
served() {
	need do_mount "$tiers"
	no_debris "$work/tier" "$work/twin" "$work/slow"
	# shellcheck disable=SC2086 # options
	start_client $shape --space engine mount "$mnt"
	ask load 0 "$1"
	answers 'a mount serves all' "$1" 0 0 0 0
	end_client
	status 'all are whole' 0 "$ucm" verify -m "$mnt" --all
}

# ---- one client is killed, others go on ----

for n in 1 2 3; do
	saver $n
done
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
same 'there is one daemon' 1 "$(private_pid | wc -l)"
check 'which others find, too: what two have saved, and some of the third' \
	test "$("$ucm" ls --json -m "tiers=$tiers" -s engine | grep -c "\"id\"")" \
	-ge 150
refused 'in use by another ucmfs' 'a mount is refused' "$ucmfs" "$tiers" "$mnt"

# ---- the daemon is killed ----

kill -9 "$(private_pid)"
echo 'save 150 50' >&5
answered 1 2 50
same 'there is one again' 1 "$(private_pid | wc -l)"
echo 'save 0 300' >&6
answered 2 2 300
for n in 5 6; do
	eval "echo quit >&$n; exec $n>&-"
done
for n in 1 2; do
	reap "$(pid_of $n)"
	same "client $n ended well" 0 "$reaped"
done
check 'the daemon ends with the last client' wait_until has_ended
whole 300
check 'and leaves them clean' grep -q clean=1 "$work/tier/.ucmfs/state"
same 'with no unfinished file' '' "$(temps)"
check 'nor a link' test ! -L "$work/tier/.ucmfs/socket"

# ---- a mount has them: it is the daemon ----

served 300
saver 4
exec 5>"$work/in.4"
echo 'save 300 10' >&5
answered 4 1 10
check 'no other daemon was started' has_ended
same 'the mount has them' 310 "$("$ucm" ls --json -m "$mnt" -s engine | grep -c "\"id\"")"
echo quit >&5
exec 5>&-
reap "$(pid_of 4)"
do_umount
