# SPDX-License-Identifier: Apache-2.0
"""Keys and values in the KV cache of vLLM's backend for CPUs.

Where its kernel puts a channel of a token differs by processor. So it is
learnt: the kernel writes numbers into a page of ours.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from ..errors import ConfigError


def order_of(write: Callable[..., None], heads: int, tokens: int,
             channels: int, dtype: torch.dtype, *,
             values: bool = False) -> torch.Tensor | None:
    """Where the kernel keeps channel c of token t in a half of a head's part
    of a page, the first for keys and the second for values:
    order[t * channels + c]. None: it is no order."""
    num, base = tokens * channels, 128  # exact in all dtypes
    numbers = torch.arange(num)
    found = torch.zeros(heads, num, dtype=torch.int64)
    for power in (1, base, base ** 2):
        given = (numbers // power % base).to(dtype).view(tokens, 1, channels)
        given = given.expand(-1, heads, -1).contiguous()
        both = torch.zeros_like(given), given
        cache = torch.zeros(1, heads, tokens, 2 * channels, dtype=dtype)
        write(*(both if values else reversed(both)), cache, numbers[:tokens])
        half = cache.view(heads, 2, num)[:, int(values)]
        found += power * half.long()
    order = found[0].argsort()
    return order if torch.equal(found[:, order], numbers.expand(heads, -1)) \
        else None


class CpuCache:
    """Of a layer: vLLM's Attention, whose cache is there."""

    def __init__(self, layer: Any, page_tokens: int) -> None:
        self.layer = layer
        self.page_tokens = page_tokens
        cache = layer.kv_cache
        _, heads, tokens, width = cache.shape
        if tokens != page_tokens:
            raise ConfigError("block_size", f"pages of {tokens} tokens, and "
                              f"blocks of {page_tokens}")
        orders = _orders(layer, heads, tokens, width // 2, cache.dtype)
        if not all(isinstance(order, torch.Tensor) for order in orders):
            raise ConfigError("kv_caches", f"layer {layer.layer_name}: the "
                              "kernel's order could not be learnt")
        self._orders = orders

    def write(self, key: torch.Tensor, value: torch.Tensor,
              slots: torch.Tensor) -> None:
        """[token, head, channel] each; slot s is token s % page_tokens of page
        s // page_tokens."""
        self.layer.impl.do_kv_cache_update(
            self.layer, key, value, self.layer.kv_cache, slots)

    def keys(self, slots: torch.Tensor) -> torch.Tensor:
        return self._read(slots, 0)

    def values(self, slots: torch.Tensor) -> torch.Tensor:
        return self._read(slots, 1)

    def _read(self, slots: torch.Tensor, half: int) -> torch.Tensor:
        """[token, head, channel]"""
        size = self.page_tokens
        pages, which = (slots // size).unique(return_inverse=True)
        found = self.layer.kv_cache[pages].flatten(2)
        num = found.shape[2] // 2
        ours = found[:, :, self._orders[half] + half * num]
        return ours.unflatten(2, (size, -1))[which, :, slots % size]


_known: dict[Any, tuple[Any, Any]] = {}


def _orders(layer: Any, heads: int, tokens: int, channels: int,
            dtype: torch.dtype) -> tuple[Any, Any]:
    """Of keys and of values; layers of one shape have the same."""
    shape = (type(layer.impl), getattr(layer, "isa", ""), heads, tokens,
             channels, dtype)
    if shape not in _known:
        write = functools.partial(layer.impl.do_kv_cache_update, layer)
        _known[shape] = tuple(order_of(write, *shape[2:], values=values)
                              for values in (False, True))
    return _known[shape]
