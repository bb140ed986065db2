# SPDX-License-Identifier: Apache-2.0
"""Hashing: the examples of ucm_hash(3), what "ucm hash" says of the same
tokens, and requests that grow."""

import array
import os
import random
import subprocess
import unittest

import ucmfs
from tests.lib.seed import SEED
from tests.python.support import BUILDDIR, needs_numpy, numpy

TOKENS = [*range(1, 17), *range(100000, 100016)]
META = {"model": "/models/test", "dtype": "torch.bfloat16", "world_size": 2}
TAIL = ":sfa_c8=0:li_c8=0:dcp=1:layout=0123456789abcdef"
EXTRAS = {"salt": "tenant-7", "lora": "sql",
          "lora_digest": bytes(range(0x20)),
          "items": [ucmfs.Item(bytes(range(0x20, 0x40)), 12, 8)]}
# of ucm_hash(3), EXAMPLES
EXAMPLES = (
    ("ucm", 0, {}, "959af915d7435e97d54c9b30e2df59df"
                   "6f9ef13b358ce8edc07706f16cc48ca8"),
    ("ucm", 1, {}, "3b17b118ae642fee42ce129f6ab56f11"
                   "b00ec208ea47a8154920d1b69450a56f"),
    ("chain", 0, {}, "b0b6c3ac88d8ac11326d33b3fe432d19"
                     "b70698598d92cf59e5ebbf8fcd61b8c5"),
    ("prefix", 0, {}, "b66cc80de92b9ac20fd59d7ede07024b"
                      "763ed5b23a271f63d042020bbfe5db8a"),
    ("hexchain", 0, {}, "d4f4392e137127dbc876159780a79dee"
                        "96f0d3377abcf728fea01393bbe0d44a"),
    ("sha256", 0, {}, "e996e82665428a623019796e064a2989"
                      "2ff7c99740904d5d4d26c348fb29d145"),
    ("sha256", 1, {}, "837ec4be39380089b2c15aa7edc4f071"
                      "41174b2f32cf1bfc1efd0165fb8056bc"),
    ("ucm2", 0, {}, "11f12c4cb0d4db0a85e65188d22a1df6"
                    "558651342acc6fe35e79f614a74743ac"),
    ("ucm2", 1, {}, "457ff6098a5a4da8930589aa2f3757da"
                    "4000402446954316263e6515f052a715"),
    ("sha256", 0, EXTRAS, "3f4b4491cef8eff03eaf588f7348cd13"
                          "88ee27facc369a76b79a4d8af9255a53"),
)


def hasher(scheme, rank=0, **more):
    meta = {} if scheme in ("prefix", "hexchain") else {**META, "rank": rank}
    if scheme == "ucm2":
        more = {"tail": TAIL, **more}
    return ucmfs.Hasher(scheme, block_size=16, **meta, **more)


class Examples(unittest.TestCase):
    def test_of_the_manual(self):
        for scheme, rank, extras, want in EXAMPLES:
            for h, given in ((hasher(scheme, rank, **extras), {}),
                             (hasher(scheme, rank), extras)):
                self.assertEqual(h.request(TOKENS, **given).hex(), want,
                                 (scheme, rank, extras))

    def test_of_other_ranks(self):
        for scheme in ("ucm", "ucm2", "sha256"):
            zero, one = (bytes.fromhex(w) for s, r, e, w in EXAMPLES
                         if s == scheme and not e)
            self.assertEqual(hasher(scheme).rank_ids(1, zero), one)
            self.assertEqual(hasher(scheme).rank_ids(1, [zero[:16]]),
                             one[:16])

    def test_of_an_engine(self):
        h = ucmfs.Hasher("external", block_size=16, world_size=2,
                         space_id=bytes(range(0x40, 0x60)))
        ids = h.external(bytes(range(0x60, 0x80)), 32, 1)
        self.assertEqual(ids.hex(), "356151743786e1b13588fa46a7db99f2")
        self.assertEqual(h.rank_ids(1, ids).hex(),
                         "d634662d5780fd6021119042f5a61b71")
        self.assertEqual(len(h.external(bytes(5 * 16), 16)), 5 * 16)

    def test_of_crc32c(self):
        self.assertEqual(ucmfs.crc32c(b"123456789"), 0xe3069283)
        self.assertEqual(ucmfs.crc32c(memoryview(b"6789"),
                                      ucmfs.crc32c(b"12345")), 0xe3069283)


