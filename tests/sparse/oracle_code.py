#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""oracle_code.py LIBRARY - hash codes of <ucm/sparse.h> against numpy.

As oracle.py: every formula a second time, from ucm_sparse(3), and each way the
CPU has. W is made anew as well, by numpy's QR of the same random numbers.
"""
import ctypes as C

import numpy as np

from ways import Failure, Way, must, run
from ucmfs._c import (
    CodeMethod as Method, CodeRequest as Request, CodeSpec as Spec, Keys,
    Query, ReprSlab as Slab)

TOKENS, COUNTS = range(2)
HAMMING, ESTIMATE = range(2)
BEST, SUM, EACH = range(3)
HEAD, GROUP, BLOCK = range(3)
FLOAT32 = 3  # enum ucm_dtype


# ---- W ----

def philox(counter, key):
    """Philox4x32-10 of an array of counters [4, n]."""
    c = [x.astype(np.uint64) for x in counter]
    k = [np.uint64(key & 0xffffffff), np.uint64(key >> 32)]
    low = np.uint64(0xffffffff)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xd2511f53), c[2] * np.uint64(0xcd9e8d57)
        c = [b >> np.uint64(32) ^ c[1] ^ k[0], b & low,
             a >> np.uint64(32) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + np.uint64(0x9e3779b9)) & low,
             (k[1] + np.uint64(0xbb67ae85)) & low]
    return c


def normals(seed, part, dim, num):
    """N(0, 2^2), [dim, num]: pairs by the polar method."""
    pairs = (dim + 1) // 2
    pair, column = (x.ravel() for x in np.meshgrid(
        np.arange(pairs), np.arange(num), indexing="ij"))
    out = np.zeros((2, pair.size))
    left, tries = np.arange(pair.size), 0
    while left.size:
        c = philox([pair[left], np.full(left.size, tries), column[left],
                    np.full(left.size, part)], seed)
        wide = [(c[i] << np.uint64(32) | c[i + 1]) >> np.uint64(11)
                for i in (0, 2)]
        u, v = (w.astype(np.float64) * 2.0 ** -52 - 1 for w in wide)
        s = u * u + v * v
        good = (s < 1) & (s > 0)
        factor = 2 * np.sqrt(-2 * np.log(s[good]) / s[good])
        out[:, left[good]] = u[good] * factor, v[good] * factor
        left, tries = left[~good], tries + 1
    out = out.reshape(2, pairs, num).transpose(1, 0, 2)
    return out.reshape(2 * pairs, num)[:dim]


def directions(seed, part, dim, num):
    """Q sign(diag R), in blocks of dim columns; and the least of |diag R|."""
    all_of = normals(seed, part, dim, num)
    blocks, least = [], 1
    for first in range(0, num, dim):
        q, r = np.linalg.qr(all_of[:, first:first + dim])
        blocks.append(q * np.sign(np.diag(r)))
        least = min(least, np.abs(np.diag(r)).min())
    return np.hstack(blocks), least


# ---- a case ----

class Case:
    def __init__(self, rand):
        pick = lambda *of: of[rand.integers(len(of))]  # noqa: E731
        dim, rope = pick(8, 40, 64, 128), pick(0, 0, 16, 64)
        bits = pick(8, 64, 128, 200, 256)
        norms = int(bits >= dim and rand.integers(2))
        self.spec = Spec(TOKENS, pick(1, 2, 8), dim + rope, rope, bits,
                         rope and pick(64, 72), pick(1, 16, 31, 128), norms,
                         int(rand.integers(5)))
        spec = self.spec
        self.num = int(rand.integers(1, 5))
        self.last = int(rand.integers(1, spec.block_size + 1))
        self.group = pick(1, 4, 7, 12)
        self.merged = pick(1, self.group)
        shape = (self.num, spec.block_size, spec.num_heads, spec.head_dim)
        self.keys = rand.standard_normal(shape).astype(np.float32)
        self.centers = rand.standard_normal(shape[2:]).astype(np.float32)
        self.q = rand.standard_normal(
            (spec.num_heads * self.group, spec.head_dim)).astype(np.float32)
        self.parts = [(0, dim, bits)]
        if rope:
            self.parts.append((dim, rope, spec.rope_bits))

    def __str__(self):
        fields = " ".join(f"{name} {getattr(self.spec, name)}"
                          for name, _ in Spec._fields_)
        return (f"{fields}, {self.num} blocks, last {self.last}, group"
                f" {self.group}, merged {self.merged}")

    def there(self):
        """[block, token]: is it there?"""
        size = np.full(self.num, self.spec.block_size)
        size[-1] = self.last
        return np.arange(self.spec.block_size) < size[:, None]


# ---- ours ----

class Library(Way):
    kernels = "code"

    def __init__(self, path, way):
        super().__init__(path, way)
        for name in ("ucm_code_bytes", "ucm_code_encoder_bytes",
                     "ucm_code_query_words"):
            getattr(self.calls, name).restype = C.c_size_t
        self.calls.ucm_code_matrix.restype = C.c_void_p

    def encoder(self, spec, centers):
        size = self.calls.ucm_code_encoder_bytes(C.byref(spec))
        memory = np.zeros(size // 8 + 1, np.uint64)
        at = memory.ctypes.data_as(C.c_void_p)
        must(self.calls.ucm_code_encoder_make(
            C.byref(spec), centers.ctypes.data_as(C.c_void_p), at, None) == 0,
            "ucm_code_encoder_make")
        return memory

    def matrix(self, encoder, part, dim, bits):
        stride = C.c_size_t()
        at = self.calls.ucm_code_matrix(encoder.ctypes.data_as(C.c_void_p),
                                        part, C.byref(stride))
        flat = np.ctypeslib.as_array(C.cast(at, C.POINTER(C.c_float)),
                                     (dim, stride.value))
        must((flat[:, bits:] == 0).all(), "padding of W")
        return flat[:, :bits].astype(np.float64)

    def build(self, case, encoder):
        size = self.calls.ucm_code_bytes(C.byref(case.spec))
        memory = np.full((case.num, size // 8), 0xa5a5, np.uint64)
        slab = Slab(memory.ctypes.data, case.num, size)
        step = case.keys.strides
        keys = Keys(case.keys.ctypes.data, FLOAT32, case.num, step[0] // 4,
                    step[1] // 4, step[2] // 4)
        must(self.calls.ucm_code_build(
            encoder.ctypes.data_as(C.c_void_p), C.byref(keys),
            None, C.c_size_t(case.num), case.last, C.byref(slab), None,
            None) == 0, "ucm_code_build")
        return memory, slab

    def score(self, case, encoder, slab, method):
        words = self.calls.ucm_code_query_words(C.byref(case.spec),
                                                C.byref(method))
        prepared = np.zeros(words, np.uint64)
        query = Query(case.q.ctypes.data, FLOAT32, len(case.q),
                      case.spec.head_dim)
        must(self.calls.ucm_code_query_prepare(
            encoder.ctypes.data_as(C.c_void_p), C.byref(method),
            C.byref(query), None, prepared.ctypes.data_as(C.c_void_p),
            None) == 0, "ucm_code_query_prepare")
        rows = {HEAD: len(case.q) // case.merged, GROUP: case.spec.num_heads,
                BLOCK: 1}[method.per]
        width = case.num * (case.spec.block_size if method.over == EACH else 1)
        scores = np.zeros((rows, width), np.float32)
        request = Request(prepared.ctypes.data, C.pointer(slab), None, 0,
                          case.num, scores.ctypes.data, width)
        must(self.calls.ucm_code_score(
            C.byref(case.spec), C.byref(method), C.byref(request),
            C.c_size_t(1), None) == 0, "ucm_code_score")
        return scores


# ---- checks ----

def codes_of(case, memory):
    """[block, head, token, bit] without padding; norms; tokens."""
    spec, words = case.spec, [-(-bits // 64) for _, _, bits in case.parts]
    tiles = -(-spec.block_size // 8)
    rows = tiles * 8 * sum(words)
    head = rows + (tiles * 16 + 63) // 64 * 8 * spec.norms
    heads = memory[:, :head * spec.num_heads].reshape(case.num, -1, head)
    raw = np.ascontiguousarray(heads[:, :, :rows]).reshape(
        case.num, -1, tiles, sum(words), 8).transpose(0, 1, 2, 4, 3)
    bits = np.unpackbits(np.ascontiguousarray(raw).view(np.uint8), axis=-1,
                         bitorder="little")
    bits = bits.reshape(case.num, spec.num_heads, tiles * 8, -1)
    must((bits[:, :, spec.block_size:] == 0).all(), "rows that are not there")
    first, parts = 0, []
    for word, (_, _, num) in zip(words, case.parts):
        parts.append(bits[:, :, :spec.block_size, first:first + num])
        must((bits[..., first + num:first + 64 * word] == 0).all(), "padding")
        first += 64 * word
    norms = np.ascontiguousarray(heads[:, :, rows:]).view(np.uint16)
    norms = (norms.astype(np.uint32) << 16).view(np.float32)
    tokens = memory[:, head * spec.num_heads].astype(np.uint32)
    return np.concatenate(parts, -1), norms[:, :, :spec.block_size], tokens


def rotated(case, matrices, x):
    x = x.astype(np.float64)
    return np.concatenate([x[..., at:at + dim] @ w for (at, dim, _), w
                           in zip(case.parts, matrices)], -1)


def check_codes(case, matrices, bits, norms, tokens):
    there = case.there()
    must((tokens == there.sum(1)).all(), "the number of tokens")
    keys = (case.keys - case.centers).transpose(0, 2, 1, 3)
    y = rotated(case, matrices, keys)
    off = 2.0 ** -23 * 600 * np.linalg.norm(keys, axis=-1, keepdims=True)
    there = np.broadcast_to(there[:, None], y.shape[:-1])
    clear = (np.abs(y) > off) & there[..., None]
    must((bits == (y > 0))[clear].all(), "a bit")
    must((bits[~there] == 0).all(), "a token that is not there")
    if case.spec.norms:
        want = (keys.astype(np.float64) ** 2).sum(-1) / np.abs(y).sum(-1)
        must((np.abs(norms / want - 1) < 2.0 ** -8 * 1.01)[there].all(),
             "a norm")


def reduced(case, over, per, tokens):
    """Scores of tokens [head, row, block, token] as the method has them."""
    there = case.there()
    if over == EACH:
        found = np.where(there, tokens, -np.inf).reshape(*tokens.shape[:2], -1)
    elif over == BEST:
        found = np.where(there, tokens, -np.inf).max(-1)
    else:
        found = np.where(there, tokens, 0).sum(-1)
    if per == HEAD:
        return found.reshape(-1, found.shape[-1])
    return found[:, 0] if per == GROUP else found[:, 0].sum(0)[None]


def check_scores(library, case, encoder, slab, matrices, bits, norms):
    spec, results = case.spec, []
    signs = 2.0 * bits.transpose(1, 0, 2, 3) - 1  # head, block, token, bit
    q = case.q.astype(np.float64).reshape(spec.num_heads, case.merged, -1,
                                          spec.head_dim)
    merged = rotated(case, matrices, q.mean(1))
    mean = rotated(case, matrices, q.mean((1, 2)))[:, None]
    clear = np.abs(merged).min() > 1e-5
    for measure, over, per in np.ndindex(2, 3, 3):
        method = Method(measure, over, per, len(case.q), case.merged)
        got = library.score(case, encoder, slab, method)
        results.append(got)
        if measure == HAMMING:
            away = (signs.shape[-1] - np.einsum(
                "hrb,hntb->hrnt", np.sign(merged), signs)) / 2
            tokens = -(away if per == HEAD else away.sum(1, keepdims=True))
            same = np.array_equal(got, reduced(case, over, per, tokens))
            must(same or not clear, f"Hamming, over {over}, per {per}")
            continue
        y = merged if per == HEAD else mean
        unit = np.abs(y).max(-1, keepdims=True) / 16
        steps = y / unit / 2  # level i is from i to i + 1
        if (np.abs(steps - np.round(steps)) < 1e-5)[np.abs(steps) < 7.9].any():
            continue  # on the edge of two levels
        level = np.clip(np.floor(steps), -8, 7) * 2 + 1
        factor = norms.transpose(1, 0, 2)[:, None] if spec.norms else 1.0
        tokens = np.einsum("hrb,hntb->hrnt", level * unit, signs) * factor
        want = reduced(case, over, per, tokens)
        finite = np.isfinite(want)
        must(np.array_equal(got[~finite], want[~finite]), "a missing token")
        size = np.abs(want[finite]).max() + 1
        must((np.abs(got[finite] - want[finite]) < 1e-4 * size).all(),
             f"estimate, over {over}, per {per}")
    return results


def check_case(library, case):
    encoder = library.encoder(case.spec, case.centers)
    matrices = []
    for part, (_, dim, num) in enumerate(case.parts):
        matrices.append(library.matrix(encoder, part, dim, num))
        want, least = directions(case.spec.seed, part, dim, num)
        must(np.abs(matrices[-1] - want).max() < 1e-4 / least, "W")
    memory, slab = library.build(case, encoder)
    bits, norms, tokens = codes_of(case, memory)
    check_codes(case, matrices, bits, norms, tokens)
    return [memory] + check_scores(library, case, encoder, slab, matrices,
                                   bits, norms)


def check_random(library, rand):
    case = Case(rand)
    try:
        return check_case(library, case)
    except Failure as failure:
        raise Failure(f"{failure}\n  {case}") from None


run(Library, "codes", 40, check_random)
