# SPDX-License-Identifier: Apache-2.0
"""UCM_PROFILE: what a program has done with a loader is in its profile.

Each test runs a program of its own, whose exit writes the file.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

from tests.python.support import BLOCK, id_of, needs_mount, new_space

NUM = 24
LAYERS = 2

PROGRAM = textwrap.dedent("""
    import os, sys
    import ucmfs
    from tests.python.support import (LIMIT, MOUNT, id_of, join, pages_layout,
                                      payload_of)

    NUM, space = int(sys.argv[1]), sys.argv[2]
    want = join(payload_of(f"{space} {i}") for i in range(NUM))
    ids = [id_of(f"{space} {i}") for i in range(NUM)]
    memory, layout = pages_layout(want)
    with ucmfs.Loader(MOUNT) as loader:
        group = loader.add_group(layout, space)
        group.save(ids, range(NUM)).wait(LIMIT)
        assert group.lookup(ids + [bytes(16)]) == [True] * NUM + [False]
        assert group.prefix([ids[0], bytes(16)]) == 1
        memory.clear()
        os.chdir("/")
        group.load(ids, range(NUM)).wait(LIMIT)
        assert memory.content == want
        group.load([ids[3], bytes(16)], [0, 1], order="layers",
                   group_layers=1).result(LIMIT)
""")


@needs_mount
class Profile(unittest.TestCase):
    def setUp(self):
        self.space = new_space(self.id().split(".")[-1].replace("_", "-"))
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def run_program(self, **env):
        """(pid, what it has said)"""
        path = os.pathsep.join(map(os.path.abspath, filter(
            None, os.environ["PYTHONPATH"].split(os.pathsep))))
        library = os.path.abspath(os.environ["UCMFS_LIBRARY"])
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(NUM), self.space],
            env={**os.environ, "PYTHONPATH": path, "UCMFS_LIBRARY": library,
                 **env},
            cwd=self.dir.name, stderr=subprocess.PIPE, text=True)
        said = program.communicate()[1]
        self.assertEqual(program.returncode, 0, said)
        return program.pid, said

    def read(self, name):
        with open(os.path.join(self.dir.name, name), encoding="utf-8") as file:
            events = json.load(file)
        for event in events:
            self.assertEqual(event["ph"], "X")
            self.assertGreater(event["ts"], 0)
            self.assertGreaterEqual(event["dur"], 0)
        self.assertEqual(events[0]["args"], {"left_out": 0})
        return events[1:]

    def test_has_what_was_asked_for(self):
        pid, said = self.run_program(UCM_PROFILE="1",
                                     UCM_PROFILE_OUTPUT="it.json")
        self.assertEqual(said.count("profile"), 0)
        events = self.read("it.json")
        self.assertEqual({e["pid"] for e in events}, {pid})
        self.check_tasks([e for e in events if e["cat"] == "task"])
        self.check_steps(events)
        self.check_rows(events)

    def check_tasks(self, tasks):
        def row(name, blocks, good, size, pieces, status="ok"):
            return name, {"blocks": blocks, "good": good, "bytes": size,
                          "pieces": pieces, "status": status}

        for task in tasks:
            self.assertGreater(task["args"].pop("thread"), 0)
        self.assertEqual([(t["name"], t["args"]) for t in tasks], [
            row("save", NUM, NUM, NUM * BLOCK, NUM),
            row("lookup", NUM + 1, NUM, 0, 0),
            row("prefix", 2, 1, 0, 0),
            row("load", NUM, NUM, NUM * BLOCK, NUM),
            row("load", 2, 1, 2 * BLOCK, 2 * LAYERS, "EIO")])

    def check_steps(self, events):
        """Of each block, and within their tasks."""
        ids = [id_of(f"{self.space} {i}").hex() for i in range(NUM)]
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in events
                 if e["name"] in ("save", "load")]
        for name, kind in ("read", "io"), ("copy", "copy"), ("write", "io"):
            steps = [e for e in events if e["name"] == name]
            blocks = collections.Counter(e["args"]["block"] for e in steps)
            want = dict.fromkeys(ids, 1)
            if name != "write":
                want[ids[3]] += LAYERS
            self.assertEqual(blocks, want)
            for step in steps:
                self.assertEqual(step["cat"], kind)
                self.assertEqual(step["args"]["status"], "ok")
                self.assertTrue(any(
                    a <= step["ts"] and step["ts"] + step["dur"] <= b + 0.001
                    for a, b in spans))
            if name == "copy":
                self.assertEqual(sum(e["args"]["bytes"] for e in steps),
                                 (NUM + 1) * BLOCK)

    def check_rows(self, events):
        """Nothing overlaps in a row, so that viewers draw it as it was."""
        rows = collections.defaultdict(list)
        for event in events:
            rows[event["tid"]].append((event["ts"], event["dur"]))
        for row in rows.values():
            row.sort()
            for (start, took), (after, _) in zip(row, row[1:]):
                self.assertLessEqual(start + took, after + 0.001)

    def test_has_the_name_of_the_process(self):
        pid, _ = self.run_program(UCM_PROFILE="True")
        self.assertEqual(os.listdir(self.dir.name), [f"ucm-profile-{pid}.json"])
        self.assertTrue(self.read(f"ucm-profile-{pid}.json"))

    def test_is_not_written_unless_asked_for(self):
        self.run_program(UCM_PROFILE_OUTPUT="it.json")
        self.assertEqual(os.listdir(self.dir.name), [])

    def test_that_cannot_be_written_is_one_warning(self):
        _, said = self.run_program(UCM_PROFILE="1",
                                   UCM_PROFILE_OUTPUT="absent/it.json")
        self.assertEqual(said.count("profile absent/it.json"), 1, said)
        self.assertIn("No such file or directory", said)
