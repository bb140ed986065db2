#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""oracle_star.py LIBRARY - merged channels, their scores and votes against numpy,
on random input: a part of oracle.py, whose numbers and classes it
uses.
"""
import ctypes as C

import numpy as np

import oracle
from oracle import BLOCK, EPS, GROUP, HEAD
from ways import BF16, F16, F32, INT8, must, run
from ucmfs._c import (
    StarRequest as Request, StarSpec as Spec)

BLOCKS = 17


class Case:
    """Keys [block, token, head, channel] and queries [query, head, channel]."""

    def __init__(self, rand):
        pick = lambda *of: of[rand.integers(len(of))]  # noqa: E731
        heads, dim = pick(1, 3, 8), pick(5, 64, 128)
        size = pick(1, 16, 50, 128)
        self.ratio = pick(0.25, 0.5, 0.7, 1.0)
        self.spec = Spec(pick(F32, F16, BF16, INT8), heads, dim, size,
                         min(size, pick(1, 2, 3, 4)), 0)
        self.last = int(rand.integers(1, size + 1))
        self.group, self.queries = pick(1, 4, 7), pick(1, 3)
        keys = rand.standard_normal([BLOCKS, size, heads, dim])
        keys = (keys * rand.gamma(1, size=[heads, dim])).astype(np.float32)
        self.key_type = pick(F32, F16, BF16)
        self.words, self.keys = oracle.to_bytes(keys, self.key_type)
        self.view = oracle.Keys(self.words.ctypes.data, self.key_type, BLOCKS,
                                size * heads * dim, heads * dim, dim)
        q = rand.standard_normal([self.queries, heads * self.group, dim])
        self.q = (q / 8).astype(np.float32)
        self.scale = float(np.float32(pick(1.0, dim ** -0.5)))

    def tokens(self, i):
        return self.last if i == BLOCKS - 1 else self.spec.block_size


def choose(library, case):
    """The kept channels [head, kept], and the keys' [block, token, head, kept]."""
    spec = case.spec
    library.calls.ucm_star_kept.restype = C.c_uint32
    spec.kept = library.calls.ucm_star_kept(spec.head_dim,
                                            C.c_double(case.ratio))
    must(spec.kept == max(1, round(spec.head_dim * case.ratio)), "kept")
    channels = np.zeros((spec.num_heads, spec.kept), np.uint16)
    oracle.succeed(library.calls.ucm_star_channels(
        C.byref(spec), C.byref(case.view), None, C.c_size_t(BLOCKS),
        case.last, channels.ctypes.data_as(C.c_void_p), None), "channels")
    there = np.concatenate([case.keys[i, :case.tokens(i)]
                            for i in range(BLOCKS)])
    sizes = np.abs(there).mean(0)
    must((np.diff(channels.astype(np.int64)) > 0).all(), "not ascending")
    for head in range(spec.num_heads):
        least = sizes[head, channels[head]].min()
        rest = np.delete(sizes[head], channels[head])
        must((rest <= least * (1 + 1e-5)).all(), "a larger channel is not kept")
    spec.channels = channels.ctypes.data
    return channels, np.take_along_axis(
        case.keys, channels[None, None].astype(np.int64), 3)


def build(library, case):
    library.calls.ucm_star_bytes.restype = C.c_size_t
    size = library.calls.ucm_star_bytes(C.byref(case.spec))
    memory = np.full((BLOCKS, size), 0xa5, np.uint8)
    slab = oracle.Slab(memory.ctypes.data, BLOCKS, size)
    oracle.succeed(library.calls.ucm_star_build(
        C.byref(case.spec), C.byref(case.view), None,
        C.c_size_t(BLOCKS), case.last, C.byref(slab), None, None), "build")
    return memory, slab


