#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""oracle.py LIBRARY - <ucm/sparse.h> against numpy, on random input.

Every formula is written here a second time, from ucm_sparse(3), in float64 and
with nothing of ours but the structs of the calls. LIBRARY has all of sparse/, also
what libucm does not export: the choice of kernels, so that each instruction set is
tried.
"""
import ctypes as C

import numpy as np

from ways import (BF16, F16, F32, INT8, Failure, Way, must, of_words, run,
                  succeed, to_words)
from ucmfs._c import (
    Budget, BudgetConfig, Keys, Query, ReprSpec as Spec,
    ScoreRequest as Request, ReprSlab as Slab, Windows)

MEAN, MAX, NORMED, MINMAX = range(4)
HEAD, GROUP, BLOCK = range(3)
DISTANCE = 4
EPS = 2.0 ** -24


# ---- numbers ----

def to_bytes(values, dtype):
    """float32 values in a type, as an array of its words; and their values."""
    words = to_words(values, dtype)
    return words, of_words(words, dtype)


def from_bytes(raw, dtype):
    types = {F32: np.float32, F16: np.float16, BF16: np.uint16, INT8: np.int8}
    return of_words(raw.view(types[dtype]), dtype)


def item_bytes(dtype):
    return {F32: 4, F16: 2, BF16: 2, INT8: 1}[dtype]


# ---- a case ----

class Case:
    """A cache with strides, a query, and both as float64."""

    def __init__(self, rand):
        pick = lambda *of: of[rand.integers(len(of))]  # noqa: E731
        self.spec = Spec(int(rand.integers(4)), pick(F32, F16, BF16, INT8),
                         pick(1, 2, 8), pick(3, 40, 64, 128, 576),
                         pick(1, 16, 31, 128))
        self.num = int(rand.integers(1, 20))
        self.last = int(rand.integers(1, self.spec.block_size + 1))
        self.group = pick(1, 4, 7)
        self.key_type, self.query_type = pick(F32, F16, BF16), pick(F32, BF16)
        self.make_keys(rand)
        self.make_query(rand)
        self.ids = rand.permutation(self.there)[:self.num].astype(np.int32)
        self.slots = rand.permutation(self.num + 3)[:self.num].astype(np.int32)

    def make_keys(self, rand):
        spec = self.spec
        self.there = self.num + int(rand.integers(3))
        order = [0, 1, 2] if rand.integers(2) else [0, 2, 1]
        sizes = np.array([self.there, spec.block_size, spec.num_heads])
        pad = int(rand.integers(4))
        shape = [*sizes[order], spec.head_dim + pad]
        values = rand.standard_normal(shape).astype(np.float32)
        values *= np.float32(10.0 ** rand.integers(-3, 3))
        values += rand.standard_normal(shape[-1]).astype(np.float32)  # channels
        self.words, wide = to_bytes(values, self.key_type)
        steps = np.array(self.words.strides)[:3] // self.words.itemsize
        undo = np.argsort(order)
        self.keys = wide.transpose([*undo, 3])[..., :spec.head_dim]
        self.view = Keys(self.words.ctypes.data, self.key_type, self.there,
                         *(int(steps[i]) for i in undo))

    def make_query(self, rand):
        heads = self.spec.num_heads * self.group
        values = rand.standard_normal(
            [heads, self.spec.head_dim + 2]).astype(np.float32)
        self.query_words, wide = to_bytes(values, self.query_type)
        self.q = wide[:, :self.spec.head_dim]
        self.query = Query(self.query_words.ctypes.data, self.query_type,
                           heads, self.spec.head_dim + 2)

    def tokens(self, i):
        return self.last if i == self.num - 1 else self.spec.block_size

    def block(self, i):
        return self.keys[self.ids[i], :self.tokens(i)]  # token, head, channel

    def __str__(self):
        spec = self.spec
        return (f"kind {spec.kind}, dtype {spec.dtype}, {spec.num_heads} heads"
                f" of {spec.head_dim}, {self.num} blocks of {spec.block_size},"
                f" last {self.last}, group {self.group}, keys of type"
                f" {self.key_type}, query of {self.query_type}")


# ---- what must come out ----

def representation(kind, block):
    """Rows [head, row, channel] of a block, and by how much sums may be off."""
    none = np.zeros((block.shape[1], 1, block.shape[2]))
    if kind == MAX:
        return block.max(0)[:, None], none
    if kind == MINMAX:
        rows = np.stack([block.max(0), block.min(0)], 1)
        return rows, np.zeros(rows.shape)
    mean = block.mean(0)[:, None]
    off = len(block) * EPS * np.abs(block).mean(0)[:, None]
    if kind == MEAN:
        return mean, off
    length = np.linalg.norm(mean, axis=2, keepdims=True)
    length[length == 0] = 1
    slack = np.linalg.norm(off, axis=2, keepdims=True)
    return mean / length, (off + np.abs(mean / length) * slack) / length \
        + 4 * EPS * np.abs(mean / length)


def check_stored(case, got, scale, want, off):
    size = np.abs(want)
    unit = {F32: 0 * size + EPS * size, BF16: 2.0 ** -8 * size,
            F16: 2.0 ** -11 * size + 2.0 ** -25,
            INT8: 0 * size + 0.501 * scale[:, None, None]}[case.spec.dtype]
    if case.spec.kind == MINMAX:
        must((got[:, 0] >= want[:, 0]).all(), "a largest key is smaller")
        must((got[:, 1] <= want[:, 1]).all(), "a smallest key is larger")
        unit = unit * 2
    must((np.abs(got - want) <= (unit + off) * (1 + 2.0 ** -8)).all(),
         "a representation is off by too much")


def stored(case, raw):
    """What a slot's bytes stand for, and the heads' scales."""
    spec = case.spec
    padded = -(-spec.head_dim // 32) * 32
    rows = 2 if spec.kind == MINMAX else 1
    size = spec.num_heads * rows * padded * item_bytes(spec.dtype)
    values = from_bytes(raw[:size], spec.dtype)
    values = values.reshape(spec.num_heads, rows, padded)
    must((values[..., spec.head_dim:] == 0).all(), "padding is not 0")
    scale = np.ones(spec.num_heads)
    if spec.dtype == INT8:
        end = size + 4 * spec.num_heads
        scale = raw[size:end].view(np.float32).astype(np.float64)
        size = end
    must((raw[size:] == 0).all(), "the end of a slot is not 0")
    return values[..., :spec.head_dim] * scale[:, None, None], scale


def scores_of(case, per, values):
    """[row, block] scores from stored values [block, head, row, channel]; the
    sums of magnitudes, for bounds; and what they may be off as the query is
    rounded to steps."""
    q = case.q.reshape(case.spec.num_heads, case.group, -1)
    terms = np.einsum("hgc,bhrc->hgbrc", q, values).max(3)
    by_head = terms.sum(-1)
    size = np.abs(terms).sum(-1) * (1 if case.group == 1 else 1 + case.group)
    off = np.zeros(size.shape)
    if case.spec.dtype == INT8 and case.spec.kind != MINMAX:
        step = np.abs(q).max(2)[:, :, None] / 32767
        off = 0.501 * step * np.abs(values[:, :, 0]).sum(2).T[:, None]
    if per == HEAD:
        return (part.reshape(-1, case.num) for part in (by_head, size, off))
    by_group, size, off = (part.mean(1) for part in (by_head, size, off))
    if per == GROUP:
        return by_group, size, off
    return (part.sum(0)[None] for part in (by_group, size, off))


# ---- ours ----

class Library(Way):
    def __init__(self, path, way):
        super().__init__(path, way)
        for name in ("ucm_repr_bytes", "ucm_query_floats"):
            getattr(self.calls, name).restype = C.c_size_t

    def build(self, case):
        size = self.calls.ucm_repr_bytes(C.byref(case.spec))
        memory = np.full((case.num + 3, size + 4), 0xa5, np.uint8)
        slab = Slab(memory.ctypes.data, case.num + 3, size + 4)
        succeed(self.calls.ucm_repr_build(
            C.byref(case.spec), C.byref(case.view),
            case.ids.ctypes.data_as(C.c_void_p), C.c_size_t(case.num),
            case.last, C.byref(slab),
            case.slots.ctypes.data_as(C.c_void_p), None), "ucm_repr_build")
        unused = np.setdiff1d(np.arange(case.num + 3), case.slots)
        must((memory[unused] == 0xa5).all(), "another slot was written")
        must((memory[:, size:] == 0xa5).all(), "a gap was written")
        return memory, slab, size

    def score(self, case, slab, per, how=0):
        heads = case.query.num_heads
        per |= how
        floats = self.calls.ucm_query_floats(C.byref(case.spec), heads, per)
        prepared = np.zeros(floats, np.float32)
        succeed(self.calls.ucm_query_prepare(
            C.byref(case.spec), C.byref(case.query), per,
            prepared.ctypes.data_as(C.c_void_p), None), "ucm_query_prepare")
        rows = {HEAD: heads, GROUP: case.spec.num_heads, BLOCK: 1}[per & ~how]
        scores = np.full((rows, case.num + 2), 7, np.float32)
        request = Request(prepared.ctypes.data, heads, per, C.pointer(slab),
                          case.slots.ctypes.data, 0, case.num,
                          scores.ctypes.data, case.num + 2)
        succeed(self.calls.ucm_score(
            C.byref(case.spec), C.byref(request), C.c_size_t(1), None),
            "ucm_score")
        must((scores[:, case.num:] == 7).all(), "a gap of scores was written")
        return scores[:, :case.num].copy()

    def select(self, scores, budget):
        total = budget.first + budget.topk + budget.last
        out, num = np.zeros(total + 1, np.uint32), C.c_uint32()
        succeed(self.calls.ucm_select(
            scores.ctypes.data_as(C.c_void_p), C.byref(budget),
            out.ctypes.data_as(C.c_void_p), C.c_size_t(total), C.byref(num),
            None), "ucm_select")
        must(out[total] == 0, "more was written than there is room")
        return out[:num.value]


# ---- checks ----

def check_case(library, case):
    """Returns the bytes and scores, to compare with another way's."""
    memory, slab, size = library.build(case)
    values = []
    for i in range(case.num):
        got, scale = stored(case, memory[case.slots[i], :size])
        check_stored(case, got, scale,
                     *representation(case.spec.kind, case.block(i)))
        values.append(got)
    results = [memory]
    for per in (HEAD, GROUP, BLOCK):
        scores = library.score(case, slab, per)
        want, sizes, rounded = scores_of(case, per, np.stack(values))
        elements = values[0].size // (case.spec.num_heads if per != BLOCK
                                      else 1) + 64
        off = (2 * elements + 16) * EPS * sizes + rounded + 1e-30
        must((np.abs(scores - want) <= off).all(), f"scores per {per}")
        if per == HEAD:
            check_reductions(library, case, scores)
        if per == BLOCK and case.spec.kind == MEAN and case.spec.dtype == F32:
            check_average(case, scores[0], sizes[0])
        results.append(scores)
    if case.spec.kind == MINMAX:
        check_bound(case, results[1])
    else:
        results += check_distances(library, case, slab, np.stack(values))
    return results


