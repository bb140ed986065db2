#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What somebody puts into the backing directory: symbolic links, FIFOs,
# directories and files that are no blocks are not followed, not served, left
# where they are, and counted.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse timeout

plant() {
	# a symbolic link, a FIFO, a directory, something that is no block, a
	# foreign name, and a block in the wrong bucket
	ln -s /etc/passwd "$1/$(name 2)"
	mkfifo "$1/$(name 3)"
	mkdir "$1/$(name 4)"
	head -c $small_size /dev/urandom >"$1/$(name 5)"
	echo hello >"$1/README"
	cp "$1/$(name 1)" "$1/ff${good#?????}"
}

# name N: a block's name in the bucket of the good one
name() {
	printf '%s%029d.bin' "$bucket" "$1"
}

# nothing of it is served
serves_nothing() {
	for n in 2 3 4 5; do
		refused 'No such file or directory' "not served: $n" \
			timeout 10 cat "$b/$(name $n)"
	done
	absent "$b/README"
	absent "$b/ff${good#?????}"
	same 'the bucket lists the good block alone' "${good#*/}" "$(ls -A "$b")"
}

good=$(small_paths 1)
bucket=${good%/*}0
b=$mnt/blocks/${good%/*}
behind=$work/tier/blocks/${good%/*}
need do_mount "$work/tier"
need mk --count 1 "$mnt/blocks"
do_umount

cp "$behind/${good#*/}" "$behind/$(name 1)" # its name is not its hash
plant "$behind"
was=$(find "$behind" -printf '%p %y %s %l\n' | sort)
need do_mount "$work/tier"
serves_nothing
absent "$b/$(name 1)"
check 'the good block is read' verify --count 1 "$mnt/blocks"
check 'all seven are counted' wait_until stat_is strays 7
same 'all are where they were' "$was" \
	"$(find "$behind" -printf '%p %y %s %l\n' | sort)"
check 'a block whose name a link had is taken' test -L "$behind/$(name 2)"

# a link in the place of a block that is known
need mv "$behind/${good#*/}" "$work/aside"
need ln -s /etc/passwd "$behind/${good#*/}"
refused 'No such file or directory' 'a block that became a link' \
	timeout 10 cat "$b/${good#*/}"
absent "$b/${good#*/}"
do_umount

# a bucket, and the whole of blocks/, that are links
rm -rf "$behind"
mkdir "$work/elsewhere" "$work/elsewhere/${good%/*}"
cp "$work/aside" "$work/elsewhere/$good"
ln -s "$work/elsewhere/${good%/*}" "$behind"
elsewhere() {
	find "$work/elsewhere" -printf '%p %i %s %C@\n' | sort
}
was=$(elsewhere)
need do_mount "$work/tier"
absent "$b/${good#*/}"
check 'its buckets are listed' test "$(ls "$mnt/blocks" | wc -l)" = 256
refused 'close: ' 'no block is put through such a link' mk --count 1 "$mnt/blocks"
refused 'No such file' 'none is removed' rm "$b/${good#*/}"
do_umount
same 'nothing there was touched' "$was" "$(elsewhere)"
