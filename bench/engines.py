# SPDX-License-Identifier: Apache-2.0
"""How fast are loads, stores and lookups, beside vLLM's `fs` tier?

bench/engines makes the directories and mounts and starts this program. Sides
take turns on the same bytes and the same shared mapping; who begins changes
every round, and the first round is dropped. What is printed: both medians, the
median of the rounds' ratios and its quartiles. Blocks go to other slots in
each turn, and some slots are compared with what they must hold.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import mmap
import os
import random
import resource
import statistics
import sys
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import ucmfs
from vllm.fs_io_C import batch_lookup
from vllm.v1.kv_offload.tiering.fs.io import (batch_load_block,
                                              batch_store_block)
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool

SIZE = 2 << 20
KEYS = 8192
CHECKED = 8  # slots in a turn
OLD_S = 31   # files of UCM_FILESTAMP_AGE_S are marked as verified
HEADS = ("where", "section", "work", "unit", "theirs", "ucmfs", "ratio",
         "q1", "q3", "target", "")

Turn = Callable[[], None]


class Slots:
    """The primary tier of the engine: slots in one shared mapping."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.bytes = num * SIZE
        fd = os.memfd_create("engines")
        os.ftruncate(fd, self.bytes)
        self.map = mmap.mmap(fd, self.bytes)
        os.close(fd)
        self.view = memoryview(self.map)
        self.array = np.frombuffer(self.map, np.uint64).reshape(num, -1)
        self.base = np.random.default_rng(1).integers(
            1 << 63, size=SIZE // 8, dtype=np.uint64)
        self.shift = 0
        for block in range(num):
            self.array[block] = self.expected(block)

    def expected(self, block: int) -> np.ndarray:
        return self.base + np.uint64(block * 0x9E3779B97F4A7C15 % (1 << 63))

    def move_on(self) -> None:
        self.shift = (self.shift + 7) % self.num

    def slot_of(self, block: int) -> int:
        return (block + self.shift) % self.num

    def check(self, all_of_them: bool) -> None:
        chosen = range(self.num) if all_of_them else \
            random.sample(range(self.num), min(CHECKED, self.num))
        for block in chosen:
            if not np.array_equal(self.array[self.slot_of(block)],
                                  self.expected(block)):
                sys.exit(f"engines: block {block}: its slot has other bytes")

    def restore(self) -> None:
        self.shift = 0
        for block in range(self.num):
            self.array[block] = self.expected(block)


class FsTier:
    """vLLM's threads and C functions, on a directory."""

    def __init__(self, slots: Slots, folder: str, graves: str,
                 jobs: int) -> None:
        self.slots = slots
        self.folder = folder
        self.graves = graves
        self.turn = 0
        self.jobs = jobs
        self.pool = DualQueueThreadPool(16, 16)

    def _path(self, block: int) -> str:
        name = f"{block * 0x9E3779B97F4A7C15 % (1 << 64):016x}" * 4
        return f"{self.folder}/{self.turn}/{name[:3]}/{name[3:5]}_g0/{name}.bin"

    def _run(self, call: Callable[..., None],
             enqueue: Callable[..., None]) -> None:
        for job, part in enumerate(parts_of(self.slots.num, self.jobs)):
            enqueue(job, 1, [functools.partial(
                call, [self._path(b) for b in part], self.slots.view,
                [self.slots.slot_of(b) * SIZE for b in part], SIZE, True)])
        left = self.jobs
        while left:
            for _, good, _ in self.pool.get_finished():
                if not good:
                    sys.exit(f"engines: {self.folder}: a job has failed")
                left -= 1
            if left:
                time.sleep(0.0005)

    def load(self) -> None:
        self._run(batch_load_block, self.pool.enqueue_load)

    def store(self) -> None:
        self._run(batch_store_block, self.pool.enqueue_store)

    def renew(self, behind: Optional[str] = None) -> None:
        """Remove the files, and go on in a new folder. behind: where the same
        files lie, if this is a mount."""
        if self.turn:
            for block in range(self.slots.num):
                path = self._path(block)
                bury(path.replace(self.folder, behind or self.folder),
                     self.graves)
                os.unlink(path)
        self.turn += 1

    def close(self) -> None:
        self.pool.shutdown(wait=True)


class Store:
    """A loader, and the slots as its pages."""

    def __init__(self, slots: Slots, jobs: int, *, direct: bool = False,
                 verify: str = "full", **options: object) -> None:
        self.slots = slots
        self.jobs = jobs
        self.verify = verify
        self.ids: List[bytes] = []
        self.name_blocks(0)
        layout = ucmfs.Layout(ucmfs.Geometry(
            num_layers=1, block_size=16, k_bytes=SIZE, order="opaque"),
            slots.num)
        layout.add_tensor(slots.array.view(np.uint8), "BD")
        layout.seal()
        if direct:
            layout.set_direct()
        self.loader = ucmfs.Loader(**options)
        self.group = self.loader.add_group(layout)

    def name_blocks(self, turn: int) -> None:
        """Blocks of another turn have other names."""
        chance = random.Random(turn)
        self.turn = turn
        self.ids = [chance.randbytes(16) for _ in range(self.slots.num)]

    def _run(self, call: Callable[..., ucmfs.Task],
             **options: object) -> None:
        tasks = [call(self.ids[part.start:part.stop],
                      [self.slots.slot_of(b) for b in part], **options)
                 for part in parts_of(self.slots.num, self.jobs)]
        for task in tasks:
            task.wait()
            task.free()

    def load(self) -> None:
        self._run(self.group.load, verify=self.verify)

    def store(self) -> None:
        self._run(self.group.save)

    def close(self) -> None:
        self.loader.close()


_buried = itertools.count()


def bury(path: str, graves: str) -> None:
    """A file that is to be unlinked gives back its room, but keeps its inode:
    ext4 does not use one again that was free for less than some seconds, and
    looks long for others, which whoever creates next would pay for."""
    os.link(path, f"{graves}/{next(_buried)}")
    os.truncate(path, 0)


def parts_of(num: int, jobs: int) -> List[range]:
    each = -(-num // jobs)
    return [range(i, min(i + each, num)) for i in range(0, num, each)] + \
        [range(0)] * (jobs - -(-num // each))


# ---- taking turns ----

def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Side:
    """One of those that take turns; figures in the order of rounds."""

    def __init__(self, name: str, turn: Turn, before: Optional[Turn] = None,
                 after: Optional[Turn] = None) -> None:
        self.name = name
        self.turn = turn
        self.before = before
        self.after = after
        self.seconds: List[float] = []
        self.cpu: List[float] = []

    def run(self, counts: bool) -> None:
        if self.before:
            self.before()
        cpu, began = cpu_seconds(), time.perf_counter()
        self.turn()
        seconds = time.perf_counter() - began
        cpu = cpu_seconds() - cpu
        if counts:
            self.seconds.append(seconds)
            self.cpu.append(cpu)
        if self.after:
            self.after()


def take_turns(sides: Sequence[Side], rounds: int) -> None:
    for number in range(rounds + 1):
        for i in range(len(sides)):
            sides[(i + number) % len(sides)].run(number > 0)


# ---- the table ----

class Table:
    def __init__(self, label: str, tsv: bool) -> None:
        self.label = label
        self.tsv = tsv
        self.row(HEADS)

    def row(self, fields: Sequence[str]) -> None:
        if self.tsv:
            print("\t".join(fields), flush=True)
            return
        widths = (6, 7, 46, 5, 8, 8, 6, 6, 6, 8, 4)
        print(" ".join(f"{text:{width}}" for text, width
                       in zip(fields, widths)).rstrip(), flush=True)

    def compare(self, section: str, work: str, unit: str, there: List[float],
                here: List[float], least: Optional[float] = None,
                most: Optional[float] = None) -> None:
        """Ratios are here / there, round by round."""
        ratios = [h / t for h, t in zip(here, there)]
        middle = statistics.median(ratios)
        low, high = quartiles(ratios)
        target = f">= {least:.2f}" if least else \
            f"<= {most:.2f}" if most else "-"
        self.row((self.label, section, work, unit,
                  number(statistics.median(there)),
                  number(statistics.median(here)), f"{middle:.2f}",
                  f"{low:.2f}", f"{high:.2f}", target,
                  verdict(low, high, least, most)))


def verdict(low: float, high: float, least: Optional[float] = None,
            most: Optional[float] = None) -> str:
    """What the quartiles say of a target, see table.h."""
    if not least and not most:
        return "-"
    if os.environ.get("UCMFS_BENCH_BUSY"):
        return "busy"
    good = [(not least or value >= least) and (not most or value <= most)
            for value in (low, high)]
    return "open" if good[0] != good[1] else "PASS" if good[0] else "MISS"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def quartiles(values: List[float]) -> Tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def compare_rates(table: Table, section: str, slots: Slots, there: Side,
                  here: Side, least: Optional[float],
                  most_cpu: Optional[float]) -> None:
    def rates(side: Side) -> List[float]:
        return [slots.bytes / 1e6 / s for s in side.seconds]

    def cpu(side: Side) -> List[float]:
        return [s / (slots.bytes / 1e9) for s in side.cpu]

    work = f"{here.name} / {there.name}"
    table.compare(section, work, "MB/s", rates(there), rates(here), least)
    table.compare(section, f"{work}, CPU", "s/GB", cpu(there), cpu(here),
                  most=most_cpu)


# ---- sections ----

class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.rounds = options.rounds
        self.jobs = options.jobs
        self.work = options.work
        self.slots = Slots(options.blocks)
        self.table = Table(options.label, options.tsv)
        self.in_memory = options.label == "tmpfs"
        self.first = True

    def path(self, name: str) -> str:
        return f"{self.work}/{name}"

    def fs_tier(self, folder: str) -> FsTier:
        os.makedirs(folder, exist_ok=True)
        graves = self.path("graves")
        os.makedirs(graves, exist_ok=True)
        return FsTier(self.slots, folder, graves, self.jobs)

    def load_side(self, name: str, what: "FsTier | Store") -> Side:
        seen: Dict[str, bool] = {}

        def check() -> None:
            self.slots.check(not seen)
            seen["all"] = True

        return Side(name, what.load, self.slots.move_on, check)

    def load(self) -> None:
        slots = self.slots
        fs = self.fs_tier(self.path("plain/loads"))
        tier, mount = self.path("tier"), self.path("mnt")
        maker = Store(slots, self.jobs, mount=mount)
        slots.restore()
        fs.store()
        maker.store()
        maker.close()
        time.sleep(OLD_S)  # then the turn that does not count marks the files
        many = 2 * slots.num + 64
        stores = {
            "tiers": Store(slots, self.jobs, tiers=tier),
            "tiers, direct": Store(slots, self.jobs, tiers=tier,
                                   direct=True),
            "tiers, header only": Store(slots, self.jobs, tiers=tier,
                                        verify="header"),
            "tiers, direct, header only": Store(
                slots, self.jobs, tiers=tier, direct=True, verify="header"),
            "mount": Store(slots, self.jobs, mount=mount),
            "mount, direct": Store(slots, self.jobs, mount=mount,
                                   direct=True),
            "mount, once": Store(slots, self.jobs, mount=mount,
                                 verify="once"),
            "mount, direct, once": Store(slots, self.jobs, mount=mount,
                                         direct=True, verify="once"),
            "mount, direct, header only": Store(
                slots, self.jobs, mount=mount, direct=True, verify="header"),
        }
        if self.in_memory:
            stores = {
                "tiers": stores["tiers"],
                "tiers, 1 thread": Store(slots, self.jobs, tiers=tier,
                                         threads=1),
                "tiers, kept open": Store(slots, self.jobs, tiers=tier,
                                          open_files=many),
                "mount": stores["mount"],
                "mount, once": stores["mount, once"],
            }
        sides = [self.load_side("fs tier", fs)] + [
            self.load_side(name, store) for name, store in stores.items()]
        take_turns(sides, self.rounds)
        least = 1.2 if self.in_memory else 1.0
        for side in sides[1:]:
            asked = side.name in ("tiers", "tiers, direct")
            compare_rates(self.table, "load", slots, sides[0], side,
                          least if asked else None, 0.6 if asked else None)
        for store in stores.values():
            store.close()
        fs.close()

    def peers(self) -> None:
        import peers  # where LMCache and NIXL are installed

        slots, mount = self.slots, self.path("mnt")
        maker = Store(slots, self.jobs, mount=mount)
        maker.name_blocks(1 << 21)
        slots.restore()
        maker.store()
        maker.close()
        ours = Store(slots, self.jobs, tiers=self.path("tier"))
        ours.name_blocks(1 << 21)
        others = [peers.open_peer(slots, name, self.path("plain/peer"))
                  for name in peers.NAMES]
        sides = [self.load_side("tiers", ours)] + [
            Side(name, peer.load, peer.clear, peer.check)
            for name, peer in zip(peers.NAMES, others)]
        take_turns(sides, self.rounds)
        for side in sides[1:]:
            compare_rates(self.table, "peers", slots, side, sides[0], None,
                          None)
        ours.close()
        for peer in others:
            peer.close()

    def store_side(self, name: str, store: Store, folder: str,
                   behind: str) -> Side:
        def prepare() -> None:
            store.name_blocks(store.turn + 1)

        def clean() -> None:
            for name in map(bytes.hex, store.ids):
                path = f"blocks/{name[:2]}/{name}.bin"
                bury(f"{behind}/{path}", self.path("graves"))
                os.unlink(f"{folder}/{path}")

        return Side(name, store.store, prepare, clean)

    def store(self) -> None:
        fs = self.fs_tier(self.path("plain/stores"))
        saves, mount = self.path("saves"), self.path("mnt")
        # all of them may wait
        staging = max(256 << 20, self.slots.bytes // 2)
        stores = (Store(self.slots, self.jobs, tiers=saves,
                        staging_bytes=staging),
                  Store(self.slots, self.jobs, mount=mount,
                        staging_bytes=staging))
        sides = [Side("fs tier", fs.store, fs.renew),
                 self.store_side("tiers", stores[0], saves, saves),
                 self.store_side("mount", stores[1], mount,
                                 self.path("tier"))]
        stores[1].name_blocks(1 << 20)
        self.slots.restore()
        take_turns(sides, self.rounds)
        for side in sides[1:]:
            compare_rates(self.table, "store", self.slots, sides[0], side,
                          1.0, None)
        for store in stores:
            store.close()
        fs.close()

    def files(self) -> None:
        tiers = [self.fs_tier(self.path("plain/files")),
                 self.fs_tier(self.path("mnt/files/bench"))]
        names = ("fs tier", "its own on files/")
        self.slots.restore()
        stores = [Side(names[0], tiers[0].store, tiers[0].renew),
                  Side(names[1], tiers[1].store, functools.partial(
                      tiers[1].renew, self.path("tier/files/bench")))]
        take_turns(stores, self.rounds)
        loads = [self.load_side(name, fs) for name, fs in zip(names, tiers)]
        take_turns(loads, self.rounds)
        for section, sides in (("files-l", loads), ("files-s", stores)):
            compare_rates(self.table, section, self.slots, sides[0],
                          sides[1], 0.95, None)
        for fs in tiers:
            fs.close()

    def lookup(self) -> None:
        keys = [random.Random(n).randbytes(32) for n in range(KEYS)]
        paths = [self._key_path(key) for key in keys]
        for path in paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii"):
                pass
        hasher = ucmfs.Hasher("external", block_size=16,
                              space_id=bytes(range(32)))
        packed = hasher.external(b"".join(keys), 32)
        self._plant(packed)
        index = ucmfs.Index(self.path("names-mnt"))

        def around() -> None:
            ids = hasher.external(b"".join(keys), 32)
            if not all(index.lookup(ids)[0]):
                sys.exit("engines: a block is not found")

        def theirs() -> None:
            if not all(batch_lookup([self._key_path(k) for k in keys])):
                sys.exit("engines: a file is not found")

        sides = [Side("access()", lambda: batch_lookup(paths)),
                 Side("index", lambda: index.prefix(packed)),
                 Side("access(), names made", theirs),
                 Side("index, Python around it", around)]
        take_turns(sides, max(10 * self.rounds, 10))
        ms = [[1e3 * s for s in side.seconds] for side in sides]
        fast = [[1 / t for t in times] for times in ms]
        self.table.compare("lookup", "prefix / access()", "1/ms", fast[0],
                           fast[1], 20)
        self.table.compare("lookup", "all with Python around it", "ms",
                           ms[2], ms[3])
        low, high = quartiles(ms[3])
        self.table.row((self.table.label, "lookup",
                        "8192 keys, Python around it", "ms", "-",
                        number(statistics.median(ms[3])), "-", "-", "-",
                        "<= 2", verdict(low, high, most=2)))
        index.close()
        hasher.close()

    def _key_path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self.work}/plain/names/{name[:3]}/{name[3:5]}_g0/{name}.bin"

    def _plant(self, packed: bytes) -> None:
        """Small blocks of these names, on a mount of their own."""
        page = np.zeros((1, 4096), np.uint8)
        layout = ucmfs.Layout(ucmfs.Geometry(
            num_layers=1, block_size=16, k_bytes=4096, order="opaque"), 1)
        layout.add_tensor(page, "BD")
        layout.seal()
        with ucmfs.Loader(mount=self.path("names-mnt")) as loader:
            loader.add_group(layout).save(packed, [0] * KEYS).wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--tsv", action="store_true")
    parser.add_argument("sections", nargs="+",
                        choices=("load", "store", "files", "lookup",
                                 "peers"))
    options = parser.parse_args()
    bench = Bench(options)
    for section in options.sections:
        getattr(bench, section)()


if __name__ == "__main__":
    main()
