#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""index_read.py MOUNT [SPACE] <NAMES - the index read as doc/index-format.md says,
with nothing of ours: y, n or ? for each name, as index_ask prints them.
"""
import mmap
import os
import struct
import sys

import control

MASK64 = (1 << 64) - 1


class Index:
    def __init__(self, mount, space):
        data, _ = control.ask(mount, "space", space=space.encode())
        self.space = struct.unpack("<II", data)[1]
        fd = control.memory(mount, "index")
        self.map = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        os.close(fd)
        assert self.map[:8] == b"UCMINDEX" and self.u32(8) == 3
        self.first, self.shard_bytes, self.record_bytes = (
            self.u32(12), self.u32(16), self.u32(20))

    def u32(self, at):
        return struct.unpack_from("<I", self.map, at)[0]

    def u64(self, at):
        return struct.unpack_from("<Q", self.map, at)[0]

    def item(self, chunks, number, item_bytes):
        x = number + 256
        t = x.bit_length() - 1
        chunk = 8 * (t - 8) + (x >> (t - 3) & 7)
        return (self.u32(chunks + 4 * chunk) * 64 +
                x % (1 << (t - 3)) * item_bytes)

    def head(self, a, b, num_heads):
        x = a ^ (b << 29 & MASK64 | b >> 35) ^ self.space
        x = x * 0x9e3779b97f4a7c15 & MASK64
        value = (x ^ x >> 32) & 0xffffffff
        m = 1
        while m < num_heads:
            m *= 2
        return value % m if value % m < num_heads else value % (m // 2)

    def flags(self, block):
        """Of the record in the middle of which nothing is changed; or None."""
        a, b = struct.unpack("<QQ", block)
        shard = self.first + self.shard_bytes * block[0]
        num_heads = self.u32(shard + 4)
        if not num_heads:
            return None
        link = self.u32(self.item(shard + 64, self.head(a, b, num_heads), 4))
        while link & 0xffffff:
            at = self.item(shard + 576, (link & 0xffffff) - 1,
                           self.record_bytes)
            if (self.u64(at) == a and self.u64(at + 8) == b and
                    self.u64(at + 16) >> 8 & 0xffff == self.space):
                return self.u32(at + 28) & 0xff
            link = self.u32(at + 24)
        return None

    def ask(self, block):
        shard = self.first + self.shard_bytes * block[0]
        complete = self.u32(52) & 1
        for _ in range(1000):
            seq = self.u32(shard)
            if seq & 1:
                continue
            flags = self.flags(block)
            if self.u32(shard) == seq:
                break
        else:
            return "?"
        assert self.u32(48) & 0x3fffffff, "the daemon is gone"
        if flags is None or not flags & 0x80:
            return "n" if complete else "?"
        return "?" if flags & 9 else "y"


def main():
    index = Index(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
    print("".join(index.ask(bytes.fromhex(line.strip()[-36:-4]))
                  for line in sys.stdin))


main()
