# SPDX-License-Identifier: Apache-2.0
"""What C would cut to its bits, take for a default, read beyond, or write over
is refused in Python, by its name."""

import array
import ctypes
import unittest

import ucmfs
from ucmfs import (attention, codes, measuring, methods, namespace, position,
                   repr_load, repr_space, retrieval, retrieve, sparse, star)
from tests.lib.private_daemon import directory, directory_of
from tests.python.support import (GEOMETRY, LIMIT, FakeTorch, id_of,
                                  needs_numpy, numpy, pages_layout)

HUGE = 1 << 32  # C sees 0
BLOCKS, SIZE, HEADS, DIM = 4, 8, 2, 32
SPEC = sparse.Spec("mean", "float32", HEADS, DIM, SIZE)
CODES = codes.Spec("tokens", HEADS, DIM, 64, SIZE)
STAR = star.Spec("float32", HEADS, DIM, SIZE, 2, DIM)
ROPE = position.Rope(DIM)


class Case(unittest.TestCase):
    def refused(self, *table):
        """Rows of (words of the message, call)."""
        for names, call in table:
            with self.subTest(names):
                with self.assertRaises(ucmfs.InvalidArgument) as caught:
                    call()
                for name in names.split("|"):
                    self.assertIn(name, str(caught.exception))


class WithKeys(Case):
    def setUp(self):
        self.keys = numpy.random.default_rng(1).standard_normal(
            (BLOCKS, SIZE, HEADS, DIM)).astype("f")
        self.q = self.keys[0, 0]
        self.slab = SPEC.build(self.keys)

    def raw(self, shape, strides):
        return ucmfs.Raw(self.keys.ctypes.data, shape, strides, 4, "cpu",
                         self.keys)


class Interface:
    """What has an address, and no dtype."""

    def __init__(self, values):
        self.values = values
        self.__array_interface__ = values.__array_interface__


@needs_numpy
class Shapes(WithKeys):
    def test_there_are_channels(self):
        none, keys, q = self.keys[..., :0], self.keys, self.q
        rerope = attention.ReRope(ROPE, 8, block_size=SIZE)
        for call in (attention.decode, attention.reference, rerope.decode,
                     rerope.reference):
            self.refused(
                ("values|no channels", lambda: call(q, keys, none)),
                ("keys|no channels", lambda: call(q, none, keys)))
        self.refused(("fresh|no channels",
                      lambda: position.deviation(none, none[0])))

    def test_are_counted_in_32_bits(self):
        keys, q = self.keys, self.q
        wide = self.raw((BLOCKS, SIZE, HEADS, HUGE), (0, 0, 0, 1))
        many = self.raw((HUGE + HEADS, DIM), (0, 1))
        self.refused(
            ("values|up to", lambda: attention.decode(
                q, keys, wide, dtype="float32")),
            ("query|up to", lambda: attention.decode(
                many, keys, keys, dtype="float32")),
            ("query|up to", lambda: SPEC.query(many, dtype="float32")))

    def test_are_of_tensors(self):
        def raw(shape=(4,), strides=(1,), pointer=4096, item=4):
            return ucmfs.Raw(pointer, shape, strides, item)

        for use in (lambda bad: ucmfs.Layout(GEOMETRY, 1).add_tensor(
                        bad, "B" * len(bad.shape), name="it"),
                    lambda bad: SPEC.query(bad, dtype="float32")):
            self.refused(
                ("shape -4", lambda: use(raw((-4,)))),
                ("shape 4.0", lambda: use(raw((4.0,)))),
                ("as many dimensions", lambda: use(raw((4, 1)))),
                ("strides 9223372036854775808",
                 lambda: use(raw((4,), (1 << 63,)))),
                ("pointer -1", lambda: use(raw(pointer=-1))),
                ("item_bytes -4", lambda: use(raw(item=-4))))
        none = ucmfs.Raw(0, self.keys.shape, (SIZE * HEADS * DIM, HEADS * DIM,
                                              DIM, 1), 4)
        self.refused(("values|address 0", lambda: position.deviation(
            self.keys, self.keys[0], cached_values=none, dtype="float32",
            fresh_values=ucmfs.Raw(0, none.shape[1:], none.strides[1:], 4))))


