# SPDX-License-Identifier: Apache-2.0
"""The connector's half in a worker's process: moves blocks by a loader.

All transfers are tasks of libucm, whose threads do the work; a step takes
those of which something has become out of one queue, so that it costs what has
ended and not what goes on. A load's blocks are reported as failed unless each
of them was proven to be loaded, and its request is reported exactly once,
whatever has happened. A save's pages are read when the step that computed them
is done: on a CPU that is so when wait_for_save() is called, on CUDA an event
tells.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import sys
import time
from array import array
from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from ..errors import ConfigError, UcmfsError
from ..layout import Layout, Raw, raw_of
from .groups import Group, Home, Plan
from .metadata import (NO_ID, Job, Loaded, Part, UcmfsMetadata,
                       UcmfsWorkerMetadata)
from .metrics import UcmfsStats
from .mount import (Attempt, Chores, Teller, apart, at_start, close_all,
                    deadline_of, end_tasks, log, remove_blocks)
from .options import ConnectorOptions
from .spaces import load_mode, plan_for

# What an idle step waits for a transfer, so that the engine does not spin.
IDLE_SECONDS = 0.002
# How long a step waits to get to know the spaces of its jobs.
ENTER_SECONDS = 2.0
# Groups of spaces that were left stay, and a loader has room for 256: after so
# many resets of the cache another one is used.
MOST_GROUPS = 128

# The dimensions of what vLLM registers, by their number.
_DIMS = {2: "BD", 3: "BND", 4: "BHND"}


class _Tensor(NamedTuple):
    """What vLLM registers for a layer, and how it is to be read."""

    raw: Any
    dims: str
    kernel_blocks: int  # to a block of vLLM's
    page_bytes: int


def _without_tokens(raw: Raw, name: str) -> tuple[Raw, str]:
    """A page that is not so many tokens, but a state, or several tokens in
    one: whatever its dimensions mean."""
    inner = [i for i, size in enumerate(raw.shape) if i and size > 1]
    if not 1 <= len(inner) <= 2:
        raise ConfigError("kv_caches", f"layer {name}: shape {raw.shape} has "
                          "no dimension of the group's tokens")
    return replace(
        raw, shape=(raw.shape[0], *(raw.shape[i] for i in inner)),
        strides=(raw.strides[0], *(raw.strides[i] for i in inner)),
    ), {1: "BD", 2: "BHD"}[len(inner)]


def sparse_pages() -> Any:
    """The module of that name, if an engine's layers have loaded it."""
    return sys.modules.get("ucmfs.vllm.sparse_pages")


class Spaces(NamedTuple):
    """What blocks are moved in, for each group of the plan that this stage has
    layers of: a loader's group, and whose hasher makes the names of other
    ranks' shards."""

    groups: dict[int, Any]
    hashers: dict[int, Any]


class Behind(NamedTuple):
    """Saves that wait for the step which computes their pages. spaces: those
    that their names are of, whatever the worker has moved to since."""

    event: Any
    jobs: list[Job]
    spaces: Spaces


@dataclass
class Transfer:
    """A job under way, in the spaces that it began in: its parts, and the
    task of each (None: it could not be started). open: tasks whose end has not
    been seen; lent: of a save, those that need its pages."""

    job: Job
    is_load: bool
    parts: list[Part]
    tasks: list[Any]
    began: float
    spaces: Spaces
    errno: int = 0
    layers: set[str] = field(default_factory=set)
    open: int = 0
    lent: set[Any] = field(default_factory=set)

    def begun(self) -> Iterator[Any]:
        """The tasks that there are."""
        return (task for task in self.tasks if task is not None)

    def cancel(self) -> None:
        for task in self.begun():
            task.cancel()


