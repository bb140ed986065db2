# SPDX-License-Identifier: Apache-2.0
"""Representations of many blocks at once, through a mount and in its tiers:
what the slabs have is what was saved, and they are blocks of their own."""

import errno
import itertools
import os
import unittest

import ucmfs
from ucmfs import codes, repr_load, repr_space, sparse
from tests.python.support import (GEOMETRY, MOUNT, TIER, flip, id_of,
                                  needs_mount, payload_of)

NUM, LAYERS = 8, 2
SPECS = (sparse.Spec("minmax", "float32", 1, 16, 16),
         codes.Spec("tokens", 1, 16, 64, 16, seed=2))
counter = itertools.count()


@needs_mount
class OfAMount(unittest.TestCase):
    def setUp(self):
        self.blocks = f"reprs-{os.getpid()}-{next(counter)}"
        self.ids = [id_of(f"{self.blocks} {i}") for i in range(NUM)]

    def path(self, block, root=MOUNT):
        name = block.hex()
        return os.path.join(root, "spaces", f"{self.blocks}.repr", name[:2],
                            f"{name}.bin")

    def layer(self, block, layer, spec):
        return payload_of(f"{block.hex()} {layer}", spec.nbytes)

    def opened(self, spec, **source):
        return repr_load.Reprs(
            blocks=self.blocks, make=True,
            like=repr_space.of_blocks(GEOMETRY, spec), **source)

    def save(self, spec, ids, **source):
        slabs = [spec.slab(NUM) for _ in range(LAYERS)]
        for layer, (i, block) in itertools.product(range(LAYERS),
                                                   enumerate(ids)):
            slabs[layer].slot(i)[:] = self.layer(block, layer, spec)
        with self.opened(spec, **source) as reprs:
            self.assertEqual(reprs.save(ids, slabs), [0] * len(ids))
            self.assertEqual(reprs.save(ids, slabs), [0] * len(ids))

    def test_are_saved_and_loaded(self):
        for spec in SPECS:
            self.setUp()  # another space
            self.save(spec, self.ids, mount=MOUNT)
            for source in ({"mount": MOUNT}, {"tiers": TIER},
                           {"mount": MOUNT, "io": "threads"}):
                with self.subTest(f"{spec} {source}"), repr_load.Reprs(
                        blocks=self.blocks, **source) as reprs:
                    self.assertEqual((reprs.holds.spec,
                                      reprs.holds.layer_bytes),
                                     (spec, spec.nbytes))
                    self.look(reprs, spec)

    def look(self, reprs, spec):
        got = reprs.load(self.ids, range(LAYERS))
        self.assertEqual(got.errors, [0] * NUM)
        for layer, i in itertools.product(range(LAYERS), range(NUM)):
            self.assertEqual(bytes(got.slabs[layer].slot(i)),
                             self.layer(self.ids[i], layer, spec))
        slab = spec.slab(NUM + 5)
        reprs.load(self.ids, [1], slabs=[slab], slots=range(NUM + 4, 4, -1))
        self.assertEqual(bytes(slab.slot(NUM + 4)),
                         self.layer(self.ids[0], 1, spec))
        self.assertEqual(bytes(slab.slot(0)), bytes(spec.nbytes))
        self.assertEqual(reprs.load([], [0]).errors, [])

    def test_are_blocks_of_their_own(self):
        self.save(SPECS[0], self.ids, mount=MOUNT)
        name = repr_space.name_of(self.blocks)
        with ucmfs.Index(MOUNT, name) as index:
            self.assertEqual(index.lookup(self.ids)[0], b"\1" * NUM)
        with ucmfs.Blocks(MOUNT) as blocks:
            blocks.evict(self.ids[:1], name)
        with repr_load.Reprs(MOUNT, blocks=self.blocks) as reprs:
            got = reprs.load(self.ids, [0], partial=True)
        self.assertEqual(got.errors, [errno.ENOENT] + [0] * (NUM - 1))

    def test_what_is_not_there_is_told(self):
        spec = SPECS[0]
        self.save(spec, self.ids[:-1], mount=MOUNT)
        with repr_load.Reprs(MOUNT, blocks=self.blocks) as reprs:
            with self.assertRaises(ucmfs.NotFound) as caught:
                reprs.load(self.ids, [0])
            self.assertIn(self.ids[-1].hex(), str(caught.exception))
            got = reprs.load(self.ids, [0], partial=True)
            self.assertEqual(got.errors, [0] * (NUM - 1) + [errno.ENOENT])
            self.assertEqual(bytes(got.slabs[0].slot(2)),
                             self.layer(self.ids[2], 0, spec))
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "kind"):
            self.opened(SPECS[1], mount=MOUNT)
        flip(self.path(self.ids[4], TIER), 4096 + 1)
        with repr_load.Reprs(tiers=TIER, blocks=self.blocks) as reprs:
            got = reprs.load(self.ids[:6], [0], partial=True)
            self.assertEqual(got.errors, [0, 0, 0, 0, errno.EBADMSG, 0])
            self.assertEqual(reprs.load(self.ids[4:5], [1]).errors, [0])

    def test_what_is_wrong_is_named(self):
        self.save(SPECS[0], self.ids[:1], mount=MOUNT)
        reprs = repr_load.Reprs(MOUNT, blocks=self.blocks)
        small = sparse.Slab(1, 64)
        for names, call in (
            ("layers", lambda: reprs.load(self.ids[:1], [0, 2])),
            ("layers", lambda: reprs.load(self.ids[:1], [])),
            ("layers: 3 from 0", lambda: reprs.load(self.ids[:1], range(3),
                                                    partial=True)),
            ("slabs: 1, where 2", lambda: reprs.load(
                self.ids[:1], range(2), slabs=[small])),
            ("slots of 64 bytes", lambda: reprs.load(
                self.ids[:1], [0], slabs=[small])),
            ("slots: number 0 is 9", lambda: reprs.load(
                self.ids[:1], [0], slots=[9], partial=True)),
            ("mount or tiers", repr_load.Reprs),
            ("like", lambda: repr_load.Reprs(MOUNT, make=True)),
            ("io", lambda: repr_load.Reprs(MOUNT, io="fast")),
        ):
            with self.subTest(names), self.assertRaisesRegex(
                    ucmfs.InvalidArgument, names):
                call()
        with self.assertRaisesRegex(ucmfs.NotFound, "nowhere"):
            repr_load.Reprs(MOUNT, space="nowhere")
        reprs.close()
        reprs.close()
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "closed"):
            reprs.load(self.ids, [0])


if __name__ == "__main__":
    unittest.main()
