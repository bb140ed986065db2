# SPDX-License-Identifier: Apache-2.0
"""Pages whose blocks stay in the store until a layer attends to them:
"retrieval": "storage".

If all whole blocks of a prompt are in the store, a worker loads their
representations (sparse_reprs.py), the blocks of both windows, and the blocks
that have no representation there. The other pages lack their keys and values,
in every layer. Scores choose among them as among all pages.

vLLM does not know. To it these pages are loaded: it may share them by their
hashes, or give them to another request. So there is one check, before each
layer's kernel, of the tables that it is about to read, chosen or dense:
need() loads that layer's part of the pages that lack it, and waits.
Rows that choose load what they have chosen. Rows that do not, such as those
of prompts that share these pages, or of a request that is resumed, load all
that is in their tables. Pages of a request that has ended still lack their
blocks, also in vLLM's list of free pages: requests that find them there by
their hashes need them in the same way. A page that is written, or loaded into,
lacks nothing, since it has another block. A save of a page that lacks its
block fails (keep()).

A block that can no longer be loaded, evicted or damaged, is reported as a
failed load of that step. vLLM drops the step's output, and computes the
request again from there. It understands this only of loads in the step that
uses them, so "load" must be "sync".

The rest of the prompt, at most a block, is a row that chooses too, by the mean
of its queries: a dense row would need all pages. So its keys are as those of
generated tokens, and the configuration is part of the namespace.

What a larger budget (AHEAD) would choose is loaded for the next step, while
the following layers run. The step waits for it at its end, since pages may
change hands then.

One thread.
"""

from __future__ import annotations

import dataclasses
import errno
import weakref
from array import array
from typing import Any, Mapping, Sequence

import numpy as np

from .. import methods
from ..errors import UcmfsError
from .groups import Plan
from .metadata import Job, Part
from .metrics import UcmfsStats
from .mount import Teller, deadline_of, log
from .options import ConnectorOptions
from .plugin import asked, split
from .spaces import load_mode
from .sparse_pages import Pages, Step
from .sparse_reprs import Kept, those

AHEAD = 1.25  # of the budget, what is loaded for the next step

_by_cache: weakref.WeakValueDictionary[int, Storage] = \
    weakref.WeakValueDictionary()


def of_cache(pointer: int) -> Storage | None:
    """What a layer's KV cache may lack, by its address."""
    return _by_cache.get(pointer)


