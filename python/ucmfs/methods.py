# SPDX-License-Identifier: Apache-2.0
"""Six methods of sparse retrieval by their names, with the keys of UCM's
configurations, and how a request goes: ucm_retrieve(3), "Methods".

    config = methods.parse("GSA:topk_ratio=0.2", block_size=128,
                           num_layers=32)
    request = methods.Request(config, prompt_tokens=40000)
    request.prefill(40000)
    request.step()
    if request.layer(5).begin & retrieve.Do.COLLECT: ...
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict, dataclass
from typing import Any, Mapping, NamedTuple, Sequence

from . import _c, _lib, _pack, codes, sparse, star
from .layout import _number_of
from .retrieve import Step, step_of
from .sparse import Budget, BudgetConfig


class Method(NamedTuple):
    """name: as in UCM's configurations; alias: as people say. keeps, of a
    block: "repr", "codes", "channels" or "nothing"."""

    name: str
    alias: str
    keeps: str


def find(name: str) -> Method | None:
    """A method by its name or alias; None: there is none."""
    found = _lib.sparse().ucm_sparse_find(_lib.text_bytes(name, "method"))
    return None if not found else _method_of(found.contents)


def _method_of(c: _c.SparseMethod) -> Method:
    return Method(c.name.decode(), c.alias.decode(), _c.KEEPS[c.keeps])


@dataclass(frozen=True)
class Model:
    """What keys and queries of a model's layer are, and how what is kept of
    them is stored: struct ucm_sparse_model. rope_dim: MLA's last channels.
    seed: of hash codes, which have no dtype."""

    num_heads: int
    query_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    rope_dim: int = 0
    seed: int = 0

    def c(self) -> _c.SparseModel:
        return _pack.fill(_c.SparseModel(), "model", {
            **asdict(self),
            "dtype": _number_of("model: dtype", self.dtype, _c.DTYPE)})


class Config:
    """What a method is configured by; of parse()."""

    def __init__(self, c: _c.SparseConfig) -> None:
        self._c = c
        self._lib = _lib.sparse()

    @property
    def method(self) -> Method:
        return find_all()[self._c.method]

    @property
    def budget(self) -> BudgetConfig:
        windows, budget = self._c.budget.windows, self._c.budget
        return BudgetConfig(**{
            name: getattr(windows if hasattr(windows, name) else budget, name)
            for name in BudgetConfig.__dataclass_fields__})

    @property
    def values(self) -> dict[str, Any]:
        """The numbers beside budget and schedule, by the fields of struct
        ucm_sparse_config; compute: a dict, layer to ratio."""
        out = {name: getattr(self._c, name) for name, kind in
               self._c._fields_ if kind in (ctypes.c_uint32, ctypes.c_double)}
        out["compute"] = {part.layer: part.ratio for part in
                          self._c.compute[:out.pop("num_compute")]}
        return out

    def set(self, key: str, value: object) -> None:
        """Set one of UCM's keys. NotFound: the method has none of that
        name."""
        _lib.call(self._lib.ucm_sparse_set, "method", self._c,
                  _lib.text_bytes(key, "key"),
                  _lib.text_bytes(_text(value), key))

    def check(self) -> None:
        """Do its values agree with each other?"""
        _lib.call(self._lib.ucm_sparse_check, "method", self._c)

    def _kept(self, name: str, model: Model, *arguments: Any) -> None:
        _lib.call(getattr(self._lib, f"ucm_sparse_{name}_spec"), "method",
                  self._c, model.c(), *arguments)

    def repr_spec(self, model: Model) -> sparse.Spec:
        """Of the representations that the method keeps. InvalidArgument: it
        keeps something else."""
        out = _c.ReprSpec()
        self._kept("repr", model, out)
        return sparse.Spec.of(out)

    def code_spec(self, model: Model) -> tuple[codes.Spec, codes.Method]:
        """Of the hash codes that it keeps, and how they are compared."""
        out, method = _c.CodeSpec(), _c.CodeMethod()
        self._kept("code", model, out, method)
        return codes.Spec.of(out), codes.Method.of(method)

    def star_spec(self, model: Model,
                  channels: Sequence[int] | None = None) -> star.Spec:
        """Of the merged channels that it keeps. channels: of a choose() of
        this spec; None until then."""
        out = _c.StarSpec()
        self._kept("star", model, None, out)
        return star.Spec.of(out, channels)

    def by(self, model: Model) -> tuple[Any, codes.Method | None]:
        """What builds what the method keeps, and how codes are compared: as
        sparse.Rows takes them."""
        keeps = self.method.keeps
        if keeps == "codes":
            spec, method = self.code_spec(model)
            return codes.Encoder(spec), method
        return (self.star_spec if keeps == "channels" else self.repr_spec)(
            model), None

    def layer(self, number: int) -> Step:
        """What a layer does at each step: see role and source."""
        out = _c.Step()
        _lib.call(self._lib.ucm_schedule_step, "schedule", self._c.schedule, 1,
                  _pack.u32("schedule", "layer", number), out)
        return step_of(out)

    def slots(self, prompt_tokens: int, output_tokens: int) -> int:
        """For how many blocks there must be slots."""
        out = ctypes.c_uint32()
        _lib.call(self._lib.ucm_sparse_slots, "method", self._c,
                  _pack.u32("method", "prompt_tokens", prompt_tokens),
                  _pack.u32("method", "output_tokens", output_tokens),
                  ctypes.byref(out))
        return out.value


def _text(value: object) -> str:
    """As C reads it: JSON's, but for strings."""
    return value if isinstance(value, str) else json.dumps(value)


