#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# sparse.py - numpy's turn: means in float32 (sgemv of its OpenBLAS), float16 and
# int8, 1024 blocks of 8 heads of 128 times a query, the best of 32768 scores, and
# Hamming distances of 1024 blocks' codes. Ours by ctypes, in turn with numpy, on one
# thread each, in CPU time. Where they are installed, an OpenBLAS ($OPENBLAS, or the
# system's) has its turn by sgemv and sbgemv, and faiss by its flat indexes: what is
# not there is said. Prints medians in us, and the median of the ratios.
#
# usage: sparse.py LIBUCM ROUNDS
import ctypes as C
import ctypes.util
import os
import statistics
import sys
import time

for library in ("OPENBLAS", "MKL", "OMP"):
    os.environ[library + "_NUM_THREADS"] = "1"
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                             "..", "python"))
import numpy as np  # noqa: E402
from ucmfs._c import (  # noqa: E402
    CodeRequest, Query, ReprSlab as Slab, ScoreRequest as Request)

HEADS, DIM, BLOCKS, MANY, TOPK, NEAREST = 8, 128, 1024, 32768, 9830, 64


def time_of(run, times):
    start = time.thread_time_ns()
    for _ in range(times):
        run()
    return (time.thread_time_ns() - start) / times / 1e3


def compare(name, theirs, ours, rounds, who="numpy", times=20):
    pairs = [(time_of(theirs, times), time_of(ours, times))
             for _ in range(rounds)]
    print(f"{name:40} {who:6} {statistics.median(p[0] for p in pairs):8.1f} us"
          f"  ours {statistics.median(p[1] for p in pairs):8.1f} us  ratio"
          f" {statistics.median(p[0] / p[1] for p in pairs):6.2f}")


class Scores:
    """Ours: scores of blocks whose means are the rows of slots."""

    def __init__(self, ucm, dtype, slots, query):
        self.ucm, self.slots = ucm, slots  # kept alive
        self.spec = (C.c_uint32 * 5)(0, dtype, HEADS, DIM, 128)
        self.floats = np.zeros(HEADS * DIM, np.float32)
        self.scores = np.zeros(len(slots), np.float32)
        ask = Query(query.ctypes.data, 3, HEADS, DIM)
        if ucm.ucm_query_prepare(self.spec, C.byref(ask), 2,
                                 self.floats.ctypes.data_as(C.c_void_p), None):
            sys.exit("sparse.py: ucm_query_prepare")
        self.slab = Slab(slots.ctypes.data, len(slots), slots.strides[0])
        self.request = Request(self.floats.ctypes.data, HEADS, 2,
                               C.pointer(self.slab), None, 0, len(slots),
                               self.scores.ctypes.data, len(slots))
        self.out = np.zeros(len(slots), np.uint32)
        self.budget = (C.c_uint32 * 4)(len(slots), 0, 0, NEAREST)

    def run(self):
        if self.ucm.ucm_score(self.spec, C.byref(self.request), C.c_size_t(1),
                              None):
            sys.exit("sparse.py: ucm_score")

    def select(self):
        """And the best of them, in order."""
        num = C.c_uint32()
        self.run()
        self.ucm.ucm_select(self.scores.ctypes.data_as(C.c_void_p), self.budget,
                            self.out.ctypes.data_as(C.c_void_p),
                            C.c_size_t(len(self.out)), C.byref(num), None)
        return self.out[:num.value]


def must_be(scores, want, who):
    if not np.allclose(scores, want, rtol=1e-3, atol=1e-3 * np.abs(want).max()):
        sys.exit(f"sparse.py: {who} has other scores")


