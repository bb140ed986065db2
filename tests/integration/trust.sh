#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A tier in which somebody else has made what the daemon uses, or may write to
# it, is refused, and the cause named. What users of the mount may do, and a tier
# directory of another owner, is no such thing. A file that is being written can
# be read by nobody else.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setpriv python3
tier=$work/tier

# no_mount 'what it says' 'what is wrong' [tier]
no_mount() {
	refused "$1" "$2" "$ucmfs" "${3-$tier}" "$mnt"
	! is_mounted || die 'it is mounted'
}

# Mounts and is unmounted; then it was no reason to refuse it.
mounts() {
	mounts_what=$1
	shift
	check "$mounts_what" do_mount "$@" "$tier" && do_umount >/dev/null
}

# ---- made by somebody else, where everybody may ----

mkdir "$work/sticky"
chmod 1777 "$work/sticky"
as_nobody test -x "$work/sticky" || skip "$work cannot be reached by others"
for name in .ucmfs blocks spaces files; do
	as_nobody mkdir -m 755 "$work/sticky/$name"
	no_mount "$name is not to be trusted: it belongs to user 65534" \
		"a foreign $name" "$work/sticky"
	find "$work/sticky" -mindepth 1 -delete
	as_nobody ln -s "$work" "$work/sticky/$name"
	refused "$work/sticky" "a symbolic link $name" \
		"$ucmfs" "$work/sticky" "$mnt"
	find "$work/sticky" -mindepth 1 -delete
done
check 'without them' do_mount "$work/sticky"
logged "$work/sticky: anyone may write to this directory"
do_umount

# The attack: a tmp of ours in a .ucmfs of theirs, in which they swap files.
rm -r "$work/sticky/.ucmfs"
as_nobody sh -c 'umask 0; mkdir "$1" "$1/tmp"' sh "$work/sticky/.ucmfs"
no_mount '.ucmfs is not to be trusted' 'a prepared .ucmfs' "$work/sticky"

# ---- each thing that is used ----

need do_mount "$tier"
need mk "$mnt/blocks"
need mkdir "$mnt/spaces/mine"
do_umount
for name in .ucmfs .ucmfs/tmp .ucmfs/quarantine .ucmfs/pinned .ucmfs/id \
	.ucmfs/state .ucmfs/clock .ucmfs/lock blocks spaces; do
	mode=$(stat -c %a "$tier/$name")
	chown 65534 "$tier/$name"
	no_mount "$name is not to be trusted: it belongs to user 65534, and" \
		"a foreign $name"
	chown 0 "$tier/$name"
	for wrong in 0777 0720 1702; do
		chmod $wrong "$tier/$name"
		no_mount "$name is not to be trusted: others may write to it" \
			"$name with mode $wrong"
	done
	chmod "$mode" "$tier/$name"
	mv "$tier/$name" "$work/aside"
	ln -s "$work/aside" "$tier/$name"
	refused "$tier" "$name is a symbolic link" "$ucmfs" "$tier" "$mnt"
	rm "$tier/$name"
	mv "$work/aside" "$tier/$name"
done
chmod 775 "$tier/spaces/mine"
no_mount 'spaces/mine is not to be trusted: others may write to it' \
	'a space that others may fill'
chmod 755 "$tier/spaces/mine"
rm -r "$tier/.ucmfs/tmp"
: >"$tier/.ucmfs/tmp"
no_mount '.ucmfs/tmp is not to be trusted: it is no directory' 'a file tmp'
rm "$tier/.ucmfs/tmp"
mounts 'all as it was'

# ---- what is no reason ----

chown 65534 "$tier"
mounts "another's tier directory"
chown 65534:65534 "$tier/spaces/mine"
mounts "another's space"
chown 65534 "$tier/files"
chmod 777 "$tier/files"
mounts 'a files/ that is given to others'
chown -R 65534 "$tier"
no_mount 'it belongs to user 65534' 'all of it is his'
mounts 'unless it is only read' -o readonly=tier0
chmod 777 "$tier/blocks"
refused 'blocks is not to be trusted' 'and others may not write to it' \
	"$ucmfs" "$tier" "$mnt" -o readonly=tier0
chown 0 "$tier"
chmod 755 "$tier/blocks"
refused 'it belongs to user 65534' 'nor is it his, in the directory of another' \
	"$ucmfs" "$tier" "$mnt" -o readonly=tier0
chown -R 0 "$tier"

# ---- a file that is being written ----

need do_mount -o allow_other "$tier"
chmod 755 "$tier/.ucmfs"
path=$(nth_path 17)
make_src --count 17
exec 5>"$mnt/blocks/$path"
head -c 5000 "$work/src/$path" >&5
temp=$(find "$tier/.ucmfs/tmp" -type f)
same 'it is written by us alone' 600 "$(stat -c %a "$temp")"
refused 'Permission denied' 'and read by nobody else' as_nobody cat "$temp"
tail -c +5001 "$work/src/$path" >&5
exec 5>&-
check 'the block is there' cmp "$work/src/$path" "$mnt/blocks/$path"
same 'and readable in its directory' 644 \
	"$(stat -c %a "$tier/blocks/$path")"
do_umount