def find_all() -> list[Method]:
    """All methods there are."""
    table = _lib.METHODS
    return [method for method in map(find, table) if method]


def parse(text: str | Mapping[str, Any], *, block_size: int,
          num_layers: int) -> Config:
    """Read "METHOD", "METHOD:key=value,key=value", or a dictionary as UCM's
    configurations have it. NotFound: no such method or key."""
    said = (text if isinstance(text, str) else json.dumps(text)).encode()
    out = _c.SparseConfig()
    _lib.call(_lib.sparse().ucm_sparse_parse, "method", said, len(said),
              _pack.u32("method", "block_size", block_size),
              _pack.u32("method", "num_layers", num_layers), out)
    return Config(out)


class Request:
    """How far a request is. One thread at a time."""

    def __init__(self, config: Config, prompt_tokens: int) -> None:
        self._config = config  # C has a pointer to it
        self._c = _c.SparseRequest()
        self._lib = _lib.sparse()
        self._call("begin", config._c, _pack.u32("request", "prompt_tokens",
                                                 prompt_tokens))

    def _call(self, name: str, *arguments: Any) -> None:
        _lib.call(getattr(self._lib, f"ucm_sparse_{name}"), "request", self._c,
                  *arguments)

    def prefill(self, tokens: int) -> bool:
        """So many more of the prompt's tokens are there. True: all; step 0 is
        what is to be done now."""
        done = ctypes.c_uint32()
        self._call("prefill", _pack.u32("request", "tokens", tokens),
                   ctypes.byref(done))
        return bool(done.value)

    def step(self, tokens: int = 1) -> None:
        """The next step begins, with so many new tokens."""
        self._call("step", _pack.u32("request", "tokens", tokens))

    def layer(self, layer: int) -> Step:
        """What to do at this step in a layer."""
        out = _c.Step()
        self._call("layer", _pack.u32("request", "layer", layer), out)
        return step_of(out)

    def finish(self) -> None:
        """It has all its tokens."""
        self._call("finish")

    def abort(self) -> None:
        """The same in any state."""
        self._lib.ucm_sparse_abort(self._c)

    @property
    def tokens(self) -> int:
        return self._c.tokens

    @property
    def steps(self) -> int:
        return self._c.step

    @property
    def dense(self) -> bool:
        """It attends to all its blocks."""
        return bool(self._c.dense)

    @property
    def budget(self) -> Budget:
        return Budget(*(getattr(self._c.budget, name)
                        for name in Budget._fields))

    @property
    def ratio(self) -> float:
        """Of all blocks, the part that was attended to so far."""
        every = self._c.blocks_in_all
        return self._c.blocks_attended / every if every else 1.0


# ---- pages ----

def spec_of(by: Any) -> Any:
    """Of what builds, by Config.by(): an encoder has one."""
    return getattr(by, "spec", by)


class Pages:
    """What is kept of a layer's pages, of page p in slot p, and rows, which
    chooses among them. Memory is taken when the first are built; until then
    there is no slab, nor rows.

    Merged channels are the same of all pages, or their scores could not be
    compared: those of the largest keys in the first pages that are built.

    by, method: of Config.by(). built: uint8 [page], which pages rows may
    score; the caller's to clear. One thread at a time.
    """

    rows: sparse.Rows | None = None

    def __init__(self, by: Any, budget: BudgetConfig, built: Any,
                 method: codes.Method | None = None) -> None:
        self.spec, self.built = spec_of(by), built
        self._by, self._method, self.budget = by, method, budget

    def open(self) -> None:
        """Take the memory. (Channels must have been chosen.)"""
        if not self.rows:
            self.slab = self.spec.slab(len(self.built))
            self.rows = self.choosing(self.budget)

    def choosing(self, budget: BudgetConfig) -> sparse.Rows:
        """What chooses among them by a budget."""
        return sparse.Rows(self._by, self.slab, budget, method=self._method,
                           built=self.built)

    def build(self, keys: Any, blocks: Sequence[int],
              pages: Sequence[int]) -> None:
        """Pages, each from a block of keys [block, token, head, channel]."""
        if not self.rows:
            if isinstance(self._by, star.Spec):
                self.spec = self._by = self._by.choose(keys, blocks=blocks)
            self.open()
        self._by.build(keys, self.slab, blocks=blocks, slots=pages)
        for page in pages:
            self.built[page] = 1
