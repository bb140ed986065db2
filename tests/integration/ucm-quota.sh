#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm quota: shows and sets what spaces and top folders of files/ may take, and
# looks on until what is too much has gone.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/verbs.sh"
start_test root fuse getfattr setfattr python3 setpriv

# on argument...: of the mount
on() {
	"$ucm" quota -m "$mnt" "$@"
}

# row 'pattern': the last command said such a line
row() {
	check "a line '$1'" grep -E -- "$1" "$work/said" ||
		sed 's/^/  | /' "$work/said"
}

cp "$ucm" "$work/ucm" && chmod 755 "$work/ucm"
as_nobody "$work/ucm" --version >/dev/null ||
	skip "$work/ucm cannot be run by other users"
mkdir "$work/a"
need do_mount -o allow_other "$work/a"
need mkdir "$mnt/spaces/one" "$mnt/files/kv"
need mk --count 30 "$mnt/spaces/one"
status 'none yet' 0 on
row '^no quotas$'
status 'one space, by its name' 0 on one
row '^one  *none  *[0-9.]+K  *-  *policy  *-$'
json 'x["quotas"] == [] and x["mount"]' on -j
status 'set' 0 on set one 1M
row '^one  *1.0M  *[0-9.]+K  *[0-9.]+ %  *policy  *-$'
same 'it holds' 1048576 "$(xattr quota "$mnt/spaces/one")"
status 'of a folder of files/, with order and grace time' 0 \
	on set files/kv 2M --order fifo --grace 5
row '^files/kv  *2.0M  *0  *0.0 %  *fifo  *5s$'
status 'by its path, without a mount' 0 \
	"$ucm" quota set "$mnt/spaces/one" 100K
same 'it is reached when the command ends' yes \
	"$([ "$(xattr used "$mnt/spaces/one")" -le 102400 ] && echo yes)"
status 'all' 0 on
row '^spaces/one  *100K '
row '^files/kv '
json '[q["folder"] for q in x["quotas"]] == ["spaces/one", "files/kv"]' on -j
json 'x["quotas"][0]["quota_bytes"] == 102400' on -j
json 'x["quotas"][0]["used_bytes"] <= 102400' on -j spaces/one
json 'x["quotas"][0]["order"] == "fifo" and x["quotas"][0]["grace_s"] == 5' \
	on -j files/kv
status 'blocks' 0 on set blocks 1G
row '^blocks  *1.0G  *0 '

# what may not go
find "$mnt/spaces/one" -name '*.bin' -exec setfattr -n user.ucmfs.pinned -v 1 {} +
status 'not waited for' 0 on set --background one 8K
row '^one  *8.0K '
check 'it stays' test "$(xattr used "$mnt/spaces/one")" -gt 8192
"$ucm" quota -m "$mnt" set one 9K >"$work/said" 2>&1 &
pid=$!
keep_pid $pid
looks_on() {
	[ "$(xattr quota "$mnt/spaces/one")" = 9216 ]
}
check 'it is set at once' wait_until looks_on
check 'and the command looks on' kill -0 $pid
find "$mnt/spaces/one" -name '*.bin' -exec setfattr -n user.ucmfs.pinned -v 0 {} +
reap $pid
same 'until all has gone that is too much' 0 "$reaped"
status 'none' 0 on set one none
row '^one  *none '
refused 'No such attribute' 'it is gone' \
	getfattr -n user.ucmfs.quota "$mnt/spaces/one"
status 'of the folder' 0 on set files/kv none
refused 'No such attribute' 'as well' getfattr -n user.ucmfs.quota "$mnt/files/kv"

# what is wrong
status 'a wrong size' 2 on set one 12Q
says "SIZE '12Q': must be bytes, such as 500G, or none"
status 'a wrong order' 2 on set files/kv 1G --order old
says "--order 'old': must be lru|fifo"
status 'no size' 2 on set one
says 'set: must be followed by FOLDER and SIZE'
status 'nothing to set' 2 on --grace 5 one
says 'are for set'
status 'another folder' 1 on other/one
says "'other/one': not blocks, spaces/NAME, files/NAME or a whole path"
status 'no such space' 1 on nobody
says 'nobody: No such file'
status 'a space has no order' 1 on set one 1G --order lru
says 'one: no folder of ucmfs that can have that'
need mkdir "$mnt/files/kv/deep"
status 'nor has a folder in a folder of files/' 1 on set files/kv/deep 1G
says 'files/kv/deep: no folder of ucmfs that can have that'
status 'outside of a mount' 1 "$ucm" quota set "$work" 1G
status 'others may look at one' 0 as_nobody "$work/ucm" quota -m "$mnt" one
status 'and set none' 1 as_nobody "$work/ucm" quota -m "$mnt" set one 1G
says 'one: only who may write there may set it'
status 'nor see all' 1 as_nobody "$work/ucm" quota -m "$mnt"
says 'all quotas are for root and the owner of the mount'
do_umount
