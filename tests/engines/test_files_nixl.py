#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NIXL's POSIX plugin in MOUNT/files, by each of its ways to do I/O."""

import unittest

from files_suite import Client, OnFiles

FILES = 16
APIS = ["aio", "aio-direct", "uring", "uring-direct", "posix_aio",
        "posix_aio-direct"]


class Nixl(OnFiles):

    def run_client(self, what: str) -> None:
        seen = Client("nixl_client.py", what, self.root, str(FILES),
                      *APIS).result()
        self.assertEqual(seen, dict.fromkeys(APIS, FILES))

    def test_written_read_after_a_remount(self) -> None:
        self.run_client("write")
        self.assertEqual(len(self.behind("*.bin")), FILES * len(APIS))
        self.remount()
        self.run_client("read")

    def test_files_without_names(self) -> None:
        """KVBM's pool: fallocate, unlink, O_DIRECT by fcntl."""
        self.run_client("pool")
        self.assertEqual(self.behind("*.bin"), [])


class NixlThroughTheDaemon(Nixl):
    """Every read and write comes by the daemon."""

    OPTIONS = "passthrough=off"


if __name__ == "__main__":
    unittest.main()
