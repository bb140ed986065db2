# SPDX-License-Identifier: Apache-2.0
"""Representations, codes, scores and selections: what arrays are taken, that
results are numpy's, and what is refused by its name. The arithmetic has tests
of its own (tests/unit, tests/sparse)."""

import gc
import hashlib
import json
import unittest

import ucmfs
from ucmfs import codes, repr_space, sparse, star
from tests.python.support import FakeTorch, Memory, needs_numpy, numpy

BLOCKS, SIZE, HEADS, DIM, GROUP = 9, 16, 2, 40, 4
SPEC = sparse.Spec("mean", "float32", HEADS, DIM, SIZE)
CODES = codes.Spec("tokens", HEADS, DIM, 64, SIZE)


def floats(seed, *shape):
    return numpy.random.default_rng(seed).standard_normal(
        shape).astype(numpy.float32)


def bfloat16(values):
    """The upper halves, as uint16; and as floats again."""
    upper = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    return upper, (upper.astype(numpy.uint32) << 16).view(numpy.float32)


class Case(unittest.TestCase):
    def setUp(self):
        self.keys = floats(1, BLOCKS, SIZE, HEADS, DIM)
        self.q = floats(2, HEADS * GROUP, DIM)

    def refused(self, names, call):
        with self.assertRaises(ucmfs.InvalidArgument) as caught:
            call()
        for name in names.split("|"):
            self.assertIn(name, str(caught.exception))

    def scores_of(self, keys, last=SIZE):
        """By numpy, in float64: [head of the query, block]."""
        means = keys.astype(numpy.float64).mean(1)
        means[-1] = keys[-1, :last].mean(0, dtype=numpy.float64)
        q = self.q.reshape(HEADS, GROUP, DIM).astype(numpy.float64)
        return numpy.einsum("hgc,bhc->hgb", q, means)


