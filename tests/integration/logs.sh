#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The log can go to a file; a flood of lines of one kind is cut off, and what was
# left out is told and counted. Names that users choose forge no lines.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

flood=50
burst=20

file=$work/the\ log
echo 'what was there' >"$file"
need do_mount -o "log=$file" "$work/tier"
mk --count 1 "$mnt/blocks"
grep -qxF "log: '$file'" "$mnt/.ucmfs/config.yaml" ||
	fail 'config.yaml does not say where the log is'
refused 'Invalid argument' 'a wrong file' sh -c 'cat /etc/passwd >"$1"' sh \
	"$mnt/blocks/00/00000000000000000000000000000000.bin"
line="ucmfs\[$(daemon_pid)\]: warning: block 0*: not committed: not a block"
check 'it is in the file, with time, process and block' grep -q \
	"^20[0-9][0-9]-[0-1][0-9]-[0-3][0-9]T[0-9:]*\.[0-9]*Z $line" "$file"
same 'behind what was there' 'what was there' "$(head -n 1 "$file")"
do_umount
check 'not on standard error' sh -c '! grep -q "not committed" "$1"' sh "$log"

rm "$file"
need do_mount -o "log=$file" "$work/tier"
i=0
while [ $i -lt $flood ]; do
	cp /etc/passwd "$mnt/blocks/00/$(printf %032x $i).bin" 2>/dev/null
	i=$((i + 1))
done
refused_all=$(metric ucmfs_commit_refused_total 'cause="magic"')
lines=$(grep -c 'not committed' "$file")
left_out=$(metric ucmfs_log_left_out_total)
check "$refused_all files are refused, at least $flood" \
	test "$refused_all" -ge $flood
check "$lines of them have a line" test "$lines" -ge $burst
same 'the others are counted' $((refused_all - lines)) "$left_out"
mk --count 1 --seed 5 --layers 3 "$mnt/blocks" >/dev/null 2>&1
do_umount
# what a next line told before the end does not come again
told=$(sed -n 's/.*left out \([0-9]*\) lines like "block %s: not committed.*/\1/p' \
	"$file" | awk '{ n += $1 } END { print n + 0 }')
check "in the end all is told: $told, at least $left_out" \
	test "$told" -ge "$left_out"

# names with ends of lines: of staging, and in files/
has_expired() {
	grep -q 'staging untouched' "$file"
}

rm "$file"
forged=$(printf '.x\n2026-01-01T00:00:00.000Z ucmfs[1]: all is lost\033[2J')
need do_mount -c staging_age=1 -o "log=$file" "$work/tier"
bucket=$mnt/blocks/00
echo x >"$bucket/$forged"
mkfifo "$work/tier/files/$forged"
absent "$mnt/files/$forged"
check 'staging is removed' wait_until has_expired
do_umount
same 'no line is forged' 0 "$(grep -c '^[^ ]* ucmfs\[1\]' "$file")"
same 'both names are told, escaped' 2 "$(grep -cF \
	'.x\x0a2026-01-01T00:00:00.000Z ucmfs[1]: all is lost\x1b[2J' "$file")"
