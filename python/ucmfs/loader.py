# SPDX-License-Identifier: Apache-2.0
"""Blocks into pages and back: a loader, and the groups of blocks it knows."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from array import array
from typing import Any, Sequence, Union

from . import _c, _lib, _log, _pack
from ._handle import Handle
from .blocks import Blocks
from .errors import InvalidArgument, NotConnected, UcmfsError
from .layout import Layout, _number_of, _verify_of
from .task import Completions, Task, TaskOwner, new_eventfd

log = logging.getLogger("ucmfs")

_NO_LOCK = contextlib.nullcontext()
_OWN_STREAM = ctypes.c_void_p(-1).value

Path = Union[str, bytes, "os.PathLike[str]"]
Tiers = Union[Path, Sequence[Path]]


class LoaderTask(Task):
    """A task of a loader; see Task."""

    def _c_poll(self, handle: Any) -> array | None:
        library = _lib.lib()
        if not library.ucm_task_done(handle):
            return None
        out = array("i")
        if self.num:
            out.frombytes(ctypes.string_at(library.ucm_task_outcomes(handle),
                                           self.num * 12))
        return out

    def _c_wait(self, handle: Any, timeout_ms: int) -> int:
        return _lib.lib().ucm_task_wait(handle, timeout_ms)

    def _c_wait_layer(self, handle: Any, layer: int, timeout_ms: int) -> int:
        return _lib.lib().ucm_task_wait_layer(handle, layer, timeout_ms)

    def wait_stream(self, layer: int | None, stream: int,
                    timeout: float | None = None) -> bool:
        """Of a load to a CUDA device: make a stream (torch's cuda_stream)
        wait there for a layer, or all of them (None).

        Waits itself until the bytes are read and their copies queued; after
        the task's end nothing has to wait. True: of all blocks; False: of all
        but those that have failed. Timeout, Busy (a stream is being captured)
        and other errors: the stream does not wait.
        """
        number = _c.UCM_ALL_LAYERS if layer is None else _pack.u32(
            self._what, "layer", layer)
        return self._partly(lambda handle, ms: _lib.lib().ucm_task_wait_stream(
            handle, number, stream, ms), timeout, "stream")

    def _c_wait_copied(self, handle: Any, timeout_ms: int) -> int:
        return _lib.lib().ucm_task_wait_copied(handle, timeout_ms)

    def _c_wait_returned(self, handle: Any, timeout_ms: int) -> int:
        return _lib.lib().ucm_task_wait_returned(handle, timeout_ms)

    def _c_is_returned(self, handle: Any) -> bool:
        return not _lib.lib().ucm_task_num_lent(handle)

    def lent(self) -> list[bool]:
        """Of a task that is done, which blocks have pages that are lent: they
        may be written to until returned(). RuntimeError: not done."""
        self._final()
        handle = self._enter()
        if handle is None:
            return [False] * self.num
        try:
            return [_lib.lib().ucm_task_is_lent(handle, i)
                    for i in range(self.num)]
        finally:
            self._leave()

    def _c_cancel(self, handle: Any) -> None:
        _lib.lib().ucm_task_cancel(handle)

    def _c_free(self, handle: Any) -> None:
        _lib.lib().ucm_task_free(handle)


class Loader(Handle, TaskOwner):
    """Moves blocks between a mount (or tiers) and memory.

    mount: a mount point of ucmfs, the path of a daemon's socket, or
    "tiers=SOURCE", directories as of ucmfs(8), for which a private daemon is
    started if no other has them. tiers, instead of mount: directories that are
    read without a daemon, a sequence of paths or such text. Sizes are in
    bytes, and 0 is the default of ucm_load(3). stream: that copies on a device
    are ordered in, torch.cuda.current_stream().cuda_stream, which is 0 for the
    default stream; None: the loader's own.
    write_buffer_bytes: saves copy their pages there first, see ucm_load(3).
    budget: bytes that it reads and writes in a second. Any thread; close()
    when no other call is under way.

    NotConnected: no daemon of ucmfs there. NotFound: no such directory; tiers
    may be new ones.
    """

    _CLOSE = "ucm_loader_close"

    def __init__(self, mount: Path | None = None,
                 tiers: Tiers | None = None, *, copy: str = "host",
                 io: str = "auto", threads: int = 0, staging_bytes: int = 0,
                 open_files: int = 0, device: int = 0,
                 stream: int | None = None, write_buffer_bytes: int = 0,
                 budget: int = 0) -> None:
        TaskOwner.__init__(self)
        Handle.__init__(self, "loader")
        self.copy = copy
        self.mount = mount
        _log.start()
        self._keep: list[Any] = []
        self._stores: set[Any] = set()  # that are on it
        self._warmed_in = source_of(tiers)  # None: by a mount, or not at all
        self._warming = threading.Lock()
        self._blocks: Blocks | None = None  # of these tiers
        what = f"loader of {mount if mount is not None else tiers}"
        _lib.call(self._lib.ucm_loader_open, what, _pack.fill(
            _c.LoaderOptions(), "loader",
            dict(size=ctypes.sizeof(_c.LoaderOptions),
                 mount=_lib.path_bytes(mount, "mount"), tiers=self._warmed_in,
                 copy=_number_of("copy", copy, _c.COPY_KIND),
                 io=_number_of("io", io, _c.IO_KIND), threads=threads,
                 staging_bytes=staging_bytes, open_files=open_files,
                 device=device,
                 stream=_OWN_STREAM if stream is None else stream,
                 write_buffer_bytes=write_buffer_bytes, budget=budget)),
            self._handle)

    def add_group(self, layout: Layout, space: str | None = None) -> Group:
        """Tell of a sealed layout and the space of its blocks (None: the
        default one). Until it is removed, or the loader is closed, the
        group keeps the layout's tensors."""
        wrong = layout.devices - {device_of(self.copy)}
        if wrong:
            raise InvalidArgument(
                f"loader: the tensors are {', '.join(sorted(wrong))} memory, "
                f"and its copy is {self.copy!r}")
        number = ctypes.c_uint()
        _lib.call(self._lib.ucm_loader_add_group, f"space {space or 'blocks'}",
                  self._open(), layout._open(), _lib.text_bytes(space),
                  ctypes.byref(number))
        self._keep.append(layout)
        return Group(self, number.value, layout, space)

    def stats(self) -> dict[str, int]:
        """Counters since it was opened; see struct ucm_loader_stats."""
        out = _c.LoaderStats()
        self._lib.ucm_loader_get_stats(self._open(), out, ctypes.sizeof(out))
        return _pack.dict_of(out)

    def describe(self) -> str:
        """"host, io_uring, 2 threads, ..."""
        text = ctypes.create_string_buffer(512)
        self._lib.ucm_loader_describe(self._open(), text, len(text))
        return text.value.decode()

    def close(self, cancel: bool = False) -> None:
        """Cancel the loads that are left, wait for saves (cancel: cancel them
        too), close its stores, and end. Again: nothing."""
        if not self._is_ours():
            return
        with self._closing:
            for store in list(self._stores):
                store.close(cancel)
            self._end_tasks(cancel)
            super().close()
            self._keep = []
            if self._blocks is not None:
                self._blocks.close()

    def _prefetch(self, ids: _pack.Ids, space: str | None) -> None:
        """Of tiers; a mount is given hints by the library. What cannot be
        copied is loaded from where it is: no error is raised."""
        self._open()
        packed = _pack.pack_ids(ids)
        with self._warming:
            if b":" not in (self._warmed_in or b""):
                return  # the only tier is the fastest one
            try:
                if not self._blocks:
                    self._blocks = Blocks(b"tiers=" + self._warmed_in)
                self._blocks.warm(packed, space)
            except UcmfsError as error:
                log.warning("ucmfs: prefetch: %s", error)
                if not self._blocks:
                    self._warmed_in = None  # no daemon can be started
                elif isinstance(error, NotConnected):
                    self._blocks.close()
                    self._blocks = None


def device_of(copy: str) -> str:
    """Whose memory a kind of copy reaches, as torch has it."""
    return "cuda" if copy == "cuda" else "cpu"


def source_of(tiers: Tiers | None) -> bytes | None:
    """SOURCE of ucmfs(8): directories, joined by colons."""
    if tiers is None or isinstance(tiers, (str, bytes, os.PathLike)):
        return _lib.path_bytes(tiers, "tiers")
    return b":".join(_lib.path_bytes(t, "tiers") or b"" for t in tiers)


class Group:
    """A layout and a space that a loader knows; made by add_group().

    A load's pages must not be used by others until the task is done, a
    save's must keep their content until wait_copied(). Any thread.
    """

    def __init__(self, loader: Loader, number: int, layout: Layout,
                 space: str | None) -> None:
        self.loader = loader
        self.number = number
        self.layout = layout
        self.space = space
        self._removed = False

    def lookup(self, ids: _pack.Ids) -> list[bool]:
        """Which blocks are there. Blocks the caller."""
        packed, num = _pack.count_ids(ids)
        found = ctypes.create_string_buffer(max(num, 1))
        self.loader._check(_lib.lib().ucm_loader_lookup(
            self.loader._open(), self.number, packed, num, found), "lookup")
        return list(map(bool, found.raw[:num]))

    def prefix(self, ids: _pack.Ids) -> int:
        """How many are there, up to the first that is not. Blocks the
        caller."""
        count = ctypes.c_size_t()
        self.loader._check(_lib.lib().ucm_loader_prefix(
            self.loader._open(), self.number, *_pack.count_ids(ids),
            ctypes.byref(count)), "prefix")
        return count.value

    def remove(self) -> None:
        """Its pages are let go of: their memory may be freed. Blocks that are
        not whole are dropped. Again: nothing. Busy, and all is as before: a
        task of it is not done, or I/O that came too late is under way."""
        loader = self.loader
        with loader._closing:
            if self._removed:
                return
            loader._reap()
            _lib.call(loader._lib.ucm_loader_remove_group, "group",
                      loader._open(), self.number)
            loader._keep.remove(self.layout)
            self._removed = True

    def remove_blocks(self, ids: _pack.Ids) -> list[int]:
        """Remove blocks: 0 for each, or an errno (ENOENT: it was not there).
        Blocks the caller."""
        packed, num = _pack.count_ids(ids)
        results = (ctypes.c_int32 * max(num, 1))()
        self.loader._check(_lib.lib().ucm_loader_remove(
            self.loader._open(), self.number, packed, num, results), "remove")
        return [-result for result in results[:num]]

    def prefetch(self, ids: _pack.Ids) -> None:
        """They will be loaded soon: the mount copies those that lie in a slow
        tier to the fastest one. A hint; nobody waits for it.

        Of several tiers without a mount, their daemon copies them; the first
        call starts a private one if no other has them, and waits for that. Of
        one tier: nothing."""
        self.loader._prefetch(ids, self.space)
        _lib.lib().ucm_loader_prefetch(
            self.loader._open(), self.number, *_pack.count_ids(ids))

    def load(self, ids: _pack.Ids, pages: _pack.Numbers | None = None, *,
             first_layer: int = 0, num_layers: int = 0,
             addresses: _pack.Numbers | None = None, verify: str = "full",
             order: str = "blocks", group_layers: int = 0,
             priority: str = "demand", deadline_ms: int = 0,
             lend: str = "never", eventfd: int = 0,
             completions: Completions | None = None, after: int = 0) -> Task:
        """Load block ids[i] into page pages[i].

        num_layers 0: all from first_layer on. addresses, instead of pages:
        for each block as many as the layers have regions. verify: "full" (or
        "always"), "once", "header" or "none"; see ucm_load(3) for what each
        gives up. order "layers": the first layers of all blocks
        first, group_layers to a read. priority "prefetch": it goes after the
        loads that somebody waits for. deadline_ms: from now on. lend "local"
        or "always": pages that can be read into may stay lent past a deadline
        or a cancel, and are the caller's again when the task is returned();
        with a deadline they are read into from local file systems, or from
        all. eventfd: one of the caller's, which 1 is added to at the end, and
        again when it is returned() later. completions: where the end is told.
        after: a CUDA event (torch's cuda_event, recorded) that it begins
        after, and that lives until the task is done.
        InvalidArgument, with nothing started: ids, pages or layers that
        cannot be.
        """
        return self._submit(
            "ucm_load_submit", "load", ids, pages, addresses, eventfd,
            completions, first_layer=first_layer, num_layers=num_layers,
            verify=_verify_of(verify),
            order=_number_of("order", order, _c.LOAD_ORDER),
            group_layers=group_layers,
            priority=_number_of("priority", priority, _c.LOAD_PRIORITY),
            deadline_ms=deadline_ms,
            lend=_number_of("lend", lend, _c.LOAD_LEND), after=after)

    def save(self, ids: _pack.Ids, pages: _pack.Numbers | None = None, *,
             first_layer: int = 0, num_layers: int = 0,
             addresses: _pack.Numbers | None = None,
             parents: _pack.Ids | None = None, hold: bool = False,
             may_refuse: bool = False, deadline_ms: int = 0, eventfd: int = 0,
             completions: Completions | None = None,
             tell_copied: bool = False, after: int = 0) -> Task:
        """Save page pages[i] as block ids[i].

        A block that exists is skipped. parents: an id for each block. hold:
        keep whole blocks for commit(). may_refuse: the mount may refuse what
        is not worth its writing, which the outcome says; blocks of a chain in
        their order. tell_copied: completions are told when its pages may
        change again, too. Else as load().
        """
        return self._submit(
            "ucm_save_submit", "save", ids, pages, addresses, eventfd,
            completions, parents=parents, first_layer=first_layer,
            num_layers=num_layers, hold=hold, may_refuse=may_refuse,
            deadline_ms=deadline_ms, tell_copied=tell_copied, after=after)

    def commit(self, ids: _pack.Ids, *, parents: _pack.Ids | None = None,
               deadline_ms: int = 0, eventfd: int = 0,
               completions: Completions | None = None) -> Task:
        """Commit blocks that were saved with hold. EAGAIN: not all of its
        layers are saved yet; ENOENT: nothing is kept of it."""
        return self._submit("ucm_save_commit", "commit", ids, None, None,
                            eventfd, completions, parents=parents,
                            deadline_ms=deadline_ms)

    def abandon(self, ids: _pack.Ids | None = None) -> None:
        """Forget what was saved of blocks that are not committed yet; None:
        of all."""
        _lib.lib().ucm_save_abandon(
            self.loader._open(), self.number,
            *((None, 0) if ids is None else _pack.count_ids(ids)))

    def _submit(self, function: str, what: str, ids: _pack.Ids,
                pages: _pack.Numbers | None, addresses: _pack.Numbers | None,
                eventfd: int, completions: Completions | None,
                parents: _pack.Ids | None = None, **options: Any) -> Task:
        loader = self.loader
        handle = loader._open()
        loader._reap()
        packed, num = _pack.count_ids(ids)
        moves = _moves(what, packed, num, pages, addresses)
        keep = [self.layout, moves]
        request = _pack.fill(_c.Request(
            size=ctypes.sizeof(_c.Request), group=self.number,
            blocks=_pack.address_of(moves), num_blocks=num), what, options)
        if addresses is not None:
            numbers = _pack.pack_numbers(addresses, "Q", "addresses")
            self._check_addresses(numbers, num, options)
            request.addresses = _pack.address_of(numbers)
            keep.append(numbers)
        if parents is not None:
            above = _pack.pack_parents(what, parents, num)
            request.parents = ctypes.cast(
                ctypes.c_char_p(above), ctypes.c_void_p).value
            keep.append(above)
        if completions is not None:
            request.completions = completions._open().value
        own = -1 if eventfd or completions is not None else new_eventfd()
        request.eventfd = _pack.below(what, "eventfd", eventfd, 1 << 31) or \
            max(own, 0)
        # it may be told before it is known here
        with completions._lock if completions is not None else _NO_LOCK:
            out = ctypes.c_void_p()
            try:
                _lib.call(getattr(_lib.lib(), function), what, handle, request,
                          out)
            except BaseException:
                if own >= 0:
                    os.close(own)
                raise
            task = LoaderTask(loader, out.value, packed, self.layout, own,
                              what, completions)
            if completions is not None:
                completions._tasks[out.value] = task
        return task

    def _check_addresses(self, numbers: array, num: int,
                         options: dict[str, Any]) -> None:
        first, many = options["first_layer"], options["num_layers"]
        end = first + many if many else self.layout.geometry.num_layers
        each = self.layout.regions_of_layers(first, end)
        if len(numbers) != num * each:
            raise InvalidArgument(
                f"addresses: {len(numbers)} for {num} blocks of {each} "
                "regions each")


def _moves(what: str, packed: bytes, num: int, pages: _pack.Numbers | None,
           addresses: _pack.Numbers | None) -> array:
    if pages is None:
        if what != "commit" and addresses is None:
            raise InvalidArgument(f"{what}: neither pages nor addresses")
        numbers = array("I", bytes(4 * num))
    else:
        numbers = _pack.pack_numbers(pages, "I", "pages")
    if len(numbers) != num:
        raise InvalidArgument(f"{what}: {len(numbers)} pages for {num} blocks")
    return _pack.pack_moves(packed, numbers)