class Tool(unittest.TestCase):
    """The same as "ucm hash"."""

    def test_says_the_same(self):
        ucm = os.path.join(BUILDDIR, "ucm")
        if not os.path.exists(ucm):
            self.skipTest(f"{ucm} is not built")
        rand = random.Random(SEED)
        for scheme, model in (("ucm", True), ("chain", True),
                              ("sha256", True), ("prefix", False),
                              ("hexchain", False)):
            size = rand.choice((1, 16, 128))
            tokens = [rand.randrange(1 << 31) >> rand.randrange(31)
                      for _ in range(rand.randrange(1, 2000))]
            meta = {"model": "a:b", "dtype": "torch.float16"} if model else {}
            done = subprocess.run(
                [ucm, "hash", "--scheme", scheme, "--block-size",
                 str(size), *(("--meta", "a:b:1:torch.float16:0")
                              if model else ())],
                input=" ".join(map(str, tokens)).encode(),
                stdout=subprocess.PIPE, check=True)
            want = done.stdout.decode().split()
            ids = ucmfs.Hasher(scheme, block_size=size,
                               **meta).request(tokens)
            self.assertEqual([ids[i:i + 16].hex()
                              for i in range(0, len(ids), 16)], want, scheme)


class Requests(unittest.TestCase):
    def test_may_be_of_any_kind(self):
        h = hasher("sha256")
        want = h.request(TOKENS)
        for tokens in (tuple(TOKENS), iter(TOKENS), array.array("q", TOKENS),
                       array.array("I", TOKENS),
                       memoryview(array.array("q", TOKENS))):
            self.assertEqual(h.request(tokens), want, type(tokens))

    @needs_numpy
    def test_may_be_of_numpy(self):
        h = hasher("sha256")
        for kind in ("int64", "int32", "uint32"):
            self.assertEqual(h.request(numpy.array(TOKENS, dtype=kind)),
                             h.request(TOKENS))
        with self.assertRaises(ucmfs.InvalidArgument):
            h.request(numpy.array(TOKENS).reshape(2, 16))

    def test_grow(self):
        for scheme in ("ucm", "ucm2", "chain", "prefix", "hexchain",
                       "sha256"):
            h = hasher(scheme)
            tokens = list(range(1000))
            want = h.request(tokens)
            state = h.start()
            ids = h.request(tokens[:100], state=state)
            self.assertEqual(state.tokens, 96)
            kept = state.copy()
            ids += h.request(tokens[96:], state=state)
            self.assertEqual(ids, want, scheme)
            self.assertEqual(kept.tokens, 96)
            if scheme != "prefix":
                again = h.resume(kept.parent, 96)
                self.assertEqual(h.request(tokens[96:], state=again),
                                 want[6 * 16:])

    def test_may_have_a_part_of_a_block(self):
        h = hasher("sha256")
        self.assertEqual(h.count(33), 2)
        self.assertEqual(h.count(33, partial=True), 3)
        whole, part = h.request(range(33)), h.request(range(33),
                                                      partial=True)
        self.assertEqual(part[:32], whole)
        self.assertEqual(len(part), 48)

    def test_go_in_batches(self):
        for scheme in ("ucm", "ucm2", "sha256"):
            h = hasher(scheme)
            many = [list(range(n, n + 16 * (n % 5))) for n in range(50)]
            self.assertEqual(h.batch(many), [h.request(t) for t in many])
            states = [h.start() for _ in many]
            h.batch(many, states=states)
            self.assertEqual([s.tokens for s in states],
                             [len(t) for t in many])
            self.assertEqual(h.batch([]), [])

    def test_that_are_wrong_are_named(self):
        h = hasher("ucm")
        for call, text in (
                (lambda: h.request([1, -1] * 8), "token 1 is -1: "
                 "from 0 to 2147483647"),
                (lambda: h.batch([[0] * 16, [0] * 3 + [1 << 40]]),
                 "request 1: token 3 is "),
                (lambda: h.request(["a"]), "tokens"),
                (lambda: h.request([1 << 70]), "tokens"),
                (lambda: h.request(TOKENS, salt="x"), "salt"),
                (lambda: h.external(bytes(32), 32), "hash ucm"),
                (lambda: h.external(bytes(33), 32), "33 bytes"),
                (lambda: h.rank_ids(2, bytes(16)), "hash ucm"),
                (lambda: h.rank_ids(1, bytes(15)), "15 bytes"),
                (lambda: hasher("chain", lora="x"), "lora"),
                (lambda: hasher("ucm2", tail=""), "tail: missing"),
                (lambda: hasher("ucm", tail=":x"), "tail: scheme ucm "),
                (lambda: hasher("sha256", lora_digest=b"x"), "32 bytes"),
                (lambda: hasher("md5"), "scheme 'md5' is none of"),
                (lambda: ucmfs.Hasher("sha256", block_size=0, model="m",
                                      dtype="d"), "block_size"),
                (lambda: ucmfs.Hasher("ucm", block_size=16, model="m",
                                      dtype="a:b"), "dtype"),
                (lambda: ucmfs.Hasher("sha256", block_size=16, model="a\0b",
                                      dtype="d"), "model has a NUL"),
        ):
            with self.assertRaises(ucmfs.UcmfsError) as caught:
                call()
            self.assertIn(text, str(caught.exception))

    def test_of_mla_share_ids(self):
        ids = [hasher("sha256", rank, mla=True).request(TOKENS)
               for rank in (0, 1)]
        self.assertEqual(ids[0], ids[1])


if __name__ == "__main__":
    unittest.main()
