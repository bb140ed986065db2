#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# sparse.py - numpy's turn: means in float32, 1024 blocks of 8 heads of 128 times
# a query, and the best of 32768 scores. Ours by ctypes, in turn with numpy, on one
# thread each. Prints medians in us, and the median of the ratios.
#
# usage: sparse.py LIBUCM ROUNDS
import ctypes as C
import os
import statistics
import sys
import time

for library in ("OPENBLAS", "MKL", "OMP"):
    os.environ[library + "_NUM_THREADS"] = "1"
import numpy as np  # noqa: E402

HEADS, DIM, BLOCKS, MANY, TOPK = 8, 128, 1024, 32768, 9830


class Slab(C.Structure):
    _fields_ = [("base", C.c_void_p), ("num_slots", C.c_uint64),
                ("stride_bytes", C.c_uint64)]


class Request(C.Structure):
    _fields_ = [("query", C.c_void_p), ("num_heads", C.c_uint32),
                ("per", C.c_uint32), ("slab", C.POINTER(Slab)),
                ("slots", C.c_void_p), ("first_slot", C.c_uint64),
                ("num", C.c_size_t), ("scores", C.c_void_p),
                ("stride", C.c_size_t)]


def time_of(run, times):
    start = time.perf_counter_ns()
    for _ in range(times):
        run()
    return (time.perf_counter_ns() - start) / times / 1e3


def compare(name, theirs, ours, rounds):
    pairs = [(time_of(theirs, 20), time_of(ours, 20)) for _ in range(rounds)]
    print(f"{name:34} numpy {statistics.median(p[0] for p in pairs):8.1f} us"
          f"  ours {statistics.median(p[1] for p in pairs):8.1f} us  ratio"
          f" {statistics.median(p[0] / p[1] for p in pairs):6.2f}")


def main():
    ucm, rounds = C.CDLL(sys.argv[1]), int(sys.argv[2])
    rand = np.random.default_rng(1)
    means = rand.standard_normal((BLOCKS, HEADS * DIM)).astype(np.float32)
    query = rand.standard_normal(HEADS * DIM).astype(np.float32)
    scores = np.zeros(BLOCKS, np.float32)
    spec = (C.c_uint32 * 5)(0, 3, HEADS, DIM, 128)
    slab = Slab(means.ctypes.data, BLOCKS, HEADS * DIM * 4)
    request = Request(query.ctypes.data, HEADS, 2, C.pointer(slab), None, 0,
                      BLOCKS, scores.ctypes.data, BLOCKS)
    compare("scores of 1024 blocks, float32",
            lambda: np.matmul(means, query),
            lambda: ucm.ucm_score(spec, C.byref(request), C.c_size_t(1), None),
            rounds)
    if not np.allclose(scores, means @ query, rtol=1e-4, atol=1e-3):
        sys.exit("sparse.py: numpy has other scores")

    many = rand.standard_normal(MANY).astype(np.float32)
    out = np.zeros(MANY, np.uint32)
    num = C.c_uint32()
    budget = (C.c_uint32 * 4)(MANY, 0, 0, TOPK)
    at, to = many.ctypes.data_as(C.c_void_p), out.ctypes.data_as(C.c_void_p)
    compare(f"the best {TOPK} of {MANY}, in order",
            lambda: np.sort(np.argpartition(-many, TOPK)[:TOPK]),
            lambda: ucm.ucm_select(at, budget, to, C.c_size_t(MANY),
                                   C.byref(num), None), rounds)
    want = np.sort(np.argpartition(-many, TOPK)[:TOPK])
    if not np.array_equal(out[:num.value], want):
        sys.exit("sparse.py: numpy selects others")


main()
