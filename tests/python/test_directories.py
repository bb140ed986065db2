# SPDX-License-Identifier: Apache-2.0
"""Directories that no daemon has: a private one is started, which all who name
them share, and which ends after the last of them."""

from __future__ import annotations

import errno
import glob
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import List
from unittest import mock

import ucmfs
from tests.lib.private_daemon import directory_of, pid_of, wait_free
from tests.python.support import (BLOCK, LIMIT, SRCDIR, flip, id_of,
                                  pages_layout, payload_of)
from ucmfs import namespace
from ucmfs.errors import NotFound
from ucmfs.vllm import mount

NUM = 4
SPACE = "mine"
IDS = b"".join(id_of(f"directories {i}") for i in range(NUM))
WANT = b"".join(payload_of(f"directories {i}") for i in range(NUM))
MANIFEST = {"model": "test", "geometry": pages_layout(WANT)[1].geometry
            .to_json()}
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


def loader_of(place):
    memory, layout = pages_layout(WANT)
    loader = ucmfs.Loader(place)
    return loader, loader.add_group(layout, SPACE), memory


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.work = directory_of(self)
        self.paths = [os.path.join(self.work, n) for n in ("fast", "slow")]
        for path in self.paths:
            os.mkdir(path)
        self.tiers = "fast={}:{}".format(*self.paths)
        self.place = "tiers=" + self.tiers

    def saver(self):
        ucmfs.ensure_space(self.place, SPACE, MANIFEST)
        loader, group, memory = loader_of(self.place)
        self.addCleanup(loader.close)
        group.save(IDS, range(NUM)).wait(LIMIT)
        return loader, group, memory

    def index(self) -> ucmfs.Index:
        index = ucmfs.Index(self.place, SPACE)
        self.addCleanup(index.close)
        return index

    def damage(self, i: int) -> None:
        """In the last plane of a block."""
        name = IDS[16 * i:16 * i + 16].hex()
        path, = glob.glob(f"{self.paths[0]}/spaces/{SPACE}/*/{name}.bin")
        flip(path, 4096 + BLOCK - 1)

    def read(self) -> list:
        return subprocess.run(
            [sys.executable, "-c", READ, self.place], text=True, check=True,
            capture_output=True, cwd=SRCDIR).stdout.splitlines()


class New(Case):
    def identities(self) -> List[str]:
        return [pathlib.Path(path, ".ucmfs", "id").read_text()
                for path in self.paths]

    def test_directories_become_tiers_once(self) -> None:
        ucmfs.Loader(tiers=self.paths).close()
        made = self.identities()
        for place in {"mount": self.place}, {"tiers": self.paths}:
            ucmfs.Loader(**place).close()
        wait_free(self.work)
        ucmfs.Loader(self.place).close()
        self.assertEqual(self.identities(), made)

    def test_an_engine_that_starts_with_them_has_a_store(self) -> None:
        loader, attempt = mount.at_start(
            self.place, "start", lambda: ucmfs.Loader(self.place),
            ucmfs.Loader.close)
        self.assertIsNone(attempt.error)
        loader.close()

    def test_that_are_not_there(self) -> None:
        nowhere = self.paths[0] + "/nowhere"
        for call in (lambda: ucmfs.Loader(tiers=nowhere),
                     lambda: ucmfs.Loader("tiers=" + nowhere),
                     lambda: ucmfs.Index("tiers=" + nowhere)):
            with self.assertRaisesRegex(NotFound, "nowhere"):
                call()
        self.assertEqual(os.listdir(self.paths[0]), [])

    def test_spaces(self) -> None:
        self.assertIsNone(namespace.read_manifest(self.place, SPACE))
        for where in {"mount": self.place}, {"mount": None,
                                             "tiers": self.tiers}:
            self.assertEqual(
                ucmfs.ensure_space(name=SPACE, manifest=MANIFEST, **where),
                namespace.space_id(MANIFEST))
            self.assertEqual(namespace.read_manifest(name=SPACE, **where),
                             MANIFEST)
        with self.assertRaises(ucmfs.NamespaceMismatch):
            ucmfs.ensure_space(self.place, SPACE, {**MANIFEST, "model": "b"})
        namespace.remove_space(self.place, SPACE)
        self.assertEqual(namespace.spaces(self.place), [])


