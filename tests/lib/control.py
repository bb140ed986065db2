# SPDX-License-Identifier: Apache-2.0
"""Requests on a mount's socket, packed by hand, as ucm-serve(7) has them.

usage: control.py MOUNT VERB [SPACE [ARGUMENT...]] <IDS

VERB is a key of VERBS, with ids on standard input where it takes any. Prints a line
for each result; a request that is refused prints the name of its errno. Arguments
change what is sent: verb=, num=, argument=, flags=, bytes= (numbers),
size= (bytes of the whole message), nul=0 (a name without its end), uid= (who asks),
stamp= (a number) or file= (whose stamp: a path), path= (of drain: a directory),
descriptor=1 (one comes with the message).

Also: "open" prints a digest of each block's bytes, read through its descriptor;
"hold-index" and "hold-budget" print a path to the memory that hello passes, which
leads there for as long as this program runs.
"""
import array
import errno
import hashlib
import os
import signal
import socket
import struct
import sys

REQUEST = "<IIIIQ136s"
ANSWER = "<IIiI"
MOST_BYTES = 65536
MOST_FDS = 253
VERBS = {name: number for number, name in enumerate((
    "hello lookup touch pin unpin evict remove warm check offer verified "
    "locate path statistics drain flush rescan checkpoint text open "
    "create commit cancel mkspace space reopen list rmspace").split(), 1)}
WITHOUT_IDS = ("hello statistics drain flush rescan checkpoint text "
               "mkspace space list rmspace").split()
ERRNOS = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP"}


class Peer:
    """A connection to the daemon of a mount, or of a socket."""

    def __init__(self, where, uid=None):
        path = f"{where}/.ucmfs/socket"
        path = os.readlink(path) if os.path.isdir(where) else where
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def answer(self):
        data = b""
        for _ in range(3):  # the end may be seen before an answer unasked
            try:
                data, fds, flags, _ = socket.recv_fds(self.socket, MOST_BYTES,
                                                      MOST_FDS)
            except ConnectionResetError:
                continue
            if data:
                break
        if not data:
            raise OSError(errno.ENOTCONN, "the daemon has gone")
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        verb, num, result, descriptors = struct.unpack_from(ANSWER, data)
        assert descriptors == len(fds), (descriptors, fds)
        if result:
            assert not fds and len(data) == 16, (fds, data)
            raise OSError(-result, os.strerror(-result))
        return verb, num, data[16:], fds

    def send(self, message, fds=()):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                      array.array("i", fds))] if fds else []
        try:
            self.socket.sendmsg([message], ancillary)
        except (BrokenPipeError, ConnectionResetError):
            pass  # who is refused is told so, and not asked

    def request(self, verb, items=b"", num=0, space=b"", flags=0, argument=0,
                size=0, nul=True):
        """The bytes and the descriptors of the answer."""
        number = VERBS.get(verb, verb)
        name = space.ljust(136, b"\0" if nul else b"x")
        self.send(struct.pack(REQUEST, number, num, flags, argument, size, name)
                  + items)
        answered, _, data, fds = self.answer()
        assert answered == number, answered
        return data, fds


def ask(where, verb, **terms):
    """One request, on a connection of its own."""
    with Peer(where) as peer:
        return peer.request(verb, **terms)


def memory(where, which):
    """The descriptor of "index" or "budget"; the caller's."""
    data, fds = ask(where, "hello", flags=1)
    there = struct.unpack_from("<QQ", data, 8)
    assert len(fds) == sum(size > 0 for size in there)
    at = ("index", "budget").index(which)
    assert there[at], f"there is no {which}"
    return fds[at and there[0] > 0]


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


def name_of(result):
    return ERRNOS[-result] if result < 0 else str(result)


def show_place(data):
    (result, tier, directory, flags, size, mtime_ns, generation, crc, uses,
     atime_s) = struct.unpack("<iBBHQqIIII", data)
    print(name_of(result) if result else
          f"tier={tier} dir={directory} flags={flags} size={size} "
          f"mtime={mtime_ns} crc={crc:08x} uses={uses} atime={atime_s} "
          f"generation={generation}")


