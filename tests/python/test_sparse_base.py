# SPDX-License-Identifier: Apache-2.0
"""UCM's hooks, called as an engine calls them: a small loop with pages, a
batch and layers, and no engine. What the hooks choose is what sparse.Rows and
the calls one by one choose."""

import copy
import types
import unittest
from unittest import mock

import ucmfs
from ucmfs import methods, sparse, sparse_base, star
from ucmfs.sparse_base import (INVALID_SLOT, Engine, UcmSparseBase,
                               UcmSparseFactory, UcmSparseRole)
from tests.python.support import needs_numpy, numpy

SIZE, HEADS, QUERY_HEADS, DIM = 8, 2, 4, 32
PAGES, WIDTH, LAYERS = 64, 24, 3
MODEL = methods.Model(HEADS, QUERY_HEADS, DIM, "float32", seed=3)
NAMES = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]


def engine_of(wanted):
    return Engine(wanted, SIZE, LAYERS, MODEL)


def create(wanted):
    return UcmSparseFactory.create_sparse_method(engine_of(wanted),
                                                 UcmSparseRole.BOTH)


class Loop:
    """An engine's: requests in rows, and keys that it writes into pages."""

    def __init__(self, wanted, view=lambda array: array):
        self.method, self.view = create(wanted), view
        self.random = numpy.random.default_rng(1)
        # as memory may be that no token has been written to
        self.keys = numpy.full((LAYERS, PAGES, SIZE, HEADS, DIM), numpy.nan,
                               "f")
        self.requests, self.free = {}, list(self.random.permutation(PAGES))
        self.method.register_kv_caches({
            name: self.view(self.keys[i]) for i, name in enumerate(NAMES)})

    def add(self, name, prompt, computed=0):
        self.requests[name] = types.SimpleNamespace(
            prompt_token_ids=list(range(prompt)), block_ids=([],),
            num_computed_tokens=computed)
        self.grow(name, computed)
        self.method.request_begin(name, list(range(prompt)))

    def grow(self, name, tokens):
        blocks = self.requests[name].block_ids[0]
        while len(blocks) * SIZE < tokens:
            blocks.append(int(self.free.pop()))

    def end(self, name):
        self.free += self.requests.pop(name).block_ids[0]
        self.method.request_finished_in_scheduler(name)
        self.method.request_finished_in_worker(name)

    def begin(self, **scheduled):
        """Rows of a step's tokens, by request."""
        tables = numpy.zeros((len(scheduled), WIDTH), numpy.int32)
        lengths = numpy.zeros(len(scheduled), numpy.int32)
        for row, (name, tokens) in enumerate(scheduled.items()):
            request = self.requests[name]
            lengths[row] = request.num_computed_tokens + tokens
            self.grow(name, lengths[row])
            blocks = request.block_ids[0]
            tables[row, :len(blocks)] = blocks
        self.starts = numpy.cumsum([0, *scheduled.values()])
        self.q = self.random.uniform(-1, 1, (
            LAYERS, self.starts[-1], QUERY_HEADS, DIM)).astype("f")
        self.meta = types.SimpleNamespace(
            block_table=self.view(tables), seq_lens=self.view(lengths),
            query_start_loc=self.starts.astype(numpy.int32))
        self.dense = tables, lengths
        self.output = types.SimpleNamespace(
            num_scheduled_tokens=scheduled, finished_req_ids=set())
        self.method.bind_sparse_metadata(self.method.build_sparse_meta(
            self.output, self.requests, types.SimpleNamespace(
                req_id_to_index={name: row for row, name
                                 in enumerate(scheduled)}), self.meta))
        self.method.execute_begin(self.output)

    def write(self, layer):
        for row, (name, tokens) in enumerate(
                self.output.num_scheduled_tokens.items()):
            request = self.requests[name]
            for at in range(request.num_computed_tokens,
                            request.num_computed_tokens + tokens):
                page = request.block_ids[0][at // SIZE]
                self.keys[layer, page, at % SIZE] = self.random.uniform(
                    -1, 1, (HEADS, DIM))

    def layer(self, layer):
        """What it attends to: by row, (pages, tokens)."""
        context = types.SimpleNamespace(attn_metadata=self.meta)
        q, k, v = self.view(self.q[layer]), object(), object()
        out = self.method.attention_begin(q, k, v, NAMES[layer], context)
        assert out == (q, k, v, None)
        self.write(layer)
        seen = [(list(numpy.asarray(self.meta.block_table)[
            row, :-(-int(tokens) // SIZE)]), int(tokens))
            for row, tokens in enumerate(self.meta.seq_lens)]
        self.method.attention_finished(q, k, v, None, NAMES[layer], context)
        return seen

    def step(self, **scheduled):
        """What each layer attends to."""
        self.begin(**scheduled)
        seen = [self.layer(layer) for layer in range(LAYERS)]
        self.finish()
        return seen

    def finish(self):
        assert self.method.execute_finished("logits") == "logits"
        for name, tokens in self.output.num_scheduled_tokens.items():
            self.requests[name].num_computed_tokens += tokens

    def whole(self, row=0):
        table, length = self.dense[0][row], int(self.dense[1][row])
        return list(table[:-(-length // SIZE)]), length

    def rows(self, layer, queries):
        """What sparse.Rows chooses, of all pages that are full."""
        by, method = self.method.config.by(MODEL)
        if isinstance(by, star.Spec):
            by = by.choose(self.keys[layer], blocks=self.first)
        slab = by.build(numpy.nan_to_num(self.keys[layer]))
        batch = sparse.Batch(*self.dense)
        sparse.Rows(by, slab, self.method.config.budget,
                    method=method).select(queries, batch)
        return [(list(numpy.asarray(batch.tables)[
            row, :-(-tokens // SIZE)]), tokens)
            for row, tokens in enumerate(batch.lengths)]


@needs_numpy
class Hooks(unittest.TestCase):
    def check_choices(self, wanted, view=lambda array: array, steps=11):
        loop = Loop(wanted, view)
        loop.add("a", 20 * SIZE - 3)
        for tokens in (9 * SIZE + 1, 11 * SIZE - 4):  # chunks of the prompt
            self.assertEqual(loop.step(a=tokens), [[loop.whole()]] * LAYERS)
        loop.first = loop.whole()[0][:9]
        for _ in range(steps):
            loop.begin(a=1)
            for layer in range(LAYERS):
                want = loop.rows(layer, loop.q[layer])
                self.assertEqual(loop.layer(layer), want)
                self.assertLess(len(want[0][0]), len(loop.whole()[0]))
                self.assertIn(loop.whole()[0][-1], want[0][0])
            loop.finish()
        return loop

    def test_choose_what_rows_choose(self):
        for kind in ("mean", "max", "l2", "minmax"):
            self.check_choices(f"ESA:pooling={kind},init_window_sz=1")
            self.check_choices(f"GSA:pooling={kind},topk_ratio=0.2")

    def test_choose_by_codes(self):
        self.check_choices("GSAOnDevice:hash_topk_tokens=64,sink_token=8,"
                           "recent_token=8,hash_bits=64")

    def test_choose_by_channels(self):
        self.check_choices("KVStarMultiStep")

    def test_take_and_give_buffers(self):
        loop = self.check_choices("GSA", view=memoryview)
        loop.begin(a=1)
        context = types.SimpleNamespace(attn_metadata={NAMES[0]: loop.meta})
        loop.method.attention_begin(memoryview(loop.q[0]), None, None,
                                    NAMES[0], context)
        self.assertIsInstance(loop.meta.block_table, memoryview)

    def test_a_ratio_of_1_is_the_whole_table(self):
        loop = Loop("GSA:topk_ratio=1,init_window_size=0,local_window_size=0")
        loop.add("a", 12 * SIZE)
        loop.step(a=12 * SIZE)
        for _ in range(SIZE + 2):
            self.assertEqual(loop.step(a=1), [[loop.whole()]] * LAYERS)

    def test_rows_of_several_requests(self):
        loop = Loop("ESA:sparse_ratio=0.2")
        for name in "ab":
            loop.add(name, 16 * SIZE)
            loop.step(**{name: 16 * SIZE})
        loop.add("c", 14 * SIZE)
        # b prefills nothing; c prefills, beside rows that decode
        loop.begin(b=1, c=5 * SIZE, a=1)
        for layer in range(LAYERS):
            first = loop.starts[:3]
            want = loop.rows(layer, loop.q[layer][first])
            seen = loop.layer(layer)
            self.assertEqual([seen[0], seen[2]], [want[0], want[2]])
            self.assertEqual(seen[1], loop.whole(1))
            self.assertLess(seen[0][1], loop.whole(0)[1])
            self.assertLess(seen[2][1], loop.whole(2)[1])
        loop.finish()

    def test_metadata_is_what_it_was(self):
        loop = self.check_choices("GSA", steps=1)
        loop.begin(a=1)
        before = loop.meta.block_table, loop.meta.seq_lens
        copies = copy.deepcopy(before)
        loop.layer(0)
        for was, kept, now in zip(before, copies, (
                loop.meta.block_table, loop.meta.seq_lens)):
            self.assertIs(was, now)
            self.assertTrue((kept == now).all())

    def test_layers_with_metadata_apart(self):
        loop = self.check_choices("GSA", steps=1)
        loop.begin(a=1)
        wide = numpy.zeros((1, WIDTH + 2), numpy.int32)
        wide[:, :WIDTH] = loop.meta.block_table
        other = types.SimpleNamespace(**{
            **vars(loop.meta), "block_table": wide})
        context = types.SimpleNamespace(attn_metadata={
            NAMES[0]: loop.meta, NAMES[1]: other})
        for layer, meta in ((0, loop.meta), (1, other)):
            shape, want = meta.block_table.shape, loop.rows(
                layer, loop.q[layer])
            loop.method.attention_begin(loop.q[layer], None, None,
                                        NAMES[layer], context)
            self.assertEqual(meta.block_table.shape, shape)
            self.assertEqual(list(meta.block_table[0, :len(want[0][0])]),
                             want[0][0])
            loop.write(layer)
            loop.method.attention_finished(None, None, None, None,
                                           NAMES[layer], context)
        self.assertIs(other.block_table, wide)

    def test_a_page_of_a_new_owner_is_not_taken_for_the_old(self):
        loop = Loop("GSA:topk_ratio=0.1,init_window_size=0,"
                    "local_window_size=0")
        loop.add("a", 16 * SIZE)
        loop.step(a=16 * SIZE)
        loop.add("b", 16 * SIZE)
        loop.step(b=16 * SIZE)
        # the pages of a come to b, which grows
        pages = list(loop.requests["a"].block_ids[0])
        loop.end("a")
        loop.free = pages
        for _ in range(2 * SIZE + 1):
            loop.begin(b=1)
            for layer in range(LAYERS):
                want = loop.rows(layer, loop.q[layer])
                self.assertEqual(loop.layer(layer), want)
            loop.finish()

    def test_blocks_that_were_there_before_are_built(self):
        loop = Loop("GSA:topk_ratio=0.2")
        loop.add("a", 16 * SIZE, computed=15 * SIZE)
        loop.keys[:] = loop.random.uniform(-1, 1, loop.keys.shape)
        self.assertEqual(loop.step(a=SIZE), [[loop.whole()]] * LAYERS)
        loop.begin(a=1)
        self.assertEqual(loop.layer(0), loop.rows(0, loop.q[0]))

    def test_a_request_that_is_new_here_is_dense_once(self):
        loop = Loop("GSA:topk_ratio=0.2")
        loop.add("a", 16 * SIZE, computed=16 * SIZE)
        loop.keys[:] = loop.random.uniform(-1, 1, loop.keys.shape)
        self.assertEqual(loop.step(a=1), [[loop.whole()]] * LAYERS)
        self.assertLess(loop.step(a=1)[0][0][1], loop.whole()[1])
        loop.requests["a"].num_computed_tokens -= SIZE  # preempted
        self.assertEqual(loop.step(a=SIZE), [[loop.whole()]] * LAYERS)

    def test_short_prompts_are_dense(self):
        loop = Loop("ESA:min_blocks=12,sparse_ratio=0.1")
        for name, blocks in ("a", 16), ("b", 11):
            loop.add(name, blocks * SIZE)
            loop.step(**{name: blocks * SIZE})
        for seen in loop.step(a=1, b=1):
            self.assertLess(seen[0][1], loop.whole(0)[1])
            self.assertEqual(seen[1], loop.whole(1))

    def test_rows_that_do_not_decode_one_token_are_dense(self):
        loop = Loop("GSA:topk_ratio=0.2")
        loop.add("a", 16 * SIZE)
        loop.step(a=16 * SIZE - 1)
        for tokens in 1, 3:  # the prompt's last; one with two guesses
            self.assertEqual(loop.step(a=tokens), [[loop.whole()]] * LAYERS)
        self.assertLess(loop.step(a=1)[0][0][1], loop.whole()[1])

    def test_dense_layers_and_those_that_reuse(self):
        loop = Loop("GSAOnDevice:hash_topk_tokens=64,sink_token=8,"
                    "recent_token=8,hash_bits=64,hash_rollback_layers=1,"
                    "hash_skip_layers=2")
        loop.add("a", 20 * SIZE)
        loop.step(a=20 * SIZE)
        seen = loop.step(a=1)
        self.assertLess(seen[0][0][1], loop.whole()[1])
        self.assertEqual(seen[1], [loop.whole()])
        self.assertEqual(seen[2], seen[0])

    def test_layers_without_a_cache_are_dense(self):
        loop = Loop("GSA:topk_ratio=0.2")
        loop.method.register_kv_caches({
            NAMES[1]: (loop.keys[1], loop.keys[1])})
        loop.add("a", 16 * SIZE)
        loop.step(a=16 * SIZE)
        seen = loop.step(a=1)
        self.assertEqual([seen[0], seen[2]], [[loop.whole()]] * 2)
        self.assertLess(seen[1][0][1], loop.whole()[1])

    def test_the_order_of_calls(self):
        loop = Loop("GSA")
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "execute_begin"):
            loop.method.execute_begin(None)
        loop.add("a", 16 * SIZE)
        loop.begin(a=16 * SIZE)
        loop.layer(0)
        loop.finish()
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "attention_begin"):
            loop.layer(1)
        loop.method.register_kv_caches({})
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "no caches"):
            loop.begin(a=1)

    def test_what_ends_leaves_nothing(self):
        loop = self.check_choices("GSA", steps=1)
        held = loop.method._begun
        self.assertEqual(list(held), ["a"])
        loop.end("a")
        self.assertEqual(held, {})
        for name in "ab":  # said by the scheduler alone
            loop.add(name, 16 * SIZE)
        loop.step(a=16 * SIZE, b=16 * SIZE)
        loop.method.execute_finished()
        loop.method.bind_sparse_metadata(sparse_base.SparseMetadata([]))
        loop.method.execute_begin(types.SimpleNamespace(
            finished_req_ids={"a", "unknown"}))
        self.assertEqual(list(held), ["b"])

    def test_a_layer_that_the_model_has_not_is_refused(self):
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "layer 3"):
            create("GSA").register_kv_caches({
                "layers.3": numpy.zeros((4, SIZE, HEADS, DIM), "f")})

    def test_a_cache_of_another_shape_is_refused(self):
        method = create("GSA")
        for cache in (numpy.zeros((4, SIZE, HEADS, DIM + 1), "f"),
                      numpy.zeros((2, 4, SIZE, HEADS, DIM), "f")):
            with self.assertRaisesRegex(ucmfs.InvalidArgument, "token 8"):
                method.register_kv_caches({"x": cache})


class ByName(unittest.TestCase):
    def test_methods_and_keys(self):
        for text, name in (
                ("ESA", "ESA"), ({"GSA": {"topk_ratio": .2}}, "GSA"),
                ({"ucm_sparse_config": {"ESA": {}}}, "ESA"),
                ({"sparse_type": "GSAOnDevice"}, "GSAOnDevice")):
            self.assertEqual(create(text).config.method.name, name)
        for text, words in (("Nothing", "'Nothing'.*ESA, GSA"),
                            ({"GSA": {"foo": 1}}, "'foo'"),
                            ("ESA:bar=2", "'bar'")):
            with self.assertRaisesRegex(ucmfs.NotFound, words):
                create(text)
        for name, words in (
                ("Blend", "Blend: it keeps nothing"),
                ("ReRoPE", "ReRoPE: it keeps nothing")):
            with self.assertRaisesRegex(ucmfs.InvalidArgument, words):
                create(name)
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "sparse_type"):
            create({})

    def test_what_has_no_effect_is_said(self):
        with self.assertLogs("ucmfs", "WARNING") as logs:
            create("GSA:retrieval_stride=4,topk_ratio=.2,score_weight=.5")
        self.assertEqual([line.split("ucmfs: ")[1].split()[0]
                          for line in logs.output],
                         ["retrieval_stride", "score_weight"])

    def test_all_hooks_do_nothing_by_default(self):
        class Own(UcmSparseBase):
            def request_begin(self, request_id, prompt_token_ids):
                self.begun = request_id

        own = Own("config", UcmSparseRole.WORKER)
        self.assertIs(own.role, UcmSparseRole.WORKER)
        own.request_begin("a", [1])
        self.assertEqual(own.begun, "a")
        self.assertEqual(own.estimate_num_slots_sparsed(None), INVALID_SLOT)
        for hook, arguments in (
                ("register_kv_caches", 1), ("build_sparse_meta", 4),
                ("update_state_after_alloc", 2), ("allocate_slots", 3),
                ("update_states", 1), ("execute_begin", 1),
                ("request_finished_in_worker", 1),
                ("request_finished_in_scheduler", 1),
                ("attention_finished", 6)):
            self.assertIsNone(getattr(own, hook)(*"abcdef"[:arguments]))
        self.assertEqual(own.attention_begin(*"qkvnc", "out", phase="decode",
                                             k_hash=None), tuple("qkv")
                         + ("out",))
        for hook in "layer_begin", "layer_finished":
            self.assertEqual(getattr(own, hook)(1, 2, 3), (1, 2, 3))
        for hook in "ffn_begin", "ffn_finished":
            self.assertEqual(getattr(own, hook)(1, 2), (1, 2))
        self.assertEqual(own.execute_finished(5), 5)
        own.bind_sparse_metadata("meta")
        self.assertEqual(own._sparse_metadata, "meta")
        own.clear_sparse_metadata()
        self.assertIsNone(own._sparse_metadata)

    def test_a_plug_in_of_vllm_s_configuration(self):
        for patch in (mock.patch.dict(UcmSparseFactory._registry),
                      mock.patch.object(sparse_base, "_agent", None)):
            patch.start()
            self.addCleanup(patch.stop)
        UcmSparseFactory.register_sparse_method("Own", __name__, "PlugIn")

        def config_of(extra):
            return types.SimpleNamespace(
                kv_transfer_config=types.SimpleNamespace(
                    kv_connector_extra_config=extra))

        for nothing in ({}, None, {"ucm_sparse_config": {}}):
            sparse_base.ensure_ucm_sparse_initialized(config_of(nothing))
        self.assertFalse(sparse_base.has_ucm_sparse())
        with self.assertRaisesRegex(ucmfs.ConfigError, "ucm_sparse_config"):
            sparse_base.get_ucm_sparse()
        config = config_of({"ucm_sparse_config": {"Own": {"x": 1}}})
        for _ in range(2):
            sparse_base.ensure_ucm_sparse_initialized(config)
        own = sparse_base.get_ucm_sparse()
        self.assertTrue(sparse_base.has_ucm_sparse())
        self.assertIsInstance(own, PlugIn)
        self.assertIs(own._vllm_config, config)
        self.assertIs(own.role, UcmSparseRole.WORKER)
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "Engine"):
            UcmSparseFactory.create_sparse_method(
                config_of({"ucm_sparse_config": {"ESA": {}}}),
                UcmSparseRole.WORKER)


class PlugIn(UcmSparseBase):
    """Of another package."""


if __name__ == "__main__":
    unittest.main()
