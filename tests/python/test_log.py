# SPDX-License-Identifier: Apache-2.0
"""Messages of libucm are records of Python's logging, to the end."""

import logging
import subprocess
import sys
import threading
import unittest

import ucmfs
from tests.python.support import (LIMIT, MOUNT, TIER, backing_file, flip,
                                  id_of, needs_mount, new_space,
                                  pages_layout, payload_of)

ONE = id_of("logged")

# Loads a block that is damaged, so that libucm has something to say.
SCRIPT = """
import logging, os, sys
import ucmfs
from tests.python import test_log
logging.basicConfig(format="%(levelname)s %(name)s %(process)d: %(message)s")
"""


def make_damaged():
    _, layout = pages_layout(payload_of("logged"))
    with ucmfs.Loader(MOUNT) as loader:
        group = loader.add_group(layout, new_space("logged"))
        group.save(ONE, [0]).wait(LIMIT)
    flip(backing_file("logged", ONE), 4096)


def load():
    _, layout = pages_layout(payload_of("logged"))
    with ucmfs.Loader(tiers=TIER) as loader:
        group = loader.add_group(layout, "logged")
        return group.load(ONE, [0]).result(LIMIT)[0].err


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
        self.event = threading.Event()

    def emit(self, record):
        self.records.append((record, threading.current_thread().name))
        self.event.set()


@needs_mount
class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        make_damaged()

    def run_script(self, body):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT + body],
            capture_output=True, text=True, timeout=2 * LIMIT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr.splitlines()

    def test_are_records_of_ucmfs(self):
        heard = Heard()
        logger = logging.getLogger("ucmfs")
        logger.addHandler(heard)
        self.addCleanup(logger.removeHandler, heard)
        self.assertTrue(load())
        self.assertTrue(heard.event.wait(LIMIT))
        (record, thread), = heard.records
        self.assertEqual(record.levelno, logging.WARNING)
        self.assertIn(f"block {ONE.hex()}: not loaded: layer 0 K",
                      record.getMessage())
        self.assertEqual(thread, "ucmfs-log")

    def test_reach_the_log_though_the_program_ends(self):
        line, = self.run_script("test_log.load()")
        self.assertIn("WARNING ucmfs ", line)
        self.assertIn("layer 0 K", line)

    def test_of_vllm_go_to_its_logger(self):
        line, = self.run_script("import ucmfs.vllm.mount\n"
                                "test_log.load()")
        self.assertIn("WARNING vllm.ucmfs ", line)

    def test_of_a_forked_child_are_its_own(self):
        lines = self.run_script("""
from ucmfs import _log
_log.start()
child = os.fork()
test_log.load()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(child, file=sys.stderr)
else:
    _log.stop()
    os._exit(0)
""")
        child, = [line for line in lines if line.isdigit()]
        told = [line.split(": ")[0] for line in lines if "layer 0 K" in line]
        self.assertEqual(len(told), 2)
        self.assertEqual([f" {child}" in line for line in told].count(True),
                         1)

    def test_come_out_though_the_interpreter_waits_for_nobody(self):
        """Its log's handler is held up for ever: the end does not hang."""
        lines = self.run_script("""
import threading
from ucmfs import _log
_log._PATIENCE = 0.05
class Free:
    def acquire(self):
        pass
    release = __enter__ = acquire
    def __exit__(self, *_):
        pass
class Stuck(logging.Handler):
    def createLock(self):
        self.lock = Free()
    def emit(self, record):
        threading.Event().wait()
logging.getLogger("ucmfs").addHandler(Stuck())
test_log.load()
""")
        self.assertEqual([line for line in lines if "Traceback" in line], [])
