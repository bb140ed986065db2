#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""seeds.py DIR - writes the seed corpora DIR/format, DIR/config, DIR/tokens,
DIR/snapshot, DIR/sparse, DIR/trace, DIR/repr, DIR/serve and DIR/client.

Independent of the C code on purpose: what the fuzzers start from are the bytes
of the documents, not those of our own encoder. Checksums are left to the
fuzzer, which makes them right itself (two bits of the file's size).
"""
import json
import os
import re
import struct
import sys

SEAL = 3 << 62


def header(layers, offset, k, v, heads, dim, dtype, flags):
    return (b"UCMB" + struct.pack("<I", 1) + bytes(range(16)) +
            struct.pack("<IIIIIIHHIII", layers, 4, dtype, offset, k, v, heads,
                        dim, flags, 0, 0))


def paged(layers, k, v, heads=0, dim=0, dtype=0, flags=0x200):
    offset = -(-(128 + 8 * layers) // 4096) * 4096
    head = header(layers, offset, k, v, heads, dim, dtype, flags)
    size = offset + -(-layers * (k + v) // 4096) * 4096
    return struct.pack("<Q", size | SEAL) + head + bytes(offset - 64)


def packed(layers, k, v, heads=0, dim=0, dtype=0, flags=0x200):
    head = header(layers, 64, k, v, heads, dim, dtype, flags)
    return struct.pack("<Q", (64 + layers * (k + v)) | SEAL) + head


def bare(layers, plane):
    head = header(layers, 0, 0, 0, 0, 0, 1, 0)
    return struct.pack("<Q", 64 + 2 * layers * plane) + head


FORMAT = {
    "paged": paged(2, 128, 128, 2, 8, 1, 0),
    "paged-crc": paged(2, 128, 128, 2, 8, 1, 1),
    "paged-mla": paged(3, 1152, 0, flags=0x207),
    "paged-497-layers": paged(497, 4, 4),
    "packed": packed(2, 128, 128, 2, 8, 1, 0x100),
    "bare": bare(2, 100),
    "id": bytes(8) + b"3f9a101112131415161718191a1b1ce1",
}

GEOMETRY = (b'"geometry":{"num_layers":2,"block_size":4,"dtype":"float16",'
            b'"k_bytes":128,"v_bytes":128,"num_kv_heads":2,"head_dim":8,'
            b'"order":"HND"}')

CONFIG = {
    "source": b"\0nvme=/a,/b'c:/n\ndurability=full\nplacement=random\n"
              b"limit=nvme:80%\nlimit=tier1:5G\nreadonly=tier1\n"
              b"checkpoint=5\nstaging_age=9\ndeadline=3\n",
    "motion": b"\0fast=/a:slow=/b\npolicy=lru\nhigh=90\nlow=70\nreserve=1G\n"
              b"promote=3\nwrite=fast:back\nmovers=3\n"
              b"move_rate=100M\nendurance=slow:500G/day\nspace_quota=2G\n",
    "yaml": b"\1tiers:\n  - name: nvme\n    directories: [/a, '/b c']\n"
            b"    limit: 80%\n  - directories:\n      - /n\n"
            b"    readonly: yes\ndurability: data\nlimit: nvme:1G\n",
    "yaml-anchor": b"\1tiers:\n  - &t {name: a, directories: [/a]}\n  - *t\n",
    "manifest": b'\2{"model":"x/\\u00e9\\u001f\\\\u","hash":"sha256",' +
                GEOMETRY + b"}",
    "manifest-nested": b'\2{"a":[1,{"b":[]}],' + GEOMETRY + b"}",
    "number": b"\003500G",
    "percent": b"\00380%",
    "name": b"\0033f9a101112131415161718191a1b1ce1.bin",
}

# scheme, input format, block size, portion; then the input
TOKENS = {
    "text": bytes([0, 0, 16, 3]) + b"[1, 2, 70000]\n4 -5,6\t007",
    "text-long": bytes([4, 0, 4, 64]) + b"128255 255 256 65535 65536 " * 20,
    "int32": bytes([1, 1, 3, 5]) + struct.pack("<7i", *range(0, 70000, 10001)),
    "int64": bytes([2, 2, 200, 7]) + struct.pack("<300q", *range(300)),
    "hexchain": bytes([3, 0, 2, 1]) + b"1 2 3 4 5",
    "ucm2": bytes([5, 0, 4, 9]) + b"1 2 3 4 500 6000 70000 8",
}


def trace_header(slots, ops=("lookup", "open"), tiers=("fast",), mount="/kv"):
    names = b"".join(n.encode() + b"\0" for n in (*ops, *tiers, mount))
    head = (b"UCMTRACE" +
            struct.pack("<IIIIQQIII", 1, 4096, 64, len(ops), slots, 1 << 60,
                        len(tiers), 144, len(names)) + bytes(76) +
            struct.pack("<QII", slots, 0, 0) + names)
    return b"\3" + head + bytes(4096 - len(head))


def trace_record(seq, op=0, tier=0):
    return struct.pack("<QQ16sQIIHHBBBBII", seq, 10**18 + seq, bytes(range(16)),
                       8192, 1234, 42, 1, seq % 3, op, tier, 0, 0, 1000, 0)


# which checksums to make right, then the file
TRACE = {
    "empty": trace_header(4) + bytes(4 * 64),
    "part": trace_header(8) + b"".join(
        trace_record(i, i % 2) for i in (1, 2, 3)) + bytes(5 * 64),
    "round": trace_header(4) + b"".join(
        trace_record(i) for i in (5, 6, 3, 4)),
    "gaps": trace_header(4) + trace_record(9, 7, 255) + bytes(64) +
            trace_record(3, 200, 9) + trace_record(8),
    "cut": trace_header(1 << 63) + trace_record(1) + trace_record(2)[:40],
    "names": trace_header(2, ("a\x1b[2J", ""), ("", "t\u00e9"), "\n"),
}


def snapshot_space(name, stamps=()):
    """stamps: (bucket, inode) of the buckets that it has, in order"""
    there = [0] * 4
    for bucket, _ in stamps:
        there[bucket // 64] |= 1 << bucket % 64
    return (name.ljust(136, b"\0") +
            struct.pack("<IIIIIHHII", 2, 4, 1, 128, 128, 2, 8, 0, 1) +
            bytes(32) + struct.pack("<4Q", *there) + bytes(24) +
            b"".join(struct.pack("<Qqq", inode, 10 ** 18, 10 ** 18)
                     for _, inode in stamps))


def snapshot_record(first, space=0, flags=0):
    return (bytes([first]) + bytes(range(1, 16)) + bytes(16) +
            struct.pack("<QqIIIHBB", 8192, 10 ** 18, 16, 10 ** 9, 3, space,
                        flags, 0))


def snapshot(spaces, *records):
    """records in order of their first bytes"""
    num = [sum(r[0] == i for r in records) for i in range(256)]
    head = (b"UCMSNAP\n" + struct.pack("<II", 1, 128 + 256 * 16) +
            bytes(range(16)) +
            struct.pack("<QqQIIII", 7, 10 ** 18, 0, len(spaces), 64, 0, 0) +
            bytes(56))
    return (b"\1" + head + b"".join(struct.pack("<QII", n, 0, 0) for n in num) +
            b"".join(records) + b"".join(spaces))


SNAPSHOT = {
    "empty": snapshot([snapshot_space(b"")]),
    "one": snapshot([snapshot_space(b"", [(7, 1)])], snapshot_record(7)),
    "two": snapshot([snapshot_space(b"", [(0, 1), (64, 0), (255, 9)]),
                     snapshot_space(b"llama", [(63, 2), (255, 3)])],
                    snapshot_record(0), snapshot_record(63, 1, 1),
                    snapshot_record(255), snapshot_record(255, 1)),
    "cut": snapshot([snapshot_space(b"", [(7, 1)])], snapshot_record(7))[:-9],
}

SPARSE = {name: bytes([16, 32]) + text for name, text in {
    "esa": b"ESA:retrieval_stride=16,sparse_ratio=0.3,retrieval_lead=15",
    "device": b"GSAOnDevice:hash_rollback_layers=0-1,hash_skip_layers=3+5",
    "kvstar": b"KVStar:retrieval_stride=8,blk_repre_inner_token_merge=4",
    "blend": b"Blend:compute_meta=0:0.1+15:0.05",
    "gsa-json": b'{"sparse_type": "GSA", "GSA": {"topk_ratio": 0.3, '
                b'"prefetch_enabled": true}, "ESA": {"min_blocks": 2}}',
    "method-json": b'{"ucm_sparse_method": "GSAOnDevice", "ucm_sparse_config":'
                   b' {"GSAOnDevice": {"hash_skip_layers": [3, 5]}}}',
    "blend-json": b'{"Blend": {"compute_meta": {"model.layers.0.self_attn":'
                  b' {"ratio": 0.1}, "15": {}}}}',
}.items()}


def representations(kind, dtype, heads, dim, layer_bytes, layers=2,
                    params=b""):
    return json.dumps({
        "repr": {"kind": kind, "dtype": dtype,
                 "params": params.ljust(64, b"\0").hex()},
        "geometry": {"num_layers": layers, "block_size": 4, "dtype": "opaque",
                     "k_bytes": layer_bytes, "v_bytes": 0,
                     "num_kv_heads": heads, "head_dim": dim,
                     "order": "opaque"}}).encode()


VERBS = re.findall(r"^\tUCM_SERVE_([A-Z]+)", re.search(
    r"enum ucm_serve_verb \{(.*?)\};", open(os.path.join(
        os.path.dirname(os.path.abspath(__file__)),
        "../../include/ucm/serve.h")).read(), re.S)[1], re.M)


def message(verb, items=b"", num=0, flags=0, argument=0, size=0, space=b"",
            how=0):
    data = struct.pack("<IIIIQ136s", 1 + VERBS.index(verb), num, flags,
                       argument, size, space) + items
    return struct.pack("<BH", how, len(data)) + data


def of_blocks(verb, num=2, tail=b"", **terms):
    return message(verb, b"".join(bytes([i]) * 16 + tail for i in range(num)),
                   num, **terms)


DRAFT, COMMIT = struct.pack("<I", 1), struct.pack("<II4096s", 1, 0, b"")

# the user, then messages, each with what becomes of the files of CREATE
SERVE = {
    "hello": b"\0" + message("HELLO", flags=1),
    "blocks": b"\0" + b"".join(of_blocks(verb) for verb in (
        "LOOKUP TOUCH PIN EVICT UNPIN WARM CHECK LOCATE OPEN EVICT "
        "REMOVE").split()),
    "tails": b"\0" + of_blocks("OFFER", tail=bytes(16)) +
             of_blocks("VERIFIED", tail=bytes(8)) +
             of_blocks("TOUCH", flags=4),
    "path": b"\0" + of_blocks("PATH", 1),
    "store": b"\0" + b"".join(message(verb) for verb in (
        "STATISTICS FLUSH RESCAN CHECKPOINT TEXT SPACE").split()),
    "drain": b"\0" + message("DRAIN", b"/dev/shm", 8, argument=2),
    "commit": b"\0" + of_blocks("CREATE", 1, size=8192, how=1) +
              message("COMMIT", COMMIT, 1) + of_blocks("OPEN", 1),
    "busy": b"\0" + of_blocks("CREATE", 1, size=8192, how=5) +
            message("COMMIT", COMMIT, 1) + message("COMMIT", COMMIT, 1),
    "cancel": b"\0" + of_blocks("CREATE", 2, size=8192, how=2) +
              message("REOPEN", DRAFT, 1) + message("COMMIT", COMMIT, 1) +
              message("CANCEL", DRAFT, 1),
    "space": b"\1" + message("MKSPACE", space=b"s", argument=0o700) +
             of_blocks("CREATE", 1, size=8192, how=1, space=b"s") +
             message("COMMIT", COMMIT, 1) + of_blocks("REMOVE", space=b"s"),
    "other": b"\2" + of_blocks("LOOKUP", space=b"s") +
             of_blocks("CREATE", size=8192),
}


def answered(fds=0, right=3, data=bytes(64)):
    return struct.pack("<BBBH", 3, fds, right, 0) + data


# calls, each with a number and then its answers
CLIENT = {
    "hello": bytes([0, 0, 0]) + answered(2, data=bytes(16) + struct.pack(
        "<II4Q", 1, 0, 8192, 8192, 0, 0)),
    "ids": bytes([1, 208, 7]) + answered() * 2,
    "open": bytes([2, 3, 0]) + answered(3) + bytes([2, 3, 0]) + answered(2),
    "create": bytes([3, 44, 1]) + answered(250) + answered(50),
    "refused": bytes([3, 1, 0]) + answered(0, 0, struct.pack(
        "<IIiI", 0, 0, -13, 0)) + bytes([2, 1, 0, 1, 0, 0, 0, 0]),
    "text": bytes([5, 0, 0]) + answered(1),
}

REPR = {
    "mean": representations("mean", "bfloat16", 2, 32, 128),
    "max-float16": representations("max", "float16", 2, 8, 128, 33),
    "normed-int8": representations("normed", "int8", 3, 40, 256),
    "minmax-float32": representations("minmax", "float32", 1, 1, 256, 1),
    "mla": representations("mean", "bfloat16", 1, 576, 1152, 3),
    # form, bits, rope_dim, rope_bits, seed, norms, matrix; digest of centers
    "codes": representations("codes", "opaque", 2, 32, 192, params=struct.pack(
        "<IIIIQII", 0, 32, 0, 0, 7, 0, 1)),
    "codes-norms-centers": representations(
        "codes", "opaque", 2, 32, 320, params=struct.pack(
            "<IIIIQII", 0, 64, 0, 0, 1, 1, 1) + b"\x5a" * 32),
    "codes-counts": representations(
        "codes", "opaque", 2, 32, 192, params=struct.pack(
            "<IIIIQII", 1, 64, 0, 0, 1, 0, 1)),
    "codes-mla": representations("codes", "opaque", 1, 576, 640, 3, struct.pack(
        "<IIIIQII", 0, 512, 64, 64, 0, 0, 1)),
    # merge_tokens, kept; digest of channels
    "channels": representations(
        "channels", "bfloat16", 2, 32, 2112, params=struct.pack("<II", 2, 32)),
    "channels-kept": representations(
        "channels", "int8", 2, 32, 448, params=struct.pack(
            "<II", 1, 8) + bytes(24) + b"\x5a" * 32),
    "unknown-kind": representations("median", "bfloat16", 2, 32, 128),
}


def main():
    for folder, seeds in (("format", FORMAT), ("config", CONFIG),
                          ("tokens", TOKENS), ("snapshot", SNAPSHOT),
                          ("sparse", SPARSE), ("trace", TRACE),
                          ("repr", REPR), ("serve", SERVE),
                          ("client", CLIENT)):
        path = os.path.join(sys.argv[1], folder)
        os.makedirs(path, exist_ok=True)
        for name, data in seeds.items():
            with open(os.path.join(path, name), "wb") as out:
                out.write(data)


if __name__ == "__main__":
    main()
