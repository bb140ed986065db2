#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# files/ is in one directory: the first on disk, or the one that is named. What
# an earlier mount left in others is named, and gathered by cp -an.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

ucm=$top_builddir/ucm
mkdir "$work/a" "$work/b" "$work/slow"
source=fast=$work/a,$work/b:slow=$work/slow

# where a new file is
made_in() {
	need do_mount "$@"
	echo text >"$mnt/files/new"
	made=
	for dir in a b slow; do
		[ ! -e "$work/$dir/files/new" ] || made=$made$dir
	done
	need rm "$mnt/files/new"
	do_umount
}

made_in "$source"
same 'the first directory has it' a "$made"
made_in -o readonly=fast "$source"
same 'of those that may be written to' slow "$made"
made_in -o "files=$work/slow" "$source"
same 'or the one that is named' slow "$made"
need ln -s b "$work/link"
made_in -o "files=$work/link" "$source"
same 'by any path' b "$made"

"$top_builddir/ucmfs" "$source" "$mnt" -f -o "files=$work/other" \
	2>"$work/err"
same 'another directory is refused' 2 $?
check 'by name' grep -qF "files=$work/other: it is not one of the mount's directories" "$work/err"

printf 'files: %s\n' "$work/b" >"$work/config"
made_in -o "config=$work/config" "$source"
same 'it may be in the configuration file' b "$made"

# what an earlier mount left
need mkdir -p "$work/a/files/kv" "$work/b/files/kv" "$work/slow/files/kv/deep"
echo a >"$work/a/files/kv/both"
echo old >"$work/b/files/kv/both"
echo b >"$work/b/files/kv/b"
echo slow >"$work/slow/files/kv/deep/slow"
need do_mount "$source"
logged "is not served: $work/b, $work/slow;"
same 'one line says so' 1 "$(grep -c 'is not served' "$log")"
same 'the part of the directory is served' both "$(ls "$mnt/files/kv")"
do_umount
for dir in b slow; do
	need cp -an "$work/$dir/files/." "$work/a/files/"
	need rm -r "$work/$dir/files"
done
need do_mount "$source"
same 'all is gathered' "a
b
slow" "$(cat "$mnt/files/kv/both" "$mnt/files/kv/b" "$mnt/files/kv/deep/slow")"
check 'no line says anything' sh -c "! grep 'is not served' '$log'"
check 'config.yaml says where it is' \
	grep -q "^files: '$work/a'\$" "$mnt/.ucmfs/config.yaml"
do_umount
