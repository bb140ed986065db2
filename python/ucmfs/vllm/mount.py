# SPDX-License-Identifier: Apache-2.0
"""A mount that may hang, or go and come back, below an engine that must not
wait for it.

Both ways into vLLM stand on this, and nothing here knows an engine. What may
hang is done by threads: Chores makes one call after another, an Attempt goes
on until it succeeds. A Link holds the indexes of some spaces and gets them
back when the mount is back. A Pause keeps loads away from a mount that fails
them.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import threading
import time
from concurrent import futures
from queue import SimpleQueue
from typing import Any, Callable, Iterable, NamedTuple, Sequence

from .. import _log
from ..blocks import Blocks
from ..errors import NotConnected, NotFound, Timeout, UcmfsError

log = logging.getLogger("vllm.ucmfs")
_log.use(log)  # what libucm has to say, too

RETRY_SECONDS = 1.0
START_SECONDS = 10.0  # for a mount that does not answer when an engine starts
CLOSE_SECONDS = 10.0  # for each step of an end, where the mount hangs
WARN_SECONDS = 10.0
CHORES_MOST = 10_000
LATE_SECONDS = 0.25  # for a daemon that is asked what it has
TOUCHES_MOST = 100_000  # blocks that wait to be told
PAUSE_SECONDS = 1.0
PAUSE_MOST = 30.0
SLOWEST = 64 << 20  # bytes/s that a transfer may take beside its deadline

# Loads that end so say that the next one will, too.
_HOPELESS = (errno.ETIMEDOUT, errno.ENOTCONN, errno.EIO)
_CAUSES = {
    errno.ENOENT: "absent", errno.EBADMSG: "damaged",
    errno.ETIMEDOUT: "deadline", errno.ECANCELED: "cancelled",
    errno.ENOBUFS: "budget", errno.ENOSPC: "full", errno.EDQUOT: "full",
    errno.ENOTCONN: "disconnected", errno.ESTALE: "disconnected",
}


def cause_of(err: int) -> str:
    """An errno as the label of a metric: one of a few words."""
    return _CAUSES.get(err, "io")


def deadline_of(deadline_ms: int, num_bytes: int) -> int:
    """Of a transfer: its size has time of its own. 0: none."""
    return deadline_ms and deadline_ms + num_bytes * 1000 // SLOWEST


class Teller:
    """Warnings, each kind at most so often: a mount that is gone fails every
    transfer."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._told: dict[str, float] = {}

    def warn(self, kind: str, text: str, *args: Any) -> None:
        now = time.monotonic()
        if now - self._told.get(kind, -WARN_SECONDS) >= WARN_SECONDS:
            self._told[kind] = now
            log.warning("ucmfs: %s: %s: " + text, self._who, kind, *args)


# ---- threads ----

def apart(name: str, call: Callable[[], Any]) -> threading.Thread:
    """Make a call in a thread of its own, which ends with the process if it
    hangs."""
    thread = threading.Thread(target=call, daemon=True, name=name)
    thread.start()
    return thread


def _answer(answer: futures.Future[Any], find: Callable[[], Any]) -> None:
    try:
        answer.set_result(find())
    except Exception as error:  # reported to the asker
        answer.set_exception(error)


class Chores:
    """Calls that may hang, one after another, in a thread that is started
    with the first. Nobody waits for them but end()."""

    def __init__(self, name: str, most: int = CHORES_MOST) -> None:
        self._name = name
        self._most = most
        # None: the end
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._ending = False

    def add(self, chore: Callable[[], None]) -> None:
        """It is dropped if too many wait, or the end has come."""
        with self._lock:
            if self._ending or self._todo.qsize() >= self._most:
                return
            self._todo.put(chore)
            if self._thread is None:
                self._thread = apart(self._name, self._run)

    def ask(self, find: Callable[[], Any],
            seconds: float = LATE_SECONDS) -> Any:
        """What a call returns, or raises. Timeout: not in these
        seconds, with what was added before."""
        answer: futures.Future[Any] = futures.Future()
        self.add(functools.partial(_answer, answer, find))
        if not futures.wait([answer], seconds).done:
            raise Timeout(errno.ETIMEDOUT, f"{self._name}: no answer within "
                          f"{seconds:g} s")
        return answer.result()

    def _run(self) -> None:
        for chore in iter(self._todo.get, None):
            try:
                chore()
            except Exception:  # the next ones are to be done all the same
                log.exception("ucmfs: in the background")

    def end(self) -> bool:
        """Take no more and wait for those that are left: False if they hang,
        and are abandoned."""
        with self._lock:
            self._ending = True
            self._todo.put(None)
        if self._thread is None:
            return True
        self._thread.join(CLOSE_SECONDS)
        return not self._thread.is_alive()


