#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rooms of the tree, and which of the others each may use.

Checked in what the sources include, and in what the objects call or refer to
(by nm). Files that use each other form a circle: none leaves its room, and none
has more than three files. A library outside is included by one file.
"""
import glob
import os
import re
import subprocess
import sys

# room: (its folder, the rooms that it may use), low to high
BASE = ["common", "hashing", "block"]
MEDIUM = [*BASE, "config", "index", "medium"]
TIER = [*MEDIUM, "hosts", "dir", "memory", "tier"]
BLOCKS = [*TIER, "policy", "store"]  # what each room of the store may use
STORE = [*BLOCKS, "find", "motion", "commit", "start"]
SERVED = [*STORE, "files", "watch", "serve"]
MOUNT = [*SERVED, "mountsetup", "mountnode", "mountcontrol"]
MOVE = [*BASE, "layout", "ring", "source", "copy"]  # what each room of the loader may use
LOAD = [*TIER, "repr", "reader", *MOVE[len(BASE):], "loadtask", "loadbudget",
        "loadengine", "loadfiles", "loadpiece", "loadsave"]
TOOL = [*BASE, "lib of tools"]
ROOMS = {
    "common": ("common", []),
    "hashing": ("hashing", ["common"]),
    "policy": ("fs/policy", ["common"]),
    "replay": ("fs/replay", ["common", "policy"]),
    "block": ("fs/block", ["common", "hashing"]),
    "repr": ("fs/repr", BASE),
    "index": ("fs/index", BASE),
    "reader": ("fs/reader", BASE),
    "config": ("fs/config", BASE),
    "medium": ("fs/medium", [*BASE, "config", "index"]),
    "hosts": ("fs/medium/shared", MEDIUM),
    "dir": ("fs/medium/dir", [*MEDIUM, "hosts"]),
    "memory": ("fs/medium/memory", [*MEDIUM, "hosts", "dir"]),
    "tier": ("fs/tier", [*MEDIUM, "hosts", "dir", "memory"]),
    "store": ("fs/store", [*TIER, "policy"]),
    "find": ("fs/store/find", BLOCKS),
    "motion": ("fs/store/motion", [*BLOCKS, "find"]),
    "commit": ("fs/store/commit", [*BLOCKS, "find", "motion"]),
    "start": ("fs/store/start", [*BLOCKS, "find", "motion", "commit"]),
    "files": ("fs/files", TIER),
    "watch": ("fs/watch", TIER),
    "serve": ("fs/serve", STORE),
    "mountsetup": ("fs/mount/setup", [*BASE, "config", "watch"]),
    "mountnode": ("fs/mount/node", [*SERVED, "mountsetup"]),
    "mountcontrol": ("fs/mount/control", [*SERVED, "mountsetup", "mountnode"]),
    "mountkinds": ("fs/mount/kinds", MOUNT),
    "mountops": ("fs/mount/ops", [*MOUNT, "mountkinds"]),
    "mount": ("fs/mount", [*MOUNT, "mountkinds", "mountops"]),
    "layout": ("gpu/layout", BASE),
    "ring": ("gpu/ring", ["common"]),
    "source": ("gpu/source", [*TIER, "reader"]),
    "copy": ("gpu/copy", [*BASE, "layout"]),
    "loadtask": ("gpu/load/task", MOVE),
    "loadbudget": ("gpu/load/budget", [*BASE, "index", "reader"]),
    "loadengine": ("gpu/load/engine", [*MOVE, "loadtask"]),
    "loadfiles": ("gpu/load/files", [*MOVE, "loadtask", "loadengine"]),
    "loadpiece": ("gpu/load/piece", [*MOVE, "loadtask", "loadbudget",
                                     "loadengine", "loadfiles"]),
    "loadsave": ("gpu/load/save", [*MOVE, "loadtask", "loadbudget",
                                   "loadengine", "loadfiles", "loadpiece"]),
    "load": ("gpu/load", LOAD),
    "shards": ("gpu/shards", [*LOAD, "load"]),
    # libucmsparse, which no other room may use
    "sparseroom": ("sparse", ["common", "hashing", "repr"]),
    "twins": ("gpu/sparse", ["common", "repr", "layout", "copy", "sparseroom"]),
    # the commands use the loader by its public headers alone
    "lib of tools": ("tools/lib", BASE),
    "look": ("tools/look", TOOL),
    "move": ("tools/move", TOOL),
    "check": ("tools/check", [*TIER, "lib of tools"]),
    "data": ("tools/data", TOOL),
    "trace": ("tools/trace", [*TOOL, "watch", "replay"]),
    "repr of tools": ("tools/repr", [*TOOL, "repr", "sparseroom"]),
    "tools": ("tools", ["lib of tools"]),
}
# headers that a room shares without calling what they belong to
SHARED = {
    ("reader", "fs/index/memory_layout.h"),
    ("reader", "fs/index/budget_layout.h"),
    ("store", "fs/store/find/hold.h"),
    ("store", "fs/store/motion/offers.h"),
    ("loadengine", "gpu/load/files/files.h"),
    ("loadengine", "gpu/load/piece/gate.h"),
    ("loadfiles", "gpu/load/piece/piece.h"),
}
# what is not yet as it should be; an entry that no longer holds must go
KNOWN: set = set()
# a library outside, and the files that include it
DOORS = {
    "openssl/": {"hashing/digest.c"},
    "isa-l": {"hashing/crc32c.c"},
    "uthash.h": {"common/table.h"},
    "yaml.h": {"fs/config/config_yaml.c"},
    "microhttpd.h": {"tools/look/http.c"},
    "cuda.h": {"gpu/copy/cuda_api.h"},
    "liburing.h": {"gpu/ring/pinned.c", "gpu/ring/uring.c"},
}
CIRCLE_MAX = 3
# In these rooms common/osfile makes the calls on files, so that tests can inject
# faults and a deadline covers them, closes too: by themselves they read /proc, and
# close what is of no server.
STORE_ROOMS = ["store", "find", "motion", "commit", "start"]
FILE_ROOMS = ["index", "config", "medium", "hosts", "dir", "memory", "tier", *STORE_ROOMS,
              "files"]
FILE_CALLS = set("""
    access chmod chown close close_range copy_file_range creat dup fallocate fchmod
    fchmodat fchown fchownat fdatasync fdopendir fgetxattr flock fsetxattr fstat
    fstatat fstatfs fstatvfs fsync ftruncate futimens getxattr ioctl lchown
    linkat link lseek lstat mkdir mkdirat mmap open openat opendir
    posix_fadvise posix_fallocate pread pwrite read readdir readlink readlinkat
    readv rename renameat renameat2 rmdir sendfile setxattr stat statfs statvfs
    statx symlink symlinkat sync_file_range syncfs syscall truncate unlink
    unlinkat utimensat write writev
    """.split())
FILE_CALLS_KNOWN = {
    ("index/memory", "mmap"),   # of its own memory file
    ("index/memory", "close"),
    ("dir/dir", "close"),       # of folders: no server is told
    ("dir/lock", "close"),      # local file systems only
}

# The store speaks to media, and knows no directory's descriptor: it includes none
# of these, names none of those, and calls nothing of osfile.
STORE_HEADERS = ["common/osfile.h", "fs/medium/dir/dir.h", "fs/medium/dir/lock.h",
                 "fs/medium/temp.h", "fs/medium/trust.h"]
STORE_WORDS = re.compile(r"\b(dirfd|ctlfd|lockfd)\b")
STORE_CALLS = ["common/osfile", "dir/dir"]

top = os.environ["top_srcdir"]
build = os.environ["top_builddir"]
failures = []


def sources(folder):
    found = sorted(glob.glob(f"{top}/{folder}/*.[ch]"))
    if not found:
        sys.exit(f"FAIL: found no sources in {folder}")
    return [os.path.relpath(name, top) for name in found]


def room_of(path):
    folder = os.path.dirname(path)
    for room, (where, _) in ROOMS.items():
        if folder == where:
            return room
    return None


def includes(path, opening):
    with open(f"{top}/{path}") as source:
        return re.findall(rf'^#\s*include {opening}([^">]+)[">]',
                          source.read(), re.M)


def check_includes():
    doors = {}
    for room, (folder, below) in ROOMS.items():
        for path in sources(folder):
            for name in includes(path, '"'):
                other = room_of(name)
                if other not in [room, *below] and (room, name) not in SHARED:
                    failures.append(f"{path} includes {name}")
            for name in includes(path, "<"):
                for door in DOORS:
                    if name.startswith(door):
                        doors.setdefault(door, set()).add(path)
                if name.startswith("fuse") and not room.startswith("mount"):
                    failures.append(f"{path} includes <{name}>")
    for door, path in DOORS.items():
        if doors.get(door) != path:
            failures.append(f"{door} is included by {doors.get(door)},"
                            f" not by {path} alone")


def members(room):
    """{object: (what it defines, what it uses)} of the room's library."""
    archive = f"{build}/.libs/libucm{room}.a"
    if not os.path.exists(archive):
        print(f"SKIP: {archive} has not been built")
        sys.exit(77)
    lines = subprocess.run(["nm", "-A", archive], check=True, text=True,
                           capture_output=True).stdout.splitlines()
    found = {}
    for line in lines:
        where, rest = re.fullmatch(r"[^:]*:([^:]*):(.*)", line).groups()
        name = re.sub(r"^libucm[a-z]*_la-|\.o$", "", where)
        defined, used = found.setdefault(f"{room}/{name}", (set(), set()))
        kind, symbol = rest.split()[-2:]
        if kind in "uUw":
            used.add(symbol)
        elif kind.isupper():
            defined.add(symbol)
    return found


