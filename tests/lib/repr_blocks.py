#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks with keys that are numbers, and what stands for them.

  repr_blocks.py make DIRECTORY COUNT [ORDER]   COUNT blocks, below their buckets
  repr_blocks.py check BLOCK FILE               FILE is float32 of BLOCK's keys
  repr_blocks.py sides CENTERS CHANNELS         files that codes, and merged
                                                channels, are made with

Independent of the C code on purpose: written from ucm-block(5) and ucm-repr(5),
with sums in double.
"""
import hashlib
import os
import struct
import sys

LAYERS, TOKENS, HEADS, DIM = 3, 4, 2, 40
PLANE = TOKENS * HEADS * DIM * 2  # float16
ORDERS = {"NHD": 0, "HND": 1, "opaque": 2}
HEADER = 4096

TABLE = []
for index in range(256):
    for _ in range(8):
        index = index >> 1 ^ (0x82f63b78 if index & 1 else 0)
    TABLE.append(index)


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xffffffff


def numbers(seed, count):
    """Between -4 and 4, which float16 has exactly."""
    data = hashlib.shake_128(seed.encode()).digest(2 * count)
    return [(v - 32768) / 8192 for v in struct.unpack(f"<{count}H", data)]


def plane(seed):
    return struct.pack(f"<{PLANE // 2}e", *numbers(seed, PLANE // 2))


def block(number, order):
    name = hashlib.md5(f"block {number}".encode()).digest()
    planes = [plane(f"{number} {layer} {part}")
              for layer in range(LAYERS) for part in "KV"]
    head = (b"UCMB" + struct.pack("<I", 1) + name +
            struct.pack("<6I2HII", LAYERS, TOKENS, 1, HEADER, PLANE, PLANE,
                        HEADS, DIM, 1 | ORDERS[order] << 8,
                        crc32c(b"".join(planes))))
    head += struct.pack("<I", crc32c(head))
    crcs = struct.pack(f"<{2 * LAYERS}I", *map(crc32c, planes))
    extension = bytearray(HEADER - 64)
    extension[64:64 + len(crcs)] = crcs
    extension[56:60] = struct.pack("<I", crc32c(extension))
    data = head + extension + b"".join(planes)
    return name.hex(), data + bytes(-len(data) % 4096)


def representations(data):
    """A file that is right for the block as far as a daemon can see."""
    dtype, = struct.unpack_from("<I", data, 32)
    k_bytes, v_bytes, heads, dim, flags = struct.unpack_from("<IIHHI", data, 40)
    layers, tokens = struct.unpack_from("<II", data, 24)
    layer_bytes = heads * -(-dim // 32) * 32 * 4
    bodies = [hashlib.shake_128(data[8:24] + bytes([layer])).digest(layer_bytes)
              for layer in range(layers)]
    space = data[80:112] if flags & 4 else bytes(32)
    head = (b"UCMR" + struct.pack("<I", 1) + data[8:24] + space +
            struct.pack("<5I2HI", layers, tokens, dtype, k_bytes, v_bytes,
                        heads, dim, flags >> 8 & 15) +
            struct.pack("<5I", 0, 3, heads, dim, layer_bytes))
    head += bytes(256 - len(head)) + struct.pack(
        f"<{layers}I", *map(crc32c, bodies))
    head += bytes(4092 - len(head))
    whole = head + struct.pack("<I", crc32c(head)) + b"".join(bodies)
    return whole + bytes(-len(whole) % 4096)


def make(directory, count, order="NHD"):
    for number in range(int(count)):
        name, data = block(number, order)
        os.makedirs(os.path.join(directory, name[:2]), exist_ok=True)
        path = os.path.join(directory, name[:2], name + ".bin")
        with open(path, "wb") as file:
            file.write(data)
        print(f"{name[:2]}/{name}.bin")


def keys_of(data, layer):
    """[token][head][channel]"""
    at = HEADER + layer * 2 * PLANE
    flat = struct.unpack_from(f"<{PLANE // 2}e", data, at)
    order, = struct.unpack_from("<I", data, 52)
    by_head = order >> 8 & 15 == ORDERS["HND"]

    def at_of(token, head):
        row = head * TOKENS + token if by_head else token * HEADS + head
        return row * DIM

    return [[flat[at_of(t, h):at_of(t, h) + DIM] for h in range(HEADS)]
            for t in range(TOKENS)]


def stands(kind, keys, head):
    """The rows that stand for a head."""
    columns = list(zip(*(keys[t][head] for t in range(TOKENS))))
    mean = [sum(c) / TOKENS for c in columns]
    length = sum(m * m for m in mean) ** 0.5
    return {0: [mean], 1: [[max(c) for c in columns]],
            2: [[m / length for m in mean]],
            3: [[max(c) for c in columns], [min(c) for c in columns]]}[kind]


def kept_channels(layer, head):
    """Those of which "sides" makes a file: 10 of a head."""
    return range(layer + head, DIM, 4)[:10]


def sides(centers_path, channels_path):
    with open(centers_path, "wb") as file:
        file.write(struct.pack(f"<{LAYERS * HEADS * DIM}f", *numbers(
            "centers", LAYERS * HEADS * DIM)))
    with open(channels_path, "wb") as file:
        for layer in range(LAYERS):
            for head in range(HEADS):
                file.write(struct.pack("<10H", *kept_channels(layer, head)))


def check_channels(data, found, layer_bytes):
    """Groups of 2 tokens, float32, 10 channels."""
    merged, kept = struct.unpack_from("<2I", found, 128)
    digest = hashlib.sha256(b"".join(struct.pack(
        "<10H", *kept_channels(layer, head)) for layer in range(LAYERS)
        for head in range(HEADS))).digest()
    assert (merged, kept) == (2, 10) and found[160:192] == digest
    assert layer_bytes == -(-(HEADS * kept * 16 * 4 + 4) // 64) * 64
    for layer in range(LAYERS):
        at = 4096 + layer * layer_bytes
        assert struct.unpack_from("<I", found, 256 + 4 * layer)[0] == crc32c(
            found[at:at + layer_bytes]), f"checksum of layer {layer}"
        keys = keys_of(data, layer)
        for head in range(HEADS):
            for channel in kept_channels(layer, head):
                row = struct.unpack_from("<16f", found, at)
                at += 64
                want = [(keys[t][head][channel] + keys[t + 1][head][channel])
                        / 2 for t in (0, 2)] + [0] * 14
                assert list(row) == want, (layer, head, channel)
        assert struct.unpack_from("<I", found, at)[0] == 2, "groups"
    return None


def check(block_path, file_path):
    with open(block_path, "rb") as file:
        data = file.read()
    with open(file_path, "rb") as file:
        found = file.read()
    magic, version, name, _, layers, tokens = struct.unpack_from(
        "<4sI16s32sII", found)
    kind, dtype, heads, dim, layer_bytes = struct.unpack_from("<5I", found, 84)
    assert (magic, version, name) == (b"UCMR", 1, data[8:24])
    assert (layers, tokens, heads, dim) == (LAYERS, TOKENS, HEADS, DIM)
    if kind == 17:
        return check_channels(data, found, layer_bytes)
    assert found[64:84] == struct.pack("<3I2HI", 1, PLANE, PLANE, HEADS, DIM,
                                       data[53]), "geometry"
    assert dtype == 3, "float32 can be compared"
    rows = 2 if kind == 3 else 1
    assert layer_bytes == heads * rows * 64 * 4
    assert len(found) == -(-(4096 + layers * layer_bytes) // 4096) * 4096
    assert struct.unpack_from("<I", found, 4092)[0] == crc32c(found[:4092])
    for layer in range(layers):
        at = 4096 + layer * layer_bytes
        part = found[at:at + layer_bytes]
        assert struct.unpack_from("<I", found, 256 + 4 * layer)[0] == crc32c(
            part), f"checksum of layer {layer}"
        keys = keys_of(data, layer)
        got = struct.unpack(f"<{layer_bytes // 4}f", part)
        want = []
        for head in range(heads):
            for row in stands(kind, keys, head):
                want += list(row) + [0.0] * (64 - DIM)
        for x, y in zip(got, want):
            assert abs(x - y) <= 1e-6 * max(1, abs(y)), (layer, x, y)
    assert not any(found[4096 + layers * layer_bytes:])


if __name__ == "__main__":
    {"make": make, "check": check, "sides": sides}[sys.argv[1]](*sys.argv[2:])
