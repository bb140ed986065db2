#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""oracle_position.py LIBRARY - <ucm/position.h> against numpy, on random input.

Formulas a second time, from ucm_position(3) and the papers it names, in float64 and
with nothing of ours but the structs. LIBRARY: see oracle.py.
"""
import ctypes as C
import math

import numpy as np

from ways import BF16, F16, F32, Way, must, of_words, run, succeed, to_words
from ucmfs._c import (
    Attention, DeviationRequest as Deviation, KeyRoom as Room, Keys, Query,
    Rerope, Rope, ShiftRequest as Shift)

NEOX, GPTJ = range(2)
NONE, LINEAR, YARN, LLAMA3 = range(4)


# ---- numbers ----

def unit(values, dtype):
    """By how much rounding may be off."""
    size = np.abs(values)
    return {F32: size * 2.0 ** -24, F16: size * 2.0 ** -11 + 2.0 ** -25,
            BF16: size * 2.0 ** -8}[dtype]


# ---- rotations ----

def frequencies(rope):
    dim = rope.rotary_dim or rope.head_dim
    wide_ = np.longdouble(rope.base) ** (
        -np.arange(0, dim, 2, dtype=np.longdouble) / dim)
    if rope.scaling == LINEAR:
        return wide_ / rope.factor
    if rope.scaling == YARN:
        def pair(turns):
            return dim / 2 * math.log(rope.original_length / 2 / math.pi
                                      / turns) / math.log(rope.base)
        low = max(math.floor(pair(rope.beta_fast or 32)), 0)
        high = min(math.ceil(pair(rope.beta_slow or 1)), dim - 1)
        high += .001 if low == high else 0
        keep = 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
        return wide_ * keep + wide_ / rope.factor * (1 - keep)
    if rope.scaling == LLAMA3:
        low, high = rope.low_freq_factor or 1, rope.high_freq_factor or 4
        waves = 2 * np.pi / wide_.astype(np.float64)
        keep = (rope.original_length / waves - low) / (high - low)
        keep = np.where(waves > rope.original_length / low, 0,
                        np.where(waves < rope.original_length / high, 1,
                                 keep))
        return wide_ * keep + wide_ / rope.factor * (1 - keep)
    return wide_


def rotate(x, positions, rope, factor=1.0):
    """x[..., token, head, channel] by positions[..., token]."""
    dim = rope.rotary_dim or rope.head_dim
    angles = np.asarray(positions, np.longdouble)[..., None] * frequencies(rope)
    angles = np.remainder(angles, 2 * np.longdouble(
        "3.14159265358979323846264338327950288")).astype(np.float64)
    cos = factor * np.cos(angles)[..., None, :]
    sin = factor * np.sin(angles)[..., None, :]
    half = dim // 2
    one, two = ((slice(0, half), slice(half, dim)) if rope.pairing == NEOX
                else (slice(0, dim, 2), slice(1, dim, 2)))
    out = x.copy()
    out[..., one] = x[..., one] * cos - x[..., two] * sin
    out[..., two] = x[..., two] * cos + x[..., one] * sin
    return out


def attention_factor(rope):
    if rope.scaling != YARN:
        return 1.0
    return rope.attention_factor or .1 * math.log(rope.factor) + 1


def random_rope(rand, dims=(2, 48, 64, 80, 128)):
    pick = lambda *of: of[rand.integers(len(of))]  # noqa: E731
    dim = pick(*dims)
    rotary = pick(0, 0, 2 * int(rand.integers(1, dim // 2 + 1)))
    scaling = int(rand.integers(4))
    return Rope(int(rand.integers(2)), scaling, dim, rotary,
                pick(1e4, 5e5, 1e6), pick(1, 4, 32), pick(2048, 8192, 32768),
                *pick((0, 0), (32, 1), (16, 2)), *pick((0, 0), (1, 4)),
                pick(0, 1, 1.25))


class Cache:
    """Random rows [block, token, head, channel], in memory of any order."""

    def __init__(self, rand, dtype, blocks, size, heads, dim):
        order = [0, 1, 2] if rand.integers(2) else [0, 2, 1]
        shape = np.array([blocks, size, heads])
        words = to_words(rand.standard_normal(
            [*shape[order], dim + int(rand.integers(3))]), dtype)
        self.words, self.dtype, self.dim = words, dtype, dim
        self.undo = [*np.argsort(order), 3]
        steps = np.array(words.strides)[:3] // words.itemsize
        self.strides = [int(steps[i]) for i in self.undo[:3]]
        self.blocks = blocks

    def values(self):
        return of_words(self.words, self.dtype).transpose(
            self.undo)[..., :self.dim]

    def keys(self):
        return Keys(self.words.ctypes.data, self.dtype, self.blocks,
                    *self.strides)

    def room(self):
        return Room(self.words.ctypes.data, self.blocks, *self.strides)


def pointer(array):
    return array.ctypes.data_as(C.c_void_p)


class Library(Way):
    def __init__(self, path, way):
        super().__init__(path, way)
        for name in ("ucm_attention_floats", "ucm_rerope_floats"):
            getattr(self.calls, name).restype = C.c_size_t


def check_shift(library, rand):
    """Keys that move; returns what has been written."""
    rope = random_rope(rand)
    dtype = (F32, F16, BF16)[rand.integers(3)]
    size, heads = int(rand.integers(1, 20)), int(rand.integers(1, 5))
    num = int(rand.integers(1, 6))
    shape = (num + 2, size, heads, rope.head_dim)
    source, target = (Cache(rand, dtype, *shape) for _ in range(2))
    places = [rand.permutation(num + 2)[:num].astype(np.int32)
              for _ in range(2)]
    most = 2 ** int(rand.integers(1, 21))
    per_token, unrotated = (int(n) for n in rand.integers(2, size=2))
    last = int(rand.integers(1, size + 1))
    deltas = rand.integers(-most, most, num * size if per_token
                           else num).astype(np.int32)
    every = deltas.reshape(num, size) if per_token else \
        np.repeat(deltas[:, None], size, 1)

    values, before = source.values()[places[0]], target.values().copy()
    factor = attention_factor(rope) if unrotated else 1
    want = rotate(values, every, rope, factor)
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    off = 1.01 * (unit(want, dtype) + 2.0 ** -21 * factor * lengths)
    request = Shift(source.keys(), target.room(), places[0].ctypes.data,
                    places[1].ctypes.data, num, heads, size, last,
                    deltas.ctypes.data, per_token, unrotated, 0)
    succeed(library.calls.ucm_rope_shift(
        C.byref(rope), C.byref(request), None), "shift")
    got = target.values()
    for i, place in enumerate(places[1]):
        tokens = last if i == num - 1 else size
        must((np.abs(got[place, :tokens] - want[i, :tokens])
              <= off[i, :tokens]).all(), "a key that has moved")
        must((got[place, tokens:] == before[place, tokens:]).all(),
             "a token beyond the last")
        before[place] = got[place]
    must((got == before).all(), "another block was written")
    return target.words


def check_deviation(library, rand):
    """A layer's keys and values, cached and fresh; returns the deviations."""
    size, heads = int(rand.integers(1, 20)), int(rand.integers(1, 5))
    blocks, dim = int(rand.integers(1, 6)), int(rand.integers(1, 200))
    tokens = (blocks - 1) * size + int(rand.integers(1, size + 1))
    types = [(F32, F16, BF16)[i] for i in rand.integers(3, size=2)]
    cached = [Cache(rand, types[0], blocks, size, heads, dim)
              for _ in range(2)]
    fresh = [Cache(rand, types[1], 1, tokens, heads, dim) for _ in range(2)]
    table = rand.permutation(blocks).astype(np.int32)
    both, relative = (int(n) for n in rand.integers(2, size=2))
    none = Keys()
    request = Deviation(cached[0].keys(), fresh[0].keys(),
                        cached[1].keys() if both else none,
                        fresh[1].keys() if both else none,
                        table.ctypes.data, tokens, heads, dim, size, relative)
    got = np.zeros(tokens, np.float32)
    succeed(library.calls.ucm_kv_deviation(
        C.byref(request), pointer(got), None), "deviation")
    want, whole = np.zeros(tokens), np.zeros(tokens)
    for i in range(1 + both):
        old = cached[i].values()[table].reshape(-1, heads, dim)[:tokens]
        new = fresh[i].values()[0]
        want += np.abs(old - new).sum((1, 2))
        whole += np.abs(new).sum((1, 2))
    want = want / whole if relative else want
    must((np.abs(got - want) <= 4 * heads * dim * 2.0 ** -24 * want).all(),
         "a deviation")
    return got


