#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fs_tier.py - what vLLM's `fs` tier and LMCache's file stores ask of a file
system, call by call, without either.

    fs_tier.py vllm ROOT THREADS CHUNKS      store and load at once, and verify
    fs_tier.py bounded ROOT THREADS CHUNKS   the same, where old chunks go
    fs_tier.py lmcache ROOT THREADS KEYS     several writers of each key
    fs_tier.py versions ROOT THREADS ROUNDS  a name that is replaced, and read

vLLM's: mkdir upwards, config.json, an O_DIRECT probe; access() for a lookup;
open(tmp, O_WRONLY|O_CREAT|O_EXCL|O_TRUNC|O_DIRECT), one write, close, rename;
open(O_RDONLY|O_DIRECT), one read, close. A short read or write is an error and
nobody asks for a size. LMCache's: stat; a temporary name that all writers of a
key share, opened with O_TRUNC, a small header, the data, close, rename; reads
in two parts after fstat.
"""

import errno
import hashlib
import mmap
import os
import random
import sys
import threading

SIZE = 2 << 20
errors = []


def content(name, length=SIZE):
    """Bytes that follow from the name, in memory that O_DIRECT takes."""
    seed = hashlib.sha256(name.encode()).digest()
    memory = mmap.mmap(-1, length)
    memory.write(seed * (length // len(seed)))
    return memory


def key_of(number):
    return hashlib.sha256(b"%d" % number).hexdigest()


def start(function, *args):
    def body():
        try:
            function(*args)
        except Exception as error:  # whatever it is: the test has failed
            errors.append(f"{type(error).__name__}: {error}")
    thread = threading.Thread(target=body)
    thread.start()
    return thread


def join(threads):
    for thread in threads:
        thread.join()


# ---- vLLM ----

def mkdirs(path):
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            pass


def direct_flag(root):
    """O_DIRECT, if the file system takes it."""
    path = f"{root}/.o_direct_probe_{random.getrandbits(63)}.tmp"
    try:
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return 0
    if os.write(fd, mmap.mmap(-1, 4096)) != 4096:
        raise OSError("the probe was not written")
    os.close(fd)
    os.unlink(path)
    return os.O_DIRECT


class Tier:
    def __init__(self, root):
        self.root = f"{root}/model_0123456789ab_r0"
        mkdirs(self.root)
        with open(f"{root}/config.json", "w") as file:
            file.write('{"model_name": "model"}')
        self.direct = direct_flag(self.root)

    def path(self, key):
        return f"{self.root}/{key[:3]}/{key[3:5]}_g0/{key}.bin"

    def has(self, key):
        return os.access(self.path(key), os.F_OK)

    def store(self, key):
        final = self.path(key)
        if self.has(key):
            return
        mkdirs(os.path.dirname(final))
        temporary = f"{final}_{random.getrandbits(63)}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL |
                     os.O_TRUNC | self.direct, 0o644)
        written = os.write(fd, content(key))
        os.close(fd)
        if written != SIZE:
            raise OSError(f"{key}: {written} bytes written")
        os.rename(temporary, final)

    def load(self, key):
        memory = mmap.mmap(-1, SIZE)
        fd = os.open(self.path(key), os.O_RDONLY | self.direct)
        got = os.readv(fd, [memory])
        os.close(fd)
        if got != SIZE:
            raise OSError(f"{key}: {got} bytes read")
        if memory[:] != content(key)[:]:
            raise OSError(f"{key}: wrong bytes")


def vllm(root, num_threads, num_chunks):
    tier = Tier(root)
    keys = [key_of(i) for i in range(num_chunks)]
    stored = threading.Event()

    def write(keys):
        for key in keys:
            tier.store(key)

    def read():
        left = keys
        while left:
            last = stored.is_set()
            there = [key for key in left if tier.has(key)]
            for key in there:
                tier.load(key)
            left = [key for key in left if key not in there]
            if last and left:
                raise OSError(f"{len(left)} keys are missing")

    # each key is given to two of them
    half = max(num_threads // 2, 1)
    writers = [start(write, keys[i % half::half]) for i in range(num_threads)]
    readers = [start(read) for _ in range(num_threads)]
    join(writers)
    stored.set()
    join(readers)
    print("O_DIRECT" if tier.direct else "buffered")


def bounded(root, num_threads, num_chunks):
    """A chunk is whole or absent; of those that were stored last all are
    there."""
    tier = Tier(root)
    keys = [key_of(i) for i in range(num_chunks)]
    stored = threading.Event()

    def write(keys):
        for key in keys:
            try:
                tier.store(key)
            except FileNotFoundError:
                pass  # without a grace time it may go before its rename

    def read():
        while not stored.is_set():
            for key in keys:
                try:
                    if tier.has(key):
                        tier.load(key)
                except FileNotFoundError:
                    pass  # it has gone since

    writers = [start(write, keys[i::num_threads]) for i in range(num_threads)]
    readers = [start(read) for _ in range(num_threads)]
    join(writers)
    stored.set()
    join(readers)
    for key in [key_of(num_chunks + i) for i in range(4)]:
        tier.store(key)
        tier.load(key)


# ---- LMCache ----

HEADER = 28


def lmcache(root, num_threads, num_keys):
    names = [f"org-SEP-model@1@0@{key_of(i)[:16]}@bfloat16.data"
             for i in range(num_keys)]
    body = {name: content(name, 64 << 10)[:] for name in names}
    mkdirs(root)

    def put(name):
        temporary = f"{root}/{name}.tmp"
        with open(temporary, "wb") as file:
            file.seek(0)
            file.write(b"\1" * HEADER)
            file.write(body[name])
        try:
            os.rename(temporary, f"{root}/{name}")
        except FileNotFoundError:
            pass  # another writer has renamed the file that both have written

    def get(name):
        with open(f"{root}/{name}", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(4096)
            return size, data + file.read()

    def write():
        for name in names:
            put(name)

    join([start(write) for _ in range(num_threads)])
    for name in names:
        if get(name) != (HEADER + (64 << 10), b"\1" * HEADER + body[name]):
            errors.append(f"{name}: wrong")
    left = [name for name in os.listdir(root) if name.endswith(".tmp")]
    if left:
        errors.append(f"left: {left}")


# ---- one name, many versions ----

def versions(root, num_threads, rounds):
    final = f"{root}/version"
    ended = threading.Event()
    size = 256 << 10

    def put(version, number):
        temporary = f"{final}.{number}.{version}.tmp"
        with open(temporary, "wb", buffering=0) as file:
            file.write(b"%-16d" % version * (size // 16))
        os.rename(temporary, final)

    def write(number):
        for version in range(rounds):
            put(version, number)

    def read():
        while not ended.is_set():
            fd = os.open(final, os.O_RDONLY)
            first = os.pread(fd, size // 2, 0)
            rest = os.pread(fd, size, size // 2)  # replaced meanwhile, perhaps
            got = os.fstat(fd).st_size
            os.close(fd)
            if got != size or first + rest != first[:16] * (size // 16):
                raise OSError(f"neither old nor new: {got} bytes")

    put(0, "first")
    writers = [start(write, i) for i in range(max(num_threads // 4, 2))]
    readers = [start(read) for _ in range(num_threads)]
    join(writers)
    ended.set()
    join(readers)


def main():
    run = {"vllm": vllm, "bounded": bounded, "lmcache": lmcache,
           "versions": versions}
    run[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    for error in errors[:10]:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