@needs_numpy
class Types(WithKeys):
    def test_are_not_read_as_another_dtype(self):
        keys = self.keys
        halves = keys.astype("f2")
        for dtype, values in (
                ("float32", keys.astype(">f4")),
                ("float32", keys.astype("i4")),
                ("float32", keys.astype("u4")),
                ("float32", memoryview(keys.astype("i4"))),
                ("float32", Interface(keys.astype(">f4"))),
                ("float32", Interface(keys.astype("i4"))),
                ("float16", halves.astype(">f2")),
                ("float16", halves.view("u2")),
                ("bfloat16", halves.view("i2")),
                ("bfloat16", halves.view(">u2"))):
            self.refused((f"keys|bytes, where {dtype} is needed",
                          lambda: SPEC.build(values, dtype=dtype)))
        self.refused(
            ("keys: dtype 'float64'",
             lambda: SPEC.build(keys, dtype="float64")),
            ("query|int32", lambda: SPEC.query(self.q.astype("i4"),
                                               dtype="float32")),
            ("to|int32", lambda: ROPE.shift(
                keys, [0] * BLOCKS, to=keys.astype("i4"), dtype="float32")))

    def test_that_are_named_or_given_by_a_dtype_are_taken(self):
        want = bytes(SPEC.build(self.keys).slot(1))
        flat = (ctypes.c_float * self.keys.size)(*self.keys.reshape(-1))
        shaped = memoryview(flat).cast("B").cast("f", self.keys.shape)
        for values, dtype in ((self.keys, "float32"),
                              (Interface(self.keys), None), (shaped, None),
                              (FakeTorch(self.keys, "float32"), "float32")):
            self.assertEqual(bytes(SPEC.build(values, dtype=dtype).slot(1)),
                             want)
        self.assertEqual(
            list(sparse.select((ctypes.c_float * 4)(1, 3, 2, 4),
                               sparse.Budget(4, 0, 0, 2))), [1, 3])

    def test_of_numbers_of_blocks(self):
        build = SPEC.build
        self.refused(
            ("blocks", lambda: build(self.keys, blocks=numpy.array(
                [0, 1], ">i4"))),
            ("blocks|mask", lambda: build(self.keys, blocks=numpy.array(
                [True, False, True, True]))),
            ("selected", lambda: sparse.select_table([0], SIZE, 3, None)))
        self.assertEqual(
            bytes(build(self.keys, blocks=(ctypes.c_int32 * 2)(3, 1)).slot(1)),
            bytes(self.slab.slot(1)))


@needs_numpy
class Destinations(WithKeys):
    def test_are_no_two_the_same(self):
        keys, deltas = self.keys, [1, 2]
        for build, slab in (
                (SPEC.build, SPEC.slab(3)), (STAR.build, STAR.slab(3)),
                (codes.Encoder(CODES).build, CODES.slab(3))):
            self.refused(
                ("slots: 2 is there twice",
                 lambda: build(keys, slab, slots=[2, 0, 2])),
                ("slots: 1 is there twice", lambda: build(
                    keys, slab, blocks=[3, 0], slots=numpy.array([1, 1]))))
        to = numpy.zeros_like(keys)
        over = numpy.lib.stride_tricks.as_strided(
            to, strides=(0, *to.strides[1:]))
        self.refused(
            ("to_blocks: 3 is there twice", lambda: ROPE.shift(
                keys, deltas, to=to, to_blocks=[3, 3])),
            ("to_blocks: 1 is there twice", lambda: ROPE.shift(
                keys, deltas, from_blocks=[1, 1])),
            ("to_blocks: 1 is read as well", lambda: ROPE.shift(
                keys, deltas, from_blocks=[0, 1], to_blocks=[1, 2])),
            ("to_blocks: 0 is read as well", lambda: ROPE.shift(
                keys, deltas, to=keys, to_blocks=[1, 0])),
            ("to|overlap", lambda: ROPE.shift(keys, [1] * BLOCKS, to=over)),
            ("keys|overlap", lambda: ROPE.shift(over, [1] * BLOCKS)))
        self.assertFalse(to.any())

    def test_may_be_in_the_same_cache(self):
        want, keys = self.keys.copy(), self.keys.copy()
        ROPE.shift(want, [5, 6], from_blocks=[0, 1])
        ROPE.shift(keys, [5, 6], from_blocks=[0, 1], to_blocks=[3, 2])
        self.assertEqual(keys[3].tobytes(), want[0].tobytes())
        self.assertEqual(keys[2].tobytes(), want[1].tobytes())

    def test_of_representations_are_no_two_the_same(self):
        like = repr_space.of_blocks(ucmfs.Geometry(
            3, SIZE, "float32", SPEC.nbytes, 0), SPEC)
        ids, slab = [id_of(1), id_of(2)], sparse.Slab(2, SPEC.nbytes)
        with directory() as folder:
            with repr_load.Reprs(tiers=folder, like=like, make=True) as reprs:
                self.refused(
                    ("slots: 1 is there twice",
                     lambda: reprs.load(ids, [0], slots=[1, 1])),
                    ("slabs|twice",
                     lambda: reprs.load(ids, [0, 1], slabs=[slab, slab])),
                    ("layers: 1, where all 3", lambda: reprs.save(
                        ids, [slab])),
                    ("layer 4294967296", lambda: reprs.load(ids, [HUGE])))