@needs_numpy
class Representations(Case):
    def test_scores_are_numpys(self):
        slab = SPEC.build(self.keys, last_tokens=5)
        want = self.scores_of(self.keys, 5)
        for per, rows in (("head", want.reshape(-1, BLOCKS)),
                          ("group", want.mean(1)),
                          ("block", want.mean(1).sum(0))):
            got = SPEC.query(self.q, per).score(slab)
            self.assertIsInstance(got, memoryview)
            got = numpy.asarray(got)
            self.assertEqual((got.shape, got.dtype),
                             (rows.shape, numpy.float32))
            numpy.testing.assert_allclose(got, rows, rtol=1e-4, atol=1e-4)

    def test_arrays_are_taken_as_they_are(self):
        want = bytes(SPEC.build(self.keys).slot(3))
        heads_first = self.keys.transpose(0, 2, 1, 3).copy()
        wide = numpy.zeros((BLOCKS, SIZE, HEADS, DIM + 3), numpy.float32)
        wide[..., :DIM] = self.keys
        read_only = self.keys.copy()
        read_only.flags.writeable = False
        backwards = self.keys[:, ::-1].copy()[:, ::-1]
        for keys in (heads_first.transpose(0, 2, 1, 3), wide[..., :DIM],
                     read_only, backwards, memoryview(self.keys),
                     FakeTorch(self.keys, "float32")):
            self.assertEqual(bytes(SPEC.build(keys).slot(3)), want)

    def test_bfloat16_is_told_where_an_array_cannot_say_it(self):
        upper, keys = bfloat16(self.keys)
        memory = Memory(upper.tobytes())
        want = bytes(SPEC.build(keys).slot(3))
        for given, dtype in (
                (upper, "bfloat16"), (FakeTorch(upper, "bfloat16"), None),
                (ucmfs.Raw(memory.address, upper.shape,
                           FakeTorch(upper).stride(), 2), "bfloat16")):
            self.assertEqual(bytes(SPEC.build(given, dtype=dtype).slot(3)),
                             want)
        self.refused("keys|uint16 of 2 bytes", lambda: SPEC.build(upper))
        self.refused("keys|float32 of 4 bytes|where bfloat16",
                     lambda: SPEC.build(keys, dtype="bfloat16"))

    def test_blocks_and_slots_are_chosen(self):
        whole = SPEC.build(self.keys)
        slab = SPEC.slab(5)
        SPEC.build(self.keys, slab, blocks=numpy.array([7, 2]), slots=[4, 0])
        self.assertEqual([bytes(slab.slot(i)) for i in (4, 0)],
                         [bytes(whole.slot(i)) for i in (7, 2)])
        self.assertEqual(bytes(slab.slot(1)), bytes(SPEC.nbytes))
        query = SPEC.query(self.q)
        got = query.score(slab, [0, 4])
        every = query.score(whole)
        self.assertEqual(list(got), [every[2], every[7]])
        self.assertEqual(list(query.score(whole, first=6, num=2)),
                         list(every[6:8]))
        self.assertEqual(len(query.score(whole, [])), 0)

    def test_a_growing_block_has_the_same_bytes(self):
        slab = SPEC.slab(2)
        growing = SPEC.growing()
        for first, end in ((0, 3), (3, 3), (3, 11)):
            growing.add(self.keys[1, first:end])
        growing.write(slab, 1)
        self.assertEqual(
            bytes(slab.slot(1)),
            bytes(SPEC.build(self.keys, blocks=[1], last_tokens=11).slot(0)))
        self.refused("num_tokens 6", lambda: growing.add(self.keys[1, :6]))
        self.refused("slot 2", lambda: growing.write(slab, 2))
        growing.begin()
        self.refused("no tokens", lambda: growing.write(slab, 0))

    def test_memory_of_the_caller_is_used(self):
        memory = numpy.full((BLOCKS, SPEC.nbytes + 64), 7, numpy.uint8)
        slab = sparse.Slab(BLOCKS, SPEC.nbytes, memory[:, :SPEC.nbytes])
        SPEC.build(self.keys, slab)
        self.assertTrue((memory[:, SPEC.nbytes:] == 7).all())
        self.assertEqual(memory[3, :SPEC.nbytes].tobytes(),
                         bytes(slab.slot(3)))
        out = numpy.full((HEADS, BLOCKS + 3), 7, numpy.float32)
        query = SPEC.query(self.q, "group")
        query.score(slab, out=out[:, :BLOCKS])
        self.assertTrue((out[:, BLOCKS:] == 7).all())
        self.assertEqual(out[:, :BLOCKS].tolist(),
                         query.score(slab).tolist())

    def test_a_slot_keeps_its_slab(self):
        slot = SPEC.build(self.keys).slot(1)
        gc.collect()
        self.assertEqual(bytes(slot), bytes(SPEC.build(self.keys).slot(1)))

    def test_many_requests_make_one_call(self):
        slabs = [SPEC.build(self.keys), SPEC.build(self.keys[::-1])]
        query = SPEC.query(self.q)
        got = sparse.score_all([sparse.Scoring(query, slab)
                                for slab in slabs])
        self.assertEqual(list(got[0]), list(got[1])[::-1])
        self.assertEqual(sparse.score_all([]), [])
        other = sparse.Spec("max", "float32", HEADS, DIM, SIZE)
        self.refused("different specs", lambda: sparse.score_all(
            [sparse.Scoring(query, slabs[0]),
             sparse.Scoring(other.query(self.q), slabs[0])]))

    def test_what_is_wrong_is_named(self):
        slab = SPEC.build(self.keys)
        query = SPEC.query(self.q)
        nan = self.keys.copy()
        nan[3, 2, 1, 0] = numpy.nan
        thin = numpy.zeros((1, 64), numpy.uint8)
        for names, call in (
            ("keys|shape (9, 3, 2, 40)|token 16",
             lambda: SPEC.build(self.keys[:, :3])),
            ("keys|shape (16, 2, 40)", lambda: SPEC.build(self.keys[0])),
            ("keys|strides|channel",
             lambda: SPEC.build(numpy.zeros(
                 (BLOCKS, SIZE, HEADS, 2 * DIM), "f")[..., ::2])),
            ("keys|float64 of 8", lambda: SPEC.build(self.keys.astype("d"))),
            ("keys|>f4", lambda: SPEC.build(self.keys.astype(">f4"))),
            ("keys|list is no tensor", lambda: SPEC.build([[1.0]])),
            ("keys|memory of cuda",
             lambda: SPEC.build(FakeTorch(self.keys, "float32", "cuda"))),
            ("keys: block 3, token 2, head 1: not finite",
             lambda: SPEC.build(nan)),
            ("blocks|number 1 is 9", lambda: SPEC.build(self.keys,
                                                        blocks=[0, 9])),
            ("blocks", lambda: SPEC.build(self.keys, blocks=[1 << 40])),
            ("slots|2, where 1", lambda: SPEC.build(self.keys, blocks=[0],
                                                    slots=[0, 1])),
            ("slots|number 0 is 9", lambda: SPEC.build(
                self.keys, slab, blocks=[0], slots=[9])),
            ("last_tokens 17", lambda: SPEC.build(self.keys,
                                                  last_tokens=17)),
            ("last_tokens -1", lambda: SPEC.build(self.keys,
                                                  last_tokens=-1)),
            ("slab|slots of 64 bytes", lambda: SPEC.build(
                self.keys, sparse.Slab(BLOCKS, 64))),
            ("slab|shape (1, 64)", lambda: sparse.Slab(1, 128, thin)),
            ("slot_bytes -1", lambda: sparse.Slab(1, -1)),
            ("num_slots 1.5", lambda: sparse.Slab(1.5, 64)),
            ("slab|read-only", lambda: sparse.Slab(1, 4, b"1234")),
            ("slab|slots are 4 bytes apart", lambda: sparse.Slab(
                3, 8, numpy.lib.stride_tricks.as_strided(thin, (3, 8),
                                                         (4, 1)))),
            ("query|shape", lambda: SPEC.query(self.q[:, :3])),
            ("num_heads 3", lambda: SPEC.query(self.q[:3])),
            ("per 'token'", lambda: SPEC.query(self.q, "token")),
            ("first_slot 9 + 1", lambda: query.score(slab, first=9, num=1)),
            ("num -1", lambda: query.score(slab, num=-1)),
            ("out|shape (3,)", lambda: query.score(
                slab, out=numpy.zeros(3, "f"))),
            ("out|read-only", lambda: query.score(slab, out=bytes(36))),
            ("out|float64", lambda: query.score(slab,
                                                out=numpy.zeros(BLOCKS))),
        ):
            with self.subTest(names):
                self.refused(names, call)

    def test_a_wrong_spec_is_named(self):
        good = dict(kind="mean", dtype="float32", num_heads=2, head_dim=40,
                    block_size=16)
        for name, value, says in (
                ("kind", "median", "kind 'median'"),
                ("dtype", "float64", "dtype 'float64'"),
                ("dtype", "uint8", "dtype 7"), ("num_heads", 0, "num_heads"),
                ("num_heads", -1, "num_heads -1"),
                ("head_dim", 1 << 32, "head_dim"),
                ("block_size", 1.5, "block_size 1.5")):
            with self.subTest(name):
                spec = sparse.Spec(**{**good, name: value})
                self.refused(says, lambda spec=spec: spec.nbytes)


