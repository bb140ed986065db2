#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hash_python.py UCM - "ucm hash" against CPython, on random requests.

Every scheme is written here a second time, from ucm_hash(3) and with nothing of
ours: UCM's by CPython's own pickle, the others by hashlib and struct. On a
difference it prints the command, and leaves its input behind.
"""
import hashlib
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                             "..", "lib"))
from seed import SEED  # noqa: E402

BIG = [13104, 13105, 13106, 13107, 14000, 32758, 32759, 40000]


def md5(data):
    return hashlib.md5(data).digest()


def sha(data):
    return hashlib.sha256(data).digest()[:16]


def words(tokens):
    return struct.pack("<%dI" % len(tokens), *tokens)


def text(value):
    return struct.pack("<I", len(value)) + value


class Case:
    def __init__(self, rand, scheme):
        self.scheme = scheme
        big = rand.random() < 0.1 and scheme in ("ucm", "ucm2", "chain",
                                                  "sha256")
        self.block = rand.choice(BIG if big else [1, 2, 3, 4, 5, 16, 17, 64,
                                                  100, 128, 256, 1000])
        self.model = "".join(rand.choice("abc/:-é")
                             for _ in range(rand.randrange(1, 130)))
        self.world = rand.randrange(1, 5)
        self.rank = rand.randrange(self.world)
        self.dtype = rand.choice(["float16", "torch.bfloat16", "d" * 70])
        self.mla = rand.random() < 0.2
        top = 32 if scheme in ("prefix", "sha256") else 31
        num = rand.randrange(1, 4) * self.block + rand.randrange(self.block)
        ranges = [1 << 8, 1 << 16, 1 << top]
        fixed = rand.choice([None, None, None] + ranges)
        self.tokens = [rand.randrange(fixed or rand.choice(ranges))
                       for _ in range(num)]
        for edge in (255, 256, 65535, 65536, (1 << top) - 1):
            self.tokens[rand.randrange(num)] = edge
        self.tail = ""
        if scheme == "ucm2":
            self.tail = rand.choice([":mtp:2", ""]) + ":sfa_c8=0:li_c8=1:dcp" \
                "=1:layout=" + rand.randbytes(8).hex()
        self.salt = self.lora = self.digest = b""
        self.items = []
        if scheme == "sha256" and rand.random() < 0.7:
            self.extras(rand)

    def extras(self, rand):
        self.salt = rand.choice([b"", b"tenant", "é:".encode()])
        self.lora = rand.choice([b"", b"adapter"])
        if self.lora and rand.random() < 0.5:
            self.digest = rand.randbytes(32)
        at = 0
        for _ in range(rand.randrange(4)):
            at += rand.randrange(2 * self.block)
            length = rand.randrange(1, 2 * self.block + 1)
            self.items.append((rand.randbytes(32), at, length))
            at += length

    def blocks(self):
        return [self.tokens[i:i + self.block]
                for i in range(0, len(self.tokens), self.block)]

    def meta(self, rank):
        return f"{self.model}:{self.world}:{self.dtype}:{rank}".encode()

    def own_rank(self):
        return 0 if self.mla else self.rank

    def ucm(self):
        meta = self.meta(0)
        parent = md5(meta + pickle.dumps("UCM_HASH_SEED", 5))
        ids = []
        for block in self.blocks():
            parent = md5(meta + pickle.dumps((parent, tuple(block)), 5))
            ids.append(parent)
        rank = self.own_rank()
        return [md5(self.meta(rank) + i) for i in ids] if rank else ids

    def ucm2(self):
        name = self.model.rstrip("/").split("/")[-1]

        def meta(rank):
            return f"{name}:{self.world}:{self.dtype}:{rank}{self.tail}" \
                .encode()

        parent = md5(meta(0) + pickle.dumps("UCM_HASH_SEED", 5))
        ids = []
        for block in self.blocks():
            parent = md5(meta(0) +
                         pickle.dumps((parent, tuple(block), None), 5))
            ids.append(parent)
        rank = self.own_rank()
        return [md5(meta(rank) + i) for i in ids] if rank else ids

    def chain(self):
        parent = md5(b"UCMHASHSEED" + self.meta(self.own_rank()))
        ids = []
        for block in self.blocks():
            parent = md5(parent + words(block))
            ids.append(parent)
        return ids

    def prefix(self):
        hasher = hashlib.md5()
        ids = []
        for block in self.blocks():
            hasher.update(words(block))
            ids.append(hasher.digest())
        return ids

    def hexchain(self):
        parent = b""
        ids = []
        for block in self.blocks():
            ids.append(md5(parent + words(block) + b"%d" % self.block))
            parent = ids[-1].hex().encode()
        return ids

    def sha256(self):
        parent = sha(b"UCMH\1\1\0\0" + text(self.model.encode()) +
                     text(self.dtype.encode()) +
                     struct.pack("<I", self.world) + text(self.salt) +
                     text(self.lora) + text(self.digest))
        ids = []
        for number, block in enumerate(self.blocks()):
            start = number * self.block
            items = [item for item in self.items
                     if item[1] < start + len(block) and
                     item[1] + item[2] > start]
            parent = sha(b"UCMH\1\2\0\0" + parent +
                         struct.pack("<I", len(block)) + words(block) +
                         struct.pack("<I", len(items)) +
                         b"".join(h + struct.pack("<QQ", at, length)
                                  for h, at, length in items))
            ids.append(parent)
        rank = self.own_rank()
        if rank:
            ids = [sha(b"UCMH\1\3\0\0" + struct.pack("<I", rank) + i)
                   for i in ids]
        return ids

    def arguments(self):
        args = ["--scheme", self.scheme, "--block-size", str(self.block),
                "--meta", self.meta(self.rank).decode(), "--partial"]
        if self.mla:
            args.append("--mla")
        if self.tail:
            args += ["--tail", self.tail]
        if self.salt:
            args += ["--salt", self.salt.decode()]
        if self.lora:
            lora = self.lora.decode()
            args += ["--lora", lora + ("=" + self.digest.hex()
                                       if self.digest else "")]
        for item, at, length in self.items:
            args += ["--item", f"{item.hex()}@{at}+{length}"]
        return args


def ask(ucm, args, data):
    done = subprocess.run([ucm, "hash"] + args, input=data,
                          stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().split()


def check(ucm, rand, scheme):
    case = Case(rand, scheme)
    want = [i.hex() for i in getattr(case, scheme)()]
    form = rand.choice(["text", "int64"])
    data = struct.pack("<%dq" % len(case.tokens), *case.tokens)
    if form == "text":
        data = str(case.tokens).encode()
    args = case.arguments() + ["--format", form]
    got = ask(ucm, args, data)
    if got == want:
        return len(want)
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(data)
    sys.exit(f"FAIL: {ucm} hash {args} {file.name}\n  is   {got}\n"
             f"  must be {want}")


def check_external(ucm, rand):
    size = rand.choice([16, 32])
    hashes = [rand.randbytes(size) for _ in range(rand.randrange(1, 20))]
    space, group, rank = rand.randbytes(32), rand.randrange(3), rand.randrange(3)
    want = [sha(b"UCMH\1\4\0\0" + space + struct.pack("<I", group) + text(h))
            for h in hashes]
    if rank:
        want = [sha(b"UCMH\1\3\0\0" + struct.pack("<I", rank) + i)
                for i in want]
    got = ask(ucm, ["--scheme", "external", "--space", space.hex(), "--group",
                    str(group), "--meta", f":3::{rank}"],
              "\n".join(h.hex() for h in hashes).encode())
    if got != [i.hex() for i in want]:
        sys.exit(f"FAIL: external, {size} bytes, group {group}, rank {rank}")
    return len(want)


def main():
    print(f"Python {sys.version.split()[0]}")
    rand = random.Random(SEED)
    num = 0
    for _ in range(60):
        for scheme in ("ucm", "ucm2", "chain", "prefix", "hexchain",
                       "sha256"):
            num += check(sys.argv[1], rand, scheme)
        num += check_external(sys.argv[1], rand)
    print(f"{num} ids are the same")


main()