def check_reductions(library, case, scores):
    sums = np.zeros(case.num, np.float32)
    for row in scores:
        sums += row
    wanted = (sums / np.float32(len(scores)), sums, scores.max(0))
    for reduction, want in enumerate(wanted):
        out = np.zeros(case.num, np.float32)
        succeed(library.calls.ucm_score_reduce(
            scores.ctypes.data_as(C.c_void_p), C.c_size_t(len(scores)),
            C.c_size_t(case.num), C.c_size_t(case.num), reduction,
            out.ctypes.data_as(C.c_void_p), None), "ucm_score_reduce")
        must(np.array_equal(out, want), f"reduction {reduction}")


def check_distances(library, case, slab, values):
    q = case.q.reshape(case.spec.num_heads, case.group, -1)
    by_head = -np.linalg.norm(q[:, :, None] - values[:, :, 0].transpose(
        1, 0, 2)[:, None], axis=3)  # key head, query head, block
    size = np.linalg.norm(values, axis=3).max()
    off = (values.shape[3] + 16) * EPS * (abs(by_head).max() + size) + 1e-30
    results = []
    for per, want in ((HEAD, by_head.reshape(-1, case.num)),
                      (GROUP, by_head.mean(1)),
                      (BLOCK, by_head.mean(1).sum(0)[None])):
        scores = library.score(case, slab, per, DISTANCE)
        must((abs(scores - want) <= off * case.spec.num_heads * 2).all(),
             f"distances per {per}")
        results.append(scores)
    return results


