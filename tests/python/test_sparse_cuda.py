# SPDX-License-Identifier: Apache-2.0
"""ucmfs.sparse_cuda has the bits of the calls for the CPU: by a driver for
tests that runs the kernels' threads on the CPU (python-package.sh), or by a
real one. And what it refuses by its name."""

import gc
import unittest

import ucmfs
from ucmfs import attention, codes, position, sparse, sparse_cuda, star
from tests.python.cuda_memory import Array, NoDriver, driver
from tests.python.support import FakeTorch, needs_numpy, numpy
from tests.python.test_sparse import bfloat16, floats

BLOCKS, SIZE, HEADS, DIM, GROUP = 9, 16, 2, 40, 4
QUERY_HEADS = HEADS * GROUP
# a table for each request, of blocks of the cache; and its tokens
TABLES = [[3, 1, 8, 0, 5], [7, 7, 7, 7, 7], [2, 6, 4, 1, 0]]
TOKENS = [70, 0, 33]
SPEC = sparse.Spec("minmax", "bfloat16", HEADS, DIM, SIZE)
BUDGET = sparse.BudgetConfig(SIZE, initial_blocks=1, local_blocks=1,
                             ratio=.5, min_topk=1)
NAN = numpy and numpy.float32("nan")


def blocks_of(request):
    return TABLES[request][:-(-TOKENS[request] // SIZE)]


def is_one(left, right):
    """Also of floats that are not numbers."""
    return left.tobytes() == right.tobytes()


@needs_numpy
class Case(unittest.TestCase):
    def setUp(self):
        try:
            self.driver = driver()
        except NoDriver as error:
            self.skipTest(str(error))
        self.cuda = sparse_cuda.Device(0)
        self.addCleanup(self.cuda.close)
        self.stream = {"stream": self.driver}  # it has a cuda_stream
        self.keys = floats(1, BLOCKS, SIZE, HEADS, DIM)
        self.queries = floats(2, len(TABLES), QUERY_HEADS, DIM)
        self.requests = sparse_cuda.Requests(
            self.put(numpy.pad(numpy.array(TABLES, "int32"),
                               ((0, 0), (0, 3)))[:, :5]), self.ints(TOKENS))

    def put(self, values, **how):
        return self.driver.put(values, **how)

    def ints(self, values, kind="int32"):
        return self.put(numpy.array(values, kind))

    def blank(self, *shape, kind="float32"):
        """Memory that a call has to write."""
        out = numpy.empty(shape, kind)
        out.view(numpy.uint8)[:] = 0x5a
        return self.put(out)

    def image(self, by):
        return self.put(numpy.frombuffer(sparse_cuda.image_of(by),
                                         numpy.uint8))

    def get(self, array):
        return self.driver.get(array)

    def refused(self, names, call):
        with self.assertRaises(ucmfs.InvalidArgument) as caught:
            call()
        for name in names.split("|"):
            self.assertIn(name, str(caught.exception))


class Kinds(Case):
    """Build, prepare, score, for what is kept of keys."""

    def build(self, kind, slab, **what):
        """What is in a slab, after a call."""
        there = self.put(slab)
        self.cuda.build(kind, self.put(self.keys), there, **what,
                        **self.stream)
        return there

    def ready(self, kind, queries, **more):
        num = len(queries) // kind.num_queries
        item = "int64" if isinstance(kind.spec, codes.Spec) else "float32"
        wide = numpy.zeros((num, -(-kind.ready // 4) * 4 + 4), item)
        out = self.put(wide[:, :kind.ready])
        self.cuda.prepare(kind, self.put(queries), out, **more, **self.stream)
        return out

    def check(self, kind, build, score):
        """build: of the host, of a slab, blocks, slots and last tokens.
        score: (request, slab, slots) -> [row, block]."""
        nbytes = kind.spec.nbytes
        step = -(-nbytes // 16) * 16 + 32
        blank = numpy.zeros((BLOCKS, step), numpy.uint8)
        host = sparse.Slab(BLOCKS, nbytes, blank.copy()[:, :nbytes])
        listed = [0, 1, 2, 4, 5, 6, 7]
        build(self.keys, host, blocks=listed, slots=listed)
        for block, tokens in ((3, 5), (8, 16)):
            build(self.keys, host, blocks=[block], slots=[block],
                  last_tokens=tokens)
        # first some by their numbers, then two by the tokens in them
        there = self.put(blank[:, :nbytes])
        keys = self.put(self.keys)
        self.cuda.build(kind, keys, there, blocks=self.ints(listed),
                        **self.stream)
        written = [*range(3 * SIZE, 3 * SIZE + 5), -1,
                   *range(8 * SIZE, 9 * SIZE)]
        self.cuda.build(kind, keys, there, slots=self.ints(written, "int64"),
                        **self.stream)
        got = self.get(Array(there.address, (BLOCKS, step), None, "|u1"))
        for block in range(BLOCKS):
            self.assertEqual(got[block, :nbytes].tobytes(),
                             bytes(host.slot(block)), block)
        self.assertFalse(got[:, nbytes:].any())
        self.check_scores(kind, host, there, score)

    def check_scores(self, kind, host, there, score):
        num = len(TABLES[0]) * kind.width
        queries = numpy.repeat(self.queries, kind.num_queries, 0)
        scores = self.blank(len(TABLES), kind.rows, num)
        self.cuda.score(kind, self.ready(kind, queries), there, self.requests,
                        scores, **self.stream)
        got = self.get(scores)
        want = self.get(self.blank(*got.shape))
        for r, tokens in enumerate(TOKENS):
            if tokens:
                rows = numpy.asarray(score(queries[r * kind.num_queries:],
                                           host, blocks_of(r)))
                want[r, :, :rows.shape[-1]] = rows
        self.assertTrue(is_one(got, want))

    def test_representations_and_scores_are_the_cpus(self):
        for name in ("mean", "max", "normed", "minmax"):
            for dtype in ("float32", "bfloat16", "float16", "int8"):
                spec = sparse.Spec(name, dtype, HEADS, DIM, SIZE)
                for per in ("head", "group", "block"):
                    with self.subTest(name, dtype=dtype, per=per):
                        self.check(
                            sparse_cuda.Kind(spec, QUERY_HEADS, per),
                            spec.build, lambda q, slab, slots: spec.query(
                                q[0], per).score(slab, slots))
                        gc.collect()

    def test_codes_and_scores_are_the_cpus(self):
        for over, per, norms in (
                ("best", "head", False), ("sum", "group", False),
                ("each", "block", False), ("best", "block", True),
                ("each", "head", True)):
            spec = codes.Spec("tokens", HEADS, DIM, 64, SIZE, norms=norms)
            encoder = codes.Encoder(spec, floats(7, HEADS, DIM))
            method = codes.Method("estimate" if norms else "hamming", over,
                                  per, QUERY_HEADS, 1)
            kind = sparse_cuda.Kind(encoder, method=method,
                                    image=self.image(encoder))
            with self.subTest(over, per=per):
                self.check(kind, encoder.build, lambda q, slab, slots:
                           encoder.query(q[0], method).score(slab, slots))

    def test_queries_apart_are_those_together(self):
        spec = codes.Spec("tokens", 1, DIM, 64, SIZE, rope_dim=8, rope_bits=32)
        encoder = codes.Encoder(spec)
        method = codes.Method("hamming", "best", "block", QUERY_HEADS)
        kind = sparse_cuda.Kind(encoder, method=method,
                                image=self.image(encoder))
        outs = [self.blank(len(TABLES), kind.ready, kind="uint64")
                for _ in range(2)]
        rope = numpy.ascontiguousarray(self.queries[..., -8:])
        self.cuda.prepare(kind, self.put(self.queries), outs[0], **self.stream)
        self.cuda.prepare(kind, self.put(numpy.ascontiguousarray(
            self.queries[..., :-8])), outs[1], rope=self.put(rope),
            **self.stream)
        self.assertTrue(is_one(*map(self.get, outs)))
        self.refused("rope: shape", lambda: self.cuda.prepare(
            kind, self.put(self.queries), outs[1],
            rope=self.put(self.queries), **self.stream))

    def test_merged_channels_scores_and_votes_are_the_cpus(self):
        for chosen in (False, True):
            for dtype in ("float32", "int8"):
                spec = star.Spec(dtype, HEADS, DIM, SIZE, 3,
                                 10 if chosen else DIM)
                image = None
                if chosen:
                    spec = spec.choose(self.keys)
                    image = self.image(spec)
                for per in ("head", "block"):
                    kind = sparse_cuda.Kind(spec, QUERY_HEADS, per,
                                            num_queries=2, image=image)
                    with self.subTest(dtype, per=per, chosen=chosen):
                        self.check(kind, spec.build, lambda q, slab, slots:
                                   spec.query(q[:2], per).score(slab, slots))
                with self.subTest("votes", dtype=dtype, chosen=chosen):
                    self.check_votes(spec, image)

    def check_votes(self, spec, image):
        kind = sparse_cuda.Kind(spec, QUERY_HEADS, "head", num_queries=2,
                                image=image)
        host = spec.build(self.keys)
        slab = self.put(numpy.frombuffer(b"".join(
            bytes(host.slot(i)) for i in range(BLOCKS)), numpy.uint8).reshape(
                BLOCKS, -1))
        queries = numpy.repeat(self.queries, 2, 0)
        shape = (len(TABLES), kind.rows, len(TABLES[0]))
        scores, weights = self.blank(*shape), self.blank(*shape)
        votes = self.blank(len(TABLES), len(TABLES[0]))
        self.cuda.score(kind, self.ready(kind, queries), slab, self.requests,
                        scores, weights=weights, scale=.3, **self.stream)
        self.cuda.vote(kind, self.requests, scores, weights, votes, scale=.3,
                       **self.stream)
        got, want = self.get(votes), self.get(self.blank(*votes.shape))
        for r, tokens in enumerate(TOKENS):
            if tokens:
                blocks = blocks_of(r)
                want[r, :len(blocks)] = spec.query(
                    queries[2 * r:2 * r + 2], "head").vote(
                        host, blocks, scale=.3)
        self.assertTrue(is_one(got, want))

    def test_halves_are_those_of_torch(self):
        """A bfloat16 that says so, as only torch's tensors can."""
        upper, keys = bfloat16(self.keys)
        spec = sparse.Spec("mean", "float32", HEADS, DIM, SIZE)
        kind, there = sparse_cuda.Kind(spec, QUERY_HEADS), self.put(
            numpy.zeros((BLOCKS, spec.nbytes), numpy.uint8))
        every, bits = self.ints(range(BLOCKS)), self.put(upper)
        halves = FakeTorch(upper, "bfloat16", "cuda")
        halves.data_ptr = lambda: bits.address
        self.cuda.build(kind, halves, there, blocks=every, **self.stream)
        self.assertEqual(self.get(there)[3].tobytes(),
                         bytes(spec.build(keys).slot(3)))
        self.refused("keys: uint16", lambda: self.cuda.build(
            kind, bits, there, blocks=every))

    def test_a_block_without_a_slot_has_no_score(self):
        kind = sparse_cuda.Kind(SPEC, QUERY_HEADS)
        slab = self.put(numpy.zeros((BLOCKS, SPEC.nbytes), numpy.uint8))
        scores = self.blank(1, 1, 2)
        self.cuda.score(
            kind, self.ready(kind, self.queries[:1]), slab,
            sparse_cuda.Requests(self.ints([[1, BLOCKS]]), self.ints([20])),
            scores, **self.stream)
        self.assertEqual(numpy.isnan(self.get(scores)).tolist(),
                         [[[False, True]]])

    def test_what_cannot_be_right_is_refused_by_name(self):
        kind = sparse_cuda.Kind(SPEC, QUERY_HEADS, "group")
        slab = self.put(numpy.zeros((BLOCKS, SPEC.nbytes), numpy.uint8))
        keys, every = self.put(self.keys), self.ints(range(BLOCKS))
        scores, ready = self.blank(3, HEADS, 5), self.ready(kind, self.queries)
        encoder = codes.Encoder(codes.Spec("tokens", HEADS, DIM, 64, SIZE))
        method = codes.Method("hamming", "best", "head", QUERY_HEADS)
        plain = sparse_cuda.Kind(star.Spec(
            "float32", HEADS, DIM, SIZE, 3, 10, tuple(range(10)) * HEADS),
            QUERY_HEADS)

        def build(keys=keys, slab=slab, **more):
            return lambda: self.cuda.build(
                kind, keys, slab, **(more or {"blocks": every}))

        def score(scores=scores, ready=ready, requests=self.requests, **more):
            return lambda: self.cuda.score(kind, ready, slab, requests, scores,
                                           **more)

        for names, call in (
                ("keys: memory of cpu|CUDA", build(self.keys)),
                ("keys: shape|num_heads 2", build(self.put(self.keys[:, :, :1]))),
                ("slab: shape|byte", build(slab=self.blank(
                    BLOCKS, 7, kind="uint8"))),
                ("slots, blocks", build(slots=every, blocks=every)),
                ("slots, blocks", build(tokens=every)),
                ("slots: int32", build(slots=every)),
                ("blocks: int64", build(blocks=self.ints([1], "int64"))),
                ("tokens: shape (2,), where [num 9]", build(
                    blocks=every, tokens=self.ints([1, 2]))),
                ("blocks: list", build(blocks=[1])),
                ("queries: shape|head_dim 40", lambda: self.cuda.prepare(
                    kind, self.put(self.queries[..., :8]), ready)),
                ("out: shape", lambda: self.cuda.prepare(
                    kind, self.put(self.queries[:2]), ready)),
                ("out: it is read-only", lambda: self.cuda.prepare(
                    kind, self.put(self.queries), self.put(
                        numpy.zeros((3, kind.ready), numpy.float32),
                        writable=False))),
                ("scores: shape|row 2, score 5", score(self.blank(3, 1, 5))),
                ("scores: strides|overlap", score(Array(
                    scores.address, scores.shape, (0, 20, 4), "<f4"))),
                ("queries: shape|request 3", score(ready=self.blank(
                    2, kind.ready))),
                ("tokens: shape|num 3", lambda: sparse_cuda.Requests(
                    self.ints(TABLES), self.ints([1]))),
                ("weights: strides", score(weights=Array(
                    scores.address, scores.shape, (4 * 5, 4 * 15, 4),
                    "<f4"))),
                ("stream", score(stream="0")),
                ("stream", score(stream=-1)),
                ("per 'each'", lambda: sparse_cuda.Kind(SPEC, 8, "each")),
                ("num_heads", lambda: sparse_cuda.Kind(SPEC, -1)),
                ("image: shape", lambda: sparse_cuda.Kind(
                    encoder, method=method, image=slab)),
                ("image: shape|byte 40", lambda: sparse_cuda.Kind(
                    plain.spec, QUERY_HEADS, image=self.ints([1], "uint8"))),
                ("encoder: device is NULL", lambda: self.cuda.build(
                    sparse_cuda.Kind(encoder, method=method), keys,
                    self.blank(BLOCKS, encoder.spec.nbytes, kind="uint8"),
                    blocks=every)),
                ("channels: none on the device", lambda: self.cuda.build(
                    plain, keys, self.blank(
                        BLOCKS, plain.spec.nbytes, kind="uint8"),
                    blocks=every))):
            with self.subTest(names):
                self.refused(names, call)


class Selection(Case):
    def test_is_the_cpus(self):
        scores = floats(3, len(TABLES), 5)
        room = [self.blank(3, 4, kind=kind) for kind in ("int32", "uint32")]
        ends = [self.blank(3, kind=kind)
                for kind in ("int32", "int32", "uint32")]
        wide = self.put(numpy.pad(scores, ((0, 0), (0, 2)))[:, :5])
        self.cuda.select(BUDGET, self.requests, wide, room[0], *ends[:2],
                         blocks_out=room[1], num_out=ends[2], **self.stream)
        tables, blocks = map(self.get, room)
        tokens, status, nums = map(self.get, ends)
        self.assertEqual(status.tolist(), [0, 0, 0])
        for r in (0, 2):
            held = blocks_of(r)
            want = sparse.select(scores[r, :len(held)], BUDGET.of(TOKENS[r]))
            table, length = sparse.select_table(held, SIZE, TOKENS[r], want)
            self.assertEqual(blocks[r, :nums[r]].tolist(), list(want))
            self.assertEqual(tables[r, :nums[r]].tolist(), list(table))
            self.assertEqual(tokens[r], length)
        self.assertEqual((nums[1], tokens[1]), (0, 0))

    def test_says_which_requests_it_could_not_do(self):
        scores = floats(3, len(TABLES), 5)
        scores[2, 1] = NAN
        table, ends = self.blank(3, 5, kind="int32"), [
            self.blank(3, kind="int32") for _ in range(2)]
        self.cuda.select(BUDGET, self.requests, self.put(scores), table, *ends,
                         **self.stream)
        self.assertEqual(self.get(ends[1]).tolist(), [0, 0, -22])

    def test_what_cannot_be_right_is_refused_by_name(self):
        scores, table = self.blank(3, 5), self.blank(3, 5, kind="int32")
        end = self.blank(3, kind="int32")
        gaps = Array(table.address, (3, 4), (20, 4), "<i4")
        for names, change in (
                ("scores: shape|request 3, block 5",
                 {"scores": self.blank(3, 4)}),
                ("tables_out: strides|no gaps", {"tables_out": gaps}),
                ("status is NULL", {"status": None}),
                ("blocks_out: shape|room 5",
                 {"blocks_out": self.blank(3, 4, kind="uint32")}),
                ("num_out: float32", {"num_out": self.blank(3)})):
            with self.subTest(names):
                self.refused(names, lambda: self.cuda.select(
                    BUDGET, self.requests, **{
                        "scores": scores, "tables_out": table,
                        "tokens_out": end, "status": end, **change}))


class Positions(Case):
    ROPE = position.Rope(DIM, rotary_dim=32)

    def test_keys_that_move_are_the_cpus(self):
        deltas = numpy.arange(-4, 5, dtype=numpy.int32)
        each = numpy.arange(3 * SIZE, dtype=numpy.int32).reshape(3, SIZE)
        for by, given, last in (
                (deltas, {}, None),
                (each, {"from_blocks": [4, 0, 8]}, None),
                (deltas[:2], {"from_blocks": [1, 2], "to_blocks": [0, 5]}, 9)):
            for apart in (False, True):
                host = self.keys.copy()
                there, to = self.put(self.keys), None
                room = numpy.zeros_like(host) if apart else None
                if apart:
                    to = self.put(room)
                lists = {name: self.ints(value)
                         for name, value in given.items()}
                if last:
                    lists["tokens"] = self.ints([SIZE, last])
                if not apart and last:
                    given = {**given, "to_blocks": [6, 5]}
                    lists["to_blocks"] = self.ints([6, 5])
                self.ROPE.shift(host, by, to=room, last_tokens=last, **given)
                self.cuda.shift(self.ROPE, there, self.put(by), to=to,
                                **lists, **self.stream)
                self.assertTrue(is_one(self.get(to if apart else there),
                                       room if apart else host))

    def test_deviations_are_the_cpus(self):
        tokens = 3 * SIZE - 5
        fresh, values = floats(4, tokens, HEADS, DIM), floats(5, *(
            self.keys.shape))
        for more in ({}, {"cached_values": values, "fresh_values": fresh}):
            for table in (None, [4, 0, 8]):
                out = self.blank(tokens)
                self.cuda.deviation(
                    self.put(self.keys), self.put(fresh), out,
                    table=table and self.ints(table), relative=bool(more),
                    **{name: self.put(value) for name, value in more.items()},
                    **self.stream)
                want = position.deviation(self.keys, fresh, table=table,
                                          relative=bool(more), **more)
                self.assertTrue(is_one(self.get(out), numpy.asarray(want)))

    def test_what_cannot_be_right_is_refused_by_name(self):
        keys, fresh = self.put(self.keys), self.put(floats(4, 40, HEADS, DIM))
        out = self.blank(40)
        for names, call in (
                ("deltas: shape|block_size 16", lambda: self.cuda.shift(
                    self.ROPE, keys, self.ints([[1, 2]]))),
                ("to_blocks: shape|num 1", lambda: self.cuda.shift(
                    self.ROPE, keys, self.ints([1]),
                    to_blocks=self.ints([1, 2]))),
                ("keys: shape|head_dim 8", lambda: self.cuda.shift(
                    position.Rope(8), keys, self.ints([1]))),
                ("to: float16", lambda: self.cuda.shift(
                    self.ROPE, keys, self.ints([1]),
                    to=self.put(self.keys.astype(numpy.float16)))),
                ("to: shape|block_size 16", lambda: self.cuda.shift(
                    self.ROPE, keys, self.ints([1]),
                    to=self.put(self.keys[:, :4]))),
                ("cached_values is NULL", lambda: self.cuda.deviation(
                    keys, fresh, out, fresh_values=fresh)),
                ("table: 2 blocks of 16|40", lambda: self.cuda.deviation(
                    keys, fresh, out, table=self.ints([1, 2]))),
                ("out: shape|num_tokens 40", lambda: self.cuda.deviation(
                    keys, fresh, self.blank(41)))):
            with self.subTest(names):
                self.refused(names, call)


class Attention(Case):
    VALUE = 24

    def setUp(self):
        super().setUp()
        self.values = floats(6, BLOCKS, SIZE, HEADS, self.VALUE)

    def what(self, requests=None, **more):
        return sparse_cuda.Attention(
            self.put(self.queries), self.put(self.keys),
            self.put(self.values), requests or self.requests, **more)

    def check(self, call, decode, **more):
        what = self.what(**more)
        work = self.blank(what.floats + 3)
        out = self.blank(len(TABLES), QUERY_HEADS, self.VALUE)
        lse = self.blank(len(TABLES), QUERY_HEADS)
        call(what, work, out, lse)
        results, sums = self.get(out), self.get(lse)
        for r, tokens in enumerate(TOKENS):
            if not tokens:
                self.assertFalse(results[r].any())
                continue
            want, logs = decode(r, {
                "table": blocks_of(r), "num_tokens": tokens})
            self.assertTrue(is_one(results[r], numpy.asarray(want)), r)
            numpy.testing.assert_allclose(sums[r], logs, rtol=2e-6)

    def test_is_the_cpus(self):
        def call(*arguments):
            self.cuda.attention(*arguments, **self.stream)

        for scale in (0.0, .25):
            self.check(call, lambda r, more: attention.decode(
                self.queries[r], self.keys, self.values, scale=scale, **more),
                scale=scale)

    def test_without_far_positions_is_the_cpus(self):
        rerope = attention.ReRope(position.Rope(DIM), 20, block_size=SIZE)
        image = self.image(rerope)
        held = numpy.array([[0, 2, 3, 6, 9]] * 3, numpy.uint32)
        positions = [9 * SIZE + 20, 0, 3 * SIZE + 3]

        def call(*arguments):
            self.cuda.attention(*arguments, rerope=rerope, image=image,
                                **self.stream)

        self.check(call, lambda r, more: rerope.decode(
            self.queries[r], self.keys, self.values, position=positions[r],
            selected=held[r, :len(more["table"])], **more),
            positions=self.ints(positions), selected=self.put(numpy.pad(
                held, ((0, 0), (0, 2)))[:, :5]))
        self.check(call, lambda r, more: rerope.decode(
            self.queries[r], self.keys, self.values, **more))

    def test_follows_a_selection(self):
        """What select() writes is what attention reads: the whole of it, with
        a ratio of 1."""
        table, ends = self.blank(3, 5, kind="int32"), [
            self.blank(3, kind="int32") for _ in range(2)]
        self.cuda.select(sparse.BudgetConfig(SIZE, ratio=1.0), self.requests,
                         self.put(floats(3, 3, 5)), table, *ends,
                         **self.stream)
        outs = []
        for requests in (self.requests, sparse_cuda.Requests(table, ends[0])):
            what = self.what(requests)
            outs.append(self.blank(3, QUERY_HEADS, self.VALUE))
            self.cuda.attention(what, self.blank(what.floats), outs[-1],
                                **self.stream)
        self.assertTrue(is_one(*map(self.get, outs)))

    def test_what_cannot_be_right_is_refused_by_name(self):
        what = self.what()
        work, out = self.blank(what.floats), self.blank(3, QUERY_HEADS,
                                                        self.VALUE)
        rerope = attention.ReRope(position.Rope(DIM), 20, block_size=8)
        other = attention.ReRope(position.Rope(DIM), 20, block_size=SIZE)
        for names, call in (
                ("work: 3 floats", lambda: self.cuda.attention(
                    what, self.blank(3), out)),
                ("out: shape|head 8, value 24", lambda: self.cuda.attention(
                    what, work, self.blank(3, QUERY_HEADS, 3))),
                ("lse: shape", lambda: self.cuda.attention(
                    what, work, out, self.blank(3, 3))),
                ("values: shape|block_size 16", lambda: sparse_cuda.Attention(
                    self.put(self.queries), self.put(self.keys),
                    self.put(self.values[:, :4]), self.requests)),
                ("queries: shape|num 3", lambda: sparse_cuda.Attention(
                    self.put(self.queries[:2]), self.put(self.keys),
                    self.put(self.values), self.requests)),
                ("selected: shape", lambda: self.what(
                    selected=self.blank(3, 4, kind="uint32"))),
                ("keys: blocks of 16", lambda: self.cuda.attention(
                    what, work, out, rerope=rerope,
                    image=self.image(rerope))),
                ("image: shape", lambda: self.cuda.attention(
                    what, work, out, rerope=other,
                    image=self.blank(3, kind="uint8"))),
                ("image: NoneType", lambda: self.cuda.attention(
                    what, work, out, rerope=other)),
                ("values: there are no channels",
                 lambda: sparse_cuda.Attention(
                     self.put(self.queries), self.put(self.keys),
                     self.put(self.values[..., :0].copy()),
                     self.requests))):
            with self.subTest(names):
                self.refused(names, call)


class Devices(Case):
    def test_that_are_closed_say_so(self):
        self.cuda.close()
        self.refused("CUDA device 0: it is closed", lambda: self.cuda.select(
            BUDGET, self.requests, self.blank(3, 5),
            self.blank(3, 5, kind="int32"), self.ints([0] * 3),
            self.ints([0] * 3)))

    def test_that_are_not_there_are_named(self):
        with self.assertRaises(ucmfs.UcmfsError) as caught:
            sparse_cuda.Device(77)
        self.assertIn("CUDA device 77: ", str(caught.exception))
        self.refused("device: number", lambda: sparse_cuda.Device(1 << 40))

    def test_many_requests_of_none_do_nothing(self):
        requests = sparse_cuda.Requests(self.put(numpy.zeros(
            (0, 5), numpy.int32)), self.put(numpy.zeros(0, numpy.int32)))
        self.cuda.score(
            sparse_cuda.Kind(SPEC, QUERY_HEADS), self.put(numpy.zeros(
                (0, sparse_cuda.Kind(SPEC, QUERY_HEADS).ready),
                numpy.float32)),
            self.put(numpy.zeros((BLOCKS, SPEC.nbytes), numpy.uint8)),
            requests, self.put(numpy.zeros((0, 1, 5), numpy.float32)))

    def test_tensors_of_torch_are_taken(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs torch")
        if not torch.cuda.is_available():
            self.skipTest("needs torch with a CUDA device")
        spec = sparse.Spec("mean", "float32", HEADS, DIM, SIZE)
        kind = sparse_cuda.Kind(spec, QUERY_HEADS)
        slab = torch.zeros(BLOCKS, spec.nbytes, dtype=torch.uint8,
                           device="cuda")
        self.cuda.build(kind, torch.from_numpy(self.keys).cuda(), slab,
                        blocks=torch.arange(BLOCKS, dtype=torch.int32,
                                            device="cuda"),
                        stream=torch.cuda.current_stream())
        self.assertEqual(bytes(slab[3].cpu().numpy()),
                         bytes(spec.build(self.keys).slot(3)))


class NoDevice(unittest.TestCase):
    def test_says_why(self):
        try:
            driver()
        except NoDriver:
            with self.assertRaises(ucmfs.UcmfsError) as caught:
                sparse_cuda.Device()
            self.assertEqual(caught.exception.errno, 19)
            self.assertIn("CUDA device 0: ", str(caught.exception))
        else:
            self.skipTest("there is a driver")


if __name__ == "__main__":
    unittest.main()