@needs_numpy
class Reductions(Case):
    def test_distances_are_numpys(self):
        slab = SPEC.build(self.keys)
        means = self.keys.mean(1)
        q = self.q.reshape(HEADS, GROUP, DIM)
        want = -numpy.linalg.norm(q[:, :, None] - means.transpose(
            1, 0, 2)[:, None], axis=-1)
        query = SPEC.query(self.q, "head", distance=True)
        numpy.testing.assert_allclose(
            query.score(slab), want.reshape(-1, BLOCKS), rtol=1e-4)
        bounds = sparse.Spec("minmax", "float32", HEADS, DIM, SIZE)
        self.refused("per", lambda: bounds.query(self.q, distance=True))

    def test_rows_become_one(self):
        rows = floats(7, 6, 20)
        for how, want in (("mean", rows.mean(0)), ("sum", rows.sum(0)),
                          ("max", rows.max(0))):
            for given in (rows, memoryview(rows)):
                numpy.testing.assert_allclose(sparse.reduce(given, how), want,
                                              rtol=1e-5, atol=1e-6)
        numpy.testing.assert_array_equal(
            sparse.reduce(rows[::2, :5], "max"), rows[::2, :5].max(0))
        self.refused("how 'least'", lambda: sparse.reduce(rows, "least"))
        self.refused("scores|shape", lambda: sparse.reduce(rows[0], "max"))
        self.refused("num_rows", lambda: sparse.reduce(rows[:0], "max"))