def check_hkvd(library, rand):
    """By torch.quantile's definition, which is numpy's; returns the tokens."""
    num = int(rand.integers(1, 500))
    scores = np.abs(rand.standard_normal(num)).astype(np.float32)
    if rand.integers(2):
        scores = np.round(scores * 4)
    ratio, results = float(rand.random()), []
    order = np.lexsort((np.arange(num), -scores.astype(np.float64)))
    best = int(num * ratio)
    above = order[scores[order] >= np.quantile(scores.astype(np.float64),
                                               1 - ratio)]
    wants = [order[:best], np.flatnonzero(scores >= ratio), above[:best]]
    for rule, want in enumerate(wants):
        out, count = np.zeros(num, np.uint32), C.c_uint32()
        succeed(library.calls.ucm_hkvd_select(
            pointer(scores), num, rule, C.c_double(ratio),
            pointer(out), C.c_size_t(num), C.byref(count), None), "hkvd")
        must(np.array_equal(out[:count.value], np.sort(want)), f"rule {rule}")
        results.append(out[:count.value])
    return np.concatenate(results)


def softmax_sum(products, values):
    """products [head, token], values [token, head, channel]"""
    most = products.max(1, keepdims=True)
    weights = np.exp(products - most)
    out = np.einsum("ht,thc->hc", weights, values)
    total = weights.sum(1, keepdims=True)
    return out / total, (most + np.log(total))[:, 0]


