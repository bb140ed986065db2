# SPDX-License-Identifier: Apache-2.0
"""Who has been told that a block is there finds it, for a while."""

import errno
import itertools
import os
import subprocess
import sys
import time
import unittest

import ucmfs
from ucmfs.vllm.leases import Leases
from tests.python.support import (BLOCK, LIMIT, MOUNT, id_of, join,
                                  needs_mount, new_space, pages_layout,
                                  payload_of, wait_unheld)

NUM = 4
counter = itertools.count()


def until(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(what)
        time.sleep(0.002)


class WithoutAMount(unittest.TestCase):
    def test_nothing_waits_and_nothing_fails(self):
        with ucmfs.Lessee("/nowhere") as lessee:
            hold = lessee.hold([id_of(0)], "space")
            self.assertNotEqual(hold, 0)
            until(lambda: lessee.stats()["failed"], "it was not tried")
            lessee.release(hold)
            until(lambda: not lessee.stats()["holds"], "it is still held")
        self.assertEqual(lessee.hold([id_of(0)]), 0)  # closed

    def test_a_lease_has_a_limit(self):
        with self.assertRaises(ucmfs.InvalidArgument):
            ucmfs.Lessee("/nowhere", 60_001)

    def test_none_are_taken_where_none_are_wanted(self):
        leases = Leases("/nowhere", 0)
        self.assertEqual(leases.hold(id_of(0), "space"), [])
        self.assertEqual(leases.news(), {})
        leases.close()


@needs_mount
class OfAMount(unittest.TestCase):
    def setUp(self):
        self.space = new_space(f"lessee-{os.getpid()}-{next(counter)}")
        self.ids = [id_of(f"{self.space} {i}") for i in range(NUM)]
        _, layout = pages_layout(join(payload_of(i) for i in range(NUM)))
        with ucmfs.Loader(MOUNT) as loader:
            loader.add_group(layout, self.space).save(
                self.ids, range(NUM)).wait(LIMIT)
        self.blocks = ucmfs.Blocks(MOUNT)
        self.addCleanup(self.blocks.close)
        wait_unheld(self.blocks, self.ids, self.space)

    def evict(self):
        return self.blocks.evict(self.ids, self.space)

    def are_held(self, want):
        return [place and place.held for place in self.blocks.locate(
            self.ids, self.space)] == want

    def test_are_held_until_they_are_released(self):
        with ucmfs.Lessee(MOUNT) as lessee:
            hold = lessee.hold([*self.ids[:2], id_of("none")], self.space)
            until(lambda: lessee.stats()["calls"] == 1, "no lease")
            stats = lessee.stats()
            self.assertEqual((stats["leased"], stats["absent"],
                              stats["refused"], stats["failed"]),
                             (2, 1, 0, 0))
            self.assertEqual(self.evict(), [errno.EBUSY, errno.EBUSY, 0, 0])
            lessee.release(hold)
            wait_unheld(self.blocks, self.ids[:2], self.space)
            self.assertEqual(self.evict()[:2], [0, 0])

    def test_two_requests_of_a_user_hold_one_block(self):
        with ucmfs.Lessee(MOUNT) as one, ucmfs.Lessee(MOUNT) as other:
            holds = [lessee.hold(self.ids, self.space)
                     for lessee in (one, other)]
            until(lambda: one.stats()["leased"] and other.stats()["leased"],
                  "no leases")
            one.release(holds[0])
            until(lambda: not one.stats()["holds"], "it is still held")
            self.assertEqual(self.evict(), NUM * [errno.EBUSY])
            other.release(holds[1])
            wait_unheld(self.blocks, self.ids, self.space)

    def test_they_are_renewed(self):
        with ucmfs.Lessee(MOUNT, 100) as lessee:
            lessee.hold(self.ids, self.space)
            until(lambda: lessee.stats()["calls"] > 6, "no renewals")
            self.assertEqual(self.evict(), NUM * [errno.EBUSY])
        self.assertEqual(self.evict(), NUM * [0])  # the end gives them back

    def test_those_of_a_killed_process_run_out(self):
        done = subprocess.run(
            [sys.executable, "-c", f"""
import os, signal, time, ucmfs
lessee = ucmfs.Lessee({MOUNT!r}, 1000)
lessee.hold({self.ids!r}, {self.space!r})
while not lessee.stats()["leased"]:
    time.sleep(0.001)
with ucmfs.Blocks({MOUNT!r}) as blocks:
    print(blocks.evict({self.ids[:1]!r}, {self.space!r}), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""], stdout=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(done.stdout.decode().strip(), f"[{errno.EBUSY}]")
        wait_unheld(self.blocks, self.ids, self.space)
        self.assertEqual(self.evict(), NUM * [0])

    def test_what_a_store_has_found_is_held_for_a_while(self):
        with ucmfs.Store(mount=MOUNT, tensor_size=BLOCK, space=self.space,
                         geometry=None, num_layers=2, lease_ms=500) as store:
            self.assertEqual(
                store.lookup([*self.ids[:2], id_of("none")]),
                [True, True, False])
            until(lambda: self.are_held([True, True, False, False]),
                  "not held")
            self.assertEqual(store.lookup_on_prefix(self.ids[2:]), 1)
            until(lambda: self.are_held(4 * [True]), "not held")
            wait_unheld(self.blocks, self.ids, self.space)  # it runs out
            self.assertEqual(self.evict(), NUM * [0])

    def test_unless_it_takes_no_leases(self):
        with ucmfs.Store(mount=MOUNT, tensor_size=BLOCK, space=self.space,
                         geometry=None, num_layers=2, lease_ms=None) as store:
            self.assertEqual(store.lookup(self.ids), NUM * [True])
            self.assertEqual(self.evict(), NUM * [0])

    def test_what_an_engine_counts(self):
        leases = Leases(MOUNT, 20_000)
        self.addCleanup(leases.close)
        self.assertEqual(leases.news(), {})
        holds = leases.hold(b"".join(self.ids), self.space)
        news = {}

        def counted():
            for name, amount in leases.news().items():
                news[name] = news.get(name, 0) + amount
            return news.get("leased_blocks") == NUM

        until(counted, "not counted")
        self.assertEqual(news["lease_failures"], 0)
        leases.release(holds)
        self.assertEqual(holds, [])
        wait_unheld(self.blocks, self.ids, self.space)


if __name__ == "__main__":
    unittest.main()
