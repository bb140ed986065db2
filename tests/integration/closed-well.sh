#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What ordinary programs write and close is a block, if it has checksums
# (open-sequences.sh has more of them). Without checksums it is one when they sync or
# rename it, also the first of a space, whose size nothing tells; else close(2) fails.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test fuse rsync

with_dd_fsync() { dd if="$1" of="$2" conv=fsync status=none; }
with_rsync() { rsync "$1" "$2"; }
with_rsync_inplace() { rsync --inplace "$1" "$2"; }
with_tar() { tar -C "$(dirname "$1")" -c "$(basename "$1")" | tar -C "$(dirname "$2")" -x; }
with_mv() { cp "$1" "$2.tmp" && mv "$2.tmp" "$2"; }

# writes FORM PROGRAM: each of the two blocks, into a space of their own
writes() {
	space=$mnt/spaces/$1.$2
	need mkdir "$space"
	while read -r path; do
		check "$1: $2 ends well" with_$2 "$work/src/$path" "$space/$path"
		check "$1: $2 wrote a block" cmp "$work/src/$path" "$space/$path"
	done <"$work/paths"
}

need do_mount "$work/tier"
make_src --count 2
small_paths 2 >"$work/paths"
for program in rsync rsync_inplace tar; do
	writes paged $program
done
for form in bare packed; do
	rm -rf "$work/src"
	make_src --form $form --no-crc --count 2
	for program in dd_fsync rsync mv; do
		writes $form $program
	done
	read -r path <"$work/paths"
	need mkdir "$mnt/spaces/$form.cp"
	refused 'Invalid argument' "$form: cp" \
		cp "$work/src/$path" "$mnt/spaces/$form.cp/$path"
	absent "$mnt/spaces/$form.cp/$path"
done
logged 'not committed: it has no checksums: fsync or rename makes it a block'
do_umount