class Storage:
    """Of a worker. rows: of each layer, by the address of its cache, which
    layer of a block it is."""

    def __init__(self, options: ConnectorOptions, group: Any, num_pages: int,
                 rows: Mapping[int, int], stats: UcmfsStats) -> None:
        self._options, self._group, self._stats = options, group, stats
        self._rows = dict(rows)
        self._layers: dict[int, Pages] = {}
        self._ahead: dict[int, Any] = {}  # of a layer, what chooses more
        self._min_blocks = 0
        self.kept = Kept(options.mount, group.geometry, self._layers)
        self._lacks = np.zeros((len(self._rows), num_pages), bool)
        self._any = False
        self._where: dict[int, tuple[Any, bytes]] = {}  # a page's block
        self._tails: dict[int, list[tuple[int, int]]] = {}
        self._tasks: list[tuple[int, Sequence[int], Any]] = []
        self._failed: set[int] = set()
        # Blocks of this step's loads of which nothing stands there.
        self._absent: list[tuple[str, bytes, Sequence[int]]] = []
        self._late = False
        self._teller = Teller("retrieval")
        for pointer in self._rows:
            _by_cache[pointer] = self

    def open(self, pointer: int, pages: Pages, min_blocks: int) -> int:
        """A layer chooses pages: its row."""
        row = self._rows[pointer]
        self._layers[row] = pages
        self._min_blocks = min_blocks
        return row

    # ---- a step begins ----

    def forget(self, parts: Sequence[Part]) -> None:
        """Other blocks come into their pages."""
        for part in parts:
            self._lacks[:, np.frombuffer(part.pages, np.uint32)] = False

    def leave(self, job: Job, part: Part, ids: bytes, group: Any) -> Job:
        """What must be loaded of a job with this part alone; the pages of the
        rest lack their blocks. ids: this rank's names of the part's."""
        if not self._may(job, part):
            return job
        found = self.kept.load(group.space, ids, self._deadline(
            part.num * len(self._rows)) / 1e3 or 10.0)
        if not found:
            return job
        pages, places = (np.frombuffer(numbers, np.uint32)
                         for numbers in (part.pages, part.places))
        there = np.asarray(found.there)
        budget = self._layers[0].budget.of(job.tokens)
        stays = (there & (places >= budget.first)
                 & (places < budget.num_blocks - budget.last))
        left = np.flatnonzero(stays)
        found.put(self._layers, left, pages[left])
        self._lacks[:, pages[left]] = True
        self._any = self._any or len(left) > 0
        self._where.update((int(pages[i]), (group, ids[16 * i:16 * i + 16]))
                           for i in left)
        self._tails.setdefault(job.tokens, []).append(
            (int(places[-1]), int(pages[-1])))
        self._absent.append((group.space, those(ids, ~there),
                             pages[~there].tolist()))
        self._stats.add("sparse_left_blocks", left.size * len(self._rows))
        return dataclasses.replace(job, parts=[Part(
            part.group, those(part.ids, ~stays), pages[~stays].tobytes(),
            places[~stays].tobytes())] if len(left) < part.num else [])

    def _may(self, job: Job, part: Part) -> bool:
        """All but the last block's tokens are of this load, or here, and all
        layers choose."""
        size = self._group.block_tokens
        end = size * (array("I", part.places)[-1] + 1)
        return (len(self._layers) == len(self._rows)
                and end < job.tokens <= end + size
                and -(-job.tokens // size) >= self._min_blocks)

    # ---- a layer ----

    def written(self, row: int, slots: Any) -> None:
        if self._any:
            size = self._group.block_tokens
            self._lacks[row, np.unique(slots[slots >= 0] // size)] = False

    def tails(self, table: Any, lengths: Any) -> list[int]:
        """Rows that are the rest of a prompt whose blocks this step left in
        the store."""
        return [row for row, tokens in enumerate(lengths.tolist())
                if any(table[row, place] == page for place, page
                       in self._tails.get(tokens, ()))]

    @property
    def begins(self) -> bool:
        """A prompt does in this step, so there may be tails()."""
        return bool(self._tails)

    def need(self, row: int, table: Any, lengths: Any) -> None:
        """A layer is about to read these."""
        if not self._any:
            return
        pages = self._lacking(row, table, lengths)
        self._settle(row, pages)
        pages = [page for page in pages if self._lacks[row, page]
                 and page not in self._failed]
        if not pages:
            return
        if not self._late:
            self._start(row, pages, "demand")
            self._settle(row, pages)
        self._failed.update(page for page in pages if self._lacks[row, page])

    def _lacking(self, row: int, table: Any, lengths: Any) -> list[int]:
        num = -(-lengths // self._group.block_tokens)
        pages = np.unique(table[np.arange(table.shape[1]) < num[:, None]])
        return pages[self._lacks[row, pages]].tolist()

    def ahead(self, row: int, step: Step, queries: Any) -> None:
        """Load what the next step may choose."""
        if not self._any or not self._lacking(row, step.table, step.lengths):
            return
        layer = self._layers[row]
        if row not in self._ahead:
            budget = layer.budget
            self._ahead[row] = layer.choosing(dataclasses.replace(
                budget, ratio=min(1.0, AHEAD * budget.ratio),
                budget_tokens=int(AHEAD * budget.budget_tokens)))
        self._ahead[row].select(queries, step.trial)
        tables, lengths = (np.asarray(out) for out in (
            step.trial.tables, step.trial.lengths))
        rows = step.rows
        coming = {page for at, pages, _ in self._tasks if at == row
                  for page in pages}
        pages = [page for page in self._lacking(row, tables[rows],
                                                lengths[rows])
                 if page not in coming and page not in self._failed]
        if pages and not self._late:
            self._start(row, pages, "prefetch")

    # ---- loads ----

    def _start(self, row: int, pages: Sequence[int], priority: str) -> None:
        """Of a layer, into pages that lack it."""
        groups: dict[Any, list[int]] = {}
        for page in pages:
            groups.setdefault(self._where[page][0], []).append(page)
        for group, some in groups.items():
            try:
                task = group.load(
                    b"".join(self._where[page][1] for page in some),
                    array("I", some), first_layer=row, num_layers=1,
                    verify=self._options.verify, priority=priority,
                    deadline_ms=self._deadline(len(some)))
            except (UcmfsError, OSError) as error:
                self._teller.warn("load", "%s", error)
                continue
            self._tasks.append((row, some, task))

    def _deadline(self, parts: int) -> int:
        """For this number of blocks' parts for a layer."""
        return deadline_of(self._options.deadline_ms, parts
                           * self._group.payload_bytes // len(self._rows))

    def _settle(self, row: int, wanted: Sequence[int] | None = None) -> None:
        """Wait for loads of a layer, if any is of wanted pages (None: in any
        case)."""
        left = []
        for at, pages, task in self._tasks:
            if at != row or (wanted is not None
                             and not set(wanted).intersection(pages)):
                left.append((at, pages, task))
                continue
            outcomes = task.result()
            good = [page for page, outcome in zip(pages, outcomes)
                    if not outcome.err]
            self._lacks[row, good] = False
            self._stats.add("sparse_retrieved_blocks", len(good))
            self._stats.add_failed("load_failed_blocks", task.errors())
            for page, outcome in zip(pages, outcomes):
                if outcome.err:
                    self._lost(page, outcome)
        self._tasks = left

    def _lost(self, page: int, outcome: Any) -> None:
        self._teller.warn("block", "%s", outcome.text)
        self._late = self._late or outcome.err == errno.ETIMEDOUT
        if outcome.err == errno.EBADMSG:
            group, name = self._where[page]
            self.kept.remove(group.space, [name])

    # ---- a step ends ----

    def end_step(self) -> set[int]:
        """Pages that the step has read, and that could not be loaded."""
        for row in {row for row, _, _ in self._tasks}:
            self._settle(row)
        for absent in self._absent:
            self.kept.save(*absent)
        self._absent.clear()
        failed, self._failed = self._failed, set()
        self._tails, self._late = {}, False
        if self._any and not self._lacks.any():
            self._any = False
            self._where.clear()
        return failed

    def keep(self, saves: Sequence[tuple[str, bytes, Sequence[int]]]) -> bool:
        """What stands for blocks that are about to be saved: of a space, ids
        and pages. False: pages lack something, so they cannot be saved."""
        for _, _, pages in saves:
            if self._lacks[:, np.asarray(pages)].any():
                return False
        for one in saves:
            self.kept.save(*one)
        return True


def storage_of(vllm_config: Any, options: ConnectorOptions, plan: Plan,
               rows: Mapping[int, int], stats: UcmfsStats) -> Storage | None:
    """For a worker whose attention is sparse, if that is asked for and can
    be."""
    wanted, retrieves = split(asked(vllm_config) or {})
    if not retrieves:
        return None
    num = vllm_config.model_config.get_total_num_hidden_layers()
    config = methods.parse(wanted, block_size=plan.groups[0].block_tokens,
                           num_layers=num)
    mode, why = load_mode(vllm_config, plan, options)
    if mode != "sync":
        why = why or f"load is {mode}, and must be sync"
    elif config.method.keeps not in ("repr", "codes"):
        why = f"the channels of {config.method.name} are chosen as it runs"
    elif any(config.layer(n).role == "dense" for n in range(num)):
        why = "layers that stay dense need all blocks"
    if why:
        log.warning("ucmfs: retrieval storage: no effect: %s", why)
        return None
    return Storage(options, plan.groups[0], plan.num_blocks, rows, stats)
