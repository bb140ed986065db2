# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share: where things are, memory, spaces.

tests/lib/python.sh sets the environment: UCMFS_TEST_MOUNT, _TIER and _DAEMON
(a pid) where there is a mount.
"""

import contextlib
import ctypes
import hashlib
import os
import signal
import time
import unittest

import ucmfs

from tests.lib.stopping import stop
from tests.lib.writers import wait_for_writers

try:
    import numpy
except ImportError:
    numpy = None

SRCDIR = os.environ.get("top_srcdir", os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILDDIR = os.environ.get("top_builddir", os.getcwd())
MOUNT = os.environ.get("UCMFS_TEST_MOUNT")
TIER = os.environ.get("UCMFS_TEST_TIER")
DAEMON = int(os.environ.get("UCMFS_TEST_DAEMON", "0"))
LIMIT = 20.0  # seconds; nothing here takes so long

# 2 layers, K 512 + V 512, 16 tokens of one head of 16 halves
GEOMETRY = ucmfs.Geometry(2, 16, "float16", 512, 512, 1, 16)
BLOCK = GEOMETRY.payload_bytes

needs_numpy = unittest.skipUnless(numpy, "needs numpy")
needs_mount = unittest.skipUnless(MOUNT, "needs a mount")


def id_of(name):
    """An id that nobody else has."""
    return hashlib.md5(str(name).encode()).digest()


def payload_of(name, size=BLOCK):
    """Bytes that nobody else has."""
    out = b""
    while len(out) < size:
        out += hashlib.sha256(f"{name} {len(out)}".encode()).digest()
    return out[:size]


def join(parts):
    return b"".join(parts)


class Memory:
    """Bytes with an address, as engines have them."""

    def __init__(self, content):
        self.size = len(content)
        self._bytes = (ctypes.c_uint8 * max(self.size, 1)).from_buffer_copy(
            content or b"\0")
        self.address = ctypes.addressof(self._bytes)

    @property
    def content(self):
        return bytes(self._bytes)[:self.size]

    def clear(self):
        ctypes.memset(self.address, 0, self.size)

    def raw(self, offset, size):
        return ucmfs.Raw(self.address + offset, (size,), (1,), 1, "cpu",
                         self)


class FakeTorch:
    """What is used of torch.Tensor."""

    def __init__(self, array, dtype="", device="cpu"):
        self.array = array
        self.dtype = f"torch.{dtype}"
        self.shape = array.shape
        self.device = type("device", (), {"type": device})

    def data_ptr(self):
        return self.array.ctypes.data

    def stride(self):
        return [s // self.array.itemsize for s in self.array.strides]

    def element_size(self):
        return self.array.itemsize


def pages_layout(content, geometry=GEOMETRY):
    """(memory, layout) of pages that are payloads, one behind the other."""
    memory = Memory(content)
    pages = len(content) // geometry.payload_bytes
    plane = geometry.k_bytes
    layout = ucmfs.regions_of(
        [ucmfs.Raw(memory.address,
                   (pages, geometry.num_layers, 2, plane // 2),
                   (geometry.num_layers * plane, plane, plane // 2, 1), 2,
                   "cpu", memory)],
        ucmfs.Geometry(geometry.num_layers, geometry.block_size, "opaque",
                       plane, plane, order="opaque"),
        dims="BLPD")
    return memory, layout


def new_space(name):
    os.mkdir(os.path.join(MOUNT, "spaces", name))
    return name


def backing_file(space, block):
    """Where it lies; the daemon does not write it any more."""
    name = block.hex()
    path = os.path.join(TIER, "spaces", space, name[:2], f"{name}.bin")
    if DAEMON:
        wait_for_writers(DAEMON, [path])
    return path


def flip(path, offset):
    """Turn one bit over."""
    fd = os.open(path, os.O_RDWR)
    byte = os.pread(fd, 1, offset)[0]
    os.pwrite(fd, bytes([byte ^ 1]), offset)
    os.close(fd)


def stop_daemon():
    stop(DAEMON, LIMIT)


@contextlib.contextmanager
def daemon_stopped():
    """The daemon answers nobody: what needs it waits."""
    try:
        stop_daemon()
        yield
    finally:
        os.kill(DAEMON, signal.SIGCONT)


def wait_unheld(blocks, ids, space):
    """Until nobody has these open: the daemon hears of a close(2) a moment
    after it has returned."""
    end = time.monotonic() + LIMIT
    while any(place and place.held for place in blocks.locate(ids, space)):
        if time.monotonic() > end:
            raise AssertionError("a block stays open")
        time.sleep(0.002)
