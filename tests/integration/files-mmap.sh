#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Files of files/ are mapped: shared and writable, by two processes, beside
# read(2) and write(2), cut and made longer; fio writes and verifies.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

cat >"$work/map.py" <<'END'
import mmap, os, sys, time
path = sys.argv[1] + "/mapped"
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
shared = mmap.mmap(fd, 1 << 20)
shared[5000:5004] = b"here"
# another open, and another process
other = os.open(path, os.O_RDWR)
assert os.pread(other, 4, 5000) == b"here"
seen = mmap.mmap(other, 1 << 20)
if os.fork() == 0:
    seen[9000:9005] = b"child"
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert shared[9000:9005] == b"child"
os.pwrite(other, b"written", 100)
assert shared[100:107] == b"written"
shared.flush()
private = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE)
private[0:4] = b"mine"
assert os.pread(fd, 4, 0) == bytes(4)
# a store changes the time, at the latest when all is closed
os.utime(path, (1, 1))
shared[0:5] = b"store"
shared.flush()
for map in shared, seen, private:
    map.close()
os.close(fd)
os.close(other)
for _ in range(1000):
    if os.stat(path).st_mtime > 1:
        break
    time.sleep(0.01)
else:
    sys.exit("the store did not change the time")
assert open(path, "rb").read(5) == b"store"
END

# serve OPTIONS
serve() {
	rm -rf "$work/tier"
	mkdir "$work/tier"
	need do_mount -o "$1" "$work/tier"
	check 'mapped by two' python3 "$work/map.py" "$mnt/files"
	if may_try 'fio verifies' fio; then
		for engine in mmap psync; do
			check "fio verifies, $engine" fio --name=v \
				--directory="$mnt/files" --ioengine=$engine \
				--rw=randrw --bs=4k --size=8m --numjobs=2 \
				--verify=crc32c --verify_fatal=1 \
				--verify_state_save=0 --output=/dev/null
		done
		check 'fio verifies, O_DIRECT' fio --name=d \
			--directory="$mnt/files" --ioengine=libaio --iodepth=8 \
			--direct=1 --rw=randwrite --bs=64k --size=32m \
			--verify=crc32c --verify_fatal=1 \
			--verify_state_save=0 --output=/dev/null
	fi
	do_umount
}

serve passthrough=auto
serve passthrough=off
