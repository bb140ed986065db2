# SPDX-License-Identifier: Apache-2.0
"""What the tests of a loader share: one on the mount, and pages of what is to be
saved."""

import itertools
import unittest

import ucmfs
from tests.python.support import (
    BLOCK, LIMIT, MOUNT, id_of, join, needs_mount, new_space, pages_layout,
    payload_of)

NUM = 64
numbers = itertools.count()


@needs_mount
class Case(unittest.TestCase):
    """A loader, a space of its own, and pages of what is to be saved."""

    loader_options = {}

    def setUp(self):
        module = type(self).__module__.split(".")[-1]
        self.name = f"{module}-{next(numbers)}"
        self.space = new_space(self.name)
        self.loader = ucmfs.Loader(MOUNT, **self.loader_options)
        self.addCleanup(self.loader.close)
        self.want = join(payload_of(f"{self.name} {i}") for i in range(NUM))
        self.ids = join(id_of(f"{self.name} {i}") for i in range(NUM))
        self.memory, self.layout = pages_layout(self.want)
        self.group = self.loader.add_group(self.layout, self.space)

    def saved(self):
        self.group.save(self.ids, range(NUM)).wait(LIMIT)
        self.memory.clear()

    def id(self, i):
        return self.ids[16 * i:16 * i + 16]

    def page(self, i):
        return self.memory.content[BLOCK * i:BLOCK * (i + 1)]
