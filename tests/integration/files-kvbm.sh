#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# KVBM's disk pool on files/ by its own calls: mkostemp, fallocate (or zeros
# written where that fails), unlink while open, O_DIRECT by open or fcntl; then
# NIXL's POSIX plugin reads and writes blocks of the descriptor, several at a time.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

cat >"$work/kvbm.py" <<'END'
import ctypes, fcntl, mmap, os, random, stat, sys
from concurrent.futures import ThreadPoolExecutor

folder, way = sys.argv[1:3]
BLOCK, BLOCKS = 1 << 20, 24
SIZE = BLOCK * BLOCKS
libc = ctypes.CDLL(None, use_errno=True)


def make():
    name = ctypes.create_string_buffer(
        os.fsencode(f"{folder}/dynamo-kvbm-disk-cache-XXXXXX"))
    flags = os.O_CLOEXEC | (os.O_DIRECT if way == "open-direct" else 0)
    fd = libc.mkostemp(name, flags)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    return fd, os.fsdecode(name.value)


def zeros(fd):
    """The fall-back, through an aligned buffer."""
    page = mmap.mmap(-1, BLOCK)
    for at in range(0, SIZE, BLOCK):
        assert os.pwrite(fd, page, at) == BLOCK


fd, path = make()
assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
if way == "zero-fill":
    zeros(fd)
else:
    assert libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(SIZE)) == 0, \
        os.strerror(ctypes.get_errno())
assert os.fstat(fd).st_size == SIZE
assert os.fstat(fd).st_blocks * 512 >= SIZE, "room is not taken"
os.unlink(path)
assert os.listdir(folder) == [], os.listdir(folder)
assert os.fstat(fd).st_nlink == 0
if way not in ("open-direct", "buffered"):
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
direct = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
assert bool(direct) == (way != "buffered")

# blocks in any order, several at a time, against copies of them
source = random.Random(34)
there = {}


def move(order):
    number, data = order
    memory = mmap.mmap(-1, BLOCK)  # on a page
    if data is not None:
        memory[:] = data
        assert os.pwritev(fd, [memory], number * BLOCK) == BLOCK
        return
    assert os.preadv(fd, [memory], number * BLOCK) == BLOCK
    assert memory[:] == there.get(number, bytes(BLOCK)), number


with ThreadPoolExecutor(8) as pool:
    for _ in range(40):
        orders = [(n, source.randbytes(4096) * (BLOCK // 4096)
                   if source.random() < 0.5 else None)
                  for n in source.sample(range(BLOCKS), 8)]
        list(pool.map(move, orders))
        there.update({n: data for n, data in orders if data is not None})
    list(pool.map(move, ((n, None) for n in range(BLOCKS))))
# what is not aligned is refused, or right: never something else
if direct:
    try:
        assert os.pread(fd, 100, 7) == there.get(0, bytes(BLOCK))[7:107]
    except OSError as error:
        assert error.errno == 22, error
os.close(fd)
END

free() {
	stat -f -c %f "$work/tier"
}

# serve OPTIONS
serve() {
	rm -rf "$work/tier"
	mkdir "$work/tier"
	need do_mount -o "$1" "$work/tier"
	need mkdir "$mnt/files/kvbm"
	for way in default open-direct zero-fill buffered; do
		check "$1: $way" python3 "$work/kvbm.py" "$mnt/files/kvbm" $way
		same "$1: $way: nothing is left" '' \
			"$(find "$work/tier/files/kvbm" -type f)"
	done
	do_umount
}

serve passthrough=auto
serve passthrough=off

# a pool that does not fit is refused before it is used, and takes no room
if mount -t tmpfs -o size=16m none "$work/tier" 2>/dev/null; then
	need do_mount -o passthrough=auto "$work/tier"
	need mkdir "$mnt/files/kvbm"
	was=$(free)
	refused 'No space left on device' 'a pool that does not fit' \
		python3 "$work/kvbm.py" "$mnt/files/kvbm" default
	rm -f "$mnt"/files/kvbm/*
	same 'its room is free again' "$was" "$(free)"
	do_umount
	umount "$work/tier"
fi
