#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rsync -a fills a mount, finds nothing to do the second time, and empties it
# into another directory. Its temporary files are staging until renamed.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns root fuse rsync

transferred() {
	rsync -a --stats "$1" "$2" |
		sed -n 's/^Number of regular files transferred: //p'
}

mkdir "$work/src" "$work/back"
need mk "$work/src"
touch -d '2020-02-02 02:02:02' "$work/src"/*/*.bin
need do_mount "$work/tier"
check 'rsync -a fills the mount' rsync -a "$work/src/" "$mnt/blocks/"
check 'the blocks are whole' verify "$mnt/blocks"
same 'a second run transfers nothing' 0 \
	"$(transferred "$work/src/" "$mnt/blocks/")"
first=$(small_paths 1)
same 'times are kept' "$(stat -c %Y "$work/src/$first")" \
	"$(stat -c %Y "$mnt/blocks/$first")"
check 'rsync -a reads the mount' rsync -a "$mnt/blocks/" "$work/back/"
check 'what it read is whole' verify "$work/back"

# a file that is no whole block stays out, and what is there stays there
next=$(nth_path 17)
need mkdir -p "$work/src/${next%/*}"
need cp "$work/src/$first" "$work/src/$next"
refused 'Invalid argument' 'rsync of a wrong block fails' \
	rsync -a "$work/src/" "$mnt/blocks/"
absent "$mnt/blocks/$next"
same 'the others are still there' 16 "$(blocks_in "$mnt/blocks")"
no_debris "$work/tier"
do_umount