@needs_numpy
class MergedChannels(Case):
    SPEC = star.Spec("float32", HEADS, DIM, SIZE, 3, 10)

    def setUp(self):
        super().setUp()
        self.keys *= numpy.random.default_rng(3).gamma(
            1, size=(HEADS, DIM)).astype("f")
        self.spec = self.SPEC.choose(self.keys, last_tokens=7)

    def groups(self):
        """Means of 3 tokens of the kept channels [block][head, group, 10]."""
        kept = numpy.reshape(self.spec.channels, (HEADS, 10))
        out = []
        for block in self.keys:
            rows = numpy.stack([block[:, h, kept[h]] for h in range(HEADS)])
            out.append(numpy.stack([rows[:, i:i + 3].mean(1)
                                    for i in range(0, SIZE, 3)], 1))
        return kept, out

    def test_the_largest_channels_are_kept(self):
        self.assertEqual(star.kept(DIM, .25), 10)
        sizes = numpy.abs(self.keys[:-1]).sum((0, 1)) + \
            numpy.abs(self.keys[-1, :7]).sum(0)
        want = numpy.sort(numpy.argsort(-sizes, 1)[:, :10], 1)
        self.assertEqual(self.spec.channels, tuple(want.ravel().tolist()))

    def test_scores_and_votes_are_numpys(self):
        slab = self.spec.build(self.keys)
        kept, groups = self.groups()
        queries = [self.q, floats(8, HEADS * GROUP, DIM)]
        q = numpy.stack(queries).reshape(2, HEADS, GROUP, DIM)
        q = numpy.stack([q[:, h][..., kept[h]] for h in range(HEADS)], 1)
        products = numpy.stack([numpy.einsum("thgc,hnc->thgn", q, block)
                                for block in groups], 3)
        best = products.max(-1)
        for per, want in (("head", best.reshape(-1, BLOCKS)),
                          ("group", best.mean((0, 2))),
                          ("block", best.mean((0, 2)).sum(0))):
            numpy.testing.assert_allclose(
                self.spec.query(queries, per).score(slab), want, rtol=1e-4,
                atol=1e-5)
        shares = numpy.exp(products - products.max((3, 4), keepdims=True))
        shares /= shares.sum((3, 4), keepdims=True)
        query = self.spec.query(queries, "head")
        numpy.testing.assert_allclose(query.vote(slab),
                                      shares.sum((0, 1, 2, 4)), rtol=1e-4)
        every = query.score(slab)
        self.assertEqual(query.score(slab, [2, 1]).tolist()[3],
                         [every[3, 2], every[3, 1]])

    def test_a_growing_block_has_the_same_bytes(self):
        slab = self.spec.slab(1)
        growing = self.spec.growing()
        growing.add(self.keys[1, :4])
        growing.add(self.keys[1, 4:11])
        growing.write(slab)
        self.assertEqual(bytes(slab.slot(0)), bytes(self.spec.build(
            self.keys, blocks=[1], last_tokens=11).slot(0)))

    def test_what_is_wrong_is_named(self):
        slab = self.spec.build(self.keys)
        for names, call in (
            ("ratio 0", lambda: star.kept(DIM, 0)),
            ("kept 10", lambda: self.SPEC.nbytes),
            ("channels: 3, where 2 heads keep 10", lambda: star.Spec(
                "float32", HEADS, DIM, SIZE, 3, 10, (1, 2, 3)).nbytes),
            ("merge_tokens 17", lambda: star.Spec(
                "float32", HEADS, DIM, SIZE, 17, DIM).nbytes),
            ("keys|shape", lambda: self.SPEC.choose(self.keys[0])),
            ("there are none", lambda: self.spec.query([])),
            ("different numbers of heads", lambda: self.spec.query(
                [self.q, self.q[:2]])),
            ("query 1|shape", lambda: self.spec.query(
                [self.q, self.q[:, :3]])),
            ("weights", lambda: self.spec.query([self.q]).vote(slab)),
            ("scale", lambda: self.spec.query([self.q], "head").vote(
                slab, scale=-1)),
        ):
            with self.subTest(names):
                self.refused(names, call)


