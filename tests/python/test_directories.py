# SPDX-License-Identifier: Apache-2.0
"""Directories without a daemon: they become tiers, all save and read, and what
is damaged goes."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
from typing import List

import ucmfs
from tests.python.support import (BLOCK, GEOMETRY, LIMIT, SRCDIR, flip, id_of,
                                  pages_layout, payload_of)
from ucmfs import namespace
from ucmfs.errors import NotFound
from ucmfs.vllm import mount
from ucmfs.vllm.place import (Directories, Looks, avoid, make_space,
                              manifest_of, open_index, source)

NUM = 4
SPACE = "mine"
IDS = b"".join(id_of(f"directories {i}") for i in range(NUM))
WANT = b"".join(payload_of(f"directories {i}") for i in range(NUM))
READ = """
import sys
from tests.python.test_directories import *
loader, group, memory = loader_of(sys.argv[1])
memory.clear()
errors = [outcome.err for outcome in group.load(IDS, range(NUM)).result(LIMIT)]
print(errors, memory.content == WANT)
print(group.save(id_of("more"), [0]).result(LIMIT)[0].err)
print(group.remove_blocks(IDS[:16]))
loader.close()
"""


def loader_of(tiers):
    memory, layout = pages_layout(WANT)
    loader = ucmfs.Loader(**source(Directories(tiers)))
    return loader, loader.add_group(layout, SPACE), memory


class Case(unittest.TestCase):
    def setUp(self) -> None:
        work = tempfile.TemporaryDirectory(prefix="ucmfs.")
        self.addCleanup(work.cleanup)
        self.paths = [os.path.join(work.name, n) for n in ("fast", "slow")]
        for path in self.paths:
            os.mkdir(path)
        self.place = Directories("fast={}:{}".format(*self.paths))
        _, layout = pages_layout(WANT)
        self.manifest = {"model": "test",
                         "geometry": layout.geometry.to_json()}

    def saver(self):
        make_space(self.place, SPACE, self.manifest)
        loader, group, memory = loader_of(self.place)
        self.addCleanup(loader.close)
        group.save(IDS, range(NUM)).wait(LIMIT)
        return loader, group, memory

    def looks(self) -> Looks:
        index = open_index(self.place, SPACE)
        self.addCleanup(index.close)
        return index

    def damage(self, i: int) -> None:
        """In the last plane of a block."""
        name = IDS[16 * i:16 * i + 16].hex()
        path, = glob.glob(f"{self.paths[0]}/spaces/{SPACE}/*/{name}.bin")
        flip(path, 4096 + BLOCK - 1)


class New(Case):
    def test_directories_become_tiers_once(self) -> None:
        for _ in range(2):
            namespace.make_tiers(self.place)
            ucmfs.Loader(tiers=self.place).close()
        namespace.make_tiers(self.paths)

    def test_that_are_in_use_are_left_alone(self) -> None:
        self.saver()
        namespace.make_tiers(self.place)

    def identities(self) -> List[str]:
        return [pathlib.Path(path, ".ucmfs", "id").read_text()
                for path in self.paths]

    def test_a_loader_makes_tiers_of_them(self) -> None:
        ucmfs.Loader(tiers=self.place).close()
        made = self.identities()
        namespace.make_tiers(self.place)
        ucmfs.Loader(tiers=self.place).close()
        self.assertEqual(self.identities(), made)

    def test_an_engine_that_starts_with_them_has_a_store(self) -> None:
        loader, attempt = mount.at_start(
            self.place, "start", lambda: ucmfs.Loader(**source(self.place)),
            ucmfs.Loader.close)
        self.assertIsNone(attempt.error)
        loader.close()

    def test_that_are_not_there(self) -> None:
        with self.assertRaisesRegex(NotFound, "nowhere"):
            ucmfs.Loader(tiers=self.paths[0] + "/nowhere")
        with self.assertRaisesRegex(NotFound, "nowhere"):
            namespace.make_tiers(self.paths[0] + "/nowhere")
        self.assertEqual(os.listdir(self.paths[0]), [])

    def test_spaces(self) -> None:
        self.assertIsNone(manifest_of(self.place, SPACE))
        self.assertEqual(make_space(self.place, SPACE, self.manifest),
                         namespace.space_id(self.manifest))
        self.assertEqual(manifest_of(self.place, SPACE), self.manifest)
        with self.assertRaises(ucmfs.NamespaceMismatch):
            make_space(self.place, SPACE, {**self.manifest, "model": "b"})


class Blocks(Case):
    def read(self) -> list:
        return subprocess.run(
            [sys.executable, "-c", READ, self.place], text=True, check=True,
            capture_output=True, cwd=SRCDIR).stdout.splitlines()

    def test_another_process_reads_and_saves_beside_one(self) -> None:
        _, group, memory = self.saver()
        self.assertEqual(self.read(), [f"{[0] * NUM} True", "0", "[0]"])
        # and that one hears of both
        self.assertEqual([one.skipped for one in group.save(
            IDS[:16] + IDS[16:32] + id_of("more"), range(3)).result(LIMIT)],
            [False, True, True])

    def test_who_has_them_for_itself_keeps_others_from_it(self) -> None:
        self.saver()[0].close()
        with open(self.paths[0] + "/.ucmfs/lock", "rb+") as file:
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
            self.assertEqual(self.read(), [
                f"{[0] * NUM} True", str(errno.EBUSY), str([errno.EBUSY])])

    def test_a_space_of_later_is_saved_to(self) -> None:
        loader, _, _ = self.saver()
        _, layout = pages_layout(WANT)
        make_space(self.place, "later", self.manifest)
        group = loader.add_group(layout, "later")
        group.save(IDS, range(NUM)).wait(LIMIT)

    def test_beside_memory_one_saves(self) -> None:
        for place, one in (("/a", False), ("/a:m=mem@1G", True),
                           ("mem@1G:/a", True), ("./mem@1:/a", False)):
            self.assertEqual(Directories(place).one_saves, one, place)

    def test_they_are_there_in_the_next_process(self) -> None:
        loader, _, _ = self.saver()
        loader.close()
        self.assertEqual(self.read(), [f"{[0] * NUM} True", "0", "[0]"])
        self.assertEqual(self.looks().lookup(IDS)[0], b"\0\1\1\1")

    def test_a_damaged_one_goes_and_is_saved_anew(self) -> None:
        _, group, memory = self.saver()
        self.damage(1)
        memory.clear()
        errors = [one.err for one in
                  group.load(IDS, range(NUM)).result(LIMIT)]
        self.assertEqual(errors, [0, errno.EBADMSG, 0, 0])
        mount.remove_blocks(self.place, SPACE, [IDS[16:32]], group)
        self.assertEqual(self.looks().lookup(IDS)[0], b"\1\0\1\1")
        memory, layout = pages_layout(WANT)
        again = group.loader.add_group(layout, SPACE)
        self.assertEqual([one.skipped for one in again.save(
            IDS, range(NUM)).result(LIMIT)], [True, False, True, True])
        memory.clear()
        again.load(IDS, range(NUM)).wait(LIMIT)
        self.assertEqual(memory.content, WANT)

    def test_looks(self) -> None:
        self.saver()
        index = self.looks()
        absent = id_of("absent")
        self.assertEqual(index.lookup(IDS[:32] + absent + IDS[32:]),
                         (b"\1\1\0\1\1", bytes(5)))
        self.assertEqual(index.prefix(IDS), (NUM, False))
        self.assertEqual(index.prefix(IDS[:16] + absent), (1, False))
        self.assertNotEqual(index.info()["backend"], "map")

    def test_what_failed_is_absent_for_a_while(self) -> None:
        self.saver()
        index = self.looks()
        avoid(index, IDS[32:48])
        self.assertEqual(index.lookup(IDS)[0], b"\1\1\0\1")
        self.assertEqual(index.prefix(IDS), (2, False))
        index._avoided.update(dict.fromkeys(index._avoided, 0.0))
        self.assertEqual(index.lookup(IDS)[0], b"\1\1\1\1")
        self.assertEqual(index.prefix(IDS), (NUM, False))

    def test_uses_and_pins_are_nobodys(self) -> None:
        self.saver()
        chores = mount.Chores("test")
        mount.Touches(chores, self.place, SPACE).add([IDS[:16]])
        mount.pin_blocks(self.place, SPACE, [IDS[:16]])
        self.assertTrue(chores.end())


if __name__ == "__main__":
    unittest.main()
