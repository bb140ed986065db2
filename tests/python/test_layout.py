# SPDX-License-Identifier: Apache-2.0
"""Layouts of tensors, against indexing of the tensors themselves."""

import ctypes
import unittest

import ucmfs
from tests.python.support import (GEOMETRY, FakeTorch, Memory, needs_numpy,
                                  numpy)

HALF = ucmfs.Geometry(2, 4, "float16", 64, 64, 2, 4)
# 2 layers, 4 tokens, 2 heads of 4 halves


def payload(layout, page):
    """What a block is, by the regions alone."""
    out = bytearray(layout.geometry.payload_bytes)
    for r in layout.regions():
        at = r.offset
        for i1 in range(r.n1):
            for i0 in range(r.n0):
                where = r.base + page * r.page_stride + i1 * r.s1 + i0 * r.s0
                out[at:at + r.run_bytes] = ctypes.string_at(where,
                                                            r.run_bytes)
                at += r.run_bytes
    return bytes(out)


@needs_numpy
class Tensors(unittest.TestCase):
    def filled(self, *shape):
        size = int(numpy.prod(shape))
        return numpy.arange(size, dtype="uint16").reshape(shape) \
            .view("float16")

    def check(self, tensors, dims, planes, pages=3, **options):
        """planes(page, layer) -> K and V as arrays in NHD order."""
        for wrap in (lambda t: t, FakeTorch):
            wrapped = [tuple(map(wrap, t)) if isinstance(t, tuple)
                       else wrap(t) for t in tensors]
            layout = ucmfs.regions_of(wrapped, HALF, dims=dims, **options)
            self.assertEqual(layout.num_pages, pages)
            for page in range(pages):
                want = b"".join(
                    plane.tobytes() for layer in range(2)
                    for plane in planes(page, layer))
                self.assertEqual(payload(layout, page), want)

    def test_of_planes_first(self):
        t = [self.filled(2, 3, 4, 2, 4) for _ in range(2)]
        self.check(t, "PBNHD", lambda p, n: (t[n][0, p], t[n][1, p]))

    def test_of_heads_first(self):
        t = [self.filled(3, 2, 2, 4, 4) for _ in range(2)]
        self.check(t, "BPHND", lambda p, n: [
            numpy.swapaxes(t[n][p, i], 0, 1) for i in range(2)])

    def test_of_k_and_v_in_a_row(self):
        t = [self.filled(3, 2, 4, 8) for _ in range(2)]
        self.check(t, "BHNC", lambda p, n: [
            numpy.swapaxes(t[n][p, :, :, i:i + 4], 0, 1) for i in (0, 4)])

    def test_of_pairs(self):
        t = [(self.filled(3, 4, 2, 4), self.filled(3, 4, 2, 4))
             for _ in range(2)]
        self.check(t, "BNHD", lambda p, n: (t[n][0][p], t[n][1][p]))

    def test_of_all_layers_in_one(self):
        t = self.filled(3, 2, 2, 4, 2, 4)
        self.check([t], "BLPNHD", lambda p, n: (t[p, n, 0], t[p, n, 1]))

    def test_of_views(self):
        t = [self.filled(2, 6, 4, 2, 4)[:, ::2] for _ in range(2)]
        self.check(t, "PBNHD", lambda p, n: (t[n][0, p], t[n][1, p]))

    def test_of_small_kernel_blocks(self):
        t = [self.filled(2, 6, 2, 2, 4) for _ in range(2)]
        self.check(t, "PBNHD", lambda p, n: [
            t[n][i, 2 * p:2 * p + 2] for i in range(2)],
                   kernel_blocks_per_page=2)

    def test_by_name(self):
        t = {f"layers.{n}": self.filled(2, 3, 4, 2, 4) for n in range(2)}
        layout = ucmfs.regions_of(t, HALF, dims="PBNHD")
        self.assertEqual(len(layout.regions()), 4)
        self.assertGreaterEqual(layout.runs, 1)

    def test_of_layers_of_several_sizes(self):
        layout = ucmfs.Layout(ucmfs.Geometry(
            num_layers=2, block_size=4, k_bytes=4096, v_bytes=64,
            order="opaque"), 3)
        layout.set_layer_bytes(1, 1024)
        for layer, plane, size in ((0, "k", 4096), (0, "v", 64),
                                   (1, "both", 1024)):
            layout.add_tensor(numpy.zeros((3, size), dtype="uint8"), "BD",
                              layer=layer, plane=plane)
        self.assertEqual([(r.offset, r.run_bytes)
                          for r in layout.seal().regions()],
                         [(0, 4096), (4096, 64), (4160, 1024)])
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "several sizes"):
            layout.set_direct()
        for sizes in ((2, 1), (0, 0), (0, 4097), (0, 1, 65), (0, -1)):
            with self.assertRaises(ucmfs.InvalidArgument):
                ucmfs.Layout(layout.geometry, 3).set_layer_bytes(*sizes)

    def test_that_may_be_read_into(self):
        page = ucmfs.Geometry(num_layers=1, block_size=4, k_bytes=4096,
                              order="opaque")
        slots = ucmfs.Layout(page, 3)
        slots.add_tensor(numpy.zeros((3, 4096), dtype="uint8"), "BD")
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "not sealed"):
            slots.set_direct()
        self.assertIs(slots.seal().set_direct(), slots)
        planes = ucmfs.regions_of(
            [self.filled(2, 3, 4, 2, 4)],
            ucmfs.Geometry(1, 4, "float16", 64, 64, 2, 4), dims="PBNHD")
        with self.assertRaisesRegex(ucmfs.InvalidArgument,
                                    "2 pieces of memory"):
            planes.set_direct()

    def test_that_are_wrong_are_named(self):
        good = self.filled(2, 3, 4, 2, 4)
        read_only = good.copy()
        read_only.flags.writeable = False
        records = numpy.zeros((3, 5), dtype="uint8")[:, :4].view("uint16")
        for tensor, dims, text in (
                (good, "BNHD", "5 dimensions, shape (2, 3, 4, 2, 4)"),
                (self.filled(2, 3, 5, 2, 4), "PBNHD", "the.tensor"),
                (read_only, "PBNHD", "read-only"),
                (records, "BD", "no multiples"),
                ("text", "BD", "str is no tensor")):
            with self.assertRaises(ucmfs.InvalidArgument) as caught:
                ucmfs.regions_of({"the.tensor": tensor}, HALF, dims=dims,
                                 num_pages=3)
            self.assertIn(text, str(caught.exception))
            self.assertIn("the.tensor", str(caught.exception))

    def test_stay_referenced(self):
        import weakref
        class Array(numpy.ndarray):
            pass
        t = self.filled(3, 2, 2, 4, 2, 4).view(Array)
        alive = weakref.ref(t)
        layout = ucmfs.regions_of([t], HALF, dims="BLPNHD")
        del t
        self.assertIsNotNone(alive())
        del layout
        self.assertIsNone(alive())