@needs_numpy
class OfRetrieval(WithKeys):
    def test_what_has_no_such_number(self):
        query, slab = SPEC.query(self.q), self.slab
        resident = retrieve.Resident(8, 4)
        config = methods.parse("GSA", block_size=SIZE, num_layers=2)
        self.refused(
            ("slot 1.5", lambda: slab.slot(1.5)),
            ("slots: 2, where 1", lambda: query.score(slab, [0, 1], num=1)),
            ("kept 4294967296", lambda: star.Spec(
                "float32", HEADS, DIM, SIZE, 2, HUGE).choose(self.keys)),
            ("num_heads 0", lambda: retrieval.Retrieval(
                SPEC, lanes=1, max_blocks=4)),
            ("err -1099511627776", lambda: resident.ended(0, 0, 1 << 40)),
            ("blocks", lambda: resident.take(None)),
            ("slots", lambda: resident.release(None)),
            ("blocks", lambda: resident.plan(None, now=1)),
            ("pooling has a NUL", lambda: config.set("pooling", "mean\0x")),
        )
        self.assertEqual(len(query.score(slab, [0, 1], num=2)), 2)


class OfBlocks(Case):
    def test_ids(self):
        def hashed(ids):
            with ucmfs.Hasher("ucm", block_size=4) as hasher:
                return hasher.rank_ids(0, ids)

        self.refused(
            ("ids: an id has 16 bytes",
             lambda: hashed([array.array("Q", range(16))])),
            ("ids", lambda: hashed(["x" * 16])),
            ("ids", lambda: hashed([16])))

    def test_hashes(self):
        hasher = ucmfs.Hasher("ucm", block_size=4)
        known = ucmfs.Hasher("external", block_size=4, space_id=bytes(32))
        for one in (hasher, known):
            self.addCleanup(one.close)
        self.refused(
            ("num_tokens -1", lambda: hasher.count(-1)),
            ("tokens -4", lambda: hasher.resume(bytes(16), -4)),
            ("parent", lambda: hasher.resume(16, 4)),
            ("rank 4294967297",
             lambda: hasher.rank_ids(HUGE + 1, bytes(16))),
            ("group 4294967296",
             lambda: known.external(bytes(32), 32, HUGE)),
            ("item: position 18446744073709551616", lambda: hasher.start(
                items=[(bytes(32), 1 << 64, 1)])),
            ("crc 4294967296", lambda: ucmfs.crc32c(b"", HUGE)))
        for call in (lambda: ucmfs.crc32c(5), lambda: known.external(16, 16)):
            self.assertRaises(TypeError, call)  # rather than take zeros

    def test_text_with_a_nul(self):
        self.refused(*((f"{name} has a NUL", call) for name, call in (
            ("space", lambda: ucmfs.Index("/none", "a\0b")),
            ("mount", lambda: ucmfs.Index("/no\0ne")),
            ("mount", lambda: ucmfs.Blocks("/no\0ne")),
            ("mount", lambda: ucmfs.Loader("/no\0ne")),
            ("tiers", lambda: ucmfs.Loader(tiers=["/no\0ne"])),
            ("space", lambda: namespace.remove_space("/none", "a\0b")),
            ("space", lambda: namespace.read_manifest("/none", "a\0b")),
            ("space", lambda: repr_load.Reprs("/none", space="a\0b")),
            ("blocks", lambda: repr_load.Reprs("/none", blocks="a\0b")))))

    def test_layouts(self):
        def layout():
            return ucmfs.Layout(GEOMETRY, 1)

        def tensor(dims="BD", **more):
            layout().add_tensor(ucmfs.Raw(4096, (1, 512), (512, 1), 2), dims,
                                name="it", **more)

        region = ucmfs.Region(4096, 4096, 512)
        self.refused(
            ("num_pages 18446744073709551617",
             lambda: ucmfs.Layout(GEOMETRY, (1 << 64) + 1)),
            ("num_pages -1", lambda: ucmfs.Layout(GEOMETRY, -1)),
            ("layer 4294967296",
             lambda: layout().set_layer_bytes(HUGE, 512, 512)),
            ("v_bytes 4294967296",
             lambda: layout().set_layer_bytes(0, 512, HUGE)),
            ("it: layer 4294967296", lambda: tensor(layer=HUGE)),
            ("it: kernel_blocks_per_page 4294967297",
             lambda: tensor(kernel_blocks_per_page=HUGE + 1)),
            ("it: dims has a NUL", lambda: tensor("B\0")),
            ("region: layer 4294967296",
             lambda: layout().add_region(region._replace(layer=HUGE))),
            ("region: base -1",
             lambda: layout().add_region(region._replace(base=-1))))

    def test_stores_that_keep_nothing(self):
        self.refused(
            ("tensor_size -4", lambda: measuring.EmptyStore(tensor_size=-4)),
            ("shard_size -4", lambda: measuring.EmptyStore(tensor_size=4,
                                                           shard_size=-4)),
            ("slots", lambda: measuring.FakeStore(tensor_size=4, slots=0)))