def check_average(case, scores, sizes):
    """A mean's score is the key heads times the average of all q.k."""
    q = case.q.reshape(case.spec.num_heads, case.group, -1)
    for i in range(case.num):
        products = np.einsum("hgc,thc->hgt", q, case.block(i))
        size = np.einsum("hgc,thc->hgt", np.abs(q), np.abs(case.block(i)))
        off = 2048 * EPS * case.spec.num_heads * (size.mean() + sizes[i])
        must(abs(case.spec.num_heads * products.mean() - scores[i]) <= off,
             "a mean's score is not the average of all products")


def check_bound(case, scores):
    q = case.q.reshape(case.spec.num_heads, case.group, -1)
    for i in range(case.num):
        exact = np.einsum("hgc,thc->thg", q, case.block(i)).max(0).ravel()
        size = np.abs(case.q).sum(1) * np.abs(case.block(i)).max()
        must((exact <= scores[:, i] + 4096 * EPS * size).all(),
             "a token exceeds Quest's bound")


def check_selection(library, rand):
    num = int(rand.integers(1, 3000))
    scores = rand.standard_normal(num).astype(np.float32)
    if rand.integers(2):
        scores = np.round(scores)  # ties
    size = int(rand.integers(1, 200))
    tokens = (num - 1) * size + int(rand.integers(1, size + 1))
    initial, local = (int(n) for n in rand.integers(5, size=2))
    config = BudgetConfig(size, Windows(initial, local), float(rand.random()))
    budget = Budget()
    succeed(library.calls.ucm_budget_blocks(C.byref(config), tokens,
                                            C.byref(budget), None), "budget")
    first = min(initial, num)
    last = min(local, num - first)
    middle = np.arange(first, num - last)
    best = middle[np.lexsort((middle, -scores[middle].astype(np.float64)))]
    k = int(len(middle) * config.ratio)
    want = np.sort(np.concatenate([np.arange(first), best[:k],
                                   np.arange(num - last, num)]))
    got = library.select(scores, budget)
    must(np.array_equal(got, want), "a selection")

    table = rand.permutation(num).astype(np.int32)
    out, length = np.zeros(len(got), np.int32), C.c_uint32()
    succeed(library.calls.ucm_select_table(
        table.ctypes.data_as(C.c_void_p), size, tokens,
        got.ctypes.data_as(C.c_void_p), len(got),
        out.ctypes.data_as(C.c_void_p), C.c_size_t(len(got)),
        C.byref(length), None), "ucm_select_table")
    must(np.array_equal(out, table[want]), "a table")
    must(length.value == np.minimum(size, tokens - want * size).sum(),
         "the tokens of a table")
    return got


def check_blocks(library, rand):
    case = Case(rand)
    try:
        return check_case(library, case)
    except Failure as failure:
        raise Failure(f"{failure}\n  {case}") from None


if __name__ == "__main__":
    run(Library, "blocks", 150, check_blocks, check_selection)
