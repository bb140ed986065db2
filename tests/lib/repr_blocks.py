#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks with keys that are numbers, and what stands for them.

  repr_blocks.py make DIRECTORY COUNT [ORDER]   COUNT blocks, below their buckets
  repr_blocks.py check BLOCK FILE MANIFEST      FILE, of a space with that
                                                manifest, is float32 of BLOCK's
                                                keys
  repr_blocks.py sides CENTERS CHANNELS         files that codes, and merged
                                                channels, are made with

Independent of the C code on purpose: written from ucm-block(5) and ucm-repr(5),
with sums in double.
"""
import hashlib
import json
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


def layers_of(found, layer_bytes):
    """Of a block of representations, each compared with its checksum."""
    at, = struct.unpack_from("<I", found, 36)
    for layer in range(LAYERS):
        part = found[at:at + layer_bytes]
        assert struct.unpack_from("<I", found, 128 + 8 * layer)[0] == crc32c(
            part), f"checksum of layer {layer}"
        yield part
        at += layer_bytes
    assert not any(found[at:]) and len(found) % 4096 == 0


def check_channels(data, found, layer_bytes, params):
    """Groups of 2 tokens, float32, 10 channels."""
    merged, kept = struct.unpack_from("<2I", params)
    digest = hashlib.sha256(b"".join(struct.pack(
        "<10H", *kept_channels(layer, head)) for layer in range(LAYERS)
        for head in range(HEADS))).digest()
    assert (merged, kept) == (2, 10) and params[32:] == digest
    assert layer_bytes == -(-(HEADS * kept * 16 * 4 + 4) // 64) * 64
    for layer, part in enumerate(layers_of(found, layer_bytes)):
        at = 0
        keys = keys_of(data, layer)
        for head in range(HEADS):
            for channel in kept_channels(layer, head):
                row = struct.unpack_from("<16f", part, at)
                at += 64
                want = [(keys[t][head][channel] + keys[t + 1][head][channel])
                        / 2 for t in (0, 2)] + [0] * 14
                assert list(row) == want, (layer, head, channel)
        assert struct.unpack_from("<I", part, at)[0] == 2, "groups"


def check(block_path, file_path, manifest_path):
    with open(block_path, "rb") as file:
        data = file.read()
    with open(file_path, "rb") as file:
        found = file.read()
    with open(manifest_path, encoding="ascii") as file:
        says = json.load(file)
    magic, version, name, layers, tokens, dtype = struct.unpack_from(
        "<4sI16sIII", found)
    layer_bytes, v_bytes, heads, dim, flags = struct.unpack_from(
        "<IIHHI", found, 40)
    assert (magic, version, name) == (b"UCMB", 1, data[8:24])
    assert (layers, tokens, heads, dim) == (LAYERS, TOKENS, HEADS, DIM)
    assert (dtype, v_bytes, flags & ~4) == (0, 0, 1 | ORDERS["opaque"] << 8)
    assert says["geometry"] == {
        "num_layers": LAYERS, "block_size": TOKENS, "dtype": "opaque",
        "k_bytes": layer_bytes, "v_bytes": 0, "num_kv_heads": HEADS,
        "head_dim": DIM, "order": "opaque"}
    kind, params = says["repr"]["kind"], bytes.fromhex(says["repr"]["params"])
    assert says["repr"]["dtype"] == "float32", "it can be compared"
    if kind == "channels":
        return check_channels(data, found, layer_bytes, params)
    kind = ("mean", "max", "normed", "minmax").index(kind)
    assert params == bytes(64)
    assert layer_bytes == HEADS * (2 if kind == 3 else 1) * 64 * 4
    for layer, part in enumerate(layers_of(found, layer_bytes)):
        keys = keys_of(data, layer)
        got = struct.unpack(f"<{layer_bytes // 4}f", part)
        want = []
        for head in range(heads):
            for row in stands(kind, keys, head):
                want += list(row) + [0.0] * (64 - DIM)
        for x, y in zip(got, want):
            assert abs(x - y) <= 1e-6 * max(1, abs(y)), (layer, x, y)
    return None


if __name__ == "__main__":
    {"make": make, "check": check, "sides": sides}[sys.argv[1]](*sys.argv[2:])
