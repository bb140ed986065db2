#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tree_twin.py - the same random calls in two folders: what comes of each call,
and what is there in the end, must be the same.

    tree_twin.py CALLS FOLDER TWIN

The first is the one that is tried, the second any other file system. As root,
some of the calls are made as another user. Compared are results and errors,
stat(2) but for numbers that differ between any two file systems, contents,
listings and users' extended attributes.
"""

import errno
import os
import random
import stat
import sys

from seed import SEED

NAMES = ["a", "b", "c", "d", "long" * 60, "x" * 255, "y" * 256, "."]
FLAGS = [
    os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC,
    os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND,
    os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_RDWR | os.O_CREAT | os.O_TRUNC, os.O_RDONLY | os.O_DIRECTORY,
]
MODES = [0o777, 0o755, 0o700, 0o644, 0o600, 0o444, 0o000, 0o1777, 0o311]
ATTRIBUTES = ["user.a", "user.checksum", "user." + "n" * 100]
USERS = [0, 0, 0, 65534]


class Side:
    """One of the two folders, and the files that are open in it."""

    def __init__(self, root):
        self.root = root
        self.fds = {}

    def path(self, name):
        return f"{self.root}/{name}"

    # Each call returns what is to be the same on both sides.

    def open(self, number, name, flags, mode):
        self.close(number)
        self.fds[number] = os.open(self.path(name), flags, mode)
        return self.seen(os.fstat(self.fds[number]))

    def close(self, number):
        if number in self.fds:
            os.close(self.fds.pop(number))

    def fd(self, number):
        if number not in self.fds:
            raise OSError(errno.EBADF, "not open")
        return self.fds[number]

    def write(self, number, data, offset):
        return os.pwrite(self.fd(number), data, offset)

    def read(self, number, size, offset):
        return os.pread(self.fd(number), size, offset)

    def fstat(self, number):
        return self.seen(os.fstat(self.fd(number)))

    def ftruncate(self, number, size):
        return os.ftruncate(self.fd(number), size)

    def fchmod(self, number, mode):
        return os.fchmod(self.fd(number), mode)

    def fallocate(self, number, offset, size):
        return os.posix_fallocate(self.fd(number), offset, size)

    def fsync(self, number):
        return os.fsync(self.fd(number))

    def truncate(self, name, size):
        return os.truncate(self.path(name), size)

    def mkdir(self, name, mode):
        return os.mkdir(self.path(name), mode)

    def rmdir(self, name):
        return os.rmdir(self.path(name))

    def unlink(self, name):
        return os.unlink(self.path(name))

    def rename(self, name, to):
        return os.rename(self.path(name), self.path(to))

    def link(self, name, to):
        return os.link(self.path(name), self.path(to), follow_symlinks=False)

    def setxattr(self, name, attribute, value, flags):
        return os.setxattr(self.path(name), attribute, value, flags)

    def getxattr(self, name, attribute):
        return os.getxattr(self.path(name), attribute)

    def removexattr(self, name, attribute):
        return os.removexattr(self.path(name), attribute)

    def listxattr(self, name):
        return sorted(attribute for attribute in os.listxattr(self.path(name))
                      if not attribute.startswith("user.ucmfs."))

    def symlink(self, target, name):
        return os.symlink(target, self.path(name))

    def readlink(self, name):
        return os.readlink(self.path(name))

    def lstat(self, name):
        return self.seen(os.lstat(self.path(name)))

    def lchown(self, name, uid, gid):
        return os.lchown(self.path(name), uid, gid)

    def lutime(self, name, atime, mtime):
        return os.utime(self.path(name), (atime, mtime), follow_symlinks=False)

    def chmod(self, name, mode):
        return os.chmod(self.path(name), mode)

    def chown(self, name, uid, gid):
        return os.chown(self.path(name), uid, gid)

    def utime(self, name, atime, mtime):
        return os.utime(self.path(name), (atime, mtime))

    def access(self, name, mode):
        return os.access(self.path(name), mode, effective_ids=True)

    def stat(self, name):
        return self.seen(os.stat(self.path(name)))

    def listdir(self, name):
        return sorted(os.listdir(self.path(name)))

    def scan(self, name):
        with os.scandir(self.path(name)) as entries:
            return sorted((e.name, e.is_dir(follow_symlinks=False),
                           e.is_symlink()) for e in entries)

    @staticmethod
    def seen(st):
        if stat.S_ISDIR(st.st_mode):
            return st.st_mode, st.st_uid, st.st_gid, st.st_nlink
        return (st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_nlink,
                int(st.st_mtime) if st.st_mtime < 1 << 30 else "now")


def some_name(rng):
    return "/".join(rng.choice(NAMES[:4] if rng.random() < .95 else NAMES)
                    for _ in range(rng.choice([1, 1, 2, 2, 3])))


def some_call(rng):
    number, name = rng.randrange(4), some_name(rng)
    size = rng.choice([0, 1, 100, 4096, 5000, 70000])
    mode, flags = rng.choice(MODES), rng.choice(FLAGS)
    return rng.choice([
        ("open", number, name, flags, mode),
        ("open", number, name, flags | os.O_CREAT, 0o666)
        if not flags & os.O_DIRECTORY else ("stat", name),
        ("open", number, name, os.O_RDWR | os.O_CREAT, 0o666),
        ("close", number),
        ("write", number, bytes([rng.randrange(256)]) * size,
         rng.choice([0, 10, 8192])),
        ("read", number, size, rng.choice([0, 10, 8192])),
        ("fstat", number),
        ("ftruncate", number, size),
        ("fchmod", number, mode),
        ("fallocate", number, 0, size + 1),
        ("fsync", number),
        ("truncate", name, size),
        ("mkdir", name, rng.choice([0o777, mode])),
        ("mkdir", name, 0o777),
        ("rmdir", name),
        ("unlink", name),
        ("link", name, some_name(rng)),
        ("link", name, some_name(rng)),
        ("setxattr", name, rng.choice(ATTRIBUTES), bytes(size % 4001),
         rng.choice([0, 0, os.XATTR_CREATE, os.XATTR_REPLACE])),
        ("getxattr", name, rng.choice(ATTRIBUTES)),
        ("listxattr", name),
        ("removexattr", name, rng.choice(ATTRIBUTES)),
        ("symlink", some_name(rng), name),
        ("readlink", name),
        ("lstat", name),
        ("lchown", name, rng.choice([0, 65534]), rng.choice([0, 65534])),
        ("lutime", name, rng.randrange(1 << 29), rng.randrange(1 << 29)),
        ("rename", name, some_name(rng)),
        ("rename", name, some_name(rng)),
        ("chmod", name, rng.choice([mode, 0o777])),
        ("chown", name, rng.choice([0, 65534]), rng.choice([0, 65534])),
        ("utime", name, rng.randrange(1 << 29), rng.randrange(1 << 29)),
        ("access", name, rng.choice([os.F_OK, os.R_OK, os.W_OK, os.X_OK])),
        ("stat", name),
        ("listdir", name),
        ("scan", name),
    ])


def outcome(side, call):
    try:
        return getattr(side, call[0])(*call[1:])
    except OSError as error:
        return errno.errorcode[error.errno]


def outcomes(sides, call):
    return [outcome(side, call) for side in sides]


def whole(root):
    """All that is below, readable by root."""
    found = {}
    for folder, folders, names in os.walk(root):
        found[os.path.relpath(folder, root)] = Side.seen(os.stat(folder))
        for name in folders + names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[os.path.relpath(path, root)] = (
                    Side.seen(os.lstat(path)), os.readlink(path))
            if os.path.islink(path) or name in folders:
                continue
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = (
                    Side.seen(os.stat(path)), file.read())
    return found


def short(value):
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."


def main():
    calls = int(sys.argv[1])
    sides = [Side(root) for root in sys.argv[2:4]]
    rng = random.Random(SEED)
    os.umask(0o022)
    for i in range(calls):
        call = some_call(rng)
        uid = rng.choice(USERS) if os.geteuid() == 0 else None
        if uid:
            os.setegid(uid)
            os.seteuid(uid)
        results = outcomes(sides, call)
        if uid:
            os.seteuid(0)
            os.setegid(0)
        if results[0] != results[1]:
            print(f"call {i}, as {uid}: {short(call)}:",
                  *map(short, results), sep="\n  ")
            return 1  # what follows differs for it
    trees = [whole(side.root) for side in sides]
    different = [name for name in sorted(set(trees[0]) | set(trees[1]))
                 if trees[0].get(name) != trees[1].get(name)]
    for name in different[:5]:
        print(f"{name}:", *(short(tree.get(name)) for tree in trees),
              sep="\n  ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
