#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# hash.py - the yardstick of bench/hash: the same chains by CPython's own
# pickle and hashlib. Prints nanoseconds per block, the median of ROUNDS.
#
# usage: hash.py SCHEME BLOCKS TOKENS ROUNDS
import hashlib
import pickle
import statistics
import sys
import time

META = b"/models/llama:2:torch.bfloat16:0"


def ucm(blocks):
    parent = hashlib.md5(META + pickle.dumps("UCM_HASH_SEED", 5)).digest()
    for block in blocks:
        data = pickle.dumps((parent, tuple(block)), 5)
        hasher = hashlib.md5(META)
        hasher.update(data)
        parent = hasher.digest()
    return parent


def chain(blocks):
    parent = hashlib.md5(b"UCMHASHSEED" + META).digest()
    for block in blocks:
        data = b"".join(token.to_bytes(4, "little") for token in block)
        parent = hashlib.md5(parent + data).digest()
    return parent


def main():
    scheme = {"ucm": ucm, "chain": chain}[sys.argv[1]]
    num, size, rounds = (int(arg) for arg in sys.argv[2:5])
    tokens = []
    state = 1
    for _ in range(num * size):  # the same as in hash_bench.c
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        tokens.append((state >> 33) % 128256)
    blocks = [tokens[i:i + size] for i in range(0, len(tokens), size)]
    times = []
    for _ in range(rounds):
        start = time.process_time_ns()
        last = scheme(blocks)
        times.append((time.process_time_ns() - start) / num)
    print(f"{statistics.median(times):.1f} {last.hex()}")


main()