class UcmfsWorker:
    """See KVConnectorBase_V1 for the methods of the same names."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any,
                 options: ConnectorOptions) -> None:
        self._options = options
        self._vllm_config = vllm_config
        self.plan: Plan = plan_for(vllm_config, kv_cache_config)
        self.rank = vllm_config.parallel_config.rank % self.plan.ranks
        self._shard = self.plan.shard_of(self.rank)
        self._stage = self.plan.stage_of(self.rank)
        self._teller = Teller(f"rank {self.rank}")
        self._whole_requests = len(self.plan.groups) > 1
        self._mode = load_mode(vllm_config, self.plan, options)[0]
        self._order = "layers" if self._mode == "layerwise" else "blocks"
        self.stats = UcmfsStats()
        self.meta = UcmfsWorkerMetadata()
        self._new_loader: Any = None
        self._loader: Any = None
        self._known_groups = 0
        self._left: list[Any] = []  # loaders, until their tasks are done
        # By their places in the plan, the groups that this stage keeps.
        self._groups: dict[int, Group] = {
            g: group for g, group in enumerate(self.plan.groups)
            if group.layers}
        self._layouts: dict[int, Layout] = {}
        self._cuda: Any = None
        self._space = -1
        self._entry: Attempt | None = None  # into the spaces of a number
        self._entering = -1
        self._spaces = Spaces({}, {})
        self._ends: Any = None  # the queue of what has become of tasks
        self._transfers: dict[Any, Transfer] = {}  # by their open tasks
        self._over: list[Transfer] = []  # ended, and not accounted for
        self._loads: dict[str, Transfer] = {}
        self._sync: list[Transfer] = []
        self._layer_of: dict[str, int] = {}
        self._queued: list[Job] = []
        self._behind: list[Behind] = []
        self._saves: dict[int, Transfer] = {}  # by job
        self._bad_pages: set[int] = set()
        self._storage: Any = None  # of blocks that stay there
        self._failed: set[str] = set()
        self._step: UcmfsMetadata | None = None
        self._polled = time.monotonic()
        self._chores = Chores("ucmfs-remove")

    # ---- the KV cache ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Refuses what the table of strides cannot express."""
        from ..loader import Loader
        from ..task import Completions

        self._ends = Completions()
        self._layouts = {g: self._layout_of(group, kv_caches)
                         for g, group in self._groups.items()}
        tensor = kv_caches[next(iter(self._groups.values())).layers[0]]
        cuda = tensor.device.type == "cuda"
        if cuda:
            import torch

            self._cuda = torch.cuda
        self._new_loader = functools.partial(
            Loader, self._options.mount,
            copy="cuda" if cuda else "host",
            device=tensor.device.index or 0 if cuda else 0,
            **self._options.loader)
        if self._options.on_missing == "run":
            self._loader, attempt = at_start(
                self._options.mount, "ucmfs-loader", self._new_loader,
                lambda loader: loader.close())
            if self._loader is None:
                attempt.give_up()  # whoever enters the spaces makes one
        else:
            self._loader = self._new_loader()
        self._layer_of = {name: row for group in self._groups.values()
                          for name, (row, _) in zip(group.layers,
                                                    group.places)}
        if sparse_pages():
            from .sparse_storage import storage_of

            self._storage = storage_of(
                self._vllm_config, self._options, self.plan, {
                    kv_caches[name].data_ptr(): row
                    for name, row in self._layer_of.items()}, self.stats)
        log.info("ucmfs: rank %d: %s; a block is %s pieces in memory",
                 self.rank,
                 self._loader.describe() if self._loader else "no mount yet",
                 " or ".join(str(x.runs) for x in self._layouts.values()))

    def _layout_of(self, group: Group, kv_caches: dict[str, Any]) -> Layout:
        assert group.geometry is not None
        tensors = [self._tensor_of(name, group, kv_caches)
                   for name in group.layers]
        sizes: dict[tuple[int, str], int] = {
            place: tensor.page_bytes
            for place, tensor in zip(group.places, tensors)}
        layout = Layout(group.geometry, self.plan.num_blocks)
        if any(plane != "both" for _, plane in group.places):
            for row in range(group.geometry.num_layers):
                layout.set_layer_bytes(row, sizes[row, "k"],
                                       sizes.get((row, "v"), 0))
        for name, (row, plane), tensor in zip(group.layers, group.places,
                                              tensors):
            layout.add_tensor(tensor.raw, tensor.dims, name=name, layer=row,
                              plane=plane if (row, "v") in sizes else "both",
                              kernel_blocks_per_page=tensor.kernel_blocks)
        return layout.seal()

    def _tensor_of(self, name: str, group: Group,
                   kv_caches: dict[str, Any]) -> _Tensor:
        tensor = kv_caches.get(name)
        if tensor is None:
            raise ConfigError("kv_caches", f"layer {name} is not there")
        shape = tuple(getattr(tensor, "shape", ()))
        dims = _DIMS.get(len(shape))
        blocks = self.plan.num_blocks
        if dims is None or shape[0] < blocks or shape[0] % blocks:
            strides = tensor.stride() if hasattr(tensor, "stride") else ()
            raise ConfigError(
                "kv_caches", f"layer {name}: shape {shape}, strides "
                f"{tuple(strides)} are no pages of {blocks} blocks")
        raw = raw_of(tensor, name)
        each = shape[0] // blocks
        at = dims.find("N")
        if at > 0 and shape[at] * each != group.block_tokens:
            raw, dims = _without_tokens(raw, name)
        return _Tensor(raw, dims, each, math.prod(shape) // blocks
                       * raw.item_bytes)

    def _ready(self, meta: UcmfsMetadata, wait: bool) -> bool:
        """Whether the spaces of a step's jobs are known. A thread asks the
        mount, which may hang; it is waited for once, and not for long."""
        if meta.space == self._space:
            return True
        if not meta.spaces:  # nor does the scheduler know them
            return False
        if meta.space != self._entering:
            if self._entry is not None:
                self._entry.give_up()
            self._entering = meta.space
            spaces = {g: meta.spaces[Home(self._stage, g)]
                      for g in self._groups}
            self._entry = Attempt("ucmfs-spaces", lambda: self._enter(spaces),
                                  lambda found: self._leave(*found))
        assert self._entry is not None
        if wait:
            self._entry.wait_once(ENTER_SECONDS)
        found = self._entry.take()
        if found is None:
            return False
        loader, self._spaces = found
        if loader is not self._loader:
            if self._loader is not None:
                self._left.append(self._loader)
            self._loader, self._known_groups = loader, 0
        self._known_groups += len(self._spaces.groups)
        self._space, self._entry = meta.space, None
        return True

    def _enter(self, spaces: Mapping[int, tuple[str, bytes]],
               ) -> tuple[Any, Spaces]:
        """A loader, and its groups of spaces that the scheduler has made for
        this stage; their blocks must be what the pages here are."""
        from ..hash import Hasher
        from ..namespace import read_manifest

        for g, (name, _) in spaces.items():
            group = self._groups[g]
            assert group.geometry is not None
            manifest = read_manifest(self._options.mount, name) or {}
            mine, there = group.geometry.to_json(), manifest.get("geometry")
            if mine != there:
                raise ConfigError(
                    "kv_cache_groups", f"group {group.index}: pages are "
                    f"{mine} in rank {self.rank}, and {there} in space {name}")
        loader = self._loader
        if loader is None or self._known_groups + len(spaces) > MOST_GROUPS:
            loader = self._new_loader()
        entered = Spaces({}, {g: Hasher(
            "external", space_id=space_id, world_size=self.plan.shards,
            block_size=self._groups[g].block_tokens)
            for g, (_, space_id) in spaces.items()})
        try:
            for g, (name, _) in spaces.items():
                entered.groups[g] = loader.add_group(self._layouts[g], name)
        except BaseException:
            self._leave(loader, entered)
            raise
        return loader, entered

    def _leave(self, loader: Any, spaces: Spaces) -> None:
        """Of spaces that nobody enters: what was made for them. Tries may be
        many, and would use up the loader's room."""
        if loader is not self._loader:
            loader.close()
            return
        for group in spaces.groups.values():
            try:
                group.remove()
            except UcmfsError as error:  # the loader may be closed by now
                log.warning("ucmfs: space %s: %s", group.space, error)

    def _ids(self, part: Part, spaces: Spaces) -> bytes:
        """This rank's names of a part's blocks."""
        if self.plan.shards == 1:
            return part.ids
        return spaces.hashers[part.group].rank_ids(self._shard, part.ids)

    def _parents(self, part: Part, spaces: Spaces) -> bytes:
        """This rank's names of the blocks before them."""
        if self.plan.shards == 1:
            return part.parents
        mine = spaces.hashers[part.group].rank_ids(self._shard, part.parents)
        return b"".join(
            mine[at:at + 16] if part.parents[at:at + 16] != NO_ID else NO_ID
            for at in range(0, len(mine), 16))

    def _deadline(self, part: Part) -> int:
        each = self.plan.groups[part.group].payload_bytes
        return deadline_of(self._options.deadline_ms, part.num * each)

    # ---- a step begins ----

    def start_load_kv(self, meta: UcmfsMetadata) -> None:
        # A step that did not end as it should.
        self._flush_saves()
        self._step = meta
        ready = self._ready(meta, wait=bool(meta.loads or meta.saves))
        self._queued = list(meta.saves)
        if not ready:
            self._give_up_saves(self._queued)
            self._queued = []
        for job in meta.loads:
            self._tell_sparse("forget", self._here(job))
            if self._storage:
                job = self._less_what_stays(job, ready)
            transfer = self._start_load(job, ready)
            if self._mode != "async":
                self._sync.append(transfer)
            else:
                self._loads[job.request] = transfer
                self._follow(transfer)
        if self._mode == "sync":
            self._wait_sync()

    def _less_what_stays(self, job: Job, ready: bool) -> Job:
        """Of a load, what does not stay in the store."""
        parts = self._here(job)
        self._storage.forget(parts)
        if not ready or len(parts) != 1:
            return job
        part = parts[0]
        return self._storage.leave(job, part, self._ids(part, self._spaces),
                                   self._spaces.groups[part.group])

    @staticmethod
    def _tell_sparse(what: str, parts: Sequence[Part]) -> None:
        """Sparse attention, of pages that are about to change, or have."""
        for part in parts if sparse_pages() else ():
            getattr(sparse_pages(), what)(array("I", part.pages))

    def _start_load(self, job: Job, ready: bool) -> Transfer:
        transfer = Transfer(job, True, self._here(job), [], time.monotonic(),
                            self._spaces, 0 if ready else errno.ENOTCONN)
        for part in transfer.parts:
            task = None
            try:
                if ready:
                    task = self._spaces.groups[part.group].load(
                        self._ids(part, self._spaces), array("I", part.pages),
                        verify=self._options.verify,
                        order=self._order, completions=self._ends,
                        deadline_ms=self._deadline(part))
            except (UcmfsError, OSError) as error:
                self._teller.warn("load", "%s", error)
                transfer.errno = error.errno or errno.EIO
            transfer.tasks.append(task)
        return transfer

    def _wait_sync(self) -> None:
        for transfer in self._sync:
            for task in transfer.begun():
                task.result()

    def wait_for_layer_load(self, name: str) -> None:
        if not self._sync or name not in self._layer_of:
            return
        for transfer in self._sync:
            for task in transfer.begun():
                task.wait_layer(self._layer_of[name])
            transfer.layers.add(name)

    # ---- a step ends ----

    def wait_for_save(self) -> None:
        self._end_sync()
        failed = self._storage.end_step() if self._storage else ()
        if failed and self._step:
            self._bad_pages.update(failed)
            self.meta.sync_failed.add(self._step.step)
        self._flush_saves()

    def _end_sync(self) -> None:
        """Loads of this step: all of them have been used by now."""
        self._wait_sync()
        transfers, self._sync = self._sync, []
        for transfer in transfers:
            unseen = self._mode == "layerwise" and \
                len(transfer.layers) < len(self._layer_of)
            if unseen:
                # Whatever ran did not wait for the layers: who knows what it
                # has read.
                self._teller.warn("load", "layers were not waited for; is a "
                                  "full CUDA graph in use?")
            if self._end_load(transfer, all_bad=unseen) and self._step:
                self.meta.sync_failed.add(self._step.step)

    def _flush_saves(self) -> None:
        jobs, self._queued = self._queued, []
        if not jobs:
            return
        if self._cuda is None:
            self._start_saves(jobs, self._spaces)
            return
        event = self._cuda.Event()
        event.record()
        self._behind.append(Behind(event, jobs, self._spaces))

    def _start_saves(self, jobs: Sequence[Job], spaces: Spaces) -> None:
        for job in jobs:
            parts = [self._own(part) for part in self._here(job)]
            parts = [part for part in parts if part.num]
            if self._storage and not self._storage.keep(
                    [(spaces.groups[part.group].space, self._ids(part, spaces),
                      array("I", part.pages)) for part in parts]):
                self._give_up_saves([job])
                continue
            transfer = Transfer(job, False, parts, [], time.monotonic(),
                                spaces)
            for part in parts:
                task = None
                try:
                    task = spaces.groups[part.group].save(
                        self._ids(part, spaces), array("I", part.pages),
                        parents=self._parents(part, spaces), may_refuse=True,
                        completions=self._ends, tell_copied=True,
                        deadline_ms=self._deadline(part))
                except (UcmfsError, OSError) as error:
                    self._teller.warn("save", "%s", error)
                transfer.tasks.append(task)
            self._saves[job.job] = transfer
            self._follow(transfer)

    def _here(self, job: Job) -> list[Part]:
        """Of a job, what is of groups that this stage has layers of."""
        return [part for part in job.parts if part.group in self._groups]

    def _own(self, part: Part) -> Part:
        """The blocks of a part that this rank writes."""
        if self.plan.replicas == 1:
            return part
        places, pages = array("I", part.places), array("I", part.pages)
        mine = [i for i, place in enumerate(places)
                if self.plan.writes(self.rank, place)]
        return Part(part.group,
                    b"".join(part.ids[16 * i:16 * i + 16] for i in mine),
                    array("I", (pages[i] for i in mine)).tobytes(),
                    array("I", (places[i] for i in mine)).tobytes(),
                    b"".join(part.parents[16 * i:16 * i + 16] for i in mine))

    def _give_up_saves(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            num = sum(part.num for part in self._here(job))
            self.meta.copied[job.job] = 1
            self.meta.saved[job.job] = 1
            if num:
                self.meta.bad_saves[job.job] = num
            self.stats.add_failed("save_failed_blocks", [errno.ENOTCONN] * num)

    def get_finished(self, finished: set[str]) -> set[str]:
        """Requests whose loads have ended; each is reported once."""
        for request in finished:
            if request in self._loads:
                self._loads[request].cancel()
        self._poll_events()
        if self._step is not None and self._step.idle and self._transfers \
                and not self._over:
            self._take_news(IDLE_SECONDS)
        self._take_news()
        ended = self._settle()
        if self._left and not (self._loads or self._saves or self._behind):
            for loader in self._left:
                apart("ucmfs-close", loader.close)
            self._left = []
        # vLLM leaves out what idle steps report, if it is nothing, so which
        # step an output is of has to be told.
        if self._step is not None and (self._step.report
                                       or not self._step.idle):
            self.meta.steps[self._step.step] = 1
            self._step = None
        self._polled = time.monotonic()
        return ended

    # ---- what has become of tasks ----

    def _follow(self, transfer: Transfer) -> None:
        """It has begun, and its news come by the queue. In front of them
        where none will come: no task of it could be started."""
        for task in transfer.begun():
            self._transfers[task] = transfer
            transfer.open += 1
            if not transfer.is_load:
                transfer.lent.add(task)
        if not transfer.open:
            self._over.append(transfer)

    def _take_news(self, timeout: float = 0.0) -> None:
        news = self._ends.take(timeout) if self._ends is not None else []
        while news:
            for task in news:
                self._note(task)
            news = self._ends.take()

    def _note(self, task: Any) -> None:
        transfer = self._transfers.get(task)
        if transfer is None:  # of a step that waits for it itself
            return
        if task in transfer.lent:
            transfer.lent.discard(task)
            if not transfer.lent:
                self.meta.copied[transfer.job.job] = 1
        if task.done():
            del self._transfers[task]
            transfer.open -= 1
            if not transfer.open:
                self._over.append(transfer)

    def _settle(self) -> set[str]:
        """Account for what has ended: the requests whose loads have."""
        over, self._over = self._over, []
        ended = set()
        for transfer in over:
            request = transfer.job.request
            if not transfer.is_load:
                self._end_save(transfer)
            elif self._loads.get(request) is transfer:
                del self._loads[request]
                ended.add(request)
                if self._end_load(transfer):
                    self._failed.add(request)
        return ended

    def _poll_events(self) -> None:
        """Saves whose step is done may begin."""
        while self._behind and self._behind[0].event.query():
            first = self._behind.pop(0)
            self._start_saves(first.jobs, first.spaces)

    # ---- outcomes ----

    def _end_load(self, transfer: Transfer, all_bad: bool = False) -> bool:
        """Account for a load that is done: True if any of it failed."""
        told = Loaded(errno=transfer.errno, ranks=1)
        for part, task in zip(transfer.parts, transfer.tasks):
            errors = [transfer.errno or errno.EIO] * part.num \
                if task is None else task.errors()
            good = 0 if all_bad else errors.count(0)
            told.blocks += good
            told.failed += part.num - good
            told.num_bytes += good * self.plan.groups[part.group].payload_bytes
            if good < part.num:
                self._fail(part, errors, told, all_bad)
                if task is not None:
                    self._drop_damaged(transfer, part, task)
        if not told.failed:
            self._tell_sparse("loaded", transfer.parts)
        told.seconds = self._seconds_of(transfer)
        self.stats.add("loads")
        self.stats.add("loaded_blocks", told.blocks)
        self.stats.add("loaded_bytes", told.num_bytes)
        self.stats.observe("load_seconds", told.seconds)
        UcmfsWorkerMetadata.aggregate(
            self.meta, UcmfsWorkerMetadata(loads={transfer.job.request: told}))
        return told.failed > 0

    def _seconds_of(self, transfer: Transfer) -> float:
        """It has ended at some time since it was last looked at."""
        now = time.monotonic()
        late = (now - max(self._polled, transfer.began)) / 2
        return max(now - transfer.began - late, 1e-6)

    def _fail(self, part: Part, errors: Sequence[int], told: Loaded,
              all_bad: bool) -> None:
        first = 0 if all_bad else next(i for i, e in enumerate(errors) if e)
        if not all_bad:
            told.errno = told.errno or errors[first]
            if errors[first] != errno.ECANCELED:
                self._teller.warn(
                    "load", "%d of %d blocks could not be loaded: %s",
                    part.num - errors.count(0), part.num,
                    os.strerror(errors[first]))
        # What is behind the first one is of no use without it.
        self._bad_pages.update(array("I", part.pages)[first:])
        self.stats.add_failed("load_failed_blocks", [
            e or errno.ECANCELED for e in errors] if all_bad else errors)

    def _drop_damaged(self, transfer: Transfer, part: Part, task: Any) -> None:
        bad = self._remove_damaged(transfer, part, task)
        places = array("I", part.places)
        if bad:
            self.meta.damaged.setdefault(transfer.job.request, set()).update(
                (part.group, places[i]) for i in bad)

    def _remove_damaged(self, transfer: Transfer, part: Part,
                        task: Any) -> list[int]:
        """Which of the part's blocks they are."""
        bad = [i for i, e in enumerate(task.errors()) if e == errno.EBADMSG]
        names = [task.ids[16 * i:16 * i + 16] for i in bad]
        for outcome in task.outcomes() if bad else ():
            if outcome.err == errno.EBADMSG:
                self._teller.warn("damaged block", "%s", outcome.text)
        space = transfer.spaces.groups[part.group].space
        if bad:
            self._chores.add(lambda: remove_blocks(self._options.mount, space,
                                                   names))
        return bad

    def _end_save(self, transfer: Transfer) -> None:
        """Account for a save that is done; its pages were before."""
        del self._saves[transfer.job.job]
        if not any(transfer.begun()):
            self.meta.copied[transfer.job.job] = 1
        bad = unwanted = 0
        for part, task in zip(transfer.parts, transfer.tasks):
            errors = [errno.EIO] * part.num if task is None else task.errors()
            there, refused = (0, 0) if task is None else (
                task.num_skipped, task.num_refused)
            good = errors.count(0) - there - refused
            bad += part.num - errors.count(0) + refused
            unwanted += refused
            self.stats.add("saved_blocks", good)
            self.stats.add("saved_bytes", good * self.plan.groups[
                part.group].payload_bytes)
            self.stats.add("save_skipped_blocks", there)
            self.stats.add("save_refused_blocks", refused)
            self.stats.add_failed("save_failed_blocks", errors)
        self.stats.observe("save_seconds", self._seconds_of(transfer))
        self.meta.saved[transfer.job.job] = 1
        if bad:
            self.meta.bad_saves[transfer.job.job] = bad
        if unwanted:
            self.meta.refused[transfer.job.job] = unwanted

    def take_bad_pages(self) -> set[int]:
        """Pages of loads that failed; with several groups their numbers say
        nothing, and requests are told instead (take_failed)."""
        pages, self._bad_pages = self._bad_pages, set()
        return set() if self._whole_requests else pages

    def take_failed(self) -> set[str]:
        """Requests, told by get_finished(), whose load failed."""
        failed, self._failed = self._failed, set()
        return failed if self._whole_requests else set()

    def take_meta(self) -> UcmfsWorkerMetadata | None:
        meta, self.meta = self.meta, UcmfsWorkerMetadata()
        return None if meta == UcmfsWorkerMetadata() else meta

    def get_stats(self) -> UcmfsStats | None:
        if sparse_pages():
            self.stats.aggregate(UcmfsStats(data=sparse_pages().taken()))
        return None if self.stats.is_empty() else self.stats.take()

    def shutdown(self) -> None:
        """Loads are given up; saves that have begun are finished."""
        for transfer in [*self._loads.values(), *self._sync]:
            transfer.cancel()
        self._flush_saves()
        for event, jobs, spaces in self._behind:
            event.synchronize()
            self._start_saves(jobs, spaces)
        self._behind = []
        end_tasks(task for transfer in [*self._saves.values(),
                                        *self._loads.values(), *self._sync]
                  for task in transfer.begun())
        idle = self._chores.end()
        if self._storage:
            idle = self._storage.kept.end() and idle
        loaders = [] if self._loader is None else [*self._left, self._loader]
        if self._entry is not None and not self._entry.end():
            idle, loaders = False, []  # its thread is using them
        closers = [x.close for x in loaders]
        if idle and self._ends is not None:  # after those that it serves
            closers.append(self._ends.close)
        close_all(self._options.mount, closers, idle)
        self._loader = None
