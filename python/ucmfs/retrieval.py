# SPDX-License-Identifier: Apache-2.0
"""Threads that score and select while a request goes on: ucm_retrieve(3),
"Retrieval".

    with retrieval.Retrieval(spec, num_heads=32, lanes=32,
                             max_blocks=4096) as threads:
        threads.submit(layer, step, spec.query(q), slab, budget)
        ...                                  # attend with an earlier choice
        blocks = threads.take(layer, step).blocks

spec is that of what slabs hold: sparse.Spec; codes.Spec, with the method by
which codes are compared; or star.Spec, with the number of queries that are
scored together.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, NamedTuple, Union

from . import _c, _lib, _log, _pack, _tensor, codes, sparse, star
from ._handle import Handle
from ._tensor import Ids
from .errors import InvalidArgument, UcmfsError
from .sparse import Budget, Slab
from .task import milliseconds

Spec = Union[sparse.Spec, codes.Spec, star.Spec]
Query = Union[sparse.Query, codes.Query, star.Query]

# EINVAL, ETIMEDOUT: the job is still there; ESTALE: a thread may be at it
_KEPT = (22, 110, 116)


class Taken(NamedTuple):
    """blocks that are selected, ascending; stale: a later step of the lane
    was submitted; wait_ns and run_ns: how long it waited, and ran."""

    blocks: memoryview
    stale: bool
    wait_ns: int
    run_ns: int


class Retrieval(Handle):
    """Threads, and jobs of lanes: what chooses for itself, a layer.

    spec and num_heads: of the queries; of codes method, which says num_heads
    itself; of star num_queries, at most. jobs: that wait, run or have not been
    taken, at most. max_blocks: of a job. Any thread; a lane's calls are one
    thread's at a time.
    """

    _CLOSE = "ucm_retrieval_close"

    def __init__(self, spec: Spec, num_heads: int = 0, *, lanes: int,
                 max_blocks: int, threads: int = 4, jobs: int = 64,
                 method: codes.Method | None = None,
                 num_queries: int = 1) -> None:
        super().__init__("retrieval", _lib.sparse())
        self.spec, self.method = spec, method
        _log.start()
        self._jobs: dict[int, dict[int, tuple[Any, int]]] = {}
        floats = self._query_floats(
            _pack.u32("retrieval", "num_heads", num_heads),
            _pack.u32("retrieval", "num_queries", num_queries))
        if not floats:
            raise InvalidArgument(
                f"retrieval: num_heads {num_heads}, num_queries "
                f"{num_queries}, method: spec has no such query")
        options = _pack.fill(_c.RetrievalOptions(), "retrieval", {
            "threads": threads, "jobs": jobs, "lanes": lanes,
            "max_blocks": max_blocks, "query_floats": floats})
        options.size = ctypes.sizeof(options)
        _lib.call(self._lib.ucm_retrieval_open, "retrieval", options,
                  self._handle)

    def _query_floats(self, num_heads: int, num_queries: int) -> int:
        if isinstance(self.spec, codes.Spec):
            if self.method is None:
                raise InvalidArgument("method: codes are compared by one")
            return 2 * self._lib.ucm_code_query_words(self.spec._c,
                                                      self.method._c)
        if isinstance(self.spec, star.Spec):
            like = self.spec._any()  # as many for any channels
            return self._lib.ucm_star_query_floats(like._c, num_queries,
                                                   num_heads)
        return self._lib.ucm_query_floats(self.spec._c, num_heads,
                                          _c.SCORE_PER.index("block"))

    def _job(self, query: Query) -> _c.RetrievalJob:
        """What blocks are scored by."""
        if isinstance(query, codes.Query):
            same = (query.spec, query.method) == (self.spec, self.method)
            job = _c.RetrievalJob(codes=ctypes.pointer(query.spec._c),
                                  code_method=ctypes.pointer(query.method._c),
                                  code_query=query._words.address)
        elif isinstance(query, star.Query):
            # the channels may be of each lane
            same = isinstance(self.spec, star.Spec) and dataclasses.replace(
                query.spec, channels=self.spec.channels) == self.spec
            job = _c.RetrievalJob(
                star=ctypes.pointer(query.spec._c),
                query=query._floats.address, num_heads=query.num_heads,
                num_queries=query.num_queries)
        else:
            same = query.spec == self.spec and not query.distance
            job = _c.RetrievalJob(
                spec=ctypes.pointer(query.spec._c),
                query=query._floats.address, num_heads=query.num_heads)
        if not same or query.per != "block":
            raise InvalidArgument("query: not of this spec, per block")
        return job

    def submit(self, lane: int, step: int, query: Query, slab: Slab,
               budget: Budget, *, slots: Ids = None,
               deadline_ms: int = 0) -> None:
        """Have a query's best blocks selected: block i is in slots[i] (i).
        Steps of a lane rise. UcmfsError with EAGAIN: there are as many jobs
        as may be. slab must not be written to before take() or cancel(), but
        for the blocks of the budget's windows."""
        job = self._job(query)
        c = _pack.fill(_c.Budget(), "budget", budget._asdict())
        where = _tensor.ids_of(slots, "slots", None if slots is None
                               else budget.num_blocks)
        job.slab = ctypes.pointer(slab.need(query.spec.nbytes))
        job.slots, job.budget = where[0], c
        _pack.fill(job, "retrieval", {"lane": lane, "step": step,
                                      "deadline_ms": deadline_ms})
        handle = self._open()
        room = c.first + c.topk + c.last
        kept = self._jobs.setdefault(lane, {})
        before = kept.get(step)
        # threads read it from now on, and the channels of query's spec
        kept[step] = ((slab, where, query.spec), room)
        try:
            _lib.call(self._lib.ucm_retrieval_submit, "retrieval", handle, job)
        except UcmfsError:
            del kept[step]
            if before is not None:
                kept[step] = before
            raise

    def take(self, lane: int, step: int,
             timeout: float | None = None) -> Taken:
        """The result of a lane's step; with it, earlier ones are gone.
        timeout: in seconds; None: for ever.

        Timeout: not done yet; ask again. UcmfsError with ETIME: its own
        deadline has passed; ESTALE: a later one has been taken. NotFound:
        none was submitted.
        """
        kept = self._jobs.get(lane, {})
        room = kept[step][1] if step in kept else 0
        memory = _tensor.Memory(4 * room)
        out = _c.RetrievalResult(blocks=memory.address, room=room)
        try:
            _lib.call(self._lib.ucm_retrieval_take, "retrieval", self._open(),
                      _pack.u32("retrieval", "lane", lane),
                      _pack.u64("retrieval", "step", step),
                      -1 if timeout is None else milliseconds(timeout), out)
        except UcmfsError as failure:
            if failure.errno not in _KEPT:
                kept.pop(step, None)
            raise
        for other in [s for s in kept if s <= step]:
            del kept[other]
        return Taken(memory.view("I", out.num), out.newest > step,
                     out.wait_ns, out.run_ns)

    def cancel(self, lane: int) -> None:
        """Forget all jobs of a lane, which is as new then."""
        _lib.call(self._lib.ucm_retrieval_cancel, "retrieval", self._open(),
                  _pack.u32("retrieval", "lane", lane))
        self._jobs.pop(lane, None)

    def stats(self) -> dict[str, int]:
        """Counts since the start; waiting, running and done: now."""
        out = _c.RetrievalStats()
        self._lib.ucm_retrieval_get_stats(self._open(), out)
        return _pack.dict_of(out)

    def close(self) -> None:
        """Jobs that run are waited for. Again: nothing."""
        super().close()
        self._jobs.clear()