class Attempt:
    """Something that is made in a thread, every RETRY_SECONDS until it
    succeeds. discard: what becomes of it where nobody wants it any more."""

    def __init__(self, name: str, make: Callable[[], Any],
                 discard: Callable[[Any], None] = lambda made: None) -> None:
        self._make = make
        self._discard = discard
        self._made: Any = None
        self._lock = threading.Lock()
        self._unwanted = threading.Event()
        self._tried = threading.Event()
        self._waited = False
        self.error: Exception | None = None  # of the last try
        self._thread = apart(name, self._run)

    def _run(self) -> None:
        told = ""
        while not self._unwanted.is_set():
            try:
                self._keep(self._make())
                return
            except Exception as error:  # it may be another the next time
                self.error = error
                if str(error) != told:
                    told = str(error)
                    log.warning("ucmfs: %s; trying again", error)
            self._tried.set()
            self._unwanted.wait(RETRY_SECONDS)

    def _keep(self, made: Any) -> None:
        with self._lock:
            if not self._unwanted.is_set():
                self._made = made
                self._tried.set()
                return
        self._discard(made)

    def take(self) -> Any:
        """What was made, once; None: nothing yet."""
        with self._lock:
            made, self._made = self._made, None
        return made

    def wait_once(self, seconds: float) -> None:
        """Wait for the first try to end, unless that was waited for."""
        if not self._waited:
            self._waited = True
            self._tried.wait(seconds)

    def give_up(self) -> None:
        with self._lock:
            self._unwanted.set()
            made, self._made = self._made, None
        if made is not None:
            apart("ucmfs-close", lambda: self._discard(made))

    def end(self) -> bool:
        """Give up, and wait for the thread: False if it hangs."""
        self.give_up()
        self._thread.join(CLOSE_SECONDS)
        return not self._thread.is_alive()


def is_missing(error: BaseException | None) -> bool:
    """Whether it says that there is no mount at a path, not that something is
    wrong with it."""
    return isinstance(error, (NotFound, NotConnected, Timeout))


def at_start(mount: str, name: str, make: Callable[[], Any],
             discard: Callable[[Any], None]) -> tuple[Any, Attempt]:
    """What an engine needs of a mount when it starts, if the mount may be
    missing: what was made (None: not yet), and the attempt that goes on. Any
    other error is raised."""
    attempt = Attempt(name, make, discard)
    attempt.wait_once(START_SECONDS)
    made = attempt.take()
    if made is None and attempt.error is not None and \
            not is_missing(attempt.error):
        attempt.give_up()
        raise attempt.error
    if made is None:
        log.error("ucmfs: %s: %s; the engine starts without it, nothing is "
                  "kept, and everything is a miss until it is there", mount,
                  attempt.error or "no answer")
    return made, attempt


# ---- ends ----

def end_tasks(tasks: Iterable[Any]) -> None:
    """Wait for tasks. Those that are not done in time are cancelled, and no
    longer touch the engine's memory when this returns."""
    end = time.monotonic() + CLOSE_SECONDS
    for task in tasks:
        try:
            task.wait_returned(max(0.0, end - time.monotonic()))
        except UcmfsError:
            # It does not wait for I/O, unless that goes into that memory.
            task.free()


