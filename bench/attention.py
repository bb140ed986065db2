#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What does a token cost in a layer, sparse and dense, on vLLM's CPU kernels?

usage: $UCMFS_ENGINES_VENV/bin/python bench/attention.py [--rounds N]
           [--tokens LIST] [--rows N] [--ratio R] [--dtype TYPE] [--quick]

A decode step of --rows (1) requests in one layer: 32 heads of 128 over 8 key
heads, pages of 128 tokens, of --tokens (8192,32768,131072) each. Dense is
vLLM's kernel over all pages. Sparse is what ucmfs.vllm.sparse does in its
place: the choice among the pages, the kernel's schedule for what was chosen,
and the kernel. Sides take turns on the same cache, the first round is dropped,
and what is printed are the medians in microseconds, and the median of the
rounds' ratios, dense over sparse.

PYTHONPATH and UCMFS_LIBRARY say where ucmfs is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable

import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from ucmfs import methods
from ucmfs.vllm.sparse_pages import Pages, Step, select_rows

HEADS, KEY_HEADS, DIM, PAGE = 32, 8, 128, 128
METHODS = ("ESA:sparse_ratio={ratio}", "GSA:topk_ratio={ratio}",
           "GSA:topk_ratio={ratio},pooling=minmax",
           "GSAOnDevice:hash_topk_tokens={tokens}",
           "KVStar:sparse_ratio={ratio}")


class Layer:
    """A cache of random keys and values, and a step's rows."""

    def __init__(self, tokens: int, rows: int, dtype: torch.dtype) -> None:
        self.tokens, self.dtype = tokens, dtype
        per_row = -(-tokens // PAGE)
        self.num_pages = rows * per_row
        self.isa = _get_attn_isa(dtype, PAGE, DIM)
        cache = torch.zeros(self.num_pages, KEY_HEADS, 2 * PAGE, DIM,
                            dtype=dtype)
        self.keys, self.values = cache.chunk(2, dim=2)
        self.table = torch.randperm(self.num_pages).to(torch.int32).view(
            rows, per_row)
        self.lengths = torch.full((rows,), tokens, dtype=torch.int32)
        self.query = torch.randn(rows, HEADS, DIM).to(dtype)
        self.first = torch.arange(rows + 1, dtype=torch.int32)
        self.output = torch.empty_like(self.query)

    def write(self, pages: list[Pages]) -> None:
        for page in range(self.num_pages):
            key, value = torch.randn(2, PAGE, KEY_HEADS, DIM).to(self.dtype)
            slots = torch.arange(page * PAGE, (page + 1) * PAGE)
            ops.cpu_attn_reshape_and_cache(key, value, self.keys, self.values,
                                           slots, self.isa)
            for each in pages:
                each.written(key, slots)

    def schedule(self, lengths: torch.Tensor) -> torch.Tensor:
        return ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(lengths), num_heads=HEADS, num_kv_heads=KEY_HEADS,
            head_dim=DIM, seq_lens=lengths, dtype=self.dtype,
            query_start_loc=self.first, causal=True, sliding_window_size=-1,
            isa=self.isa, enable_kv_split=True)

    def attend(self, table: torch.Tensor, lengths: torch.Tensor,
               schedule: torch.Tensor) -> None:
        ops.cpu_attention_with_kv_cache(
            query=self.query, key_cache=self.keys, value_cache=self.values,
            output=self.output, query_start_loc=self.first, seq_lens=lengths,
            scale=DIM ** -0.5, causal=True, alibi_slopes=None,
            sliding_window=-1, block_table=table, softcap=0,
            scheduler_metadata=schedule, s_aux=None)

    def sides(self, pages: Pages, step: Step) -> tuple[Callable[[], Any],
                                                       Callable[[], Any]]:
        dense = self.schedule(self.lengths)  # one for all layers of a step

        def sparse() -> None:
            select_rows(pages, step, self.query)
            self.attend(step.attended, step.tokens,
                        self.schedule(step.tokens))

        return lambda: self.attend(self.table, self.lengths, dense), sparse


def measure(sides: tuple[Callable[[], Any], ...], rounds: int,
            ) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for side in ((0, 1), (1, 0))[number % 2]:
            began = time.perf_counter()
            sides[side]()
            if number:
                times[side].append(1e6 * (time.perf_counter() - began))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--tokens", default="8192,32768,131072")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--ratio", type=float, default=0.1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.tokens = 1, "2048"
    dtype = getattr(torch, arguments.dtype)
    model = methods.Model(KEY_HEADS, HEADS, DIM)
    print("tokens\tmethod\tattended\tdense us\tsparse us\tdense/sparse")
    for tokens in map(int, arguments.tokens.split(",")):
        layer = Layer(tokens, arguments.rows, dtype)
        named = {}
        for text in METHODS:
            text = text.format(ratio=arguments.ratio,
                               tokens=max(int(tokens * arguments.ratio), 1024))
            config = methods.parse(text, block_size=PAGE, num_layers=1)
            by, method = config.by(model)
            named[text] = Pages(text, by, layer.num_pages, config.budget,
                                None, method=method)
        layer.write(list(named.values()))
        for text, pages in named.items():
            step = Step(range(arguments.rows), layer.table, layer.lengths, PAGE)
            times = measure(layer.sides(pages, step), arguments.rounds)
            ratio = statistics.median(d / s for d, s in zip(*times))
            print(tokens, text, int(step.tokens.sum()) // arguments.rows,
                  *(round(statistics.median(t)) for t in times),
                  round(ratio, 2), sep="\t", flush=True)


main()