def check_stored(case, memory, kept):
    """Returns what is stored: [block][head, kept, group]."""
    spec = case.spec
    groups = -(-spec.block_size // spec.merge_tokens)
    lanes = -(-groups // 16) * 16
    item = oracle.item_bytes(spec.dtype)
    size = spec.num_heads * spec.kept * lanes * item
    values = []
    for i in range(BLOCKS):
        parts = np.split(kept[i, :case.tokens(i)],
                         range(spec.merge_tokens, case.tokens(i),
                               spec.merge_tokens))
        want = np.stack([part.mean(0) for part in parts], 2)
        slack = np.stack([np.abs(part).sum(0) for part in parts], 2) * EPS
        got = oracle.from_bytes(memory[i, :size], spec.dtype)
        got = got.reshape(spec.num_heads, spec.kept, lanes)
        at, scale = size, 0
        if spec.dtype == INT8:
            at += spec.num_heads * lanes * 4
            scale = memory[i, size:at].view(np.float32).astype(np.float64)
            scale = scale.reshape(spec.num_heads, 1, lanes)
            got = got * scale
            scale = scale[..., :len(parts)]
        must(memory[i, at:at + 4].view(np.uint32)[0] == len(parts),
             "the number of groups")
        must((got[..., len(parts):] == 0).all(), "a group that is not there")
        got = got[..., :len(parts)]
        unit = {F32: EPS * abs(want), BF16: 2.0 ** -8 * abs(want),
                F16: 2.0 ** -11 * abs(want) + 2.0 ** -25,
                INT8: 0.501 * scale + 0 * want}[spec.dtype]
        must((abs(got - want) <= (unit + slack) * 1.01).all(), "a mean is off")
        values.append(got)
    return values


def score(library, case, slab, per, weigh):
    heads = case.spec.num_heads * case.group
    rows = {HEAD: case.queries * heads, GROUP: case.spec.num_heads,
            BLOCK: 1}[per]
    queries = (oracle.Query * case.queries)(*(
        oracle.Query(q.ctypes.data, F32, heads, case.spec.head_dim)
        for q in case.q))
    prepared = np.zeros(case.queries * heads * case.spec.kept, np.float32)
    oracle.succeed(library.calls.ucm_star_query_prepare(
        C.byref(case.spec), queries, case.queries,
        prepared.ctypes.data_as(C.c_void_p), None), "prepare")
    scores = np.zeros((rows, BLOCKS), np.float32)
    weights = np.zeros((rows, BLOCKS), np.float32)
    request = Request(prepared.ctypes.data, case.queries, heads, per,
                      C.pointer(slab), None, 0, BLOCKS, scores.ctypes.data,
                      weights.ctypes.data if weigh else None, BLOCKS,
                      case.scale)
    oracle.succeed(library.calls.ucm_star_score(
        C.byref(case.spec), C.byref(request), C.c_size_t(1),
        None), "score")
    return scores, weights


def check_case(library, case):
    spec = case.spec
    channels, kept = choose(library, case)
    memory, slab = build(library, case)
    values = check_stored(case, memory, kept)
    q = case.q.astype(np.float64).reshape(case.queries, spec.num_heads,
                                          case.group, spec.head_dim)
    q = np.take_along_axis(q, channels[None, :, None].astype(np.int64), 3)
    logits = [np.einsum("xhgc,hcm->xhgm", q, value) for value in values]
    off = (spec.kept + 4) * EPS * max(
        np.einsum("xhgc,hcm->xhgm", abs(q), abs(value)).max()
        for value in values)
    most = np.stack([block.max(3) for block in logits], 3)

    by_head, weights = score(library, case, slab, HEAD, True)
    rows = most.reshape(-1, BLOCKS)
    must((abs(by_head - rows) <= off).all(), "a largest product")
    by_group, _ = score(library, case, slab, GROUP, False)
    must((abs(by_group - most.mean((0, 2))) <= off * 2 + 1e-6).all(), "group")
    by_block, _ = score(library, case, slab, BLOCK, False)
    must((abs(by_block - most.mean((0, 2)).sum(0))
          <= (off * 2 + 1e-6) * spec.num_heads).all(), "block")

    votes = np.zeros(BLOCKS, np.float32)
    used = weights.copy()
    oracle.succeed(library.calls.ucm_star_vote(
        by_head.ctypes.data_as(C.c_void_p),
        used.ctypes.data_as(C.c_void_p), C.c_size_t(len(rows)),
        C.c_size_t(BLOCKS), C.c_size_t(BLOCKS), C.c_float(case.scale),
        votes.ctypes.data_as(C.c_void_p), None), "vote")
    top = most.max(3)[..., None]
    shares = np.stack([np.exp(case.scale * (block - top)).sum(3)
                       for block in logits], 3)
    shares /= shares.sum(3)[..., None]
    want = shares.sum((0, 1, 2))
    must((abs(votes - want) <= want * (1e-4 + 8 * case.scale * off)).all(),
         "a vote")
    must(abs(votes.astype(np.float64).sum() - len(rows)) < 1e-4 * len(rows),
         "all votes")
    if case.ratio == 1 and spec.merge_tokens == 1 and spec.dtype == F32:
        check_exact(case, by_head, off)
    return memory, by_head, by_group, by_block, weights, votes


def check_exact(case, by_head, off):
    """With all channels and tokens: the largest q.k."""
    spec = case.spec
    q = case.q.astype(np.float64).reshape(case.queries, spec.num_heads,
                                          case.group, spec.head_dim)
    for i in range(BLOCKS):
        exact = np.einsum("xhgc,thc->xhgt", q, case.keys[i, :case.tokens(i)])
        must((abs(exact.max(3).ravel() - by_head[:, i]) <= off).all(),
             "not the largest q.k")


def check_channels(library, rand):
    return check_case(library, Case(rand))


run(oracle.Library, "merged channels", 100, check_channels)
