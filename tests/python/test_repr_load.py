# SPDX-License-Identifier: Apache-2.0
"""Representations of many blocks at once, through a mount and in its tiers:
what the slabs have is what was written beside the blocks."""

import errno
import itertools
import os
import unittest

import ucmfs
from ucmfs import codes, repr_file, repr_load, sparse
from tests.python.support import (LIMIT, MOUNT, TIER, flip, id_of, join,
                                  needs_mount, new_space, pages_layout,
                                  payload_of)

NUM, LAYERS = 8, 2
SPECS = (sparse.Spec("minmax", "float32", 1, 16, 16),
         codes.Spec("tokens", 1, 16, 64, 16, seed=2))
counter = itertools.count()


@needs_mount
class OfAMount(unittest.TestCase):
    def setUp(self):
        self.space = new_space(f"reprs-{os.getpid()}-{next(counter)}")
        self.ids = [id_of(f"{self.space} {i}") for i in range(NUM)]
        _, layout = pages_layout(join(payload_of(i) for i in range(NUM)))
        with ucmfs.Loader(MOUNT) as loader:
            loader.add_group(layout, self.space).save(
                self.ids, range(NUM)).wait(LIMIT)

    def path(self, block, ending, root=MOUNT):
        name = block.hex()
        return os.path.join(root, "spaces", self.space, name[:2],
                            f"{name}.{ending}")

    def layer(self, block, layer, spec):
        return payload_of(f"{block.hex()} {layer}", spec.nbytes)

    def write(self, spec, ids):
        """Files of blocks; of the last one what it says."""
        for block in ids:
            with open(self.path(block, "bin"), "rb") as file:
                known = repr_file.of_block(file.read(4096), spec)
            slab = spec.slab(LAYERS)
            for layer in range(LAYERS):
                slab.slot(layer)[:] = self.layer(block, layer, spec)
            known.write(self.path(block, "repr"), slab)
        return known

    def sources(self):
        return ({"mount": MOUNT}, {"tiers": TIER},
                {"mount": MOUNT, "io": "threads", "depth": 3})

    def test_are_loaded_into_slabs(self):
        likes = {}
        for spec, source in itertools.product(SPECS, self.sources()):
            if spec not in likes:  # files of the other one are replaced
                likes[spec] = self.write(spec, self.ids)
            like = likes[spec]
            with self.subTest(f"{spec} {source}"), repr_load.Reprs(
                    space=self.space, **source) as files:
                found = files.header(self.ids[3])
                self.assertEqual((found.id, found.spec, found.layer_bytes),
                                 (self.ids[3], spec, spec.nbytes))
                got = files.load(self.ids, like, range(LAYERS))
                self.assertEqual(got.errors, [0] * NUM)
                for layer, i in itertools.product(range(LAYERS), range(NUM)):
                    self.assertEqual(bytes(got.slabs[layer].slot(i)),
                                     self.layer(self.ids[i], layer, spec))
                slab = spec.slab(NUM + 5)
                files.load(self.ids, found, [1], slabs=[slab],
                           slots=range(NUM + 4, 4, -1))
                self.assertEqual(bytes(slab.slot(NUM + 4)),
                                 self.layer(self.ids[0], 1, spec))
                self.assertEqual(bytes(slab.slot(0)), bytes(spec.nbytes))
                self.assertEqual(files.load([], found, [0]).errors, [])

    def test_what_is_not_there_is_told(self):
        spec = SPECS[0]
        like = self.write(spec, self.ids[:-1])
        with repr_load.Reprs(MOUNT, space=self.space) as files:
            with self.assertRaises(ucmfs.NotFound) as caught:
                files.load(self.ids, like, [0])
            self.assertIn(self.ids[-1].hex(), str(caught.exception))
            with self.assertRaises(ucmfs.NotFound):
                files.header(self.ids[-1])
            got = files.load(self.ids, like, [0], partial=True)
            self.assertEqual(got.errors, [0] * (NUM - 1) + [errno.ENOENT])
            self.assertEqual(bytes(got.slabs[0].slot(2)),
                             self.layer(self.ids[2], 0, spec))
            with open(self.path(self.ids[0], "bin"), "rb") as file:
                other = repr_file.of_block(file.read(4096), SPECS[1])
            with self.assertRaisesRegex(ucmfs.InvalidArgument, "kind"):
                files.load(self.ids, other, [0])
        flip(self.path(self.ids[4], "repr", TIER), 4096 + 1)
        with repr_load.Reprs(tiers=TIER, space=self.space) as files:
            got = files.load(self.ids[:6], like, [0], partial=True)
            self.assertEqual(got.errors, [0, 0, 0, 0, errno.EBADMSG, 0])
            self.assertEqual(bytes(got.slabs[0].slot(4)), bytes(spec.nbytes))
            self.assertEqual(files.load(self.ids[4:5], like, [1]).errors, [0])

    def test_what_is_wrong_is_named(self):
        like = self.write(SPECS[0], self.ids[:1])
        files = repr_load.Reprs(MOUNT, space=self.space)
        small = sparse.Slab(1, 64)
        for names, call in (
            ("layers", lambda: files.load(self.ids[:1], like, [0, 2])),
            ("layers", lambda: files.load(self.ids[:1], like, [])),
            ("layers: 3 from 0", lambda: files.load(self.ids[:1], like,
                                                    range(3), partial=True)),
            ("slabs: 1, where 2", lambda: files.load(
                self.ids[:1], like, range(2), slabs=[small])),
            ("slots of 64 bytes", lambda: files.load(
                self.ids[:1], like, [0], slabs=[small])),
            ("slots: number 0 is 9", lambda: files.load(
                self.ids[:1], like, [0], slots=[9], partial=True)),
            ("mount or tiers", repr_load.Reprs),
            ("depth 5000", lambda: repr_load.Reprs(MOUNT, depth=5000)),
            ("io", lambda: repr_load.Reprs(MOUNT, io="fast")),
        ):
            with self.subTest(names), self.assertRaisesRegex(
                    ucmfs.InvalidArgument, names):
                call()
        with self.assertRaisesRegex(ucmfs.NotFound, "space nowhere"):
            repr_load.Reprs(MOUNT, space="nowhere")
        files.close()
        files.close()
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "closed"):
            files.header(self.ids[0])


if __name__ == "__main__":
    unittest.main()