def compare_scores(ucm, rounds, dtype, words, values, query):
    """numpy sums int8 in int32, as anything less would overflow."""
    whole = words is np.int8
    means = (values * (25 if whole else 1)).clip(-127, 127).astype(words)
    slots = means
    if whole:  # with a scale of 1 for each head
        scales = np.tile(np.ones(HEADS, np.float32).view(np.int8), (BLOCKS, 1))
        rest = np.zeros((BLOCKS, 32), np.int8)
        slots = np.concatenate([means, scales, rest], 1)
    theirs = (query * 1000).astype(np.int32) if whole else query.astype(words)
    asked = theirs.astype(np.float32)
    ours = Scores(ucm, dtype, slots, asked)
    compare(f"scores of 1024 blocks, {np.dtype(words).name}",
            lambda: np.matmul(means, theirs), ours.run, rounds)
    must_be(ours.scores, means.astype(np.float64) @ asked.astype(np.float64),
            "numpy")


def bfloat16_of(values):
    """Rounded to the nearest."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def float_of(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def gemv_arguments(rows, asked, out):
    """out = rows times asked, by cblas; made once, as it takes time."""
    def pointer(array):
        return array.ctypes.data_as(C.c_void_p)
    num, dim = rows.shape
    return (101, 111, num, dim, C.c_float(1), pointer(rows), dim,
            pointer(asked), 1, C.c_float(0), pointer(out), 1)


def openblas_of():
    name = os.environ.get("OPENBLAS") or ctypes.util.find_library("openblas")
    try:
        blas = C.CDLL(name) if name else None
    except OSError as error:
        print(f"sparse: $OPENBLAS: {error}: not compared", file=sys.stderr)
        return None
    if not blas:
        print("sparse: no OpenBLAS is installed: not compared", file=sys.stderr)
        return None
    blas.openblas_set_num_threads(1)
    if not hasattr(blas, "cblas_sbgemv"):
        print("sparse: this OpenBLAS has no cblas_sbgemv: not compared",
              file=sys.stderr)
    return blas


def openblas_products(blas, ucm, rounds, values, query):
    """All products, by cblas_sgemv and cblas_sbgemv."""
    num = len(values)
    out = np.zeros(num, np.float32)
    rows, asked = values.astype(np.float32), query.astype(np.float32)
    ours = Scores(ucm, 3, rows, asked)
    arguments = gemv_arguments(rows, asked, out)
    compare(f"scores of {num} blocks, float32",
            lambda: blas.cblas_sgemv(*arguments), ours.run, rounds, "sgemv")
    must_be(ours.scores, out, "cblas_sgemv")
    if not hasattr(blas, "cblas_sbgemv"):
        return
    rows, asked = bfloat16_of(values), bfloat16_of(query)
    ours = Scores(ucm, 2, rows, float_of(asked))
    arguments = gemv_arguments(rows, asked, out)
    compare(f"scores of {num} blocks, bfloat16",
            lambda: blas.cblas_sbgemv(*arguments), ours.run, rounds, "sbgemv")
    must_be(ours.scores, out, "cblas_sbgemv")


def faiss_of():
    try:
        import faiss
    except ImportError:
        return None
    faiss.omp_set_num_threads(1)
    return faiss


def faiss_products(faiss, ucm, rounds, values, query):
    """The blocks with the largest products, by its flat indexes."""
    num, dim = len(values), HEADS * DIM
    quantizer = faiss.ScalarQuantizer
    rows, asked = values.astype(np.float32), query.astype(np.float32)
    for name, dtype, index, slots in (
            ("float32", 3, faiss.IndexFlatIP(dim), rows),
            ("bfloat16", 2, faiss.IndexScalarQuantizer(
                dim, quantizer.QT_bf16, faiss.METRIC_INNER_PRODUCT),
             bfloat16_of(rows)),
            ("float16", 1, faiss.IndexScalarQuantizer(
                dim, quantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT),
             rows.astype(np.float16))):
        index.add(rows)
        ours = Scores(ucm, dtype, slots, asked)
        compare(f"the best {NEAREST} of {num} blocks, {name}",
                lambda: index.search(asked[None], NEAREST),
                ours.select, rounds, "faiss")
        found = index.search(asked[None], NEAREST)[1][0]
        if len(np.intersect1d(found, ours.select())) < NEAREST - 2:
            sys.exit("sparse.py: faiss finds others")


def codes(faiss, ucm, rounds, rand):
    """The nearest token of each block and head, summed over the heads."""
    spec = (C.c_uint32 * 10)(0, HEADS, DIM, 0, DIM, 0, 128, 0)  # and a seed
    method = (C.c_uint32 * 5)(0, 0, 2, HEADS, 1)
    for call in (ucm.ucm_code_bytes, ucm.ucm_code_encoder_bytes,
                 ucm.ucm_code_query_words):
        call.restype = C.c_size_t
    memory = np.zeros(ucm.ucm_code_encoder_bytes(spec) // 8, np.uint64)
    encoder = memory.ctypes.data_as(C.c_void_p)
    ucm.ucm_code_encoder_make(spec, None, encoder, None)
    query = rand.standard_normal(HEADS * DIM).astype(np.float32)
    words = np.zeros(ucm.ucm_code_query_words(spec, method), np.uint64)
    view = (C.c_uint64 * 3)(query.ctypes.data, 3 | HEADS << 32, DIM)
    if ucm.ucm_code_query_prepare(encoder, method, view, None,
                                  words.ctypes.data_as(C.c_void_p), None):
        sys.exit("sparse.py: ucm_code_query_prepare")
    plain = rand.integers(2 ** 64, size=(BLOCKS, HEADS, 128, 2),
                          dtype=np.uint64)
    size = ucm.ucm_code_bytes(spec)
    slots = np.zeros((BLOCKS, size // 8), np.uint64)
    slots[:, :HEADS * 256] = plain.reshape(BLOCKS, HEADS, 16, 8, 2).transpose(
        0, 1, 2, 4, 3).reshape(BLOCKS, -1)
    slots[:, HEADS * 256] = 128  # tokens
    scores = np.zeros(BLOCKS, np.float32)
    slab = Slab(slots.ctypes.data, BLOCKS, size)
    request = CodeRequest(words.ctypes.data, C.pointer(slab), None, 0, BLOCKS,
                          scores.ctypes.data, BLOCKS)
    query_code = words.reshape(HEADS, 3)[:, None, 1:]

    def ours():
        ucm.ucm_code_score(spec, method, C.byref(request), C.c_size_t(1), None)

    def theirs():
        away = np.bitwise_count(plain ^ query_code).sum(-1, dtype=np.uint16)
        return away.min(-1).sum(-1, dtype=np.uint32)

    if hasattr(np, "bitwise_count"):
        compare("Hamming, 1024 blocks of 128", theirs, ours, rounds, times=2)
        if not np.array_equal(-scores, theirs()):
            sys.exit("sparse.py: numpy has other distances")
    if not faiss:
        return
    index = faiss.IndexBinaryFlat(DIM)
    index.add(plain.reshape(-1, 2).view(np.uint8))
    one = np.ascontiguousarray(query_code[0]).view(np.uint8)
    compare("Hamming, all 1048576 codes", lambda: index.search(one, 1), ours,
            rounds, "faiss", 2)


def main():
    ucm, rounds = C.CDLL(sys.argv[1]), int(sys.argv[2])
    rand = np.random.default_rng(1)
    values = rand.standard_normal((BLOCKS, HEADS * DIM))
    query = rand.standard_normal(HEADS * DIM)
    for dtype, words in ((3, np.float32), (1, np.float16), (6, np.int8)):
        compare_scores(ucm, rounds, dtype, words, values, query)
    faiss = faiss_of()
    if not faiss:
        print("sparse: there is no faiss: not compared", file=sys.stderr)
    blas = openblas_of()
    for num in (BLOCKS, 16 * BLOCKS):  # of float32: 4 MiB, 64 MiB
        values = rand.standard_normal((num, HEADS * DIM), np.float32)
        if blas:
            openblas_products(blas, ucm, rounds, values, query)
        if faiss:
            faiss_products(faiss, ucm, rounds, values, query)

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
    codes(faiss, ucm, rounds, rand)


main()