class Blocks(Case):
    def test_another_process_reads_and_saves_beside_one(self) -> None:
        _, group, _ = self.saver()
        daemon = pid_of(self.paths[0])
        self.assertEqual(self.read(), [f"{[0] * NUM} True", "0", "[0]"])
        # and that one hears of both
        self.assertEqual([one.skipped for one in group.save(
            IDS[:16] + IDS[16:32] + id_of("more"), range(3)).result(LIMIT)],
            [False, True, True])
        self.assertEqual(pid_of(self.paths[0]), daemon)

    def test_those_that_come_at_once_share_one(self) -> None:
        with ThreadPoolExecutor(6) as pool:
            loaders = [call.result(LIMIT) for call in [
                pool.submit(ucmfs.Loader, self.place) for _ in range(6)]]
        for loader in loaders:
            loader.close()

    def test_tiers_of_a_loader_are_the_same_store(self) -> None:
        self.saver()
        memory, layout = pages_layout(WANT)
        with ucmfs.Loader(tiers=self.paths) as loader:
            group = loader.add_group(layout, SPACE)
            memory.clear()
            group.load(IDS, range(NUM)).wait(LIMIT)
            self.assertEqual(memory.content, WANT)
            group.save(id_of("more"), [0]).wait(LIMIT)
        self.assertEqual(self.index().lookup(id_of("more"))[0], b"\1")

    def test_they_are_there_in_the_next_process(self) -> None:
        loader, _, _ = self.saver()
        loader.close()
        wait_free(self.work)
        self.assertFalse(os.path.lexists(self.paths[0] + "/.ucmfs/socket"))
        self.assertEqual(self.read(), [f"{[0] * NUM} True", "0", "[0]"])
        self.assertEqual(self.index().lookup(IDS)[0], b"\0\1\1\1")

    def test_a_damaged_one_goes_and_is_saved_anew(self) -> None:
        _, group, memory = self.saver()
        self.damage(1)
        memory.clear()
        errors = [one.err for one in
                  group.load(IDS, range(NUM)).result(LIMIT)]
        self.assertEqual(errors, [0, errno.EBADMSG, 0, 0])
        mount.remove_blocks(self.place, SPACE, [IDS[16:32]])
        self.assertEqual(self.index().lookup(IDS)[0], b"\1\0\1\1")
        memory, layout = pages_layout(WANT)
        again = group.loader.add_group(layout, SPACE)
        self.assertEqual([one.skipped for one in again.save(
            IDS, range(NUM)).result(LIMIT)], [True, False, True, True])
        memory.clear()
        again.load(IDS, range(NUM)).wait(LIMIT)
        self.assertEqual(memory.content, WANT)

    def test_look_ups_read_the_index(self) -> None:
        self.saver()
        index = self.index()
        absent = id_of("absent")
        self.assertEqual(index.lookup(IDS[:32] + absent + IDS[32:]),
                         (b"\1\1\0\1\1", bytes(5)))
        self.assertEqual(index.prefix(IDS[:16] + absent), (1, False))
        self.assertEqual(index.info()["backend"], "map")

    def save_slow(self) -> None:
        ucmfs.ensure_space("tiers=" + self.paths[1], SPACE, MANIFEST)
        loader, group, _ = loader_of("tiers=" + self.paths[1])
        group.save(IDS, range(NUM)).wait(LIMIT)
        loader.close()
        wait_free(self.work)

    def wait_copied(self) -> None:
        """Until all blocks are in the fast directory."""
        wanted = [os.path.join(
            self.paths[0], "spaces", SPACE, name[:2], name + ".bin")
            for name in (IDS[16 * i:16 * i + 16].hex() for i in range(NUM))]
        end = time.monotonic() + LIMIT
        while not all(map(os.path.exists, wanted)):
            self.assertLess(time.monotonic(), end, "a block is not copied")
            time.sleep(0.01)

    def test_a_hint_copies_them_to_the_fast_one(self) -> None:
        self.save_slow()
        memory, layout = pages_layout(WANT)
        with ucmfs.Loader(tiers=self.paths) as loader:
            group = loader.add_group(layout, SPACE)
            group.prefetch(IDS + id_of("absent"))
            self.wait_copied()
            memory.clear()
            group.load(IDS, range(NUM)).wait(LIMIT)
            self.assertEqual(memory.content, WANT)

    def test_a_hint_of_a_store_copies_them_too(self) -> None:
        self.save_slow()
        with ucmfs.Store(tiers=self.tiers, space=SPACE,
                         tensor_size=BLOCK) as store:
            store.prefetch(IDS)
            os.kill(pid_of(self.paths[0]), signal.SIGKILL)
            wait_free(self.work)
            with self.assertLogs("ucmfs", "WARNING"):
                store.prefetch(IDS)  # that daemon is gone
            store.prefetch(IDS)
            self.wait_copied()

    def test_a_hint_of_one_directory_starts_no_daemon(self) -> None:
        self.save_slow()
        with ucmfs.Store(tiers=self.paths[1], space=SPACE,
                         tensor_size=BLOCK) as store:
            store.prefetch(IDS)
            self.assertFalse(
                os.path.lexists(self.paths[1] + "/.ucmfs/socket"))

    def test_a_hint_that_no_daemon_can_take_is_no_error(self) -> None:
        self.save_slow()
        ucmfs.Loader(tiers=self.paths).close()  # both are tiers from now on
        wait_free(self.work)
        with mock.patch.dict(os.environ, UCMFS_PROGRAM="/nowhere"), \
                ucmfs.Store(tiers=self.paths, space=SPACE,
                            tensor_size=BLOCK) as store:
            with self.assertLogs("ucmfs", "WARNING"):
                store.prefetch(IDS)
            store.prefetch(IDS)  # is not tried again
            self.assertEqual(store.lookup(IDS), [True] * NUM)

    def test_uses_and_pins_are_counted(self) -> None:
        self.saver()
        chores = mount.Chores("test")
        mount.Touches(chores, self.place, SPACE).add([IDS[:16]])
        mount.pin_blocks(self.place, SPACE, [IDS[:16]])
        self.assertTrue(chores.end())
        with ucmfs.Blocks(self.place) as blocks:
            used, other = blocks.locate(IDS[:32], SPACE)
        self.assertEqual((used.pinned, other.pinned), (True, False))
        self.assertGreater(used.uses, other.uses)


if __name__ == "__main__":
    unittest.main()
