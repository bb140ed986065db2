# SPDX-License-Identifier: Apache-2.0
"""Chunks of a prompt that may be cached from wherever the same text stood
before. Nothing here knows an engine.

A prompt is cut into documents, which end with a token of the user's choice
(none: the prompt is one document), and each document into chunks of a fixed
number of tokens. A chunk is named by its tokens alone; the shorter rest of a
document has no name. So a document is found wherever it begins.

A chunk whose name is not in the store may still begin like one that this
engine has seen: those are found by their first tokens, as many as a match
needs.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
import numpy as np

from .. import position
from ..position import Chunk, ChunkConfig

SEEN_MOST = 16384  # chunks that this engine remembers


def bounds(tokens: np.ndarray, size: int,
           end_token: int) -> list[tuple[int, int]]:
    """Where chunks begin and end, in order, without gaps. end_token: -1 if
    documents have none."""
    ends = (np.flatnonzero(tokens == end_token) + 1).tolist()
    out, begin = [], 0
    for end in [*ends, len(tokens)]:
        out += [(at, min(at + size, end)) for at in range(begin, end, size)]
        begin = end
    return out


def name_of(tokens: np.ndarray, salt: str) -> bytes:
    """Of a chunk, for those who give the same salt."""
    return hashlib.sha256(salt.encode() + b"\0" + tokens.tobytes()).digest()


class Seen:
    """Whole chunks that this engine has had, by their first tokens."""

    def __init__(self, config: ChunkConfig) -> None:
        self._config = config
        self._least = max(1, math.ceil(
            config.min_match_ratio * config.chunk_tokens))
        self._chunks: OrderedDict[bytes, np.ndarray] = OrderedDict()

    def _key(self, tokens: np.ndarray, salt: str) -> bytes:
        return name_of(tokens[:self._least], salt)

    def add(self, tokens: np.ndarray, salt: str) -> None:
        self._chunks[self._key(tokens, salt)] = tokens
        if len(self._chunks) > SEEN_MOST:
            self._chunks.popitem(last=False)

    def like(self, tokens: np.ndarray, begin: int, salt: str,
             ) -> tuple[np.ndarray, Chunk] | None:
        """A chunk that the one at begin is like, and which part is."""
        source = self._chunks.get(self._key(tokens, salt))
        if not isinstance(source, np.ndarray):
            return None
        (found,) = position.find_chunks(
            self._config, tokens, [position.Source(source)], begin)
        return None if found.kind == "none" else (source, found)


def absent(begin: int, end: int) -> Chunk:
    """Tokens that are computed."""
    return Chunk(begin, end, "none", 0, 0, 0, 0)


def whole(begin: int, end: int) -> Chunk:
    """Tokens that are cached, as if the chunk were all of the prompt."""
    return Chunk(begin, end, "full", end - begin, 0, 0, begin)