def show_opened(data, fds):
    for result, _, size in struct.iter_unpack("<iIQ", data):
        if result:
            print(name_of(result))
            continue
        with os.fdopen(fds.pop(0), "rb") as file:
            block = file.read()
        assert len(block) == size, (len(block), size)
        print(hashlib.sha256(block).hexdigest())
    assert not fds


def show(verb, data, fds):
    if verb == "statistics":
        fields = ("reserved scanned blocks bytes total free lookups hits misses "
                  "opens commits removed quarantined io_errors").split()
        for pair in zip(fields, struct.unpack("<II12Q", data)):
            print(*pair)
    elif verb == "hello":
        fields = "version flags index budget rate in_flight".split()
        for pair in zip(fields, struct.unpack("<II4Q", data)):
            print(*pair)
    elif verb == "drain":
        print("blocks={} bytes={} stays={} draining={}".format(
            *struct.unpack("<QQQII", data)[:4]))
    elif verb == "space":
        print("flags={} number={}".format(*struct.unpack("<II", data)))
    elif verb == "path":
        print(data[:data.index(0)].decode())
    elif verb == "list":
        with os.fdopen(fds.pop(), "rb") as file:
            file.seek(0)
            print(*sorted(file.read(16).hex() for _ in range(
                os.fstat(file.fileno()).st_size // 16)), sep="\n")
    elif verb == "text":
        with os.fdopen(fds.pop(), "r") as file:
            file.seek(0)
            sys.stdout.write(file.read())
    elif verb == "locate":
        for at in range(0, len(data), 40):
            show_place(data[at:at + 40])
    elif verb == "open":
        show_opened(data, fds)
    elif verb == "create":
        for result, *_ in struct.iter_unpack("<iIII", data):
            print(name_of(result))
    else:
        for result, in struct.iter_unpack("<i", data):
            print(name_of(result))


def items_of(verb, changes):
    """The items of the message, and their number."""
    if verb == "drain":
        path = changes["path"].encode()
        return path, len(path)
    if verb in WITHOUT_IDS:
        return b"", 0
    ids = bytes.fromhex(sys.stdin.read())
    stamp = changes.get("file", changes.get("stamp", 0))
    tail = {"verified": struct.pack("<Q", stamp), "offer": bytes(16)}
    each = tail.get(verb, b"")
    return b"".join(ids[at:at + 16] + each
                    for at in range(0, len(ids), 16)), len(ids) // 16


def message_of(verb, space, changes):
    items, num = items_of(verb, changes)
    name = space.encode().ljust(136, b"\0" if changes.get("nul", 1) else b"x")
    head = struct.pack(REQUEST, changes.get("verb", VERBS[verb]),
                       changes.get("num", num), changes.get("flags", 0),
                       changes.get("argument", 0), changes.get("bytes", 0),
                       name)
    message = head + items
    size = changes.get("size", len(message))
    return message[:size].ljust(size, b"\0")


def hold(where, which):
    fd = memory(where, which)
    print(f"/proc/{os.getpid()}/fd/{fd}", flush=True)
    while True:
        signal.pause()


def value_of(key, value):
    if key == "file":
        return stamp_of(value)
    return value if key == "path" else int(value)


def main():
    where, verb = sys.argv[1:3]
    space = sys.argv[3] if len(sys.argv) > 3 else ""
    changes = {key: value_of(key, value) for key, value in
               (arg.split("=") for arg in sys.argv[4:])}
    if verb.startswith("hold-"):
        hold(where, verb[len("hold-"):])
    message = message_of(verb, space, changes)
    try:
        with Peer(where, changes.get("uid")) as peer:
            peer.send(message, [0] if "descriptor" in changes else [])
            answer = peer.answer()
        show(verb, *answer[2:])
    except OSError as error:
        print(ERRNOS[error.errno])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
