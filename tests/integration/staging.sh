#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Staging names: everything that programs do to a temporary file works, and none
# of it outlives the mount or its age.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setfattr

need do_mount -c staging_age=1 "$work/tier"
make_src
path=$(small_paths 1)
b=$mnt/blocks/${path%/*}
src=$work/src/$path

exec 5>"$b/.keep" # an open one does not age
for name in .x .name.bin.AbCdEf x.tmp '.a b' ".$(printf '%0254d' 0)"; do
	check "made: $(echo "$name" | cut -c 1-20)" cp "$src" "$b/$name"
	check 'read back' cmp "$src" "$b/$name"
	same 'shown with its size' $small_size "$(stat -c %s "$b/$name")"
	check 'written to again' \
		dd if=/dev/zero of="$b/$name" bs=1 count=1 conv=notrunc
	check 'truncated' truncate -s 100 "$b/$name"
	same 'to its size' 100 "$(stat -c %s "$b/$name")"
	check 'emptied' sh -c ': >"$1"' sh "$b/$name"
	same 'and nothing is left of it' 0 "$(stat -c %s "$b/$name")"
	same 'also behind the mount' '' \
		"$(find "$work/tier/.ucmfs/tmp" -type f -size +0)"
	check 'chmod' chmod 600 "$b/$name"
	check 'chown' chown 0:0 "$b/$name"
	check 'touch' touch -d '2020-02-02 02:02:02 UTC' "$b/$name"
	same 'to its time' 1580608922 "$(stat -c %Y "$b/$name")"
	check 'listed' test -n "$(find "$b" -name "$name")"
	check 'renamed' mv "$b/$name" "$b/.other"
	absent "$b/$name"
	refused 'Operation not supported' 'no attributes' \
		setfattr -n user.x -v 1 "$b/.other"
	check 'removed' rm "$b/.other"
	absent "$b/.other"
done
same 'only the open one has a file behind' 1 \
	"$(find "$work/tier/.ucmfs/tmp" -type f | wc -l)"

cp "$src" "$b/.one"
echo two >"$b/.two"
check 'renamed over another' mv "$b/.one" "$b/.two"
check 'which it replaces' cmp "$src" "$b/.two"
refused 'File exists' 'not with O_EXCL' dd if=/dev/null of="$b/.two" conv=excl
check 'to another bucket' mv "$b/.two" "$mnt/blocks/00/.two"
check 'and to a block' mv "$mnt/blocks/00/.two" "$mnt/blocks/$path"
check 'a whole one' cmp "$src" "$mnt/blocks/$path"

echo old >"$b/.old"
check 'what nobody touches goes' wait_until is_absent "$b/.old"
check 'what is open stays' test -e "$b/.keep"
exec 5>&-
no_debris "$work/tier"
do_umount

need do_mount "$work/tier"
echo left >"$b/.left"
check 'staging of hundreds of names is listed' sh -c '
	for i in $(seq 300); do : >"$1/.$i"; done
	[ $(find "$1" -name ".[0-9]*" | wc -l) = 300 ]' sh "$b"
do_umount
check 'an unmount leaves none' has_no_temps "$work/tier"

need do_mount "$work/tier"
echo left >"$b/.left"
kill_daemon
refused 'left' 'a crash leaves its file' \
	sh -c 'cat "$1"/*/*; false' sh "$work/tier/.ucmfs/tmp"
need do_mount "$work/tier"
absent "$b/.left"
check 'which the next mount removes' has_no_temps "$work/tier"
do_umount