@needs_numpy
class Selections(Case):
    def test_are_numpys(self):
        scores = floats(3, 1000)
        config = sparse.BudgetConfig(SIZE, initial_blocks=2, local_blocks=3,
                                     ratio=.25)
        budget = config.of(1000 * SIZE - 5)
        self.assertEqual(budget, (1000, 2, 3, 248))
        best = 2 + numpy.argsort(-scores[2:997], kind="stable")[:248]
        want = numpy.sort(numpy.concatenate([[0, 1], best, [997, 998, 999]]))
        got = sparse.select(scores, budget)
        self.assertEqual(list(got), want.tolist())
        self.assertEqual(list(sparse.select(scores.tolist(), budget)),
                         want.tolist())
        table, tokens = sparse.select_table(range(5000, 6000), SIZE,
                                            1000 * SIZE - 5, got)
        self.assertEqual(list(table), (want + 5000).tolist())
        self.assertEqual(tokens, 253 * SIZE - 5)

    def test_what_is_wrong_is_named(self):
        budget = sparse.BudgetConfig(SIZE, ratio=.5).of(4 * SIZE)
        for names, call in (
            ("scores|shape (3,)|4", lambda: sparse.select([1., 2., 3.],
                                                          budget)),
            ("scores|NaN", lambda: sparse.select(
                numpy.full(4, numpy.nan, "f"), budget)),
            ("scores|strides", lambda: sparse.select(
                numpy.zeros(8, "f")[::2], budget)),
            ("budget|topk -1", lambda: sparse.select(
                [0.] * 4, budget._replace(topk=-1))),
            ("budget", lambda: sparse.select([0.] * 4,
                                             budget._replace(topk=5))),
            ("ratio 2", lambda: sparse.BudgetConfig(SIZE, ratio=2).of(1)),
            ("local_blocks -1", lambda: sparse.BudgetConfig(
                SIZE, local_blocks=-1).of(1)),
            ("block_size is 0", lambda: sparse.BudgetConfig(0).of(1)),
            ("table|1 blocks of 16", lambda: sparse.select_table(
                [0], SIZE, 17, [0])),
            ("selected", lambda: sparse.select_table([0, 1], SIZE, 17,
                                                     [1, 0])),
        ):
            with self.subTest(names):
                self.refused(names, call)


@needs_numpy
class Codes(Case):
    def hamming(self, encoder, keys):
        """Minus the bits in which the first head's tokens differ from the
        first head of the query, by numpy."""
        w = numpy.asarray(encoder.matrix())[:, :CODES.bits]
        bits = keys[:, :, 0] @ w > 0
        return -(bits != (self.q[0] @ w > 0)).sum(-1)

    def test_scores_are_numpys(self):
        encoder = codes.Encoder(CODES)
        w = numpy.asarray(encoder.matrix(), numpy.float64)[:, :DIM]
        numpy.testing.assert_allclose(w.T @ w, numpy.eye(DIM), atol=1e-5)
        slab = encoder.build(self.keys)
        want = self.hamming(encoder, self.keys)
        for over, rows in (("each", want.reshape(-1)),
                           ("best", want.max(1)), ("sum", want.sum(1))):
            method = codes.Method("hamming", over, "head", HEADS * GROUP)
            got = encoder.query(self.q, method).score(slab)
            self.assertEqual(got.shape, (HEADS * GROUP, rows.size))
            self.assertEqual(numpy.asarray(got)[0].tolist(), rows.tolist())
        method = codes.Method("hamming", "best", "block", HEADS * GROUP)
        self.assertEqual(encoder.query(self.q, method).score(slab).shape,
                         (BLOCKS,))

    def test_tokens_are_added(self):
        encoder = codes.Encoder(CODES)
        slab = CODES.slab(1)
        encoder.add(self.keys[4, :3], 0, slab)
        encoder.add(self.keys[4, 3:7], 3, slab)
        self.assertEqual(
            bytes(slab.slot(0)), bytes(encoder.build(
                self.keys, blocks=[4], last_tokens=7).slot(0)))
        self.refused("first_token 3", lambda: encoder.add(
            self.keys[4, :1], 3, slab))

    def test_centers_are_subtracted_from_keys(self):
        centers = floats(4, HEADS, DIM)
        self.assertEqual(
            bytes(codes.Encoder(CODES, centers).build(
                self.keys + centers).slot(2))[:8],
            bytes(codes.Encoder(CODES).build(self.keys).slot(2))[:8])

    def test_parts_of_mla_may_be_apart(self):
        spec = codes.Spec("tokens", 1, 48, 64, SIZE, rope_dim=16,
                          rope_bits=16)
        encoder = codes.Encoder(spec)
        self.assertEqual(encoder.matrix(rope=True).shape[0], 16)
        slab = encoder.build(floats(5, 3, SIZE, 1, 48))
        q = floats(6, 4, 48)
        method = codes.Method("hamming", "best", "block", 4)
        self.assertEqual(
            encoder.query(q, method).score(slab).tolist(),
            encoder.query(q[:, :32], method, rope=q[:, 32:]).score(
                slab).tolist())

    def test_what_is_wrong_is_named(self):
        encoder = codes.Encoder(CODES)
        method = codes.Method("hamming", "best", "block", HEADS * GROUP)
        query = encoder.query(self.q, method)
        other = codes.Method("estimate", "best", "block", HEADS * GROUP)
        slab = encoder.build(self.keys)
        for names, call in (
            ("spec|bits 60", lambda: codes.Spec("tokens", 2, 40, 60,
                                                SIZE).nbytes),
            ("form 'bits'", lambda: codes.Spec("bits", 2, 40, 64,
                                               SIZE).nbytes),
            ("keys|shape", lambda: encoder.build(self.keys[..., :8])),
            ("centers|shape", lambda: codes.Encoder(CODES, self.q)),
            ("centers|gaps", lambda: codes.Encoder(
                CODES, floats(4, HEADS, DIM + 1)[:, :DIM])),
            ("measure 'dot'", lambda: encoder.query(
                self.q, codes.Method("dot", "best", "block", 8))),
            ("the query has not the method's 8",
             lambda: encoder.query(self.q[:4], method)),
            ("merged_heads 3", lambda: encoder.query(
                self.q, codes.Method("hamming", "best", "block", 8, 3))),
            ("rope|spec has no rope_dim", lambda: encoder.matrix(rope=True)),
            ("slab|slots of 8 bytes", lambda: query.score(
                sparse.Slab(1, 8))),
            ("different specs or methods", lambda: codes.score_all(
                [sparse.Scoring(query, slab),
                 sparse.Scoring(encoder.query(self.q, other), slab)])),
        ):
            with self.subTest(names):
                self.refused(names, call)