class Scene:
    """A model's raw queries and keys, and what an engine keeps of them."""

    def __init__(self, rand):
        pick = lambda *of: of[rand.integers(len(of))]  # noqa: E731
        self.rope = random_rope(rand)
        dim, size = self.rope.head_dim, int(rand.integers(1, 40))
        heads, group = int(rand.integers(1, 4)), pick(1, 4, 7)
        blocks = int(rand.integers(1, 8))
        self.tokens = (blocks - 1) * size + int(rand.integers(1, size + 1))
        step = int(rand.integers(1, 400))
        self.selected = (np.arange(blocks) * step
                         + int(rand.integers(9))).astype(np.uint32)
        last = int(self.selected[-1]) * size + self.tokens - 1 \
            - (blocks - 1) * size
        self.position = last + int(rand.integers(3))
        self.keys, self.values = (Cache(rand, pick(F32, F16, BF16), blocks + 2,
                                        size, heads, dim) for _ in range(2))
        self.table = rand.permutation(blocks + 2)[:blocks].astype(np.int32)
        self.raw = rand.standard_normal((1, heads * group, dim))
        self.query = to_words(rotate(self.raw, [self.position], self.rope)[0]
                            .astype(np.float32), F32)
        self.scale = pick(0, .05)
        self.rerope = Rerope(self.rope, int(rand.integers(
            1, self.position + 3)), pick(0, int(rand.integers(2, 999))))
        self.attention = Attention(
            Query(self.query.ctypes.data, F32, heads * group, dim),
            self.keys.keys(), self.values.keys(), self.table.ctypes.data,
            self.tokens, heads, dim, 0, size, self.scale, self.position,
            self.selected.ctypes.data)
        self.size, self.group = size, group

    def rows(self, cache):
        """[token, query head, channel]"""
        rows = cache.values()[self.table]
        rows = rows.reshape(-1, *rows.shape[2:])[:self.tokens]
        return np.repeat(rows, self.group, 1)

    def positions(self):
        first = self.selected.astype(np.int64)[:, None] * self.size
        return (first + np.arange(self.size)).ravel()[:self.tokens]

    def want(self, with_rerope):
        """What comes out, from raw queries and keys."""
        keys, where = self.rows(self.keys), self.positions()
        scale = self.scale or self.rope.head_dim ** -.5
        far = np.zeros(self.tokens, bool)
        if with_rerope:
            far = self.position - where >= self.rerope.window
            if self.rerope.training_length:
                scale *= max(1, math.log(self.position + 1)
                             / math.log(self.rerope.training_length))
        near = np.einsum("hc,thc->ht", self.query.astype(np.float64), keys)
        query = rotate(self.raw, [self.rerope.window], self.rope)[0]
        raw = rotate(keys, -where, self.rope)
        products = np.where(far, np.einsum("hc,thc->ht", query, raw), near)
        return softmax_sum(products * scale, self.rows(self.values))


def check_attention(library, rand):
    """With ReRoPE and without; returns what the fast way has computed."""
    scene, results = Scene(rand), []
    calls, attention = library.calls, C.byref(scene.attention)
    heads, dim = scene.query.shape
    work = np.full(calls.ucm_attention_floats(attention), np.nan, np.float32)
    angles = np.full(calls.ucm_rerope_floats(C.byref(scene.rerope),
                                             scene.size), np.nan, np.float32)
    succeed(calls.ucm_rerope_prepare(C.byref(scene.rerope), scene.size,
                                     pointer(angles), None), "prepare")
    for with_rerope in (False, True):
        want, want_lse = scene.want(with_rerope)
        out, lse = np.zeros((heads, dim)), np.zeros(heads)
        fast = np.zeros((heads, dim), np.float32)
        fast_lse = np.zeros(heads, np.float32)
        to, fast_to = [(pointer(a), pointer(b), None)
                       for a, b in ((out, lse), (fast, fast_lse))]
        rerope = [C.byref(scene.rerope)] if with_rerope else []
        name = "ucm_rerope" if with_rerope else "ucm_attention"
        succeed(getattr(calls, name + "_reference")(*rerope, attention, *to),
                name)
        succeed(getattr(calls, name + "_decode")(
            *rerope, *([pointer(angles)] * with_rerope), attention,
            pointer(work), *fast_to), name + "_decode")
        # the query has been rounded once more than here
        for got, off in (((out, lse), 2e-5), ((fast, fast_lse), 1e-4)):
            must((np.abs(got[0] - want) <= off).all(), f"{name}: {off}")
            must((np.abs(got[1] - want_lse) <= off).all(), f"{name}: lse")
        results += [fast.ravel(), fast_lse]
    return np.concatenate(results)


CHECKS = [check_shift, check_deviation, check_hkvd, check_attention]


run(Library, "positions", 150, *CHECKS)
