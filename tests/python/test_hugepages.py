# SPDX-License-Identifier: Apache-2.0
"""Memory that is made to lie in huge pages, by what the kernel says of it."""

import ctypes
import mmap
import re
import unittest
from unittest import mock

from ucmfs.vllm import hugepages
from ucmfs.vllm.hugepages import HUGE, use_huge_pages

SIZE = 4 * HUGE


def mapped() -> mmap.mmap:
    """Private, in small pages, each of which is written to."""
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, SIZE, mmap.PAGESIZE):
        memory[at:at + 8] = at.to_bytes(8, "little")
    return memory


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def huge_bytes(address: int) -> int:
    """Of the mapping that an address is in, in huge pages."""
    inside = False
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            if found:
                begin, end = (int(n, 16) for n in found.groups())
                inside = begin <= address < end
            elif inside and line.startswith("AnonHugePages:"):
                return int(line.split()[1]) << 10
    raise AssertionError("it is not mapped")


class HugePages(unittest.TestCase):
    def test_what_was_there_stays(self):
        memory = mapped()
        address = address_of(memory)
        self.assertEqual(huge_bytes(address), 0)
        why = use_huge_pages(address, SIZE)
        for at in range(0, SIZE, mmap.PAGESIZE):
            self.assertEqual(memory[at:at + 8], at.to_bytes(8, "little"))
        if why:
            self.skipTest(f"no huge pages here: {why}")
        self.assertGreaterEqual(huge_bytes(address), SIZE - 2 * HUGE)
        self.assertEqual(use_huge_pages(address, SIZE), "")

    def test_too_little_for_one(self):
        memory = mapped()
        address = -(-address_of(memory) // HUGE) * HUGE
        for begin, size in ((0, HUGE - 1), (1, HUGE), (0, 0)):
            self.assertIn("no room for one",
                          use_huge_pages(address + begin, size))
        self.assertEqual(huge_bytes(address), 0)

    def test_it_takes_no_longer_than_it_may(self):
        memory = mapped()
        with mock.patch.object(hugepages, "COLLAPSE_SECONDS", -1.0):
            self.assertIn("takes more than",
                          use_huge_pages(address_of(memory), SIZE))

    def test_memory_that_is_not_there(self):
        self.assertNotEqual(use_huge_pages(HUGE, SIZE), "")