def end_tasks_in_time(tasks: Sequence[Any]) -> bool:
    """The same, but for I/O that hangs and goes into the engine's memory:
    False, and whoever calls must see that the memory stays."""
    thread = apart("ucmfs-end", lambda: end_tasks(tasks))
    thread.join(2 * CLOSE_SECONDS)
    return not thread.is_alive()


def close_all(mount: str, closers: Sequence[Callable[[], Any]],
              idle: bool = True) -> None:
    """Call all, in a thread that is abandoned where the mount hangs. idle:
    it was not seen to hang so far."""
    def close() -> None:
        for each in closers:
            each()

    thread = apart("ucmfs-close", close)
    thread.join(CLOSE_SECONDS)
    if thread.is_alive() or not idle:
        log.warning("ucmfs: %s hangs; it is left as it is", mount)


# ---- spaces ----

class Space(NamedTuple):
    """A space and what it is for."""

    name: str
    manifest: dict[str, Any]


class Unmapped:
    """Stands for an index that asks the daemon, which may hang: look-ups raise
    Timeout then. It belongs to the asker's thread."""

    def __init__(self, index: Any, asker: Chores) -> None:
        self._index = index
        self._asker = asker

    def prefix(self, ids: bytes) -> tuple[int, bool]:
        return self._asker.ask(lambda: self._index.prefix(ids))

    def lookup(self, ids: bytes) -> tuple[bytes, bytes]:
        return self._asker.ask(lambda: self._index.lookup(ids))

    def close(self) -> None:
        self._asker.add(self._index.close)


class Open:
    """Spaces that are open: of each its name, id, index and hasher.

    mapped: all indexes answer from memory; else why not.
    """

    def __init__(self, mount: str, spaces: Sequence[Space],
                 ranks: int) -> None:
        from ..hash import Hasher
        from ..index import Index
        from ..namespace import ensure_space, read_manifest

        self.names = [space.name for space in spaces]
        self.ids: list[bytes] = []
        self.hashers: list[Any] = []
        self.indexes: list[Any] = []
        self.mapped = True
        self.why = ""
        self._asker = Chores("ucmfs-lookup")
        self.new: list[Space] = []  # they were not there before
        try:
            for name, manifest in spaces:
                if read_manifest(mount, name) is None:
                    self.new.append(Space(name, manifest))
                space_id = ensure_space(mount, name, manifest)
                self.ids.append(space_id)
                self.hashers.append(Hasher(
                    "external", space_id=space_id, world_size=ranks,
                    block_size=manifest["geometry"]["block_size"]))
                self.indexes.append(Index(mount, name))
            for info in [index.info() for index in self.indexes]:
                if info["backend"] != "map":
                    self.mapped, self.why = False, info["why"]
            if not self.mapped:
                self.indexes = [Unmapped(index, self._asker)
                                for index in self.indexes]
        except BaseException:
            self.close()
            raise

    @property
    def told(self) -> list[tuple[str, bytes]]:
        """What others need to know: names and ids."""
        return list(zip(self.names, self.ids))

    def close(self) -> None:
        """May hang."""
        for index in self.indexes:
            index.close()
        self._asker.end()


# Behind the model's name in that of a space: the manifest's digest, the group,
# the stage.
_DIGEST = re.compile("[0-9a-f]{12}(-g[0-9]+)?(-p[0-9]+)?$")
TOLD_MOST = 5  # differences


def _tell_nearest(mount: str, space: Space) -> None:
    """Why a space is new, though there are others for the same model: an
    engine that starts cold is else a riddle. May hang."""
    from ..namespace import nearest

    if not _DIGEST.search(space.name):
        return
    try:
        found = nearest(mount, _DIGEST.sub("", space.name), space.name,
                        space.manifest)
    except (OSError, UcmfsError) as error:
        log.debug("ucmfs: %s: not compared: %s", space.name, error)
        return
    if found is None or [key for key, *_ in found[1]] == ["epoch"]:
        return
    other, differences = found
    told = ", ".join(f"{key} is {there!r} there and {here!r} here"
                     for key, there, here in differences[:TOLD_MOST])
    log.warning("ucmfs: space %s is new and empty. Blocks of %s, which is "
                "most like it, are not used: %s%s", space.name, other, told,
                "" if len(differences) <= TOLD_MOST else
                f", and {len(differences) - TOLD_MOST} more")


