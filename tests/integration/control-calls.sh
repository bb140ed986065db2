#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Requests on the socket, packed by hand: what each says of a block, batches of
# 1000, what is refused, and who may make which.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3 setpriv getfattr

mkdir "$work/slow"
as_nobody test -r "$work/slow" || skip "$work cannot be reached by other users"

# call CALL [SPACE [ARGUMENT...]] <IDS
call() {
	python3 "$top_srcdir/tests/lib/control.py" "$mnt" "$@"
}

# called_by UID CALL [SPACE [ARGUMENT...]]
called_by() {
	called_by_uid=$1
	called_by_verb=$2
	called_by_space=${3-}
	shift 2
	[ $# = 0 ] || shift
	call "$called_by_verb" "$called_by_space" "uid=$called_by_uid" "$@"
}

# answers 'what' 'lines, with spaces between' call argument...: with $in
answers() {
	answers_what=$1
	answers_want=$2
	shift 2
	same "$answers_what" "$answers_want" \
		"$(printf '%s\n' "$in" | "$@" 2>&1 | tr '\n' ' ' | sed 's/ $//')"
}

sum_of() {
	sha256sum <"$1" | cut -d' ' -f1
}

need do_mount -c checkpoint=0 -o allow_other "fast=$work/tier:slow=$work/slow"
need mk "$mnt/blocks"
in=$(ids 18 15) # one that is there, and two that are not

answers 'lookup' '1 0 0' call lookup
answers 'touch' '0 ENOENT ENOENT' call touch
same 'a touch is a use' 1 "$(xattr uses "$mnt/blocks/$(nth_path 16)")"
answers 'pin' '0 ENOENT ENOENT' call pin
answers 'a pinned block is not evicted' 'EPERM ENOENT ENOENT' call evict
answers 'unpin' '0 ENOENT ENOENT' call unpin
answers 'what is in the fastest tier is warm' '0 ENOENT ENOENT' call warm

path=$(nth_path 16)
file=$mnt/blocks/$path
place=$(printf '%s\n' "$in" | call locate '' flags=1 | head -n 1)
same 'locate' "tier=0 dir=0 flags=2 size=$small_size mtime=$(date +%s%N -r "$file") \
crc=$(xattr crc32c "$file") uses=1 atime=$(stat -c %X "$file")" \
	"${place% generation*}"
in=$(ids 17 16)
answers 'no path of what is not there' ENOENT call path
in=$(ids 16 15)
answers 'the path of its file' "$work/tier/blocks/$path" call path
sum=$(sum_of "$file")
uses=$(xattr uses "$file")
answers 'its bytes' "$sum" call open
same 'an open is a use' $((uses + 1)) "$(xattr uses "$file")"
answers 'they are right' 0 call check
answers 'a block that is expected' 0 call touch '' flags=4
answers 'is evicted by its owner' 0 call evict
answers 'gone' 0 call lookup
answers 'and expected no more' ENOENT call touch '' flags=4
in=$(ids 15 14)
answers 'evict' 0 call evict
answers 'gone as well' 0 call lookup
check 'the kernel forgets it' \
	wait_until is_absent "$mnt/blocks/$(nth_path 15)"
check 'its file is gone' [ ! -e "$work/tier/blocks/$(nth_path 15)" ]
in=$(ids 14 13)
answers 'pin' 0 call pin
answers 'remove asks no pin' 0 call remove
answers 'gone' 0 call lookup
answers 'it cannot be removed again' ENOENT call remove
answers 'nor opened' ENOENT call open
answers 'nor checked' ENOENT call check

# by hand into the slow tier
make_src --count 20
late=$(nth_path 20)
mkdir -p "$work/slow/blocks/${late%/*}"
need cp "$work/src/$late" "$work/slow/blocks/$late"
in=$(ids 20 19)
answers 'not known' 0 call lookup
answers 'rescan' '' call rescan
answers 'found' 1 call lookup
answers 'in the second tier' "$work/slow/blocks/$late" call path
place=$(printf '%s\n' "$in" | call locate)
same 'says locate' 'tier=1 dir=1' "${place% flags*}"
answers 'drain: what is left' "blocks=1 bytes=$small_size stays=0 draining=0" \
	call drain '' "path=$work/slow"
answers 'drain: of none of its directories' ENOENT call drain '' "path=$work"

checkpoints=$(stat_of checkpoints)
answers 'flush' '' call flush
answers 'checkpoint' '' call checkpoint
same 'is counted for each directory' $((checkpoints + 2)) "$(stat_of checkpoints)"
call statistics >"$work/statistics" || fail 'statistics'
for name in lookups hits misses opens commits removed; do
	same "statistics: $name" "$(stat_of $name)" \
		"$(sed -n "s/^$name //p" "$work/statistics")"
done
same 'statistics: blocks' "blocks $(blocks_in "$mnt/blocks")" \
	"$(grep '^blocks' "$work/statistics")"
same 'statistics: total is what statfs says' \
	"total $(($(stat -f -c '%b * %S' "$mnt")))" \
	"$(grep '^total' "$work/statistics")"
lookups=$(stat_of lookups)
in=$(ids 2)
answers 'looking around' "$(printf '%s\n' "$in" | call locate '' flags=2 | tr '\n' ' ' |
	sed 's/ $//')" call locate '' flags=2
