#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A space that has a quota keeps to it: within it what is worth least goes, and
# nothing outside. The quota survives remounts and kills, and a default holds for
# spaces without one.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr setfattr python3

mkdir "$work/fast" "$work/slow"
source=fast=$work/fast:slow=$work/slow
s=$mnt/spaces/one

# blocks that the mount has of a space
count() {
	find "$1" -name '*.bin' | wc -l
}

used() {
	xattr used "$1"
}

is_within() {
	[ "$(used "$1")" -le "$2" ]
}

# what du says of the blocks, each once
du_says() {
	find "$1" -name '*.bin' -printf '%b\n' |
		awk '{ sum += $1 } END { print sum * 512 }'
}

is_settled() {
	[ "$(used "$1")" = "$(du_says "$1")" ]
}

need do_mount "$source"
need mkdir "$s" "$mnt/spaces/two"
need mk --count 10 "$mnt/spaces/two"
need mk --count 10 "$mnt/blocks"
need mk --count 20 "$s"
each=$(($(used "$s") / 20))
same 'it takes what du says' "$(du_says "$s")" "$(used "$s")"
refused 'No such attribute' 'it has no quota' getfattr -n user.ucmfs.quota "$s"
need setfattr -n user.ucmfs.quota -v $((20 * each)) "$s"
same 'it has one' $((20 * each)) "$(xattr quota "$s")"
check 'it is listed' sh -c "getfattr '$s' | grep -q user.ucmfs.quota"
check 'four times as much is written, and no write fails' \
	mk --start 100 --count 80 "$s"
check 'and it is kept' is_within "$s" $((20 * each))
check 'much of it is used' test "$(count "$s")" -ge 17
check 'the sum is right' wait_until is_settled "$s"
same 'nothing has gone elsewhere' '10 10' \
	"$(count "$mnt/spaces/two") $(count "$mnt/blocks")"
check 'what was evicted was counted' test "$(stat_of blocks_evicted)" -ge 80
same 'and nobody was refused' 0 "$(stat_of blocks_refused)"
same 'df shows it' "$((20 * each / 1024))" \
	"$(df --output=size -B 1K "$s" | tail -n 1 | tr -d ' ')"
metric_is $((20 * each)) ucmfs_space_quota_bytes
check 'metrics do not name it' \
	sh -c "! grep -a 'ucmfs_space_.*one' '$mnt/.ucmfs/metrics'"

# wrong values
for bad in 12Q -1 '5 G' 99999999999999999999 9223372036854775808; do
	refused 'Invalid argument' "refused: $bad" \
		setfattr -n user.ucmfs.quota -v "$bad" "$s"
	logged "spaces/one: user.ucmfs.quota: \"$bad\" is not what is wanted"
done
refused 'Operation not permitted' 'a sum cannot be set' \
	setfattr -n user.ucmfs.used -v 0 "$s"
same 'it stays as it was' $((20 * each)) "$(xattr quota "$s")"

# pinned blocks stay, and then nothing may be written
need setfattr -n user.ucmfs.quota -v $((4 * each)) "$s"
check 'a lower one is reached' wait_until is_within "$s" $((4 * each))
find "$s" -name '*.bin' -exec setfattr -n user.ucmfs.pinned -v 1 {} +
pinned=$(count "$s")
need setfattr -n user.ucmfs.quota -v $((pinned * each)) "$s"
refused 'Disk quota exceeded' 'nothing may go' mk --start 300 --count 4 "$s"
logged "the quota of $((pinned * each)) bytes is used up, and nothing may go"
same 'what is pinned is there' "$pinned" "$(count "$s")"
check 'elsewhere there is room' mk --start 300 --count 4 "$mnt/spaces/two"
find "$s" -name '*.bin' -exec setfattr -n user.ucmfs.pinned -v 0 {} +
check 'then there is' mk --start 300 --count 4 "$s"
need setfattr -n user.ucmfs.quota -v $((4 * each)) "$s"

# remount and kill
do_umount
need do_mount "$source"
same 'a remount finds it' $((4 * each)) "$(xattr quota "$s")"
check 'and what it takes' wait_until is_settled "$s"
need setfattr -n user.ucmfs.quota -v $((9 * each)) "$s"
kill_daemon
need do_mount "$source"
same 'after a kill as well' $((9 * each)) "$(xattr quota "$s")"
need mk --start 400 --count 30 "$s"
check 'it is kept' is_within "$s" $((9 * each))

# space.json
printf '{"model": "test", "geometry": {
	"num_layers": 2, "block_size": 16, "dtype": "float16",
	"k_bytes": 512, "v_bytes": 512, "num_kv_heads": 1, "head_dim": 16}}\n' \
	>"$work/space.json"
check 'a manifest that does not speak of it' cp "$work/space.json" "$s/space.json"
same 'leaves it' $((9 * each)) "$(xattr quota "$s")"
check 'it stands there' grep -q "\"quota\": $((9 * each))" "$s/space.json"
sed 's/"test"/"test", "quota": "1M"/' "$work/space.json" >"$work/other.json"
check 'one that does' cp "$work/other.json" "$s/space.json"
same 'sets it' 1048576 "$(xattr quota "$s")"
sed 's/"test"/"test", "quota": "much"/' "$work/space.json" >"$work/bad.json"
refused 'Invalid argument' 'not a wrong one' cp "$work/bad.json" "$s/space.json"
logged 'quota: not bytes'
need setfattr -x user.ucmfs.quota "$s"
refused 'No such attribute' 'it is lifted' getfattr -n user.ucmfs.quota "$s"
check 'the rest of the manifest stays' grep -q '"model": "test"' "$s/space.json"
check 'and all is kept' mk --start 500 --count 60 "$s"
check 'each of them' verify --start 500 --count 60 "$s"
do_umount

# the default
refused "space_quota '1X': not bytes such as 500G" 'a wrong default' \
	"$ucmfs" "$source" "$mnt" -o space_quota=1X
need do_mount -o space_quota=$((12 * each)) "$source"
same 'spaces have the default' $((12 * each)) "$(xattr quota "$s")"
check 'and are brought within it' wait_until is_within "$s" $((12 * each))
refused 'No such attribute' 'blocks/ has none' \
	getfattr -n user.ucmfs.quota "$mnt/blocks"
need mkdir "$mnt/spaces/new"
check 'a new one as well' mk --count 40 "$mnt/spaces/new"
check 'which is kept' is_within "$mnt/spaces/new" $((12 * each))
need setfattr -n user.ucmfs.quota -v $((30 * each)) "$mnt/spaces/new"
need mk --count 30 --start 100 "$mnt/spaces/new"
check 'its own wins' test "$(count "$mnt/spaces/new")" -gt 12
need setfattr -n user.ucmfs.quota -v $((5 * each)) "$mnt/blocks"
check 'blocks/ may have one' wait_until is_within "$mnt/blocks" $((5 * each))
need mk --start 600 --count 20 "$mnt/blocks"
check 'and keeps to it' is_within "$mnt/blocks" $((5 * each))
do_umount

# a tier that is not full does not help, and one that is does not hurt
need do_mount -o limit=fast:$((6 * each)),write=fast:back "$source"
need setfattr -n user.ucmfs.quota -v $((15 * each)) "$s"
check 'over two tiers' mk --start 700 --count 60 "$s"
check 'it is one quota' is_within "$s" $((15 * each))
check 'of more than the fast one has' test "$(count "$s")" -ge 12
check 'the sum is right' wait_until is_settled "$s"
do_umount
