#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A block is what its name says: nothing changes its bytes, its mode or its owner,
# nothing but regular files is made beside it; cp -f and rm replace and remove.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

no() {
	refused 'Operation not permitted' "$@"
}

need do_mount "$work/tier"
make_src
need mk "$mnt/blocks"
path=$(small_paths 1)
f=$mnt/blocks/$path
src=$work/src/$path
export F="$f"

no 'writing' dd if=/dev/zero of="$f" conv=notrunc count=1
no 'truncating at open' sh -c ': >"$F"'
no 'appending' sh -c 'echo >>"$F"'
no 'reading and writing' python3 -c 'import os; os.open(os.environ["F"], os.O_RDWR)'
no 'truncate(2)' python3 -c 'import os; os.truncate(os.environ["F"], 0)'
no 'truncate(2) to more' python3 -c 'import os; os.truncate(os.environ["F"], 9999)'
refused 'File exists' 'creating it anew' dd if="$src" of="$f" conv=excl
no 'chmod' chmod 600 "$f"
no 'chown' chown 1:1 "$f"
check 'chmod to what it is' chmod 644 "$f"
check 'chown to what it is' chown "$(id -u):$(id -g)" "$f"
no 'a hard link' ln "$f" "$f.tmp"
no 'a symbolic link' ln -s "$f" "${f%/*}/.link"
no 'a FIFO' mkfifo "${f%/*}/.fifo"
no 'a device' mknod "${f%/*}/.null" c 1 3
no 'renaming it' rename_file "$f" "$f.tmp"
no 'renaming it to another block' \
	rename_file "$f" "$mnt/blocks/$(nth_path 2)"
check 'after all that it is as it was' cmp "$src" "$f"
same 'nothing else is in its bucket' "$(basename "$f")" "$(ls -A "${f%/*}")"

was=$(stat -c %z "$work/tier/blocks/$path")
check 'cp -f replaces it' cp -f "$src" "$f"
check 'by the same block' cmp "$src" "$f"
check 'which is another file' \
	test "$was" != "$(stat -c %z "$work/tier/blocks/$path")"
cp "$src" "$f.tmp"
check 'staging renamed over it' rename_file "$f.tmp" "$f"
absent "$f.tmp"
check 'leaves the block' cmp "$src" "$f"

exec 5<"$f"
check 'rm' rm "$f"
absent "$f"
absent "$work/tier/blocks/$path"
check 'who has it open goes on reading' cmp "$src" - <&5
exec 5<&-
refused 'No such file' 'rm of what is not there' rm "$f"
check 'touch sets times' touch -d '2020-02-02 02:02:02 UTC' \
	"$mnt/blocks/$(nth_path 2)"
same 'that are shown' 1580608922 \
	"$(stat -c %Y "$mnt/blocks/$(nth_path 2)")"
no_debris "$work/tier"
do_umount
