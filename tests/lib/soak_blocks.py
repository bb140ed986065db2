# SPDX-License-Identifier: Apache-2.0
"""soak_blocks.py - blocks whose names and bytes follow from a number.

Tens of thousands are written and compared, so their checksums are put together
from those of parts: CRC32C is linear, and most of a block is constant.
Independent of the C code on purpose; written from ucm-block(5).
"""

from __future__ import annotations

import functools
import hashlib
import struct
from typing import List, Optional, Tuple

from repr_blocks import TABLE
from seed import SEED

LAYERS, TOKENS, HEADS, DIM, FLOAT16 = 2, 16, 1, 16, 1
PLANE = TOKENS * HEADS * DIM * 2
PLANES = 2 * LAYERS
HEADER = 4096
BYTES = 8192  # of a file
OWN = 32      # bytes of each plane that no other block has
FILLERS = 8
HAS_CRC, HAS_PARENT = 1, 2
ONES = 0xffffffff

MANIFEST = """{"model": "soak", "geometry": {"num_layers": %d,
"block_size": %d, "dtype": "float16", "k_bytes": %d, "v_bytes": %d,
"num_kv_heads": %d, "head_dim": %d}}
""" % (LAYERS, TOKENS, PLANE, PLANE, HEADS, DIM)


def _run(crc: int, data: bytes) -> int:
    """The register, without the complement before and after."""
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc


class _Zeros:
    """What so many zero bytes do to the register."""

    def __init__(self, num: int) -> None:
        bits = [_run(1 << bit, bytes(num)) for bit in range(32)]
        self._tables: List[List[int]] = []
        for byte in range(4):
            table = [0] * 256
            for value in range(1, 256):
                low = (value & -value).bit_length() - 1
                table[value] = (table[value & value - 1] ^
                                bits[8 * byte + low])
            self._tables.append(table)

    def __call__(self, crc: int) -> int:
        a, b, c, d = self._tables
        return (a[crc & 255] ^ b[crc >> 8 & 255] ^ c[crc >> 16 & 255] ^
                d[crc >> 24])


_past_filler = _Zeros(PLANE - OWN)
_past_plane = _Zeros(PLANE)
_past_table = _Zeros(HEADER - 128 - 8 * LAYERS)
_ones_past_plane = _past_plane(ONES)


@functools.lru_cache(maxsize=None)
def _filler(plane: int, which: int) -> Tuple[bytes, int]:
    data = hashlib.shake_128(b"filler %d %d" % (plane, which)).digest(
        PLANE - OWN)
    return data, _run(0, data)


def id_of(number: int) -> bytes:
    """The number is its last four bytes."""
    return (hashlib.md5(b"%d %d" % (SEED, number)).digest()[:12] +
            number.to_bytes(4, "big"))


def path_of(number: int) -> str:
    name = id_of(number).hex()
    return f"{name[:2]}/{name}.bin"


def number_of(name: str) -> Optional[int]:
    """Of a file; None: it is not one of ours."""
    number = int(name[24:32], 16)
    return number if name == id_of(number).hex() + ".bin" else None


def _payload(number: int) -> Tuple[bytes, List[int], int]:
    """Bytes, the checksums of the planes, and that of all."""
    own = hashlib.shake_128(b"%d payload %d" % (SEED, number)).digest(
        PLANES * OWN)
    parts, sums, whole = [], [], ONES
    for plane in range(PLANES):
        mine = own[plane * OWN:plane * OWN + OWN]
        filler, register = _filler(plane, number % FILLERS)
        register ^= _past_filler(_run(ONES, mine))
        parts += (mine, filler)
        sums.append(register ^ ONES)
        whole = _past_plane(whole) ^ register ^ _ones_past_plane
    return b"".join(parts), sums, whole ^ ONES


def block(number: int, parent: Optional[int],
          content: Optional[int] = None) -> bytes:
    """content: whose payload it has, if not its own."""
    payload, sums, whole = _payload(number if content is None else content)
    flags = HAS_CRC | (0 if parent is None else HAS_PARENT)
    head = (b"UCMB" + struct.pack("<I", 1) + id_of(number) +
            struct.pack("<6I2HII", LAYERS, TOKENS, FLOAT16, HEADER, PLANE,
                        PLANE, HEADS, DIM, flags, whole))
    above = bytes(16) if parent is None else id_of(parent)
    table = struct.pack(f"<{PLANES}I", *sums)
    crc = _past_table(_run(ONES, above + bytes(48) + table)) ^ ONES
    return b"".join((
        head, struct.pack("<I", _run(ONES, head) ^ ONES), above, bytes(40),
        struct.pack("<I", crc), bytes(4), table,
        bytes(HEADER - 128 - 8 * LAYERS), payload,
        bytes(BYTES - HEADER - len(payload))))
