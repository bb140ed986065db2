#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LMCache's file stores in MOUNT/files: what one process has stored, another
loads after a remount. LMCache checks none of the bytes, which proves here that
the comparison can fail."""

import os
import unittest
from typing import Any, Dict, List

from files_suite import Client, OnFiles
from mount import Mount

CHUNKS = 16
CHUNK_BYTES = 512 << 10
DISK = ["disk", "disk-direct"]
STORES = ["connector", "connector-direct", "fs", "fs-direct", "fs_native",
          "fs_native-direct"]
ALL_RIGHT = {"found": CHUNKS, "absent_found": 0, "loaded": CHUNKS,
             "right": CHUNKS}


def start(what: str, root: str, stores: List[str],
          chunks: str = str(CHUNKS)) -> Client:
    return Client("lmcache_client.py", what, root, chunks, *stores)


def run(what: str, root: str, stores: List[str],
        chunks: str = str(CHUNKS)) -> Dict[str, Any]:
    return start(what, root, stores, chunks).result()


class LMCache(OnFiles):

    def test_stored_loaded_after_a_remount(self) -> None:
        stored = run("store", self.root, STORES)
        self.assertEqual(stored, {name: {"stored": True} for name in STORES})
        self.assertEqual(len(self.behind("*.data")), CHUNKS * len(STORES))
        self.assertEqual(self.behind("*.tmp"), [])
        self.remount()
        loaded = run("load", self.root, STORES + DISK)
        for name in STORES + DISK:
            self.assertEqual(loaded[name], ALL_RIGHT, name)
        for path in self.behind("*.data"):
            path.write_bytes(bytes(path.stat().st_size))
        stores = ["fs", "fs_native", "fs_native-direct"]
        for name, seen in run("load", self.root, stores).items():
            self.assertEqual(seen, dict(ALL_RIGHT, right=0), name)

    def test_two_write_the_same_keys(self) -> None:
        """Their temporary names are the same as well."""
        stores = ["connector", "fs", "fs_native"]
        clients = [start("store", self.root, stores) for _ in range(2)]
        for client in clients:
            client.result()
        loaded = run("load", self.root, stores)
        for name in stores:
            self.assertEqual(loaded[name], ALL_RIGHT, name)


    def test_past_a_quota(self) -> None:
        """Twice as much is stored: half of it stays, the newer one."""
        quota = CHUNKS * CHUNK_BYTES + CHUNK_BYTES // 2
        for name in ["connector", "fs", "fs_native", "fs_native-direct"]:
            with self.subTest(store=name):
                folder = self.root
                self.root = os.path.join(folder, name)
                self.mount.set_quota(self.root, quota)
                for chunks in (f"0:{CHUNKS}", f"{CHUNKS}:{2 * CHUNKS}"):
                    self.assertEqual(run("store", folder, [name], chunks),
                                     {name: {"stored": True}})
                self.check_quota(quota)
                newer = run("load", folder, [name],
                            f"{CHUNKS}:{2 * CHUNKS}")[name]
                self.assertGreaterEqual(newer["right"], CHUNKS - 2)
                self.assertEqual(newer["found"], newer["right"])
                self.assertEqual(newer["loaded"], newer["right"])
                self.root = folder


class Full(unittest.TestCase):

    def test_what_is_there_is_whole(self) -> None:
        stores = ["fs", "fs_native", "connector"]
        with Mount(tmpfs=8 << 20) as mount:
            root = os.path.join(mount.path, "files", "lmcache")
            stored = run("store", root, stores)
            loaded = run("load", root, stores)
        self.assertIn({"stored": False}, stored.values())
        for name, seen in loaded.items():
            right = dict.fromkeys(["found", "loaded"], seen["right"])
            self.assertEqual(seen, dict(seen, absent_found=0, **right), name)
        total = sum(seen["right"] for seen in loaded.values())
        self.assertGreater(total, 0)
        self.assertLess(total, CHUNKS * len(stores))


if __name__ == "__main__":
    unittest.main()