PLANE = SIZE * HEADS * DIM * 2
OF_BLOCKS = ucmfs.Geometry(3, SIZE, "float16", PLANE, PLANE, HEADS, DIM)


@needs_numpy
class Spaces(Case):
    def test_say_what_they_hold(self):
        known = repr_space.of_blocks(OF_BLOCKS, SPEC)
        back = repr_space.parse(known.manifest())
        for one in known, back:
            self.assertEqual(
                (one.kind, one.spec, one.layer_bytes, one.digest),
                ("mean", SPEC, SPEC.nbytes, None))
            self.assertEqual(one.geometry, ucmfs.Geometry(
                3, SIZE, "opaque", SPEC.nbytes, 0, HEADS, DIM, "opaque"))
        says = json.loads(known.manifest())
        self.assertEqual(says["geometry"], known.geometry.to_json())
        self.assertEqual(says["repr"], {"kind": "mean", "dtype": "float32",
                                        "params": "00" * 64})

    def test_what_is_wrong_is_named(self):
        manifest = repr_space.of_blocks(OF_BLOCKS, SPEC).manifest()
        self.refused("block_size", lambda: repr_space.of_blocks(
            OF_BLOCKS, sparse.Spec("mean", "float32", HEADS, DIM, 8)))
        self.refused("manifest", lambda: repr_space.parse("{}"))
        self.refused("manifest", lambda: repr_space.parse("no JSON"))
        self.refused("kind", lambda: repr_space.parse(
            manifest.replace("mean", "median")))
        self.refused("space blocks",
                     lambda: repr_space.name_of("blocks"))

    def test_have_names(self):
        self.assertEqual(repr_space.name_of(), "blocks.repr")
        self.assertEqual(repr_space.name_of("llama"), "llama.repr")

    def test_of_codes(self):
        centers = numpy.arange(3 * HEADS * DIM, dtype="float32").reshape(
            3, HEADS, DIM) / 64
        spec = codes.Spec("tokens", HEADS, DIM, 64, SIZE, norms=DIM <= 64,
                          seed=9)
        known = repr_space.of_blocks(OF_BLOCKS, spec, centers=centers)
        back = repr_space.parse(known.manifest())
        self.assertEqual((back.kind, back.spec, back.layer_bytes),
                         ("codes", spec, spec.nbytes))
        self.assertEqual(back.digest,
                         hashlib.sha256(centers.tobytes()).digest())
        back.check_centers(centers)
        for names, wrong in (("centers", None), ("centers", centers + 1),
                             ("centers", centers[:2]),
                             ("centers|no gaps", numpy.repeat(
                                 centers, 2, 2)[:, :, :DIM])):
            with self.subTest(names):
                self.refused(names, lambda w=wrong: back.check_centers(w))
        self.refused("kind codes: not channels", back.star_spec)
        self.refused("kind codes: not channels", back.check_channels)
        plain = repr_space.of_blocks(OF_BLOCKS, spec)
        self.assertIsNone(plain.digest)
        plain.check_centers()

    def test_of_merged_channels(self):
        like = star.Spec("float32", HEADS, DIM, SIZE, 2, DIM // 2)
        chosen = [like.choose(self.keys[i:i + 1]) for i in range(3)]
        channels = [spec.channels for spec in chosen]
        known = repr_space.of_blocks(OF_BLOCKS, like, channels=channels)
        back = repr_space.parse(known.manifest())
        self.assertEqual((back.kind, back.spec), ("channels", like))
        self.assertEqual(back.star_spec(channels[2]), chosen[2])
        self.assertEqual(back.digest, hashlib.sha256(numpy.array(
            channels, "uint16").tobytes()).digest())
        back.check_channels(channels)
        for wrong in (None, channels[:2], channels[::-1][:2] + [channels[0]],
                      [channels[0][:-1]] * 3):
            self.refused("channels", lambda w=wrong: back.check_channels(w))
        self.refused("channels", lambda: repr_space.of_blocks(OF_BLOCKS,
                                                              like))
        whole = star.Spec("float32", HEADS, DIM, SIZE, 2, DIM)
        repr_space.of_blocks(OF_BLOCKS, whole).check_channels()


@needs_numpy
class RowsOfABatch(Case):
    """Tables of many rows are those of the calls one by one."""

    ROWS, PAGES, WIDTH = 3, 20, 9

    def setUp(self):
        super().setUp()
        self.keys = floats(4, self.PAGES, SIZE, HEADS, DIM)
        self.q = floats(5, self.ROWS, HEADS * GROUP, DIM)
        self.tables = numpy.array(
            [numpy.random.default_rng(i).permutation(self.PAGES)[:self.WIDTH]
             for i in range(self.ROWS)], numpy.int32)
        self.lengths = numpy.array([9 * SIZE - 3, 5 * SIZE, 0], numpy.int32)
        self.budget = sparse.BudgetConfig(SIZE, initial_blocks=1,
                                          local_blocks=2, ratio=.4)

    def one_by_one(self, row, scores):
        tokens = int(self.lengths[row])
        budget = self.budget.of(tokens)
        selected = sparse.select(scores[:budget.num_blocks], budget)
        table, tokens = sparse.select_table(self.tables[row], SIZE, tokens,
                                            selected)
        return list(table), tokens

    def run_rows(self, rows, **more):
        batch = sparse.Batch(self.tables, self.lengths, **more)
        return batch, rows.select(self.q, batch)

    def check(self, by, score, **more):
        slab = by.build(self.keys)
        got, blocks = self.run_rows(sparse.Rows(by, slab, self.budget, **more))
        attended = 0
        for row in range(self.ROWS):
            table, tokens = self.one_by_one(row, numpy.asarray(
                score(self.q[row], slab, self.tables[row])))
            self.assertEqual(list(numpy.asarray(got.tables)[row][:len(table)]),
                             table)
            self.assertEqual(got.lengths[row], tokens)
            attended += len(table)
        self.assertEqual(blocks, (attended, 14))

    def test_every_method(self):
        self.check(SPEC, lambda q, slab, table: SPEC.query(q).score(
            slab, table))
        merged = star.Spec("bfloat16", HEADS, DIM, SIZE, 4, DIM)
        self.check(merged, lambda q, slab, table: merged.query([q]).score(
            slab, table))
        encoder = codes.Encoder(CODES)
        method = codes.Method("hamming", "best", "block", HEADS * GROUP)
        self.check(encoder, lambda q, slab, table: encoder.query(
            q, method).score(slab, table), method=method)

    def test_arrays_with_gaps_are_taken_and_written(self):
        rows = sparse.Rows(SPEC, SPEC.build(self.keys), self.budget)
        want, blocks = self.run_rows(rows)
        q = numpy.zeros((self.ROWS, HEADS * GROUP + 1, DIM + 2),
                        numpy.float32)
        q[:, 1:, :DIM] = self.q
        both = numpy.full((2, self.ROWS, self.WIDTH + 4), -7, numpy.int32)
        both[0, :, :self.WIDTH] = self.tables
        lengths = numpy.zeros(self.ROWS, numpy.int32)
        out = both[1, :, :self.WIDTH], lengths
        got = sparse.Batch(both[0, :, :self.WIDTH], self.lengths, out=out)
        for _ in range(2):  # of two layers
            self.assertEqual(rows.select(q[:, 1:, :DIM], got), blocks)
        self.assertIs(got.tables, out[0])
        self.assertEqual(list(lengths), list(want.lengths))
        num = -(-lengths[0] // SIZE)
        self.assertEqual(list(got.tables[0][:num]),
                         list(numpy.asarray(want.tables)[0][:num]))
        self.assertTrue((both[1, :, num:] == -7).all())

    def test_a_narrow_table_is_written_where_it_is(self):
        rows = sparse.Rows(SPEC, SPEC.build(self.keys), self.budget)
        self.lengths[0] = 4 * SIZE
        want, _ = self.run_rows(rows)
        out = numpy.zeros((self.ROWS, 6), numpy.int32), self.lengths.copy()
        self.run_rows(rows, out=out)
        for row in range(self.ROWS):
            num = -(-out[1][row] // SIZE)
            self.assertEqual(list(out[0][row][:num]),
                             list(numpy.asarray(want.tables)[row][:num]))
            one = sparse.Batch(self.tables[row:row + 1][::-1],
                               self.lengths[row:row + 1])
            rows.select(self.q[row:row + 1], one)
            self.assertEqual(list(one.lengths), [want.lengths[row]])

    def test_what_is_always_attended_to(self):
        built = numpy.ones(self.PAGES, numpy.uint8)
        rows = sparse.Rows(SPEC, SPEC.build(self.keys),
                           sparse.BudgetConfig(SIZE), built=built)
        got, _ = self.run_rows(rows)
        self.assertEqual(numpy.asarray(got.tables)[0, 0], self.tables[0, 8])
        built[self.tables[0, 3]] = 0
        got, blocks = self.run_rows(
            rows, dense=numpy.array([0, 1, 0], numpy.uint8))
        table = numpy.asarray(got.tables)
        self.assertEqual(list(table[0, :2]), list(self.tables[0, [3, 8]]))
        self.assertEqual(list(table[1, :5]), list(self.tables[1, :5]))
        self.assertEqual(list(got.lengths), [2 * SIZE - 3, 5 * SIZE, 0])
        self.assertEqual(blocks, (7, 14))

    def test_what_is_refused(self):
        slab = SPEC.build(self.keys)
        rows = sparse.Rows(SPEC, slab, self.budget)
        tables, lengths = self.tables, self.lengths
        narrow = numpy.zeros((self.ROWS, 8), numpy.int32)
        for names, arguments, more in (
                ("tables|int32", (tables.astype(numpy.int64), lengths), {}),
                ("lengths|row 3", (tables, lengths[:2]), {}),
                ("queries|row 2", (tables[:2], lengths[:2]), {}),
                ("lengths: row 0", (tables[:, :8], lengths), {}),
                ("lengths: row 0", (tables, lengths),
                 {"out": (narrow, lengths.copy())}),
                ("out: tables|row 3", (tables, lengths),
                 {"out": (narrow[:2], lengths.copy())}),
                ("out overlaps", (tables, lengths),
                 {"out": (tables.copy(), lengths)}),
                ("row 0: table", (tables + 20, lengths), {}),
                ("dense", (tables, lengths), {"dense": lengths})):
            self.refused(names, lambda: rows.select(
                self.q, sparse.Batch(*arguments, **more)))
        batch = sparse.Batch(tables, lengths)
        self.refused("queries|shape", lambda: rows.select(
            self.q[..., :-1], batch))
        self.refused("encoder", lambda: sparse.Rows(
            codes.Encoder(CODES), CODES.slab(self.PAGES),
            self.budget).select(self.q, batch))
        self.refused("built", lambda: sparse.Rows(
            SPEC, slab, self.budget, built=numpy.ones(3, numpy.uint8)))
        self.refused("block_size", lambda: sparse.Rows(
            SPEC, slab, sparse.BudgetConfig(8)).select(self.q, batch))


if __name__ == "__main__":
    unittest.main()