def check_file_calls(objects):
    found = {(name, re.sub("64$", "", symbol))
             for name, (_, used) in objects.items() for symbol in used
             if name.split("/")[0] in FILE_ROOMS}
    found = {(name, call) for name, call in found if call in FILE_CALLS}
    for name, call in sorted(found ^ FILE_CALLS_KNOWN):
        failures.append(f"{name} calls {call}, and not osfile"
                        if (name, call) in found else
                        f"{name} no longer calls {call}, and may")


def graph():
    """{object: the objects that it uses}"""
    objects = {}
    for room in ROOMS:
        if not ROOMS[room][0].startswith("tools"):
            objects.update(members(room))
    check_file_calls(objects)
    where = {}
    for name, (defined, _) in objects.items():
        for symbol in defined:
            if symbol in where:
                failures.append(f"{symbol} is defined by {name}"
                                f" and by {where[symbol]}")
            where[symbol] = name
    if len(where) < 500:
        sys.exit(f"FAIL: found {len(where)} symbols only")
    return {name: {where[symbol] for symbol in used if symbol in where} - {name}
            for name, (_, used) in objects.items()}


def check_calls(uses):
    for name, others in uses.items():
        room = name.split("/")[0]
        for other in sorted(others):
            if other.split("/")[0] not in [room, *ROOMS[room][1]]:
                failures.append(f"{name} calls {other}")


