#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fio: four jobs write a pattern into staging with O_DIRECT and io_uring, the
# staging becomes blocks, and four jobs read and verify them. A byte that is
# changed behind the mount is found.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns root fuse fio

shape='--quiet --count 4 --no-crc' # 2 MiB, and fio's bytes as payload
size=2097152

# job_file SUFFIX OPTION...: one job for each block, over its payload
job_file() {
	job_suffix=$1
	shift
	echo '[global]'
	printf '%s\n' ioengine=io_uring direct=1 iodepth=8 bs=64k \
		verify=crc32c verify_fatal=1 offset=4096 "size=$size" \
		verify_state_save=0 allow_file_create=0 "$@"
	for path in $paths; do
		printf '[%s]\nfilename=%s\n' "$(basename "$path")" \
			"$mnt/blocks/$path$job_suffix"
	done
}

commit_all() {
	for path in $paths; do
		mv "$mnt/blocks/$path.tmp" "$mnt/blocks/$path" || return 1
	done
}

fio --name=probe --filename="$work/probe" --size=64k --ioengine=io_uring \
	--direct=1 --rw=write >/dev/null 2>&1 ||
	skip 'fio cannot use io_uring and O_DIRECT here'

mkdir "$work/src"
# shellcheck disable=SC2086
need "$mkblocks" $shape "$work/src"
# shellcheck disable=SC2086
paths=$("$mkblocks" $shape --list)
need do_mount "$work/tier"
for path in $paths; do
	need cp "$work/src/$path" "$mnt/blocks/$path.tmp"
done
job_file .tmp rw=randwrite do_verify=1 >"$work/write.fio"
check 'fio writes staging and verifies it' fio "$work/write.fio"
check 'the staging becomes blocks' commit_all
same 'all four' 4 "$(blocks_in "$mnt/blocks")"
job_file '' rw=read >"$work/read.fio"
check 'fio verifies the blocks' fio --readonly "$work/read.fio"
job_file '' rw=read direct=0 ioengine=psync >"$work/buffered.fio"
check 'and without O_DIRECT' fio --readonly "$work/buffered.fio"
flip "$work/tier/blocks/${path}" 1000000
refused 'verify' 'fio finds a byte that was changed' \
	fio --readonly "$work/read.fio"
do_umount