class Link:
    """Spaces of a mount, opened by the constructor, which raises what the
    mount says, and later by a thread; without spaces, by begin(). One thread
    at a time.

    ranks: that have ids of their own. may_miss: a mount that is missing, or
    hangs, is none of the constructor's errors. losses: how often the mount has
    gone.
    """

    def __init__(self, mount: str, spaces: Sequence[Space],
                 ranks: int = 1, may_miss: bool = False) -> None:
        self._mount = mount
        self._spaces: Sequence[Space] = ()
        self._compares = True
        self._ranks = ranks
        self._may_miss = may_miss
        self._attempt: Attempt | None = None
        self._open: Open | None = None
        self.losses = 0
        if spaces:
            self.begin(spaces)

    def begin(self, spaces: Sequence[Space]) -> None:
        """Open them, as the constructor does."""
        self._spaces = spaces
        if not self._may_miss:
            self._open = self._make(spaces)
            return
        self._open, attempt = at_start(
            self._mount, "ucmfs-open", lambda: self._make(spaces), Open.close)
        if self._open is None:
            self._attempt = attempt

    def _make(self, spaces: Sequence[Space]) -> Open:
        made = Open(self._mount, spaces, self._ranks)
        if made.new and self._compares:
            first = made.new[0]
            apart("ucmfs-compare", lambda: _tell_nearest(self._mount, first))
        return made

    @property
    def now(self) -> Open | None:
        """What is open; None: the mount is gone, or not back yet."""
        if self._open is None and self._attempt is not None:
            self._open = self._attempt.take()
            if self._open is not None:
                self._attempt = None
                log.info("ucmfs: %s: connected: %s", self._mount,
                         ", ".join(self._open.names))
        return self._open

    def lost(self, error: BaseException) -> None:
        """What was open is of no use any more: open it anew."""
        if self._open is None:
            return
        log.warning("ucmfs: %s: %s; everything is a miss until it is back",
                    self._mount, error)
        self.losses += 1
        self._reopen()

    def move(self, spaces: Sequence[Space], seconds: float) -> bool:
        """Leave the spaces for others: False if these are not open by then,
        which goes on being tried."""
        self._spaces = spaces
        self._compares = False  # whoever moves knows why
        self._reopen().wait_once(seconds)
        return self.now is not None

    def _reopen(self) -> Attempt:
        old, spaces = self._open, self._spaces
        if self._attempt is not None:
            self._attempt.give_up()
        if old is not None:
            apart("ucmfs-close", old.close)
        self._open = None
        self._attempt = Attempt("ucmfs-reopen", lambda: self._make(spaces),
                                Open.close)
        return self._attempt

    def close(self) -> None:
        """May hang, as to close a file may."""
        if self._attempt is not None:
            self._attempt.give_up()
        if self._open is not None:
            self._open.close()
        self._open = self._attempt = None


# ---- blocks ----

