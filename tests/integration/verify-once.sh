#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A loader that verifies once compares the checksums of a file until the mount knows
# that they are right, and again when the file may be another one. Blocks lie on a
# disk that loses bits: their bytes change, and nothing else of the file.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test namespace fuse client python3 setpriv

payload=8192 # of a block

# block NUMBER: its file in $path, its id in $hex
block() {
	ask path "$1"
	path=$disk/blocks/${answer#= }
	hex=$(basename "$path" .bin)
}

# rot NUMBER: a bit of its payload, on the disk; the file knows nothing of it
rot() {
	block "$1"
	python3 - "$path" "$disk.image" <<'END' || die 'rot failed'
import fcntl, os, struct, sys

with open(sys.argv[1], "rb") as file:
    os.fsync(file.fileno())
    at = struct.unpack("i", fcntl.ioctl(file, 1, struct.pack("i", 1)))[0]
assert at, "FIBMAP"
image = os.open(sys.argv[2], os.O_RDWR)
byte = os.pread(image, 1, at * 4096 + 77)
os.pwrite(image, bytes([byte[0] ^ 1]), at * 4096 + 77)
END
}

# verified_are N
verified_are() {
	grep -q "\"verified_blocks\": $1[,}]" "$mnt/.ucmfs/stats.json"
}

# marks N FIRST NUM: until the mount knows N, of these and others
marks() {
	marks_left=200
	ask load "$2" "$3"
	until verified_are "$1" || [ $marks_left = 0 ]; do
		marks_left=$((marks_left - 1))
		sleep 0.05
		ask load "$2" "$3"
	done
	check "$1 blocks are marked" verified_are "$1"
}

# unsummed 'what' BLOCKS: since the last time
unsummed_before=0
unsummed() {
	ask unsummed
	same "$1" $(($2 * payload)) $((${answer##* } - unsummed_before))
	unsummed_before=${answer##* }
}

# start [options]: a client that verifies once, and takes files for old enough
start() {
	start_client --verify once --age 60 "$@" mount "$mnt"
	unsummed_before=0
}

# forget: what was counted so far
forget() {
	ask unsummed
	unsummed_before=${answer##* }
}

# spares FIRST NUM: these are loaded, and none is verified again
spares() {
	forget
	ask load "$1" "$2"
	ask unsummed
	[ $((${answer##* } - unsummed_before)) -eq $(($2 * payload)) ]
}

# call [ARGUMENT...]: what the mount says of the block in $hex
call() {
	echo "$hex" | python3 "$top_srcdir/tests/lib/control.py" "$mnt" \
		verified '' "$@"
}

disk=$work/disk
mkfs_flags='-b 4096'
make_fs ext4 32M "$disk"
need do_mount -c checkpoint=0 -o allow_other "$disk"

# ---- marks, and what a mark gives up ----

start_client --verify once mount "$mnt"
ask save 0 32
answers 'blocks are saved' 32 0 0 0 0
unsummed_before=0
for again in 1 2 3; do
	ask load 0 8
done
unsummed 'a write to a young file may still be under way' 0
end_client
check 'so it is not marked' verified_are 0
start --io auto
rot 7
ask load 0 8
answers 'what is damaged before its first load is found' 7 0 0 0 1
marks 7 0 8
forget
ask load 0 7
answers 'what is marked is loaded' 7 0 0 0 0
unsummed 'and not verified again' 7
check 'ucm status counts them' sh -c \
	'"$1" status -m "$2" | grep -q "32 blocks, 7 marked as verified"' sh "$ucm" "$mnt"
end_client

for io in auto threads; do
	start --io $io
	ask load 0 7
	unsummed "$io: nor by another process" 7
	ask load 0 8
	answers "$io: one that was wrong is not marked" 7 0 0 0 1
	end_client
	start_client --io $io mount "$mnt"
	ask load 0 7
	answers "$io: who verifies always loads them, too" 7 0 0 0 0
	ask unsummed
	same "$io: and has verified all" '= unsummed 0' "$answer"
	end_client
done

start
ask load 0 7
forget
rot 0
ask load 0 7
answers 'what is damaged later is loaded as it is' 6 0 1 0 0
unsummed 'this is what the mode gives up' 7

# ---- another file, or one that may be ----

block 1
flip "$path" $((4096 + 99))
ask load 0 7
answers 'what was written to is verified' 5 0 1 0 1
client_said "block 1 $hex: layer 0 K: plane checksum differs"
flip "$path" $((4096 + 99))
block 2
cp -p "$path" "$work/two"
flip "$work/two" $((4096 + 99))
touch -r "$path" "$work/two"
need mv "$work/two" "$path"
end_client
start
ask load 0 7
answers 'and so is what was put in its place, times and all' 5 0 1 0 1
client_said "block 2 $hex: layer 0 K: plane checksum differs"
end_client

# a loader that finds a mark wrong says so
start_client mount "$mnt"
ask load 0 1
answers 'who verifies always finds the damage' 0 0 0 0 1
end_client
start
ask load 0 1
answers 'and all have learned of it' 0 0 0 0 1
end_client

# ---- a restart ----

start
ask load 3 1
unsummed 'before a restart' 1
rot 3
do_umount TERM
need do_mount -c checkpoint=0,reverify=2 -o allow_other "$disk"
check 'another daemon knows of none' verified_are 0
ask_until '= ok 0 skipped 0 wrong 0 absent 0 failed 1' load 3 1
answers 'and what was damaged is found' 0 0 0 0 1
# it looks at all
cat "$mnt"/blocks/*/*.bin >"$work/all" || fail 'all can be read'
# by a loader that knew the daemon of before, and learns from the new one
marks 4 8 4
tries=200 # a mark that is two seconds old is none
until spares 8 4 || [ $tries = 0 ]; do
	tries=$((tries - 1))
	sleep 0.05
done
check 'it knows the marks of the new one' test $tries != 0

# ---- age ----

marks 7 4 3
ask load 4 1
forget
rot 4
ask_until '= ok 0 skipped 0 wrong 0 absent 0 failed 1' load 4 1
answers 'a mark that is too old does not count' 0 0 0 0 1
end_client
do_umount

# ---- who may say so ----

need do_mount -c checkpoint=0 -o allow_other "$disk"
cat "$mnt"/blocks/*/*.bin >"$work/all" || fail 'all can be read'
cp "$load_client" "$work/client" 2>/dev/null
[ ! -x "$top_builddir/tests/integration/.libs/load_client" ] || {
	cp "$top_builddir/tests/integration/.libs/load_client" "$work/client"
	LD_LIBRARY_PATH=$work/lib
	mkdir "$work/lib"
	cp "$top_builddir"/.libs/libucm.so* "$work/lib/"
	export LD_LIBRARY_PATH
}
chmod 755 "$work/client"
printf '#!/bin/sh\nexec setpriv --reuid 1234 --regid 1234 --clear-groups %s "$@"\n' \
	"$work/client" >"$work/as_other"
chmod 755 "$work/as_other"
own_client=$load_client
load_client=$work/as_other
start
ask load 8 8
answers 'another user loads' 8 0 0 0 0
ask load 8 8
ask opens
same 'by the daemon' '= opens 8' "$answer"
end_client
check 'and marks nothing' verified_are 0
load_client=$own_client

start
block 8
same 'he may not say so himself' EPERM "$(call "file=$path" uid=1234)"
same 'nor is a wrong stamp taken' ESTALE "$(call stamp=12345)"
check 'nothing is marked' verified_are 0
same 'root is believed, of that file' 0 "$(call "file=$path")"
check 'that one is' verified_are 1
ask load 8 1
unsummed 'and not verified again' 1
same 'root takes it back' 0 "$(call stamp=0)"
check 'none is' verified_are 0
end_client

start --threads 1 # each has files of its own
ask part 16 4 0 1
ask part 16 4 0 1
answers 'a layer is loaded, twice' 4 0 0 0 0
ask part 20 4 0 1
ask part 20 4 1 1
answers 'and of others the other one, too' 4 0 0 0 0
end_client
check 'these are right, and no others' wait_until verified_are 4
start
marks 12 8 8
end_client
load_client=$work/as_other
start
ask load 8 8
unsummed "but the other user has root's" 8
end_client
load_client=$own_client

# ---- where nothing is known ----

need mkdir "$mnt/spaces/more"
chmod 700 "$mnt/spaces/more"
start --space more
ask save 0 4
ask load 0 4
ask load 0 4
answers 'those of a private space' 4 0 0 0 0
unsummed 'are verified' 0
path=$(find "$disk/spaces/more" -name '*.bin' | head -n 1)
same 'and cannot be marked' EOPNOTSUPP "$(basename "$path" .bin |
	python3 "$top_srcdir/tests/lib/control.py" "$mnt" verified more \
		"file=$path")"
end_client
do_umount
need do_mount -c reverify=0 "$disk"
start
ask load 8 8
block 8
same 'with reverify=0 nothing is' EOPNOTSUPP "$(call "file=$path")"
ask load 8 8
unsummed 'and all is verified' 0
end_client
do_umount

exit $failed