def check_store(uses):
    for path in [path for room in STORE_ROOMS
                 for path in sources(ROOMS[room][0])]:
        with open(f"{top}/{path}") as source:
            for word in sorted(set(STORE_WORDS.findall(source.read()))):
                failures.append(f"{path} names {word}, a directory's")
        for name in includes(path, '"'):
            if name in STORE_HEADERS:
                failures.append(f"{path} includes {name}, which is a"
                                " directory's")
    for name, others in uses.items():
        if name.split("/")[0] in STORE_ROOMS:
            for other in sorted(others & set(STORE_CALLS)):
                failures.append(f"{name} calls {other}, and not a medium")


def reach(uses, start):
    seen = set()
    todo = [start]
    while todo:
        for name in uses[todo.pop()] - seen:
            seen.add(name)
            todo.append(name)
    return seen


def check_circles(uses):
    below = {name: reach(uses, name) for name in uses}
    circles = {frozenset(other for other in below[name] if name in below[other])
               for name in uses}
    for circle in sorted(circles, key=sorted):
        if len(circle) > CIRCLE_MAX:
            failures.append(f"a circle of {len(circle)}: "
                            + " ".join(sorted(circle)))
        if len({name.split("/")[0] for name in circle}) > 1:
            failures.append(f"a circle through rooms: "
                            + " ".join(sorted(circle)))


check_includes()
uses = graph()
check_calls(uses)
check_store(uses)
check_circles(uses)
for failure in sorted(set(failures) - KNOWN):
    print(f"FAIL: {failure}")
for failure in sorted(KNOWN - set(failures)):
    print(f"FAIL: no longer, and still known: {failure}")
print(f"{len(uses)} objects of {len(ROOMS)} rooms")
sys.exit(set(failures) != KNOWN)