same 'is no lookup' "$lookups" "$(stat_of lookups)"

# ---- many ----

need mkdir "$mnt/spaces/many"
need mk --count 500 "$mnt/spaces/many"
in=$(ids 1000)
same '1000 in one call: those that are there' 500 \
	"$(printf '%s\n' "$in" | call lookup many | grep -cx 1)"
same 'the first half of them' "$(seq 500 | sed 's/.*/1/')" \
	"$(printf '%s\n' "$in" | call lookup many | sed -n 1,500p)"
in=$(ids 500)
same 'and not those in another space' 14 \
	"$(printf '%s\n' "$in" | call lookup '' | grep -cx 1)"
answers 'in its number' "flags=1 number=$(call space many </dev/null |
	sed 's/.*=//')" call space many
in=$(ids 1000)
same '1000 places in one call' 500 \
	"$(printf '%s\n' "$in" | call locate many | grep -c tier=0)"
in=$(ids 500)
same '500 evicted in one call' 500 \
	"$(printf '%s\n' "$in" | call evict many | grep -cx 0)"
same '250 opened in one call' 250 "$(ids 250 | call open '' | wc -l)"
same 'nothing is listed' 0 "$(blocks_in "$mnt/spaces/many")"
in=
answers 'no blocks, no results' '' call lookup

# ---- refused ----

in=$(ids 1)
answers 'too many' EINVAL call lookup '' num=1001
answers 'more than there are' EINVAL call lookup '' num=2
answers 'fewer than there are' EINVAL call lookup '' num=0
answers 'too many descriptors' EINVAL eval 'ids 251 | call open'
answers 'two paths' EINVAL eval 'ids 2 | call path'
answers 'no path' EINVAL eval 'call path </dev/null'
answers 'an argument where there is none' EINVAL call lookup '' argument=1
answers 'a flag that means nothing' EINVAL call locate '' flags=4
answers 'a flag where there is none' EINVAL call touch '' flags=1
answers 'a name without an end' EINVAL call lookup '' nul=0
answers 'no such space' ENOENT call lookup none
answers 'blocks/ has no name' ENOENT call lookup blocks
answers 'half an id' EINVAL call lookup '' size=168
answers 'half a head' EINVAL call statistics '' size=100
answers 'one byte' EINVAL call statistics '' size=1
answers 'a message that is too long' EINVAL call lookup '' size=70000
answers 'something after it' EINVAL call statistics '' size=176
answers 'no way to drain' EINVAL call drain '' "path=$work/slow" \
	argument=3
answers 'no text' EINVAL call text '' argument=5
answers 'no such verb' EOPNOTSUPP call lookup '' verb=1000
answers 'nor 0' EOPNOTSUPP call lookup '' verb=0
daemon_fds() {
	find "/proc/$(daemon_pid)/fd" -type l | wc -l
}
fds=$(daemon_fds)
case $(printf '%s\n' "$in" | call lookup '' descriptor=1) in
EPERM) dropped=EPERM ;; # since Linux 6.16 it is not sent
*) dropped=1 ;;
esac
for again in 1 2 3 4; do
	answers "a descriptor, which is dropped: $again" $dropped \
		call lookup '' descriptor=1
