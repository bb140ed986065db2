# SPDX-License-Identifier: Apache-2.0
"""What an engine computes with: digests of weights and adapters, who is asked
for them, and which epoch follows from that.

    python3 -m unittest tests/engines/test_weights.py       (torch is needed)
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import unittest
from types import ModuleType, SimpleNamespace
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"needs torch: {error}") from None

from ucmfs.vllm import engine, weights
from ucmfs.vllm.adapters import NONE, Adapters
from ucmfs.vllm.engine import Engine
from ucmfs.vllm.epochs import Epoch, Epochs


class Quiet(unittest.TestCase):
    def setUp(self) -> None:
        log = logging.getLogger("vllm.ucmfs")
        log.setLevel(logging.CRITICAL)
        self.addCleanup(log.setLevel, logging.NOTSET)


def model(seed: int = 1, **more: torch.Tensor) -> torch.nn.Module:
    source = torch.Generator().manual_seed(seed)
    out = torch.nn.Module()
    for name, tensor in {
            "square": torch.randn(512, 512, generator=source),
            "narrow": torch.randn(300, 7, generator=source).bfloat16(),
            "turned": torch.randn(40, 30, generator=source).t(),
            "byte": torch.randint(0, 99, (5,), generator=source,
                                  dtype=torch.uint8),
            "one": torch.tensor(2.5), "none": torch.empty(0), **more}.items():
        out.register_parameter(name, torch.nn.Parameter(
            tensor, requires_grad=False))
    return out


def worker(*models: torch.nn.Module, **more: object) -> SimpleNamespace:
    runner = SimpleNamespace(get_model=lambda: models[0], **more)
    if len(models) > 1:
        runner.drafter = SimpleNamespace(model=models[1])
    return SimpleNamespace(model_runner=runner)


class OfModels(Quiet):
    def digests(self, *models: torch.nn.Module) -> tuple:
        return tuple(weights.digest_of_model(worker(*models), whole)
                     for whole in (False, True))

    def test_equal_ones_are_equal(self) -> None:
        self.assertEqual(self.digests(model()), self.digests(model()))
        self.assertEqual(len(set(self.digests(model()))), 2)

    def test_any_parameter_counts(self) -> None:
        before = self.digests(model())
        for name in ("square", "narrow", "turned", "byte", "one"):
            changed = model()
            parameter = getattr(changed, name)
            parameter.data = parameter.data + 1
            for one, other in zip(before, self.digests(changed)):
                self.assertNotEqual(one, other, name)
        for one, other in zip(before, self.digests(model(new=torch.ones(1)))):
            self.assertNotEqual(one, other)

    def test_drafts_count(self) -> None:
        both = self.digests(model(), model(2))
        self.assertNotEqual(both, self.digests(model()))
        self.assertNotEqual(both, self.digests(model(), model(3)))

    def test_of_all_a_single_element_counts(self) -> None:
        before = self.digests(model())[1]
        for at in ((0, 0), (0, 1), (511, 511)):
            changed = model()
            changed.square.data[at] += 1
            self.assertNotEqual(self.digests(changed)[1], before)
        swapped = model()  # the sum alone would be the same
        swapped.square.data[[3, 4]] = swapped.square.data[[4, 3]]
        self.assertNotEqual(self.digests(swapped)[1], before)

    def test_pieces_are_summed_to_their_end(self) -> None:
        with mock.patch.object(weights, "PIECE", 1000):
            before = self.digests(model())[1]
            changed = model()
            changed.square.data[-1, -1] += 1
            self.assertNotEqual(self.digests(changed)[1], before)

    def test_a_sample_sees_rows_and_columns(self) -> None:
        before = self.digests(model())[0]
        for place in ((slice(0, 16), slice(None)), (slice(None), slice(0, 16)),
                      (slice(496, None), slice(None)),
                      (slice(None), slice(496, None))):
            changed = model()
            changed.square.data[place] += 1
            self.assertNotEqual(self.digests(changed)[0], before, place)

    def test_inner_tensors_count(self) -> None:
        class Wrapped:
            def __init__(self, one, other):
                self.one, self.other = one, other

            def __tensor_flatten__(self):
                return ["one", "other"], None

        def digest(first, second):
            inner = Wrapped(torch.tensor([first]), torch.tensor([second]))
            parts = SimpleNamespace(partitions={0: inner})
            return weights.digest_of_model(worker(SimpleNamespace(
                named_parameters=lambda: [("x", parts)])), False)

        self.assertEqual(digest(1, 2), digest(1, 2))
        self.assertNotEqual(digest(1, 2), digest(1, 3))

    def test_what_cannot_be_had_is_nothing(self) -> None:
        self.assertEqual(weights.digest_of_model(SimpleNamespace(), False), "")
        gone = model()
        gone.square = torch.nn.Parameter(torch.empty(3, device="meta"))
        self.assertEqual(self.digests(gone), ("", ""))


class Adapter:
    def __init__(self, *values: float) -> None:
        self.rank = 2
        self.modules_to_save: dict = {}
        self.loras = {f"layer{i}": SimpleNamespace(
            scaling=1, lora_a=torch.tensor([value]),
            lora_b=[torch.tensor([value]), None])
            for i, value in enumerate(values)}


class OfAdapters(Quiet):
    """As a worker has them."""

    def setUp(self) -> None:
        super().setUp()
        self.there: dict = {}
        self.added: list = []
        manager = SimpleNamespace(
            list_adapters=lambda: set(self.there),
            _adapter_manager=SimpleNamespace(get_adapter=self.there.get))
        self.worker = worker(model(), lora_manager=manager)
        self.worker.add_lora = self.add

    def add(self, lora: SimpleNamespace) -> None:
        self.added.append(lora.lora_int_id)
        self.there[lora.lora_int_id] = lora.file

    def digest(self, number: int, file: object = None) -> str:
        return weights.digest_of_adapter(self.worker, SimpleNamespace(
            lora_int_id=number, lora_name="a", file=file))

    def test_are_what_is_in_memory(self) -> None:
        first = self.digest(1, Adapter(1.0, 2.0))
        self.assertEqual(self.digest(2, Adapter(1.0, 2.0)), first)
        self.assertEqual(self.digest(1, Adapter(9.0)), first)
        self.assertEqual(self.added, [1, 2])
        self.there[1] = Adapter(1.0, 3.0)  # loaded in place
        self.assertNotEqual(self.digest(1), first)

    def test_that_cannot_be_loaded_are_nothing(self) -> None:
        self.assertEqual(self.digest(7), "")
        del self.worker.add_lora
        self.assertEqual(self.digest(8), "")


class Who(Quiet):
    """Which executor of the process is asked."""

    def setUp(self) -> None:
        super().setUp()
        self.kind = type("Executor", (), {"collective_rpc": self.rpc})
        module = ModuleType("nobody.knows.this")
        module.Executor = self.kind
        for patch in (mock.patch.dict(sys.modules, {module.__name__: module}),
                      mock.patch.object(engine, "_EXECUTOR",
                                        (module.__name__, "Executor"))):
            patch.start()
            self.addCleanup(patch.stop)

    @staticmethod
    def rpc(self, function, args):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def executor(self, config: object, *says: object) -> object:
        out = self.kind()
        out.vllm_config, out.says = config, list(says)
        return out

    def test_is_that_of_the_configuration(self) -> None:
        one, other = (SimpleNamespace(model_config=object()) for _ in "12")
        copied = SimpleNamespace(model_config=one.model_config)
        kept = [self.executor(one, "x"), self.executor(other, "y")]
        found = [Engine(config).weigh(False)
                 for config in (one, copied, other, SimpleNamespace())]
        self.assertEqual(found[0], found[1])
        self.assertNotEqual(found[0], found[2])
        self.assertEqual(found[3], "")
        self.assertEqual(Engine(None).weigh(False), "")  # one of two?
        del kept[1]
        gc.collect()
        self.assertEqual(Engine(None).weigh(False), found[0])

    def test_all_ranks_have_a_say(self) -> None:
        config = SimpleNamespace(model_config=object())
        executor = self.executor(config, "x", "y")
        asked = Engine(config)
        first = asked.weigh(False)
        executor.says = ["x", "z"]
        self.assertNotEqual(asked.weigh(False), first)
        executor.says = ["x", ""]
        self.assertEqual(asked.weigh(False), "")
        executor.says = RuntimeError("a worker has died")
        self.assertEqual(asked.weigh(False), "")

    def test_an_adapter_is_the_same_on_all(self) -> None:
        config = SimpleNamespace(model_config=object())
        executor = self.executor(config, "x", "x")
        asked = Engine(config)
        self.assertEqual(asked.adapter(None), "x")
        executor.says = ["x", "y"]
        self.assertEqual(asked.adapter(None), "")
        del executor
        gc.collect()
        self.assertEqual(asked.adapter(None), "")


class WhichEpoch(Quiet):
    def epochs(self, *says: str, **options: str) -> Epochs:
        told = iter(says)
        return Epochs(SimpleNamespace(**{"epoch": "e", "weights": "w",
                                         "reset": "keep", **options}),
                      lambda whole: next(told))

    def after(self, epochs: Epochs, reset: bool = True) -> Epoch:
        if reset:
            epochs.reset()
        self.assertTrue(epochs.unsure)
        before = epochs.now
        self.assertEqual(epochs.settle(), epochs.now != before)
        self.assertFalse(epochs.unsure)
        return epochs.now

    def test_follows_the_weights(self) -> None:
        epochs = self.epochs("a", "a", "a", "b", "b", "a")
        usual = Epoch("e", "w")
        other = Epoch("e", "tensors:b")
        self.assertEqual(self.after(epochs, reset=False), usual)
        self.assertEqual([self.after(epochs) for _ in range(4)],
                         [usual, other, other, usual])

    def test_weights_may_come_after_the_start(self) -> None:
        self.assertEqual(self.after(self.epochs("a", "b"), reset=False),
                         Epoch("e", "tensors:b"))

    def test_nobody_can_say(self) -> None:
        epochs = self.epochs("", "", "", "", "c")
        usual = epochs.now
        self.assertEqual(self.after(epochs, reset=False), usual)
        first, second = self.after(epochs), self.after(epochs)
        self.assertTrue(first.private and second.private)
        self.assertEqual(len({usual.epoch, first.epoch, second.epoch}), 3)
        # now somebody can, and it may or may not be what it was at first
        self.assertEqual(self.after(epochs), Epoch("e", "tensors:c"))

    def test_nobody_can_say_any_more(self) -> None:
        self.assertTrue(self.after(self.epochs("a", "")).private)

    def test_the_operator_wants_another(self) -> None:
        epochs = self.epochs("a", "a", reset="epoch")
        usual = self.after(epochs, reset=False)
        self.assertFalse(usual.private)
        self.assertEqual(len({usual, self.after(epochs),
                              self.after(epochs)}), 3)


class WhichAdapter(Quiet):
    def setUp(self) -> None:
        super().setUp()
        self.said = "aa"
        self.adapters = Adapters("digest", lambda lora: self.said)
        self.lora = SimpleNamespace(lora_name="n", lora_path="p",
                                    load_inplace=False)

    def test_is_in_the_ids(self) -> None:
        self.assertEqual(self.adapters.digest_of(None), NONE)
        self.assertEqual(self.adapters.digest_of(self.lora), b"\xaa")

    def test_two_of_a_name_are_left_out_until_a_reset(self) -> None:
        self.adapters.digest_of(self.lora)
        self.said = "bb"
        self.adapters.end_step()
        self.assertIsNone(self.adapters.digest_of(self.lora))
        self.said = "aa"
        self.adapters.end_step()
        self.assertIsNone(self.adapters.digest_of(self.lora))
        self.adapters.reset()
        self.assertEqual(self.adapters.digest_of(self.lora), b"\xaa")

    def test_that_nobody_can_tell_is_left_out(self) -> None:
        self.said = ""
        self.assertIsNone(self.adapters.digest_of(self.lora))
        self.said = "aa"
        self.lora.load_inplace = True
        self.assertIsNone(self.adapters.digest_of(self.lora))

    def test_options(self) -> None:
        for mode, want in (("skip", None), ("name", NONE)):
            adapters = Adapters(mode, lambda lora: self.said)
            self.assertEqual(adapters.digest_of(self.lora), want)
            self.assertEqual(adapters.digest_of(None), NONE)


if __name__ == "__main__":
    unittest.main()
