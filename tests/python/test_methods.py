# SPDX-License-Identifier: Apache-2.0
"""Each of the six methods from its name to a block table: what a request's
steps say is done, what the method keeps is built, a retrieval scores it, and
what is chosen is what the calls one by one choose."""

import collections
import unittest

import ucmfs
from ucmfs import codes, methods, retrieval, sparse, star
from ucmfs.retrieve import Do
from tests.python.support import needs_numpy, numpy

SIZE, HEADS, QUERY_HEADS, DIM = 16, 2, 4, 32
PROMPT, STEPS, LAYERS, TOPIC = 64, 20, 2, 20
BLOCKS = PROMPT + STEPS // SIZE + 1
MODEL = methods.Model(HEADS, QUERY_HEADS, DIM, "float32", seed=3)


class Kept:
    """What a method keeps of a layer's keys, and how its queries are made."""

    def __init__(self, config, keys):
        self.method, self.encoder = None, None
        keeps = config.method.keeps
        if keeps == "repr":
            self.spec = self.builder = config.repr_spec(MODEL)
        elif keeps == "codes":
            self.spec, self.method = config.code_spec(MODEL)
            self.builder = self.encoder = codes.Encoder(self.spec)
        else:
            self.spec = self.builder = config.star_spec(MODEL).choose(
                keys[:PROMPT])
        self.keys, self.slab = keys, self.spec.slab(BLOCKS)
        self.build(0, PROMPT * SIZE)

    def build(self, first, tokens):
        ids = numpy.arange(first, -(-tokens // SIZE), dtype=numpy.int32)
        self.builder.build(self.keys, self.slab, blocks=ids, slots=ids,
                           last_tokens=(tokens - 1) % SIZE + 1)

    def query(self, vectors):
        if self.encoder:
            return self.encoder.query(vectors[-1], self.method)
        if isinstance(self.spec, star.Spec):
            return self.spec.query(vectors)
        return self.spec.query(vectors[-1])


@needs_numpy
class SixMethods(unittest.TestCase):
    def setUp(self):
        random = numpy.random.default_rng(1)
        self.topic = random.uniform(-1, 1, (LAYERS, HEADS, DIM))
        self.keys = random.uniform(-1, 1, (LAYERS, BLOCKS, SIZE, HEADS,
                                           DIM)).astype("float32")
        self.keys[:, TOPIC] += self.topic[:, None].astype("float32")

    def vector(self, layer, step):
        random = numpy.random.default_rng((layer, step + 100))
        about = numpy.repeat(self.topic[layer], QUERY_HEADS // HEADS, 0)
        return (about + random.uniform(-.5, .5, about.shape)).astype(
            "float32")

    def run_method(self, text, num_queries=1):
        """What was chosen, by layer, with the last one's number."""
        config = methods.parse(text, block_size=SIZE, num_layers=LAYERS)
        kept = [Kept(config, keys) for keys in self.keys]
        request = methods.Request(config, PROMPT * SIZE)
        self.assertTrue(request.prefill(PROMPT * SIZE))
        budgets, chosen, seen = {}, {}, collections.Counter()
        with retrieval.Retrieval(
                kept[0].spec, QUERY_HEADS, lanes=LAYERS, max_blocks=BLOCKS,
                threads=2, method=kept[0].method,
                num_queries=num_queries) as threads:

            def query_of(layer, step):
                return kept[layer].query([self.vector(layer, s) for s in
                                          range(step - num_queries + 1,
                                                step + 1)])

            def submit(layer, step):
                budgets[step] = request.budget
                threads.submit(layer, step, query_of(layer, step),
                               kept[layer].slab, request.budget)

            def take(layer, step):
                blocks = threads.take(layer, step, timeout=30).blocks
                budget = budgets[step]
                want = sparse.select(query_of(layer, step).score(
                    kept[layer].slab, num=budget.num_blocks), budget)
                self.assertEqual(list(blocks), list(want))
                self.assertIn(TOPIC, blocks)
                self.assertLess(len(blocks), budget.num_blocks)
                chosen[layer] = step, blocks
                seen["taken"] += 1

            for step in range(STEPS + 1):
                if step:
                    request.step()
                for layer in range(LAYERS):
                    plan = request.layer(layer)
                    self.assertEqual(plan.role, "chooses")
                    if (plan.begin | plan.end) & Do.SUBMIT:
                        submit(layer, step)
                    if plan.begin & Do.SELECT:
                        submit(layer, step)
                        take(layer, step)
                    if step:
                        self.assertEqual(chosen[layer][0], plan.uses)
                        self.check_table(chosen[layer][1], request.tokens)
                    if plan.end & Do.BUILD:
                        kept[layer].build((request.tokens - 1) // SIZE,
                                          request.tokens)
                    if plan.end & Do.COLLECT:
                        take(layer, plan.collects)
        request.finish()
        self.assertTrue(seen["taken"])

    def check_table(self, blocks, tokens):
        table = numpy.arange(1000, 1000 - BLOCKS, -1, dtype=numpy.int32)
        out, length = sparse.select_table(table, SIZE, tokens, blocks)
        self.assertEqual([1000 - b for b in blocks], list(out))
        self.assertLessEqual(length, len(blocks) * SIZE)

    def test_esa(self):
        self.run_method("ESA")

    def test_gsa(self):
        self.run_method("GSA")
        self.run_method("GSA:pooling=minmax")

    def test_gsa_on_device(self):
        self.run_method("GSAOnDevice:hash_topk_tokens=256,recent_token=64")

    def test_kvstar(self):
        self.run_method("KVStar", num_queries=8)

    def test_those_that_choose_no_blocks(self):
        for text in ("Blend", "ReRoPE"):
            config = methods.parse(text, block_size=SIZE, num_layers=LAYERS)
            request = methods.Request(config, PROMPT * SIZE)
            request.prefill(PROMPT * SIZE)
            request.step()
            self.assertTrue(request.dense)
            self.assertEqual(request.layer(1)[:4], ("dense", 1, Do(0), Do(0)))
            for call in (config.repr_spec, config.code_spec,
                         config.star_spec):
                with self.assertRaisesRegex(ucmfs.InvalidArgument,
                                            "it keeps nothing"):
                    call(MODEL)

    def test_queries_of_something_else_are_refused(self):
        code, like = (methods.parse(text, block_size=SIZE, num_layers=LAYERS)
                      for text in ("GSAOnDevice", "KVStar"))
        spec, method = code.code_spec(MODEL)
        with self.assertRaisesRegex(ucmfs.InvalidArgument, "method"):
            retrieval.Retrieval(spec, lanes=1, max_blocks=9)
        merged = like.star_spec(MODEL).choose(self.keys[0])
        other = codes.Encoder(codes.Spec("tokens", HEADS, DIM, 64, SIZE))
        budget = sparse.Budget(9, 0, 0, 3)
        vector = self.vector(0, 0)
        with retrieval.Retrieval(spec, lanes=1, max_blocks=9,
                                 method=method) as threads:
            for query, slab in (
                    (other.query(vector, method), other.spec.slab(9)),
                    (codes.Encoder(spec).query(vector, codes.Method(
                        "hamming", "sum", "block", QUERY_HEADS)),
                     spec.slab(9)),
                    (merged.query([vector]), merged.slab(9))):
                with self.assertRaisesRegex(ucmfs.InvalidArgument,
                                            "query: not of this spec"):
                    threads.submit(0, 1, query, slab, budget)
        with retrieval.Retrieval(merged, QUERY_HEADS, lanes=1,
                                 max_blocks=9) as threads:
            with self.assertRaisesRegex(ucmfs.InvalidArgument,
                                        "query_floats"):
                threads.submit(0, 1, merged.query([vector] * 2),
                               merged.slab(9), budget)


if __name__ == "__main__":
    unittest.main()