done
fds_are() {
	[ "$(daemon_fds)" -le "$1" ]
}
check 'and not kept' wait_until fds_are "$fds"

# ---- who may ----

need as_nobody mkdir -m 700 "$mnt/spaces/mine"
need cp "$work/src/$(small_paths 1)" "$mnt/spaces/mine/$(small_paths 1)"
answers 'others: lookup' 1 called_by 1234 lookup
answers 'others: touch' 0 called_by 1234 touch
answers 'others: expect' 0 called_by 1234 touch '' flags=4
same 'others: locate' tier=0 "$(printf '%s\n' "$in" | called_by 1234 locate |
	cut -d' ' -f1)"
check 'others: statistics' called_by 1234 statistics
answers 'others: open' "$(sum_of "$mnt/blocks/$(small_paths 1)")" \
	called_by 1234 open
check 'others: metrics' sh -c 'grep -q "^ucmfs_" <<-END
	$1
END' sh "$(called_by 1234 text '' argument=2)"
for what in 0 1; do
	answers "others: no text $what" EPERM called_by 1234 text '' argument=$what
	check "root: text $what" call text '' argument=$what
done
for what in path pin unpin evict warm flush rescan checkpoint check verified; do
	answers "others: no $what" EPERM called_by 1234 $what
done
answers 'others: no drain' EPERM called_by 1234 drain '' "path=$work/slow"
for what in remove create; do
	answers "others: no $what" EACCES called_by 1234 $what
done
for what in lookup touch locate open remove create space; do
	answers "others: no $what in a private space" EACCES \
		called_by 1234 $what mine
done
answers 'its owner: lookup' 1 called_by 65534 lookup mine
answers 'its owner: touch' 0 called_by 65534 touch mine
answers 'its owner: open' "$(sum_of "$mnt/spaces/mine/$(small_paths 1)")" \
	called_by 65534 open mine
answers 'its owner: not evict' EPERM called_by 65534 evict mine
answers 'its owner: create, where there is one' EEXIST \
	called_by 65534 create mine bytes=$small_size
answers 'its owner: remove' 0 called_by 65534 remove mine
answers 'its owner: create' 0 called_by 65534 create mine bytes=$small_size
need cp "$work/src/$(small_paths 1)" "$mnt/spaces/mine/$(small_paths 1)"
answers 'others: a space' '' called_by 1234 mkspace theirs argument=448
same 'is theirs' '700 1234' "$(stat -c '%a %u' "$mnt/spaces/theirs")"
answers 'others: not one that is there' EEXIST \
	called_by 1234 mkspace many argument=493
answers 'others: not the default one' EEXIST called_by 1234 mkspace
answers 'others: nor by any name' EINVAL called_by 1234 mkspace a/b argument=493
answers 'root: lookup' 1 call lookup mine
answers 'root: evict' 0 call evict mine
do_umount

need do_mount -o allow_other,uid=1234,gid=1234 "fast=$work/tier:slow=$work/slow"
answers 'owner of the mount: path' "$work/tier/blocks/$(small_paths 1)" \
	called_by 1234 path
answers 'owner of the mount: pin' 0 called_by 1234 pin
answers 'owner of the mount: unpin' 0 called_by 1234 unpin
answers 'owner of the mount: flush' '' called_by 1234 flush
answers 'but not what is private' EACCES called_by 1234 lookup mine
answers 'nor to remove from it' EACCES called_by 1234 evict mine
do_umount

need do_mount -o ro "fast=$work/tier:slow=$work/slow"
answers 'read-only: lookup' 1 call lookup
for what in pin unpin evict warm remove create; do
	answers "read-only: no $what" EROFS call $what
done
answers 'read-only: no space' EROFS call mkspace another argument=493
same 'read-only: hello says so' 1 "$(call hello | sed -n 's/^flags //p')"
do_umount
