#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A listing that takes many READDIRs has every name once.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# Two buckets only: a READDIR has room for some hundreds of names.
each=4000

blocks() {
	"$mkblocks" --quiet --layers 1 --heads 1 --dim 8 --tokens 1 \
		--form packed --count $each "$@"
}

# names COMMAND...: sorted; a name that is told twice is there twice
names() {
	"$@" | grep '\.bin$' | sort
}

# A disk would take longer.
need mount -t tmpfs -o size=256M none "$work/tier"
mkdir "$work/tier/blocks"
for bucket in 0 255; do
	need blocks --bucket $bucket "$work/tier/blocks"
	blocks --bucket $bucket --list
done | sort >"$work/expected"
same 'the names are different ones' $((2 * each)) \
	"$(sort -u "$work/expected" | wc -l)"

need do_mount "$work/tier"
cd "$mnt/blocks" || exit 1
names find . -type f -printf '%P\n' >"$work/found"
check 'find lists every block once' cmp "$work/expected" "$work/found"
# without a stat(2) of each
for bucket in 00 ff; do
	names ls -U $bucket | sed "s,^,$bucket/,"
done >"$work/listed"
check 'so does ls' cmp "$work/expected" "$work/listed"
cd / || exit 1
do_umount
