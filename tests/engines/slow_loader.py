# SPDX-License-Identifier: Apache-2.0
"""ucmfs.loader with transfers that are late, in any order, and may fail.

A task of SlowLoader is handed to libucm only when it has been looked at some
number of times, drawn at random, by itself or when its queue is asked for what
has ended: until then nothing has been read from or written to the engine's
pages. A connector that takes a load for done,
or lets a page go, before its task says so is found out by what then happens
to the page. With a share of errors some blocks are never handed over, and
their outcome is one that libucm might have had.
"""

from __future__ import annotations

import errno
import random
from array import array
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional
from unittest import mock

import ucmfs.loader
import ucmfs.task
from ucmfs.errors import UcmfsError
from ucmfs.loader import Group, Loader
from ucmfs.task import Outcome

LOAD_ERRORS = (errno.EIO, errno.EBADMSG, errno.ENOENT, errno.ETIMEDOUT)
SAVE_ERRORS = (errno.ENOSPC, errno.ENOBUFS, errno.EIO, errno.ETIMEDOUT)


@dataclass
class Slowness:
    """delay: up to so many looks at a task until it begins. load_errors,
    save_errors: the share of blocks that fail."""

    seed: int = 0
    delay: int = 6
    load_errors: float = 0.0
    save_errors: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.loads = self.saves = self.failed = 0


class SlowTask:
    """A Task, as far as the connector uses one, over a later one."""

    def __init__(self, slow: Slowness, ids: bytes, pages: array, share: float,
                 errors: tuple, submit: Callable[..., Any]) -> None:
        num = len(ids) // 16
        self.ids = ids
        self.num = num
        self.bad = {i: slow.random.choice(errors) for i in range(num)
                    if slow.random.random() < share}
        slow.failed += len(self.bad)
        self._looks = slow.random.randint(0, slow.delay)
        self._submit = submit
        self._pages = pages
        self._real: Any = None

    def _begin(self) -> Any:
        if self._real is None:
            good = [i for i in range(self.num) if i not in self.bad]
            self._real = self._submit(
                b"".join(self.ids[16 * i:16 * i + 16] for i in good),
                array("I", (self._pages[i] for i in good)))
        return self._real

    def done(self) -> bool:
        if self._real is None and self._looks > 0:
            self._looks -= 1
            return False
        return self._begin().done()

    def copied(self) -> bool:
        if self._real is None and self._looks > 0:
            self._looks -= 1
            return False
        return self._begin().copied()

    def wait(self, timeout: Optional[float] = None) -> None:
        if timeout is None or not self._looks or self._real is not None:
            self._begin().wait(timeout)

    def result(self, timeout: Optional[float] = None) -> List[Outcome]:
        self._begin().result(timeout)
        return self.outcomes()

    def returned(self) -> bool:
        return self.done() and self._begin().returned()

    def wait_returned(self, timeout: Optional[float] = None) -> None:
        self._begin().wait_returned(timeout)

    def wait_layer(self, layer: int, timeout: Optional[float] = None) -> bool:
        return self._begin().wait_layer(layer, timeout) and not self.bad

    def wait_copied(self, timeout: Optional[float] = None) -> bool:
        return self._begin().wait_copied(timeout) and not self.bad

    def cancel(self) -> None:
        self._begin().cancel()

    def free(self) -> None:
        self._begin().free()

    def outcomes(self) -> List[Outcome]:
        real = iter(self._begin().outcomes())
        return [Outcome(self.bad[i], "injected", False, None)
                if i in self.bad else next(real) for i in range(self.num)]

    def errors(self) -> List[int]:
        return [outcome.err for outcome in self.outcomes()]

    @property
    def num_skipped(self) -> int:
        return self._begin().num_skipped

    @property
    def num_refused(self) -> int:
        return self._begin().num_refused

    @property
    def num_failed(self) -> int:
        return self.num - self.errors().count(0)

    def wait_begun(self, timeout: float) -> bool:
        """Wait for it if it is under way in libucm."""
        if self._real is None:
            return False
        with suppress(UcmfsError):
            self._real.wait(timeout)
        return True


class SlowCompletions:
    """Completions of such tasks: to ask is to look at each."""

    def __init__(self) -> None:
        self._tasks: Dict[SlowTask, bool] = {}  # its pages are to be told of

    def add(self, task: SlowTask, tell_copied: bool) -> None:
        self._tasks[task] = tell_copied

    def take(self, timeout: float = 0.0, most: int = 256) -> List[SlowTask]:
        news = self._look()
        if not news and timeout:
            any(task.wait_begun(timeout) for task in self._tasks)
            news = self._look()
        return news

    def _look(self) -> List[SlowTask]:
        news = []
        for task, tell_copied in list(self._tasks.items()):
            if task.done():
                del self._tasks[task]
                news.append(task)
            elif tell_copied and task.copied():
                self._tasks[task] = False
                news.append(task)
        return news

    def close(self) -> None:
        pass


class SlowGroup(Group):
    """slow is the loader's."""

    def load(self, ids, pages=None, *, completions=None,
             **options) -> SlowTask:
        slow = self.loader.slow
        slow.loads += 1
        task = SlowTask(
            slow, bytes(ids), array("I", pages), slow.load_errors,
            LOAD_ERRORS, lambda some, places: Group.load(
                self, some, places, **options))
        completions.add(task, False)
        return task

    def save(self, ids, pages=None, *, parents=None, completions=None,
             tell_copied=False, **options) -> SlowTask:
        slow = self.loader.slow
        slow.saves += 1
        ids = bytes(ids)
        above = dict(zip(_each(ids), _each(bytes(parents or b""))))

        def submit(some, places):
            return Group.save(
                self, some, places,
                parents=b"".join(above[one] for one in _each(some))
                if parents else None, **options)

        task = SlowTask(slow, ids, array("I", pages), slow.save_errors,
                        SAVE_ERRORS, submit)
        completions.add(task, tell_copied)
        return task


def _each(ids: bytes) -> List[bytes]:
    return [ids[i:i + 16] for i in range(0, len(ids), 16)]


@contextmanager
def slow_loaders(slow: Slowness) -> Iterator[None]:
    """Loaders that are made in here are slow."""

    class SlowLoader(Loader):
        def add_group(self, layout, space=None) -> SlowGroup:
            group = super().add_group(layout, space)
            return SlowGroup(self, group.number, layout, space)

    SlowLoader.slow = slow
    with mock.patch.object(ucmfs.loader, "Loader", SlowLoader), \
            mock.patch.object(ucmfs.task, "Completions", SlowCompletions):
        yield
