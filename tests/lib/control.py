# SPDX-License-Identifier: Apache-2.0
"""Calls on MOUNT/.ucmfs/control, packed by hand, as ucm-control(7) has them.

usage: control.py MOUNT CALL [SPACE [ARGUMENT...]] <IDS

CALL is lookup, touch, locate, path, pin, unpin, evict, warm, lease or verified (one
id), with ids on standard input, or statistics, memory, flush, rescan, checkpoint. Prints a
line for each result; a call that fails prints the name of its errno. Arguments
change what is sent: version=, num=, lease=, flags= (numbers), size= (the bytes that
the command's number has room for), nul=0 (a name without its end), uid= (who asks),
stamp= (a number) or file= (whose stamp: a path), what= (of memory: a number).
MOUNT may be another file to try it on.
"""
import errno
import fcntl
import os
import struct
import sys

HEAD = 152
CALLS = {
    # number, bytes of the struct
    "lookup": (1, HEAD + 16 * 1000),
    "touch": (2, HEAD + 16 * 1000),
    "locate": (3, HEAD + 40 * 400),
    "statistics": (4, 8 + 8 * 12),
    "path": (5, HEAD + 4096),
    "pin": (6, HEAD + 16 * 1000),
    "unpin": (7, HEAD + 16 * 1000),
    "evict": (8, HEAD + 16 * 1000),
    "warm": (9, HEAD + 16 * 1000),
    "flush": (10, 0),
    "rescan": (11, 0),
    "checkpoint": (12, 0),
    "lease": (13, HEAD + 16 * 1000),
    "verified": (25, HEAD + 24 * 600),
    "memory": (27, 32),
    "none": (14, 0),  # there is no such call
}
ERRNOS = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP"}


def iowr(number, size):
    direction = 3 if size else 0
    return direction << 30 | size << 16 | ord("U") << 8 | number


def head(space, num, changes):
    name = space.encode()
    name = name.ljust(136, b"\0" if changes.get("nul", 1) else b"x")
    return struct.pack("<IIII136s", changes.get("version", 1),
                       changes.get("num", num), changes.get("lease", 0),
                       changes.get("flags", 0), name)


def mix(value, word):
    value = ((value ^ word) + 0x9e3779b97f4a7c15) % 2**64
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9 % 2**64
    value = (value ^ value >> 27) * 0x94d049bb133111eb % 2**64
    return value ^ value >> 31


def stamp_of(path):
    """As doc/index-format.md has it."""
    st, value = os.stat(path), 0
    for word in (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns,
                 st.st_ctime_ns):
        value = mix(value, word)
    return value >> 26 or 1


def call(mount, what, data, changes):
    number, size = CALLS[what]
    size = changes.get("size", size)
    buffer = bytearray(data[:size].ljust(size, b"\0"))
    if "uid" in changes:
        os.setgroups([])
        os.setgid(changes["uid"])
        os.setuid(changes["uid"])
    path = mount if os.path.isfile(mount) else mount + "/.ucmfs/control"
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, iowr(number, size), buffer if size else 0)
    finally:
        os.close(fd)
    return buffer


def name_of(result):
    return ERRNOS[-result] if result < 0 else str(result)


def show(what, buffer, num):
    if what == "statistics":
        fields = ("version scanned blocks bytes total free lookups hits misses "
                  "opens commits removed quarantined io_errors").split()
        for pair in zip(fields, struct.unpack_from("<II12Q", buffer)):
            print(*pair)
    elif what == "memory":
        pid, fd, device, inode = struct.unpack_from("<iiQQ", buffer, 8)
        st = os.stat(f"/proc/{pid}/fd/{fd}")
        print(pid, (st.st_dev, st.st_ino) == (device, inode))
    elif what == "path":
        print(buffer[HEAD:buffer.index(0, HEAD)].decode())
    elif what == "locate":
        for i in range(num):
            place = struct.unpack_from("<iBBHQqIIII", buffer, HEAD + 40 * i)
            result, tier, directory, flags, size = place[:5]
            mtime_ns, generation, crc, uses, atime_s = place[5:]
            if result:
                print(name_of(result))
                continue
            print(f"tier={tier} dir={directory} flags={flags} size={size} "
                  f"mtime={mtime_ns} crc={crc:08x} uses={uses} "
                  f"atime={atime_s} generation={generation}")
    else:
        for i in range(num):
            print(name_of(struct.unpack_from("<i", buffer, HEAD + 4 * i)[0]))


def main():
    mount, what = sys.argv[1:3]
    space = sys.argv[3] if len(sys.argv) > 3 else ""
    changes = {key: stamp_of(value) if key == "file" else int(value)
               for key, value in (arg.split("=") for arg in sys.argv[4:])}
    ids, data = b"", b""
    if what == "memory":
        data = struct.pack("<II", changes.get("version", 1),
                           changes.get("what", 0))
    elif CALLS[what][1] and what != "statistics":
        ids = bytes.fromhex(sys.stdin.read())
        data = head(space, len(ids) // 16, changes) + ids
        if what == "verified":
            data += struct.pack("<Q", changes.get("file",
                                                  changes.get("stamp", 0)))
    elif what == "statistics":
        data = struct.pack("<I", changes.get("version", 1))
    try:
        buffer = call(mount, what, data, changes)
    except OSError as error:
        print(ERRNOS[error.errno])
        return 1
    show(what, buffer, len(ids) // 16)
    return 0


sys.exit(main())
