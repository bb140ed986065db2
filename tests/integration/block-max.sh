#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Nobody claims a tier with empty files: neither a manifest nor a first block makes
# the blocks of a space larger than block_max.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse setpriv

# 1024 layers of 4 MiB K and V: 8 GiB
cat >"$work/huge.json" <<'END'
{"geometry": {"num_layers": 1024, "block_size": 16, "dtype": "float16",
	"k_bytes": 4194304, "v_bytes": 4194304}}
END

# As for a block of unknown size: 64 MiB at most.
promised_a_guess() {
	check 'no more than a guess is promised' \
		test "$(metric ucmfs_tier_writing_bytes)" -le 67108864
}

need do_mount -o allow_other "$work/tier"
as_nobody mkdir "$mnt/spaces/his" || skip "$work cannot be reached by others"
refused 'File too large' 'a manifest of huge blocks' \
	as_nobody cp "$work/huge.json" "$mnt/spaces/his/space.json"
logged 'space.json: blocks of 8589946880 bytes: block_max is 1073741824'
check 'none is there' test ! -s "$work/tier/spaces/his/space.json"
exec 5>"$mnt/spaces/his/00/.staging"
promised_a_guess
exec 5>&-
# nor one that was there before
cp "$work/huge.json" "$work/tier/spaces/his/space.json"
do_umount
need do_mount "$work/tier"
logged 'spaces/his: space.json: blocks of'
exec 5>"$mnt/spaces/his/00/.staging"
promised_a_guess
exec 5>&-
do_umount

need do_mount -c block_max=8191 "$work/tier"
refused 'File too large' 'a block that is too large' mk --count 1 "$mnt/blocks"
logged 'not committed: 8192 bytes: block_max is 8191'
metric_is 1 ucmfs_commit_refused_total 'cause="size"'
no_debris "$work/tier"
do_umount

# one that was there before is served, but is no reason to promise as much
need do_mount "$work/tier"
need mk "$mnt/blocks"
do_umount
need do_mount -c block_max=8191 "$work/tier"
check 'it is served' verify "$mnt/blocks"
refused 'File too large' 'another is refused at once' \
	touch "$mnt/blocks/00/.staging"
need rm -r "$mnt"/blocks/*/*
check 'an empty space begins anew' touch "$mnt/blocks/00/.staging"
do_umount
