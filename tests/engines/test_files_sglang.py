#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang's file backend in MOUNT/files: what one process has stored, another
loads after a remount."""

import unittest
from typing import Any

from files_suite import Client, OnFiles

PAGES = 32
PAGE_BYTES = 512 << 10


class SGLang(OnFiles):

    def run_client(self, what: str, pages: str = str(PAGES)) -> Any:
        return Client("sglang_client.py", what, self.root, pages).result()

    def test_stored_loaded_after_a_remount(self) -> None:
        self.assertEqual(self.run_client("store"), {"stored": True})
        self.assertEqual(len(self.behind("*.bin")), PAGES)
        self.assertEqual(self.behind("*.tmp"), [])
        self.remount()
        self.assertEqual(self.run_client("load"),
                         {"found": PAGES, "absent_found": False,
                          "right": PAGES})

    def test_past_a_quota(self) -> None:
        """Twice as much is stored: half of it stays, the newer one."""
        quota = PAGES * PAGE_BYTES + PAGE_BYTES // 2
        self.mount.set_quota(self.root, quota)
        for pages in (f"0:{PAGES}", f"{PAGES}:{2 * PAGES}"):
            self.assertEqual(self.run_client("store", pages),
                             {"stored": True})
        self.check_quota(quota)
        # its batch ends at the first page that is not there
        newer = self.run_client("load", f"{PAGES + 4}:{2 * PAGES}")
        self.assertEqual(newer, {"found": PAGES - 4, "absent_found": False,
                                 "right": PAGES - 4})


if __name__ == "__main__":
    unittest.main()
