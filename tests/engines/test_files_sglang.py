#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang's file backend in MOUNT/files: what one process has stored, another
loads after a remount."""

import unittest
from typing import Any

from files_suite import Client, OnFiles

PAGES = 32


class SGLang(OnFiles):

    def run_client(self, what: str) -> Any:
        return Client("sglang_client.py", what, self.root, str(PAGES)).result()

    def test_stored_loaded_after_a_remount(self) -> None:
        self.assertEqual(self.run_client("store"), {"stored": True})
        self.assertEqual(len(self.behind("*.bin")), PAGES)
        self.assertEqual(self.behind("*.tmp"), [])
        self.remount()
        self.assertEqual(self.run_client("load"),
                         {"found": PAGES, "absent_found": False,
                          "right": PAGES})


if __name__ == "__main__":
    unittest.main()
