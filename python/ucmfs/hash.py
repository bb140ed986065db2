# SPDX-License-Identifier: Apache-2.0
"""What a block is called: token ids in, block ids out; see ucm_hash(3)."""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, NamedTuple, Sequence

from . import _c, _lib, _pack
from ._handle import Handle
from .errors import InvalidArgument
from .layout import _number_of


class Item(NamedTuple):
    """A multimodal item: 32 bytes of hash of its content, its first token
    counted in the request, and how many tokens it stands for."""

    hash: bytes
    position: int
    length: int


class HashState:
    """How far a request has been hashed; of Hasher.start() or resume().

    tokens: in whole blocks so far. parent: rank 0's id of the last one.
    """

    __slots__ = ("_c",)

    def __init__(self, state: _c.HashState) -> None:
        self._c = state

    @property
    def tokens(self) -> int:
        return self._c.tokens

    @property
    def parent(self) -> bytes:
        return bytes(self._c.parent)

    def copy(self) -> HashState:
        return HashState(_c.HashState.from_buffer_copy(self._c))


class _Extras:
    """struct ucm_hash_extras and what it points to."""

    def __init__(self, salt: str | None, lora: str | None,
                 lora_digest: bytes | None,
                 items: Sequence[Item] | None) -> None:
        if lora_digest is not None and len(lora_digest) != 32:
            raise InvalidArgument("hash: lora_digest has not 32 bytes")
        self.any = bool(salt or lora or lora_digest or items)
        self.items = (_c.HashItem * len(items or ()))(
            *(_item(i) for i in items or ()))
        self.c = _c.HashExtras(salt=_lib.text_bytes(salt, "hash: salt"),
                               lora=_lib.text_bytes(lora, "hash: lora"),
                               lora_digest=lora_digest, items=self.items,
                               num_items=len(self.items))


def _item(item: tuple[bytes, int, int]) -> _c.HashItem:
    digest, position, length = item
    if len(digest) != 32:
        raise InvalidArgument("hash: an item is 32 bytes of hash, a position "
                              "and a length")
    return _pack.fill(_c.HashItem((ctypes.c_uint8 * 32)(*digest)),
                      "hash: item", {"position": position, "length": length})


