#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The memory that the daemon passes on its socket: another user can map it, but can
# neither open the index again for writing, nor seal or resize either memory.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

need do_mount -o allow_other "$work/tier"
socket=$(readlink "$mnt/.ucmfs/socket")

# What a peer without any privilege can do, a line for each
peer() {
	python3 - "$socket" <<'END'
import ctypes, fcntl, mmap, os, socket, struct, sys

F_ADD_SEALS, F_SEAL_GROW, PR_SET_DUMPABLE = 1033, 4, 4
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # /proc/self stays ours


def can(what, call, *args):
    try:
        call(*args)
        print(what)
    except OSError:
        pass


def again(fd):
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR)


sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.send(struct.pack("=IIIIQ136s", 1, 0, 1, 0, 0, b""))
data, fds, _, _ = socket.recv_fds(sock, 65536, 250)
index, budget = fds
can("open its own again", again, os.memfd_create("own"))
can("map the index", mmap.mmap, index, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
can("map the budget", mmap.mmap, budget, 4096)
can("write to the index", os.pwrite, index, b"x", 0)
can("map the index for writing", mmap.mmap, index, 4096)
for name, fd in ("index", index), ("budget", budget):
    can(f"open the {name} again", again, fd)
    can(f"seal the {name}", fcntl.fcntl, fd, F_ADD_SEALS, F_SEAL_GROW)
    can(f"cut the {name}", os.ftruncate, fd, 1)
    can(f"lengthen the {name}", os.ftruncate, fd, 1 << 30)
END
}

same 'another user can map it, and no more' 'open its own again
map the index
map the budget' "$(peer)"
check 'blocks are committed as before' mk --count 4000 "$mnt/blocks"
