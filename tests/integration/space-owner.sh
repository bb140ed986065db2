#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A space's new owner or mode holds at once for what the kernel remembers of its
# buckets and blocks.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setpriv
need do_mount -o allow_other "$work/tier"

need as_nobody mkdir "$mnt/spaces/x"
need mk "$mnt/spaces/x"
find "$mnt/spaces/x" -ls >/dev/null
one=$(small_paths 1)
need chown 0:0 "$mnt/spaces/x"
bucket_owner_is_root() {
	[ "$(stat -c %u "$mnt/spaces/x/${one%/*}")" = 0 ] &&
		[ "$(stat -c %u "$mnt/spaces/x/$one")" = 0 ]
}
check 'owners are told anew' wait_until bucket_owner_is_root
refused 'Permission denied' 'the old owner cannot remove a block' \
	as_nobody rm "$mnt/spaces/x/$one"
check 'it is still there' test -f "$work/tier/spaces/x/$one"

in_bucket() {
	cd "$mnt/spaces/x/${one%/*}" && as_nobody sh -c \
		'while cat "$1"; do sleep 0.05; done' sh "${one#*/}"
}
(in_bucket) >"$work/reader" 2>&1 &
reader=$!
keep_pid $reader
need wait_until test -s "$work/reader"
need chmod 700 "$mnt/spaces/x"
check 'who stands in a bucket is shut out' wait_until is_gone $reader
do_umount
