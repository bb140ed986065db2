#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What does a look-up cost in directories without a daemon?

    bench/lookups.py --tiers SOURCE [--blocks N] [--rounds N]

In the build directory. SOURCE is of ucmfs(8): directories that are tiers, or
are empty. N small blocks are saved in a space of its own, and looked up, as
are N others that are absent: by probes of the file systems (once with cold
names and inodes, as root), and by what UcmfsTier knows without a daemon, whose
thread makes the probes. Figures are medians, and the range.
"""
import argparse
import ctypes
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "python"))
os.environ.setdefault("UCMFS_LIBRARY", os.path.join(
    os.environ.get("top_builddir", "."), ".libs/libucm.so.0"))

import ucmfs  # noqa: E402
from ucmfs.namespace import ensure_space, make_tiers  # noqa: E402
from ucmfs.vllm.answers import Answers  # noqa: E402
from ucmfs.vllm.mount import Chores  # noqa: E402
from ucmfs.vllm.place import Directories, Looks  # noqa: E402

SIZE = 4096
GEOMETRY = ucmfs.Geometry(num_layers=1, block_size=1, k_bytes=SIZE,
                          order="opaque")


def arguments():
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tiers", required=True)
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def save(tiers, space, ids):
    ensure_space(None, space, {"geometry": GEOMETRY.to_json()}, tiers=tiers)
    with ucmfs.Store(tiers=tiers, space=space, tensor_size=SIZE) as store:
        data = ctypes.create_string_buffer(os.urandom(SIZE), SIZE)
        raw = ucmfs.Raw(ctypes.addressof(data), (SIZE,), (1,), 1, owner=data)
        store.wait(store.dump(ids, [0] * len(ids), [raw] * len(ids)))


def forget():
    """The kernel's names and inodes; False: not by this user."""
    try:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
            file.write("2")
    except OSError:
        return False
    return True


def timed(look, ids, want):
    begin = time.perf_counter()
    found = look(ids)
    seconds = time.perf_counter() - begin
    if found != want:
        sys.exit("lookups: a wrong answer")
    return seconds * 1e6 / len(want)


def tell(name, figures):
    print(f"{name:34} {statistics.median(figures):8.2f}  "
          f"({min(figures):.2f} to {max(figures):.2f})")


class Known:
    """What UcmfsTier asks. The first call tells the thread to look."""

    def __init__(self, looks):
        self.asker = Chores("bench-lookups")
        self.answers = Answers("bench", looks.lookup, self.asker)

    def ask(self, packed):
        return self.answers.lookup(packed)[0]

    def wait(self, packed):
        """Seconds until all is known."""
        begin = time.perf_counter()
        while any(self.answers.lookup(packed)[1]):
            time.sleep(0.0001)
        return time.perf_counter() - begin

    def end(self):
        self.answers.end()
        self.asker.end()


def measure(looks, rounds, name, ids, found):
    packed, want = b"".join(ids), found * len(ids)

    def probe(packed):
        return looks.lookup(packed)[0]

    if forget():
        tell(f"probe, {name}, cold", [timed(probe, packed, want)])
    tell(f"probe, {name}",
         [timed(probe, packed, want) for _ in range(rounds)])
    first, again, wait = [], [], []
    for _ in range(rounds):
        known = Known(looks)
        first.append(timed(known.ask, packed, bytes(len(ids))))
        wait.append(known.wait(packed) * 1e6 / len(ids))
        again.append(timed(known.ask, packed, want))
        known.end()
    tell(f"answer, {name}, not known yet", first)
    tell(f"answer, {name}, known", again)
    tell(f"until it is known, {name}", wait)


def main():
    options = arguments()
    space = f"lookups-{os.getpid()}"
    there, absent = ([os.urandom(16) for _ in range(options.blocks)]
                     for _ in range(2))
    make_tiers(options.tiers)
    save(options.tiers, space, there)
    looks = Looks(Directories(options.tiers), space)
    try:
        print(f"{options.blocks} blocks, microseconds for each")
        for name, ids, found in (("present", there, b"\1"),
                                 ("absent", absent, b"\0")):
            measure(looks, options.rounds, name, ids, found)
    finally:
        looks.close()


if __name__ == "__main__":
    main()