class Pause:
    """Whether loads are left out for a while, because one has ended as the
    next would. It lasts as long as that one took, at least PAUSE_SECONDS, and
    twice as long as the one before, up to PAUSE_MOST: a mount that hangs may
    cost no more than half of the time."""

    def __init__(self, mount: str,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._mount = mount
        self._clock = clock
        self._until = 0.0
        self._seconds = 0.0

    def __bool__(self) -> bool:
        return self._until > 0 and self._clock() < self._until

    def ended(self, err: int, seconds: float) -> None:
        """A transfer has: 0, or an errno of a block that failed."""
        if not err:
            self._seconds = 0.0
        elif err in _HOPELESS and not self:
            self._seconds = min(max(2 * self._seconds, seconds,
                                    PAUSE_SECONDS), PAUSE_MOST)
            self._until = self._clock() + self._seconds
            log.warning("ucmfs: %s: %s; everything is a miss for %g s",
                        self._mount, os.strerror(err), self._seconds)


class Touches:
    """Tells a mount which blocks were used: a hint, in a thread that nobody
    waits for. What comes while it tells is sent with the next call."""

    def __init__(self, chores: Chores, mount: str, space: str) -> None:
        self._chores = chores
        self._mount = mount
        self._space = space
        self._lock = threading.Lock()
        self._ids: dict[bytes, None] = {}  # in their order
        self._told = True  # there is nothing that no chore is to tell

    def add(self, ids: Iterable[bytes]) -> None:
        with self._lock:
            if len(self._ids) < TOUCHES_MOST:
                self._ids.update(dict.fromkeys(ids))
            wake = self._told and bool(self._ids)
            self._told = self._told and not wake
        if wake:
            self._chores.add(self._tell)

    def _tell(self) -> None:
        with self._lock:
            ids, self._ids, self._told = self._ids, {}, True
        try:
            with Blocks(self._mount) as blocks:
                blocks.touch(list(ids), self._space)
        except UcmfsError as error:
            log.debug("ucmfs: uses of %s: unreported: %s", self._space, error)


def pin_blocks(mount: str, space: str, ids: Sequence[bytes]) -> None:
    """Those that are there. May hang."""
    _of_each(Blocks.pin, "pinned", "ucmfs: blocks of %s: not pinned: %s",
             mount, space, ids)


def settle_blocks(wanted: Any, mount: str, space: str,
                  ids: Sequence[bytes]) -> None:
    """What a request that has ended wants of its blocks. May hang."""
    if wanted.pin:
        pin_blocks(mount, space, ids)
    if wanted.end:
        _of_each(Blocks.end, "given up",
                 "ucmfs: blocks of %s: not given up: %s", mount, space, ids)
    elif wanted.ttl:
        _of_each(functools.partial(Blocks.keep, seconds=wanted.ttl), "kept",
                 "ucmfs: blocks of %s: not kept: %s", mount, space, ids)


def warm_blocks(mount: str, space: str, ids: Sequence[bytes]) -> None:
    """As far as the daemon takes them. May hang."""
    try:
        with Blocks(mount) as blocks:
            blocks.warm(ids, space)
    except UcmfsError as error:
        # each request of an engine that is not the owner would be a line
        say = log.debug if error.errno == errno.EPERM else log.warning
        say("ucmfs: blocks of %s: not warmed: %s", space, error)


def remove_blocks(mount: str, space: str, ids: Sequence[bytes]) -> None:
    """Damaged blocks are in the way of whole ones: they would be found again
    and again, and a save finds that they are there. May hang."""
    _of_each(Blocks.remove, "removed",
             "ucmfs: damaged blocks of %s: not removed: %s", mount, space, ids)


def _of_each(call: Callable[..., list[int]], what: str, none: str, mount: str,
             space: str, ids: Sequence[bytes]) -> None:
    """Make a call for blocks, and warn of what has failed: all (none), or some
    of them."""
    try:
        with Blocks(mount) as blocks:
            results = call(blocks, list(ids), space)
    except UcmfsError as error:
        log.warning(none, space, error)
        return
    for id, result in zip(ids, results):
        if result not in (0, errno.ENOENT):
            log.warning("ucmfs: block %s of %s: not %s: %s", id.hex(), space,
                        what, os.strerror(result))


def leave_space(mount: str, space: str) -> bool:
    """Remove a space that nobody can find any more: True if it has gone. May
    hang."""
    from ..namespace import remove_space

    try:
        remove_space(mount, space)
    except NotFound:
        pass
    except UcmfsError as error:
        log.warning("ucmfs: %s; it is tried again later", error)
        return False
    return True


def leave_spaces(mount: str, names: list[str], chores: Chores) -> None:
    """Those that an engine has left, and nobody else ever finds. What cannot
    be removed yet stays among the names, for the next time."""
    def leave(name: str) -> None:
        if leave_space(mount, name) and name in names:
            names.remove(name)

    for name in list(names):  # the thread of the chores shortens it
        chores.add(functools.partial(leave, name))
