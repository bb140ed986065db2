#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm top: what it counts, as text and as JSON; on a terminal it refreshes, ends
# with q, and gives the terminal back however it ends.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

top() {
	"$top_builddir/ucm" top -m "$mnt" -d 0.1 "$@"
}

# on_terminal END TEXT: ucm top on a terminal of its own, ended so
on_terminal() {
	on_terminal_end=$1
	on_terminal_text=$2
	shift 2
	python3 "$top_srcdir/tests/lib/terminal.py" "$on_terminal_end" \
		"$on_terminal_text" "$top_builddir/ucm" top -m "$mnt" -d 0.1 "$@"
}

given_back='settings restored
screen left
cursor shown'

mkdir "$work/slow"
need do_mount -o allow_other "fast=$work/tier:slow=$work/slow"
need mk "$mnt/blocks"
need mkdir "$mnt/spaces/other"
need mk --count 3 "$mnt/spaces/other"
hot=$(nth_path 5)
for i in 1 2 3; do
	need cmp "$mnt/blocks/$hot" "$mnt/blocks/$hot"
done
need cmp "$mnt/spaces/other/$(small_paths 1)" "$mnt/blocks/$(small_paths 1)"

top --once >"$work/frame" || fail 'top --once'
check 'blocks' grep -q '^19 blocks, ' "$work/frame"
check 'rates' grep -q '^a second: 0 lookups, hits -, 0 opens' "$work/frame"
check 'tiers' grep -q '^slow  ' "$work/frame"
check 'operations' grep -q '^getattr  ' "$work/frame"
hex=${hot##*/}
same 'the hottest block' "${hex%.bin} fast blocks" "$(
	sed -n '/^HOTTEST/{n;p}' "$work/frame" | awk '{ print $1, $5, $6 }')"
same 'those that were used' 3 "$(sed '1,/^HOTTEST/d' "$work/frame" | wc -l)"
same 'of one space' spaces/other "$(top --once -s other |
	sed '1,/^HOTTEST/d' | awk '{ print $6 }')"
same 'as many as asked for' 1 "$(top --once -n 1 | sed '1,/^HOTTEST/d' | wc -l)"
check 'none' sh -c '! grep -q HOTTEST' <<-END
	$(top --once -n 0)
END

# lookups happen while it looks: those of names that are not there
(while :; do stat "$mnt/blocks/00/$(printf %032d 0).bin"; done) >/dev/null 2>&1 &
noise=$!
keep_pid $noise
busy() {
	"$top_builddir/ucm" top -m "$mnt" -d 0.5 --json >"$work/json" &&
		python3 - "$work/json" <<-END
			import json, sys
			top = json.load(open(sys.argv[1]))
			assert top["lookups_per_s"] > 0, top
			assert top["hit_rate"] == 0, top
			assert [t["name"] for t in top["tiers"]] == ["fast", "slow"]
			ops = {op["name"]: op for op in top["operations"]}
			assert ops["lookup"]["per_s"] > 0, ops
			assert 0 < ops["lookup"]["median_s"] <= ops["lookup"]["p99_s"]
			assert len(top["hottest"]) == 3, top
		END
}
check 'JSON: lookups that miss' wait_until busy
kill $noise
reap $noise

refused 'no terminal; try --once' 'without a terminal' top
same 'q ends it' "ended 0
$given_back" "$(on_terminal q 'a second')"
for signal in HUP=1 INT=2 QUIT=3 TERM=15; do
	same "SIG${signal%=*} ends it" "ended -${signal#*=}
$given_back" "$(on_terminal "${signal%=*}" 'a second')"
done
same 'it can be stopped and goes on' "stopped with settings restored
ended 0
$given_back" "$(on_terminal TSTP 'a second')"

same 'q is heard while the mount does not answer' "ended 0
$given_back" "$(on_terminal "freeze=$(daemon_pid)" 'a second')"
kill -CONT "$(daemon_pid)" || fail 'the daemon is gone'
check 'the mount is well' stat "$mnt/.ucmfs/metrics"

same 'when the daemon dies it says so' "ended 1
$given_back
said ucm top: $mnt: its daemon is gone" "$(
	on_terminal "kill=$(daemon_pid)" 'a second')"
reap "$(daemon_pid)"
umount -l "$mnt"
