# SPDX-License-Identifier: Apache-2.0
"""Positions, schedules and residency from Python: results are numpy's, and
what is wrong is refused by its name."""

import errno
import unittest

import ucmfs
from ucmfs import (_lib, attention, codes, methods, position, retrieval,
                   retrieve, sparse)
from tests.python.support import needs_numpy, numpy

BLOCKS, SIZE, HEADS, DIM = 5, 16, 2, 32
ROPE = position.Rope(DIM)


def floats(seed, *shape):
    return numpy.random.default_rng(seed).standard_normal(
        shape).astype(numpy.float32)


def rotated(keys, positions):
    """NeoX's rotation of keys [..., channel], in float64."""
    angles = numpy.asarray(positions, float)[..., None] * 10000.0 ** (
        -numpy.arange(0, DIM, 2) / DIM)
    one, two = keys[..., :DIM // 2], keys[..., DIM // 2:]
    cos, sin = numpy.cos(angles), numpy.sin(angles)
    return numpy.concatenate([one * cos - two * sin, two * cos + one * sin],
                             -1)


def attended(q, keys, values):
    """(out, lse) of q [head, channel], keys and values [token, head, ...]."""
    group = len(q) // keys.shape[1]
    keys, values = (numpy.repeat(x.astype(float), group, 1)
                    for x in (keys, values))
    s = numpy.einsum("hc,thc->ht", q.astype(float), keys) / keys.shape[2]**.5
    e = numpy.exp(s)
    return (numpy.einsum("ht,thc->hc", e, values) / e.sum(1)[:, None],
            numpy.log(e.sum(1)))


class Case(unittest.TestCase):
    def refused(self, names, call, kind=ucmfs.InvalidArgument):
        with self.assertRaises(kind) as caught:
            call()
        for name in names.split("|"):
            self.assertIn(name, str(caught.exception))
        return caught.exception


@needs_numpy
class Positions(Case):
    def setUp(self):
        self.keys = floats(1, BLOCKS, SIZE, HEADS, DIM)

    def close(self, got, want):
        numpy.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    def test_frequencies(self):
        self.close(ROPE.frequencies(),
                   10000.0 ** (-numpy.arange(0, DIM, 2) / DIM))

    def test_keys_are_shifted_by_block_and_by_token(self):
        per_block = numpy.array([3, -7, 0, 1000, 5])
        per_token = numpy.arange(BLOCKS * SIZE).reshape(BLOCKS, SIZE)
        for deltas, positions in (
                (per_block, numpy.repeat(per_block, SIZE)),
                (per_block.tolist(), numpy.repeat(per_block, SIZE)),
                (per_token, per_token), (range(BLOCKS * SIZE), per_token)):
            keys = self.keys.copy()
            ROPE.shift(keys, deltas)
            self.close(keys, rotated(self.keys, numpy.reshape(
                positions, (BLOCKS, SIZE, 1))))

    def test_keys_are_written_elsewhere(self):
        to = numpy.zeros((BLOCKS, HEADS, SIZE, DIM), "f").transpose(
            0, 2, 1, 3)
        ROPE.shift(self.keys, [9, 9], to=to, from_blocks=[4, 0],
                   to_blocks=[1, 2], last_tokens=3)
        self.close(to[1], rotated(self.keys[4], 9))
        self.close(to[2, :3], rotated(self.keys[0, :3], 9))
        self.assertFalse(to[2, 3:].any() or to[0].any())
        keys = self.keys.copy()  # in place, blocks that are named once
        ROPE.shift(keys, [9], from_blocks=[3])
        self.close(keys[3], rotated(self.keys[3], 9))
        self.assertTrue((keys[:3] == self.keys[:3]).all())

    def test_chunks_are_found(self):
        config = position.ChunkConfig(head_tokens=1)
        text = list(range(1000, 1192))
        chunks = position.find_chunks(
            config, text[:128] + [7] * 64,
            [position.Source([1, 2]), position.Source(text, 300)], 100)
        self.assertEqual(chunks, [
            (100, 164, "full", 64, 1, 0, -200),
            (164, 228, "full", 64, 1, 64, -200),
            (228, 292, "none", 0, 0, 0, 0)])
        self.assertEqual(position.recompute(config, chunks),
                         [(100, 101), (164, 165), (228, 292)])
        self.assertEqual(list(position.chunk_deltas(chunks, 66, 164)),
                         [-200] * 64 + [0] * 2)
        self.assertEqual(position.find_chunks(config, [], []), [])
        self.assertEqual(position.merge_ranges([(5, 9), (1, 2), (2, 3),
                                                (4, 4)]), [(1, 3), (5, 9)])

    def test_deviations_are_numpys(self):
        fresh = floats(2, 3 * SIZE - 4, HEADS, DIM)
        values = floats(3, BLOCKS, SIZE, HEADS, DIM)
        new = floats(4, 3 * SIZE - 4, HEADS, DIM)
        table = [4, 0, 2]
        rows = [x[table].reshape(-1, HEADS, DIM)[:len(fresh)]
                for x in (self.keys, values)]
        want = numpy.abs(rows[0] - fresh).sum((1, 2))
        self.close(position.deviation(self.keys, fresh, table=table), want)
        both = want + numpy.abs(rows[1] - new).sum((1, 2))
        got = position.deviation(self.keys, fresh, cached_values=values,
                                 fresh_values=new, table=table)
        self.close(got, both)
        self.close(position.deviation(
            self.keys, fresh, table=table, relative=True),
            want / numpy.abs(fresh).sum((1, 2)))
        best = numpy.sort(numpy.argsort(-numpy.asarray(got),
                                        kind="stable")[:int(.2 * len(got))])
        for rule in ("ratio", "quantile"):
            self.assertEqual(list(position.select_tokens(got, rule, .2)),
                             best.tolist())
        self.assertEqual(
            list(position.select_tokens([.5, .05, .1], "threshold", .1)),
            [0, 2])

    def test_attention_is_numpys(self):
        q = floats(5, 3 * HEADS, DIM)
        values = floats(6, BLOCKS, SIZE, HEADS, 8)
        table, tokens = [3, 1, 4], 2 * SIZE + 5
        rows = [x[table].reshape(3 * SIZE, HEADS, -1)[:tokens]
                for x in (self.keys, values)]
        out, lse = attention.reference(q, self.keys, values, table=table,
                                      num_tokens=tokens)
        for got, want in zip((out, lse), attended(q, *rows)):
            numpy.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
        self.assertEqual(out.shape, (3 * HEADS, 8))
        whole, _ = attention.reference(q, self.keys, values)
        every = [x.reshape(-1, HEADS, x.shape[3])
                 for x in (self.keys, values)]
        numpy.testing.assert_allclose(whole, attended(q, *every)[0])

    def test_decoding_is_that_in_float32(self):
        q = floats(5, 3 * HEADS, DIM)
        table, tokens = [3, 1, 4], 2 * SIZE + 5
        rerope = attention.ReRope(ROPE, 1000, block_size=SIZE)
        for call, same in ((attention.decode, attention.reference),
                           (rerope.decode, rerope.reference)):
            for got, want in zip(*(f(
                    q, self.keys, self.keys, table=table,
                    num_tokens=tokens) for f in (call, same))):
                self.assertEqual((got.format, want.format), ("f", "d"))
                self.close(got, want)

    def test_rerope_is_rope_within_its_window(self):
        q = floats(5, 3 * HEADS, DIM)
        want = attention.decode(q, self.keys, self.keys)[0].tobytes()
        for window, same in ((BLOCKS * SIZE, True), (SIZE, False)):
            rerope = attention.ReRope(ROPE, window, block_size=SIZE)
            got = rerope.decode(q, self.keys, self.keys)[0].tobytes()
            self.assertEqual(got == want, same)
        # keys are turned back from where their blocks are in the request
        outs = [rerope.decode(q, self.keys, self.keys, table=[1, 2],
                              position=10000, selected=selected)[1]
                for selected in ([1, 2], [0, 4])]
        self.assertNotEqual(*(list(lse) for lse in outs))

    def test_ratio_1_is_dense_attention_bit_for_bit(self):
        q = floats(5, 3 * HEADS, DIM)
        spec = sparse.Spec("mean", "bfloat16", HEADS, DIM, SIZE)
        scores = spec.query(q).score(spec.build(self.keys))
        tokens = BLOCKS * SIZE - 3
        selected = sparse.select(
            scores, sparse.BudgetConfig(SIZE, ratio=1).of(tokens))
        table, length = sparse.select_table(range(BLOCKS), SIZE, tokens,
                                            selected)
        self.assertEqual(
            [x.tobytes() for x in attention.reference(
                q, self.keys, self.keys, table=table, num_tokens=length)],
            [x.tobytes() for x in attention.reference(
                q, self.keys, self.keys, num_tokens=tokens)])

    def test_what_is_wrong_is_named(self):
        read_only = self.keys.copy()
        read_only.flags.writeable = False
        q = floats(5, HEADS, DIM)
        fresh = self.keys[0]
        for names, call in (
            ("pairing 'llama'", lambda: position.Rope(
                DIM, pairing="llama").frequencies()),
            ("base 1", lambda: position.Rope(DIM, base=1).frequencies()),
            ("factor", lambda: position.Rope(
                DIM, scaling="yarn", factor="2").frequencies()),
            ("keys|read-only", lambda: ROPE.shift(read_only, [0] * BLOCKS)),
            ("deltas: 3, where 5 blocks or 80 tokens",
             lambda: ROPE.shift(self.keys, [1, 2, 3])),
            ("deltas: number 1", lambda: ROPE.shift(self.keys,
                                                    [0, 1 << 25, 0, 0, 0])),
            ("to|shape|head 2", lambda: ROPE.shift(
                self.keys, [0] * BLOCKS, to=self.keys[:, :, :1].copy())),
            ("to|float16", lambda: ROPE.shift(
                self.keys, [0] * BLOCKS, to=self.keys.astype("e"))),
            ("from_blocks", lambda: ROPE.shift(self.keys, [1],
                                               from_blocks=[5])),
            ("last_tokens 0", lambda: ROPE.shift(self.keys, [0] * BLOCKS,
                                                 last_tokens=0)),
            ("chunk_tokens is 0", lambda: position.find_chunks(
                position.ChunkConfig(0), [1], [])),
            ("tokens", lambda: position.find_chunks(
                position.ChunkConfig(), ["a"], [])),
            ("position -1", lambda: position.find_chunks(
                position.ChunkConfig(), [1], [], -1)),
            ("kind 'half'", lambda: position.chunk_deltas(
                [position.Chunk(0, 1, "half", 0, 0, 0, 0)], 1)),
            ("begin -1", lambda: position.merge_ranges([(-1, 2)])),
            ("cached_values, fresh_values: one", lambda: position.deviation(
                self.keys, fresh, cached_values=self.keys)),
            ("table: 1 blocks of 16", lambda: position.deviation(
                self.keys, self.keys[:2].reshape(-1, HEADS, DIM),
                table=[0])),
            ("cached|head 2", lambda: position.deviation(
                self.keys[:, :, :1], fresh)),
            ("rule 'best'", lambda: position.select_tokens([1.], "best", 1)),
            ("query|channel 32", lambda: attention.reference(
                q[:, :8], self.keys, self.keys)),
            ("query: num_heads 1", lambda: attention.reference(
                q[:1], self.keys, self.keys)),
            ("values|token 16", lambda: attention.reference(
                q, self.keys, self.keys[:, :4])),
            ("num_tokens", lambda: attention.reference(
                q, self.keys, self.keys, num_tokens=0)),
            ("selected: 1, where 5", lambda: attention.ReRope(
                ROPE, 9, block_size=SIZE).decode(
                    q, self.keys, self.keys, selected=[0])),
            ("selected: 0 after 1", lambda: attention.ReRope(
                ROPE, 9, block_size=SIZE).decode(
                    q, self.keys, self.keys, table=[0, 1], position=99,
                    selected=[1, 0])),
            ("position 9", lambda: attention.ReRope(
                ROPE, 9, block_size=SIZE).decode(
                    q, self.keys, self.keys, position=9)),
            ("blocks of 16 tokens", lambda: attention.ReRope(
                ROPE, 9, block_size=8).decode(q, self.keys, self.keys)),
            ("window 0", lambda: attention.ReRope(ROPE, 0,
                                                  block_size=SIZE)),
            ("training_length 1", lambda: attention.ReRope(
                ROPE, 9, block_size=SIZE, training_length=1)),
            ("not finite", lambda: ROPE.shift(
                numpy.full_like(self.keys, numpy.nan), [1] * BLOCKS)),
            ("scale -1", lambda: attention.reference(
                q, self.keys, self.keys, scale=-1)),
            ("table: number 0 is 5", lambda: attention.reference(
                q, self.keys, self.keys, table=[5])),
        ):
            with self.subTest(names):
                self.refused(names, call)


class Schedules(Case):
    def test_a_step_is_told(self):
        schedule = retrieve.Schedule(stride=8, lead=1, num_layers=70,
                                     dense=[0, 69], reuse=[2])
        step = schedule.step(9, 1)
        self.assertEqual((step.role, step.source, step.uses),
                         ("chooses", 1, 8))
        self.assertTrue(step.begin & retrieve.Do.WAIT_LOADS)
        self.assertEqual(schedule.step(9, 69).role, "dense")
        self.assertEqual(schedule.step(9, 2)[:2], ("reuses", 1))
        now = retrieve.Schedule(num_layers=1).step(1, 0)
        self.assertTrue(now.begin & retrieve.Do.SELECT)

    def test_what_is_wrong_is_named(self):
        for names, call in (
            ("stride 0", lambda: retrieve.Schedule(stride=0, num_layers=1)),
            ("dense: layer 256", lambda: retrieve.Schedule(
                num_layers=1, dense=[256])),
            ("reuse", lambda: retrieve.Schedule(num_layers=2, reuse=[0])),
            ("layer 1", lambda: retrieve.Schedule(num_layers=1).step(1, 1)),
            ("step -1", lambda: retrieve.Schedule(num_layers=1).step(-1, 0)),
        ):
            with self.subTest(names):
                self.refused(names, call)


class Methods(Case):
    def test_are_found_by_name_and_alias(self):
        found = methods.find_all()
        self.assertEqual([m.name for m in found], list(_lib.METHODS))
        for method in found:
            self.assertEqual(methods.find(method.alias), method)
        self.assertEqual(methods.find("GSA On-Device").keeps, "codes")
        self.assertIsNone(methods.find("GSA2"))

    def test_configurations_are_read(self):
        for text in ("GSA:topk_ratio=0.2,local_window_size=5",
                     {"sparse_type": "GSA",
                      "GSA": {"topk_ratio": .2, "local_window_size": 5}}):
            config = methods.parse(text, block_size=SIZE, num_layers=4)
            self.assertEqual(config.method.name, "GSA")
            self.assertEqual(config.budget.ratio, .2)
            self.assertEqual(config.budget.local_blocks, 5)
            self.assertEqual(config.budget.block_size, SIZE)
            self.assertEqual(config.values["score_weight"], .7)
        config.set("topk_ratio", .4)
        config.set("prefetch_enabled", False)
        config.check()
        self.assertEqual((config.budget.ratio,
                          config.values["prefetch_enabled"]), (.4, 0))

    def test_say_what_they_keep(self):
        model = methods.Model(2, 8, 40, "float32", seed=5)
        parsed = {text: methods.parse(text, block_size=SIZE, num_layers=4)
                  for text in ("ESA", "GSA:pooling=max",
                               "GSAOnDevice:hash_bits=64", "KVStar")}
        self.assertEqual(parsed["GSA:pooling=max"].repr_spec(model),
                         sparse.Spec("max", "float32", 2, 40, SIZE))
        spec, method = parsed["GSAOnDevice:hash_bits=64"].code_spec(model)
        self.assertEqual(spec, codes.Spec("tokens", 2, 40, 64, SIZE, seed=5))
        self.assertEqual(method, codes.Method("hamming", "best", "block", 8,
                                              4))
        latent = methods.Model(1, 16, 576, rope_dim=64)
        spec, method = parsed["GSAOnDevice:hash_bits=64"].code_spec(latent)
        self.assertEqual((spec.rope_dim, spec.rope_bits), (64, 8))
        like = parsed["KVStar"].star_spec(model)
        self.assertEqual((like.kept, like.merge_tokens, like.channels),
                         (20, 4, None))
        self.assertEqual(
            parsed["KVStar"].star_spec(model, range(40)).channels,
            tuple(range(40)))
        for names, call in (
            ("method KVStarMultiStep|merged channels",
             lambda: parsed["KVStar"].code_spec(model)),
            ("method ESA", lambda: parsed["ESA"].star_spec(model)),
            ("query_heads 7", lambda: parsed["ESA"].repr_spec(
                methods.Model(2, 7, 40))),
            ("model: dtype", lambda: parsed["ESA"].repr_spec(
                methods.Model(2, 8, 40, "float31"))),
        ):
            with self.subTest(names):
                self.refused(names, call)

    def test_a_request_goes_from_its_prompt_to_its_end(self):
        config = methods.parse("ESA:retrieval_stride=4", block_size=SIZE,
                               num_layers=2)
        request = methods.Request(config, 100 * SIZE)
        self.assertEqual([request.prefill(50 * SIZE) for _ in range(2)],
                         [False, True])
        for _ in range(3):
            request.step()
        self.assertEqual((request.steps, request.tokens, request.dense),
                         (3, 100 * SIZE + 3, False))
        budget = config.budget.of(request.tokens)
        self.assertEqual(request.budget, budget)
        self.assertEqual(request.layer(1).role, "chooses")
        self.assertTrue(0 < request.ratio < 1)
        self.assertGreaterEqual(
            config.slots(100 * SIZE, 3),
            budget.first + budget.last + budget.topk)
        request.finish()
        self.refused("request", request.step)
        request.abort()

    def test_what_is_wrong_is_named(self):
        config = methods.parse("GSA", block_size=SIZE, num_layers=4)
        for names, call, kind in (
            ("method 'XSA'", lambda: methods.parse(
                "XSA", block_size=SIZE, num_layers=1), ucmfs.NotFound),
            ("'stride'", lambda: config.set("stride", 1), ucmfs.NotFound),
            ("NUL", lambda: config.set("a\0", 1), ucmfs.InvalidArgument),
            ("topk_ratio", lambda: config.set("topk_ratio", 2),
             ucmfs.InvalidArgument),
            ("block_size 0", lambda: methods.parse(
                "GSA", block_size=0, num_layers=1), ucmfs.InvalidArgument),
            ("prompt_tokens 0", lambda: methods.Request(config, 0),
             ucmfs.InvalidArgument),
            ("tokens -1", lambda: methods.Request(config, 9).prefill(-1),
             ucmfs.InvalidArgument),
        ):
            with self.subTest(names):
                self.refused(names, call, kind)


class Residency(Case):
    def loaded(self, resident, blocks, now):
        swap = resident.plan(blocks, now=now)
        for fill in swap.loads:
            resident.ended(fill.slot, fill.ticket)
        return swap

    def test_blocks_come_and_go(self):
        resident = retrieve.Resident(8, 3, evict="lru")
        swap = resident.plan([5, 1], now=1)
        self.assertEqual([f.block for f in swap.loads], [5, 1])
        self.assertEqual((swap.evicted, swap.num_left), ([], 0))
        self.assertEqual([list(x) for x in resident.take([5, 1])], [[], []])
        for fill in swap.loads:
            resident.ended(fill.slot, fill.ticket)
        blocks, slots = resident.take([1, 2, 5])
        self.assertEqual(list(blocks), [1, 5])
        self.assertEqual(list(slots), [f.slot for f in swap.loads[::-1]])
        resident.release(slots)
        self.loaded(resident, [1, 2], 2)
        swap = resident.plan([3], now=3)
        self.assertEqual([f.block for f in swap.evicted], [5])
        self.assertEqual([f.block for f in resident.cancel([3])], [3])
        resident.ended(swap.loads[0].slot, swap.loads[0].ticket,
                       errno.ECANCELED)
        self.assertEqual(resident.drop([]), [])
        self.assertEqual(resident.stats()["num_loaded"], 2)
        slot, evicted = resident.put(7, now=4)
        self.assertIsNone(evicted)
        resident.release([slot])
        self.assertEqual(resident.drop(), [])
        stats = resident.stats()
        self.assertEqual((stats["num_free"], stats["loads"],
                          stats["cancelled"]), (3, 4, 1))

    def test_scores_decide(self):
        resident = retrieve.Resident(4, 2, evict="score", hysteresis=.5)
        swap = resident.plan([0, 1], now=1, scores=[.1, .9, 0, 1])
        for fill in swap.loads:
            resident.ended(fill.slot, fill.ticket)
        scores = memoryview(bytearray(16)).cast("f")
        scores[3] = 1
        resident.favour(scores)
        self.assertEqual(list(scores), [.5, .5, 0, 1])
        swap = resident.plan_ahead([2], now=2)
        self.assertEqual(swap.num_left, 1)  # both are wanted
        self.assertEqual([f.block for f in resident.plan(
            [2], now=2).evicted], [0])

    def test_what_is_wrong_is_named(self):
        resident = retrieve.Resident(8, 2)
        swap = self.loaded(resident, [1], 1)
        for names, call in (
            ("num_blocks 0", lambda: retrieve.Resident(0, 1)),
            ("evict 'fifo'", lambda: retrieve.Resident(1, 1, evict="fifo")),
            ("hysteresis 2", lambda: retrieve.Resident(1, 1, hysteresis=2)),
            ("blocks: number 0 is 8", lambda: resident.plan([8], now=1)),
            ("blocks", lambda: resident.take([-1])),
            ("now 0", lambda: resident.plan([1], now=0)),
            ("now -1", lambda: resident.plan([1], now=-1)),
            ("num_scores 9", lambda: resident.plan([1], now=1,
                                                   scores=[0.] * 9)),
            ("slots: number 0", lambda: resident.release([0])),
            ("scores", lambda: resident.favour([1.0])),
        ):
            with self.subTest(names):
                self.refused(names, call)
        self.refused("num 3", lambda: resident.plan([1, 2, 3], now=1),
                     ucmfs.NoSpace)
        for number, call in (
                (errno.ESTALE, lambda: resident.ended(
                    swap.loads[0].slot, swap.loads[0].ticket)),
                (errno.EEXIST, lambda: resident.put(1, now=1))):
            self.assertEqual(self.refused("residency", call,
                                          ucmfs.UcmfsError).errno, number)

    def test_what_is_guessed_is_there_when_it_is_wanted(self):
        resident = retrieve.Resident(16, 8)
        ahead = retrieve.Prefetch(resident, blocks=2)
        scores = [float(16 - i) for i in range(16)]
        ahead.set([0, 1, 2], step=1, scores=scores)
        self.assertEqual(ahead.misses(), [0, 1, 2])
        swap = resident.plan([0, 1, 2], now=1, scores=scores)
        ahead.run()
        near, far = ahead.loads()
        self.assertEqual([f.block for f in near], [3, 4])
        self.assertEqual([f.block for f in far], [5, 6])
        for fill in swap.loads + near:
            resident.ended(fill.slot, fill.ticket)
        ahead.set([2, 3, 9], step=2, scores=scores)
        self.assertEqual(ahead.misses(), [2])
        resident.plan([2, 3, 9], now=2)
        retrieve.run_all([ahead])
        self.assertEqual(ahead.stats()["used"], 1)
        # 6 is not guessed any more, and still under way
        self.assertEqual([f.block for f in ahead.cancels()], [6])
        for names, call in (
                ("ahead 3", lambda: retrieve.Prefetch(resident, blocks=1,
                                                      ahead=3)),
                ("trend", lambda: retrieve.Prefetch(resident, blocks=1,
                                                    trend=2)),
                ("blocks: number 0 is 16",
                 lambda: ahead.set([16], step=3)),
                ("step", lambda: ahead.set([1], step=2))):
            with self.subTest(names):
                self.refused(names, call)


@needs_numpy
class Threads(Case):
    SPEC = sparse.Spec("minmax", "float32", HEADS, DIM, SIZE)

    def setUp(self):
        self.slab = self.SPEC.build(floats(1, 40, SIZE, HEADS, DIM))
        self.query = self.SPEC.query(floats(2, HEADS, DIM))
        self.budget = sparse.BudgetConfig(SIZE, local_blocks=1,
                                          ratio=.25).of(40 * SIZE)
        self.threads = retrieval.Retrieval(self.SPEC, HEADS, lanes=2,
                                           max_blocks=64, threads=2, jobs=2)
        self.addCleanup(self.threads.close)

    def test_select_what_the_caller_would(self):
        want = list(sparse.select(self.query.score(self.slab), self.budget))
        for step in (3, 8):
            self.threads.submit(1, step, self.query, self.slab, self.budget)
        first = self.threads.take(1, 3)
        self.assertEqual((list(first.blocks), first.stale), (want, True))
        second = self.threads.take(1, 8, 20)
        self.assertEqual((list(second.blocks), second.stale), (want, False))
        slots = list(range(40))[::-1]
        self.threads.submit(0, 1, self.query, self.slab, self.budget,
                            slots=slots)
        self.assertEqual(list(self.threads.take(0, 1).blocks), list(
            sparse.select(self.query.score(self.slab, slots), self.budget)))
        self.assertEqual(self.threads.stats()["taken"], 3)

    def test_what_is_wrong_is_named(self):
        threads, budget = self.threads, self.budget
        threads.submit(0, 5, self.query, self.slab, budget)
        for names, call, number in (
            ("step 5", lambda: threads.submit(
                0, 5, self.query, self.slab, budget), errno.EINVAL),
            ("lane 2", lambda: threads.submit(
                2, 1, self.query, self.slab, budget), errno.EINVAL),
            ("step -1", lambda: threads.submit(
                1, -1, self.query, self.slab, budget), errno.EINVAL),
            ("slots: 1, where 40", lambda: threads.submit(
                1, 1, self.query, self.slab, budget, slots=[0]),
             errno.EINVAL),
            ("not of this spec", lambda: threads.submit(
                1, 1, self.SPEC.query(floats(2, HEADS, DIM), "head"),
                self.slab, budget), errno.EINVAL),
            ("slab", lambda: threads.submit(
                1, 1, self.query, sparse.Slab(1, 64), budget), errno.EINVAL),
            ("retrieval", lambda: threads.take(0, 6), errno.ENOENT),
        ):
            with self.subTest(names):
                self.assertEqual(self.refused(names, call,
                                              ucmfs.UcmfsError).errno,
                                 number)
        self.assertEqual(len(threads.take(0, 5).blocks),
                         budget.topk + budget.last)
        threads.cancel(0)
        threads.submit(0, 1, self.query, self.slab, budget)
        threads.submit(1, 1, self.query, self.slab, budget)
        self.assertEqual(self.refused("retrieval", lambda: threads.submit(
            1, 2, self.query, self.slab, budget),
            ucmfs.UcmfsError).errno, errno.EAGAIN)
        threads.close()
        threads.close()
        self.refused("closed", threads.stats)
        self.refused("threads 0", lambda: retrieval.Retrieval(
            self.SPEC, HEADS, lanes=1, max_blocks=1, threads=0))


if __name__ == "__main__":
    unittest.main()
