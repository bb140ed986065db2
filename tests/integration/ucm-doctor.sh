#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm doctor: what it says of the machine, of directories that are well and that
# are not, of mounts, and of a dead one; and it leaves nothing behind.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
require_fuse
require_cmd python3 setpriv
require_namespace "$@"
make_workdir

ucm=$top_builddir/ucm

# doctor STATUS argument...: what it says is in $work/said
doctor() {
	doctor_want=$1
	shift
	"$ucm" doctor "$@" >"$work/said" 2>&1
	same "doctor $*: status" "$doctor_want" $?
}

# says VERDICT 'subject: text'
says() {
	check "$1 $2" grep -q "^$1  *$2" "$work/said"
}

doctor 0 "$work/tier"
says '[OW][KA][RN]*' 'passthrough: Linux'
says '[OW][KA][RN]*' 'io_uring: '
says OK '/dev/fuse: it can be opened'
says '[OW][KA][RN]*' 'open files: '
says '[OW][KA][RN]*' 'locked memory: '
says '[OW][KA][RN]*' 'clock: '
says OK "$work/tier: mode 0755, of user 0"
says '[OW][KA][RN]*' "$work/tier: .* free"
says OK "$work/tier: link(2) works"
same 'nothing is left there' '' "$(ls -A "$work/tier")"
same 'what is not OK says what mends it' '' \
	"$(grep -v '^OK' "$work/said" | grep -v '; mend: ')"
check 'limits' sh -c 'ulimit -n 1024 && ulimit -l 64 && "$1" doctor "$2" |
	grep -c "^WARN.*\(open files: 1024\|locked memory: 64K\) " | grep -qx 2' \
	sh "$ucm" "$work/tier"

doctor 1 "$work/none"
says FAIL "$work/none: No such file or directory; mend: mkdir it"
chmod 777 "$work/tier"
doctor 0 "$work/tier"
says WARN "$work/tier: everyone may put blocks"
chmod 755 "$work/tier"

# a file system without hard links or space, in a file system of its own
mkdir "$work/small"
need mount -t tmpfs -o size=64k,nr_inodes=8 none "$work/small"
dd if=/dev/zero of="$work/small/full" bs=4096 status=none 2>/dev/null
doctor 1 "$work/small"
says FAIL "$work/small: no space left"
need mount -o remount,ro "$work/small"
doctor 1 "$work/small"
says WARN "$work/small: its file system is read-only; mend: .*readonly=TIER"
umount "$work/small"
cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
if as_nobody "$work/ucm" --version >/dev/null; then
	as_nobody "$work/ucm" doctor "$work/tier" >"$work/said"
	says FAIL "$work/tier: no file can be made: Permission denied; mend: chown"
	says '[WF][AI][RI][NL]' 'passthrough: \|/dev/fuse: '
fi

mkdir "$work/slow"
need do_mount "fast=$work/tier:slow=$work/slow"
doctor 0 "$mnt"
says OK "$mnt: it is mounted and answers"
says '[OW][KA][RN]*' "$mnt: passthrough is"
says OK "$mnt: its index is complete"
says OK "$work/slow: link(2) works"
same 'the mount has nothing of it' '' "$(find "$work/tier" "$work/slow" \
	-name '*doctor*')"
"$ucm" doctor --json "$mnt" >"$work/said"
check 'JSON' python3 -c 'import json, sys
x = json.load(open(sys.argv[1]))
assert x["failures"] == 0 and x["ok"] >= 8, x
assert {f["verdict"] for f in x["findings"]} <= {"OK", "WARN"}, x
assert all("mend" in f for f in x["findings"] if f["verdict"] != "OK"), x' \
	"$work/said"
kill -STOP "$(daemon_pid)"
doctor 1 "$mnt"
says FAIL "$mnt: Connection timed out; mend: umount -l $mnt"
says OK "$work/slow: link(2) works"
kill -CONT "$(daemon_pid)"
crash_daemon
doctor 1 "$mnt"
says FAIL "$mnt: its daemon is gone; mend: umount -l $mnt, and mount again"
says OK "$work/slow: link(2) works"
doctor 1
says FAIL "$mnt: its daemon is gone"
umount -l "$mnt"