class Regions(unittest.TestCase):
    def test_are_taken_as_they_are(self):
        memory = Memory(bytes(4096))
        layout = ucmfs.Layout(GEOMETRY, 2)
        want = [ucmfs.Region(memory.address + 512 * i, 2048, 512,
                             offset=512 * i, layer=i // 2) for i in range(4)]
        for region in want:
            layout.add_region(region)
        self.assertEqual(layout.seal().regions(), want)
        self.assertEqual(layout.regions_of_layers(0, 1), 2)
        self.assertEqual(layout.regions_of_layers(1, 2), 2)

    def test_that_leave_a_gap_are_refused(self):
        layout = ucmfs.Layout(GEOMETRY, 2)
        layout.add_region(ucmfs.Region(4096, 2048, 512))
        with self.assertRaises(ucmfs.InvalidArgument):
            layout.seal()

    def test_outside_the_payload_are_refused(self):
        layout = ucmfs.Layout(GEOMETRY, 2)
        with self.assertRaises(ucmfs.InvalidArgument):
            layout.add_region(ucmfs.Region(4096, 2048, 512, offset=4096))


class Geometries(unittest.TestCase):
    def test_go_to_json_and_back(self):
        self.assertEqual(ucmfs.Geometry.from_json(GEOMETRY.to_json()),
                         GEOMETRY)
        self.assertEqual(GEOMETRY.payload_bytes, 2048)

    def test_that_are_wrong_are_refused(self):
        for change, text in (({"dtype": "float99"}, "dtype 'float99'"),
                             ({"order": "DHN"}, "order 'DHN'"),
                             ({"num_layers": -1}, "num_layers -1"),
                             ({"head_dim": 65536}, "head_dim 65536"),
                             ({"k_bytes": 0}, "layout")):
            values = {**GEOMETRY.to_json(), **change}
            with self.assertRaises(ucmfs.InvalidArgument) as caught:
                ucmfs.Layout(ucmfs.Geometry(**values), 1)
            self.assertIn(text, str(caught.exception))
        with self.assertRaises(ucmfs.InvalidArgument):
            ucmfs.Geometry.from_json({"layers": 2})


if __name__ == "__main__":
    unittest.main()