class OfLoaders(Case):
    def setUp(self):
        self.tiers = directory_of(self)
        self.ids = [id_of(1)]

    def loader(self, **more):
        return ucmfs.Loader(tiers=self.tiers, io="threads", **more)

    def test_options(self):
        for name, value in (
                ("threads", HUGE), ("staging_bytes", -1),
                ("open_files", HUGE), ("device", 1 << 31),
                ("write_buffer_bytes", -1), ("budget", 1 << 64)):
            self.refused((f"loader: {name} {value}",
                          lambda: self.loader(**{name: value}).close()))

    def test_of_tasks(self):
        _, layout = pages_layout(bytes(GEOMETRY.payload_bytes))
        with self.loader() as loader:
            group = loader.add_group(layout)
            for call in (group.load, group.save):
                self.refused(
                    ("first_layer 4294967296",
                     lambda: call(self.ids, first_layer=HUGE, addresses=[])),
                    ("num_layers 4294967297",
                     lambda: call(self.ids, [0], num_layers=HUGE + 1)),
                    ("deadline_ms 4294967296",
                     lambda: call(self.ids, [0], deadline_ms=HUGE)),
                    ("eventfd -1", lambda: call(self.ids, [0], eventfd=-1)),
                    ("eventfd 4294967296",
                     lambda: call(self.ids, [0], eventfd=HUGE)))
            self.refused(
                ("group_layers -1",
                 lambda: group.load(self.ids, [0], group_layers=-1)))
            save = group.save(self.ids, [0])
            save.wait(LIMIT)
            load = group.load(self.ids, [0])
            self.refused(
                ("layer 4294967296", lambda: load.wait_layer(HUGE)),
                ("layer -1", lambda: load.wait_stream(-1, 0)))
            load.wait(LIMIT)

    def test_of_stores(self):
        sizes = dict(tensor_size=512, shard_size=1024, block_size=2048)
        with self.loader() as loader:
            for name, value in (("tensor_size", (1 << 64) + 512),
                                ("shard_size", -1), ("block_size", -1),
                                ("num_layers", HUGE), ("deadline_ms", HUGE)):
                self.refused((f"store: {name} {value}", lambda: ucmfs.Store(
                    loader, **{**sizes, name: value}).close()))
            with ucmfs.StoreV0(loader, **sizes) as store:
                self.refused(
                    ("shape -4", lambda: store.load(
                        self.ids, 0, [ucmfs.Raw(4096, (-4,), (1,), 1)])),
                    ("pointer -1", lambda: store.load(
                        self.ids, 0, [ucmfs.Raw(-1, (4,), (1,), 1)])))


if __name__ == "__main__":
    unittest.main()
