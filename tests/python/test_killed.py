# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed: what is under way fails by name, and nothing hangs."""

import asyncio
import os
import signal
import unittest

import ucmfs
from tests.python.support import (DAEMON, LIMIT, MOUNT, id_of, join,
                                  needs_mount, new_space, pages_layout,
                                  payload_of, stop_daemon)

NUM = 32


@needs_mount
class Killed(unittest.TestCase):
    def test_everything_says_so(self):
        space = new_space("killed")
        ids = join(id_of(i) for i in range(NUM))
        memory, layout = pages_layout(join(payload_of(i)
                                           for i in range(NUM)))
        # no file is kept open: loads ask the daemon
        loader = ucmfs.Loader(MOUNT, io="threads", open_files=1)
        self.addCleanup(loader.close)
        group = loader.add_group(layout, space)
        group.save(ids, range(NUM)).wait(LIMIT)
        index = ucmfs.Index(MOUNT, space)
        self.addCleanup(index.close)
        store = ucmfs.Store(loader, tensor_size=512, shard_size=1024,
                            block_size=2048, space=space, timeout=LIMIT)
        self.assertEqual(index.prefix(ids), (NUM, False))

        stop_daemon()
        task = group.load(ids, range(NUM))
        self.assertFalse(task.done())
        os.kill(DAEMON, signal.SIGKILL)

        async def main():
            await task

        with self.assertRaises(ucmfs.UcmfsError) as caught:
            asyncio.run(main())
        self.assertEqual(len(caught.exception.outcomes), NUM)
        # what has been read before is right; all else has failed
        for i, outcome in enumerate(caught.exception.outcomes):
            if outcome.ok:
                self.assertEqual(memory.content[2048 * i:2048 * (i + 1)],
                                 payload_of(i))
        for call in (lambda: index.prefix(ids), lambda: index.lookup(ids),
                     lambda: index.entry(ids[:16])):
            with self.assertRaises(ucmfs.NotConnected) as caught:
                call()
            self.assertIn(MOUNT, str(caught.exception))
        with self.assertRaises(ucmfs.NotConnected):
            ucmfs.Index(MOUNT, space)
        with self.assertRaises(ucmfs.UcmfsError):
            ucmfs.Loader(MOUNT)
        with self.assertRaises(ucmfs.UcmfsError):
            ucmfs.ensure_space(MOUNT, "x", {"geometry": {}})
        with self.assertRaises(ucmfs.ConfigError):
            ucmfs.validate_config({"storage_backends": MOUNT})
        with self.assertRaises(ucmfs.UcmfsError):
            group.load(ids[-16:], [0]).wait(LIMIT)
        with self.assertRaises(ucmfs.UcmfsError):
            group.save(id_of("new"), [0]).wait(LIMIT)
        with self.assertRaises(ucmfs.UcmfsError):
            group.lookup(ids)
        with self.assertRaises(ucmfs.UcmfsError):
            store.lookup(ids)
        store.close()


if __name__ == "__main__":
    unittest.main()
