# SPDX-License-Identifier: Apache-2.0
"""doc/engines.md, "When something is wrong": the code says what its first
column quotes."""

from __future__ import annotations

import ast
import errno
import glob
import os
import re
import unittest
from typing import Iterator, List

from tests.python.support import SRCDIR

SOURCES = ("python/ucmfs/**/*.py", "tools/**/*.c", "fs/mount/**/*.c",
           "fs/store/**/*.c", "fs/config/*.c",
           "fs/medium/**/*.c", "fs/tier/*.c")
# Literals that stand in a row, with the names of formats between.
_LITERALS = re.compile(r'"(?:[^"\\\n]|\\.)*"(?:\s*(?:PRI\w+\s*)?'
                       r'"(?:[^"\\\n]|\\.)*")*')
_ONE = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_FORMAT = re.compile(r"%[-+ 0#]*[\d.*]*(?:ll|l|z)?[a-zA-Z]")


def text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def python_texts(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant)
                          else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _FORMAT.sub("…", node.value)


def c_texts(source: str) -> Iterator[str]:
    for found in _LITERALS.finditer(source):
        # a % that PRIu64 stood behind has nothing of its own
        joined = "".join(_ONE.findall(re.sub(r'"\s*PRI\w+\s*"', "s",
                                             found[0])))
        yield _FORMAT.sub("…", joined.replace('\\"', '"'))


def texts() -> List[str]:
    out: List[str] = []
    for pattern in SOURCES:
        for path in glob.glob(os.path.join(SRCDIR, pattern), recursive=True):
            source = text_of(path)
            out += python_texts(source) if path.endswith(".py") else \
                c_texts(source)
    return out


def symptoms() -> List[str]:
    """What stands in backticks in the first cells of the section's tables."""
    section = re.search(r"^## When something is wrong\n(.*?)(?:^## |\Z)",
                        text_of(os.path.join(SRCDIR, "doc", "engines.md")),
                        re.M | re.S)
    assert section is not None
    cells = re.findall(r"^\| (.*?) \|", section[1], re.M)
    return [span for cell in cells for span in re.findall("`(.*?)`", cell)]


class Troubleshooting(unittest.TestCase):

    def setUp(self) -> None:
        self.texts = texts()

    def said(self, message: str) -> bool:
        """… of the document stands for anything, also for more than one."""
        parts = [re.escape(part) for part in message.split("…")]
        wanted = re.compile(".+?".join(parts), re.S)
        return any(wanted.search(text) for text in self.texts)

    def test_messages_are_the_codes(self) -> None:
        messages = [span for span in symptoms() if " " in span]
        self.assertGreater(len(messages), 25)
        for message in messages:
            with self.subTest(message):
                self.assertTrue(self.said(message))

    def test_names_are_the_codes(self) -> None:
        names = [span for span in symptoms() if " " not in span]
        self.assertGreater(len(names), 10)
        for name in names:
            metric, _, cause = name.partition('{cause="')
            with self.subTest(name):
                if not hasattr(errno, metric):
                    self.assertIn(metric, self.texts)
                if cause:
                    self.assertIn(cause.removesuffix('"}'), self.texts)

    def test_what_nobody_says_is_seen(self) -> None:
        self.assertFalse(self.said("the engine … is a teapot"))
        self.assertFalse(self.said("the engine starts with it"))


if __name__ == "__main__":
    unittest.main()