class Hasher(Handle):
    """A scheme, and what all requests have in common. Any thread.

    scheme: "ucm", "ucm2", "chain", "prefix", "hexchain", "sha256" or
    "external". block_size in tokens. model and dtype as the engine has them;
    world_size ranks share the model, and ids are rank's; mla: all ranks share
    rank 0's. tail: for ucm2, what UCM's meta has after the rank.
    space_id: 32 bytes, for external. salt, lora, lora_digest (32 bytes) and
    items: for sha256, of requests that have none of their own.
    """

    _CLOSE = "ucm_hasher_close"

    def __init__(self, scheme: str, *, block_size: int, model: str = "",
                 dtype: str = "", world_size: int = 1, rank: int = 0,
                 mla: bool = False, tail: str = "",
                 space_id: bytes | None = None,
                 salt: str | None = None, lora: str | None = None,
                 lora_digest: bytes | None = None,
                 items: Sequence[Item] | None = None) -> None:
        if space_id is not None and len(space_id) != 32:
            raise InvalidArgument("hash: space_id has not 32 bytes")
        extras = _Extras(salt, lora, lora_digest, items)
        super().__init__(f"hash {scheme}")
        self.scheme = scheme
        self.block_size = block_size
        meta = _pack.fill(_c.HashMeta(
            scheme=_number_of("scheme", scheme, _c.SCHEME),
            mla=bool(mla), model=_lib.text_bytes(model, "hash: model"),
            dtype=_lib.text_bytes(dtype, "hash: dtype"),
            tail=_lib.text_bytes(tail, "hash: tail"), space_id=space_id,
            extras=extras.c), "hash", {"block_size": block_size,
                                       "world_size": world_size, "rank": rank})
        _lib.call(self._lib.ucm_hasher_open, self._what, meta, self._handle)

    def count(self, num_tokens: int, partial: bool = False) -> int:
        """Ids that a request of so many tokens has."""
        return self._lib.ucm_hash_count(
            self._open(), _pack.u64("hash", "num_tokens", num_tokens),
            _c.UCM_HASH_PARTIAL if partial else 0)

    def request(self, tokens: _pack.Numbers, *, partial: bool = False,
                state: HashState | None = None, salt: str | None = None,
                lora: str | None = None, lora_digest: bytes | None = None,
                items: Sequence[Item] | None = None) -> bytes:
        """The ids of a request's whole blocks, 16 bytes each.

        tokens: integers, best a buffer of int64. partial: also an id for the
        tokens after the last whole block. state: tokens follow the state's,
        which is moved on by the whole blocks. salt and the others replace the
        hasher's, all of them, where one is given. InvalidArgument: a token
        out of range, or what the scheme cannot express.
        """
        extras = _Extras(salt, lora, lora_digest, items)
        one = self._prepare(tokens, partial, extras, state)
        _lib.call(self._lib.ucm_hash_request, self._what, self._open(), one[0])
        return one[1].tobytes()

    def batch(self, requests: Sequence[_pack.Numbers], *,
              partial: bool = False,
              states: Sequence[HashState] | None = None) -> list[bytes]:
        """request() for many, several times as fast with the MD5 schemes."""
        num = len(requests)
        if states is not None and len(states) != num:
            raise InvalidArgument(f"hash: {len(states)} states for {num} "
                                  "requests")
        parts = [self._prepare(tokens, partial, None,
                               states[i] if states else None)
                 for i, tokens in enumerate(requests)]
        many = (_c.HashRequest * num)(*(part[0] for part in parts))
        _lib.call(self._lib.ucm_hash_batch, self._what, self._open(), many,
                  num)
        return [part[1].tobytes() for part in parts]

    def _prepare(self, tokens: _pack.Numbers, partial: bool,
                 extras: _Extras | None, state: HashState | None,
                 ) -> tuple[_c.HashRequest, array, Any]:
        """A request, where its ids go, and what it points to."""
        numbers = _pack.pack_numbers(tokens, "q", "tokens")
        num = len(numbers)
        ids = array("B", bytes(16 * self.count(num, partial)))
        out = _c.HashRequest(tokens=_pack.address_of(numbers), num_tokens=num,
                             flags=_c.UCM_HASH_PARTIAL if partial else 0,
                             ids=_pack.address_of(ids), room=len(ids) // 16)
        if extras is not None and extras.any:
            out.extras = ctypes.pointer(extras.c)
        if state is not None:
            out.state = ctypes.pointer(state._c)
        return out, ids, (numbers, extras, state)

    def start(self, *, salt: str | None = None, lora: str | None = None,
              lora_digest: bytes | None = None,
              items: Sequence[Item] | None = None) -> HashState:
        """The state before a request's first token."""
        extras = _Extras(salt, lora, lora_digest, items)
        out = _c.HashState()
        _lib.call(self._lib.ucm_hash_start, self._what, self._open(),
                  extras.c if extras.any else None, out)
        return HashState(out)

    def resume(self, parent: bytes, tokens: int) -> HashState:
        """The state after a block that is known by its id (rank 0's) and
        the tokens of the request up to its end."""
        out = _c.HashState()
        self._check(self._lib.ucm_hash_resume(
            self._open(), _pack.pack_ids([parent], "parent"),
            _pack.u64("hash", "tokens", tokens), out))
        return HashState(out)

    def rank_ids(self, rank: int, ids0: _pack.Ids) -> bytes:
        """Ids of another rank from rank 0's."""
        packed = _pack.pack_ids(ids0)
        out = ctypes.create_string_buffer(len(packed) or 1)
        self._check(self._lib.ucm_hash_rank_ids(
            self._open(), _pack.u32("hash", "rank", rank), packed,
            len(packed) // 16, out))
        return out.raw[:len(packed)]

    def external(self, hashes: bytes, hash_bytes: int,
                 group: int = 0) -> bytes:
        """Ids from an engine's hashes of hash_bytes (16 or 32) each, one
        after the other; group: the KV cache group."""
        packed = bytes(memoryview(hashes))
        if hash_bytes not in (16, 32) or len(packed) % hash_bytes:
            raise InvalidArgument(
                f"hash: {len(packed)} bytes are no hashes of {hash_bytes}; "
                "16 or 32 each are")
        num = len(packed) // hash_bytes
        out = ctypes.create_string_buffer(16 * num or 1)
        self._check(self._lib.ucm_hash_external(
            self._open(), _pack.u32("hash", "group", group), packed,
            hash_bytes, num, out))
        return out.raw[:16 * num]


def crc32c(data: Any, crc: int = 0) -> int:
    """CRC32C of a buffer; crc: that of what comes before."""
    packed = data if isinstance(data, bytes) else bytes(memoryview(data))
    return _lib.lib().ucm_crc32c(_pack.u32("crc32c", "crc", crc), packed,
                                 len(packed))
