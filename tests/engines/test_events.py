# SPDX-License-Identifier: Apache-2.0
"""What a router knows from way 3's events is what the store has: after random
operations on a store that is full, with engines and daemons that start again.

    python3 -m unittest tests/engines/test_events.py     (vLLM is needed)

No model runs: Events gets what the scheduler would hand it. Half of the blocks
are saved behind its back, as by other engines, and most are evicted.
"""

from __future__ import annotations

import hashlib
import random
import time
import unittest
from types import SimpleNamespace
from typing import Any, List, Set
from unittest import mock

import numpy as np
from mount import Served

from vllm.distributed.kv_events import BlockRemoved
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

import ucmfs
from ucmfs.blocks import Blocks
from ucmfs.errors import UcmfsError
from ucmfs.vllm.events import Events
from ucmfs.vllm.hits import Peek

CHAINS, LENGTH, TOKENS = 25, 40, 4  # blocks, four times what the store has
ROOM = 250
GEOMETRY = ucmfs.Geometry(1, TOKENS, "opaque", 2048, 2048, order="opaque")
PATIENCE = 20


class Chain:
    """A request, and its ids in the store."""

    def __init__(self, number: int) -> None:
        self.block_hashes = [hashlib.sha256(b"%d %d" % (number, i)).digest()
                             for i in range(LENGTH)]
        self.all_token_ids = list(range(LENGTH * TOKENS))
        self.lora_request = None
        self.all = [b"".join(each[-16:] for each in self.block_hashes)]

    def blocks(self, _: int) -> int:
        return LENGTH

    def ids(self, places: range) -> bytes:
        return self.all[0][16 * places.start:16 * places.stop]


class Router:
    def __init__(self) -> None:
        self.view: Set[Any] = set()

    def hear(self, events: List[Any]) -> None:
        for event in events:
            if isinstance(event, BlockRemoved):
                self.view.difference_update(event.block_hashes)
            else:
                self.view.update(event.block_hashes)


class World:
    def __init__(self, case: unittest.TestCase, seed: int) -> None:
        self.random = random.Random(seed)
        self.mount = Served(options=f"policy=lru,limit=only:{8 * ROOM}K",
                            start=False)
        case.addCleanup(self.mount.close)
        self.mount.tiers[0] = "only=" + self.mount.tiers[0]
        self.mount.start()
        self.chains = [Chain(i) for i in range(CHAINS)]
        self.all_ids = b"".join(chain.all[0] for chain in self.chains)
        self.names = [maybe_convert_block_hash(each)
                      for chain in self.chains for each in chain.block_hashes]
        self.memory = np.zeros((LENGTH, 1, 2, 1024), "u2")
        self.clock = 0.0
        self.connect()
        case.addCleanup(self.disconnect)
        self.new_engine()

    def connect(self) -> None:
        self.loader = ucmfs.Loader(self.mount.path)
        layout = ucmfs.regions_of([ucmfs.Raw(
            self.memory.ctypes.data, self.memory.shape,
            (2048, 2048, 1024, 1), 2, "cpu", self.memory)], GEOMETRY,
            dims="BLPD")
        self.group = self.loader.add_group(layout)
        self.index = ucmfs.Index(self.mount.path)
        self.blocks = Blocks(self.mount.path)

    def disconnect(self) -> None:
        self.index.close()
        self.blocks.close()
        self.loader.close()

    def new_engine(self) -> None:
        """Routers begin anew with it."""
        self.router = Router()
        self.events = Events(SimpleNamespace(
            groups=[SimpleNamespace(block_tokens=TOKENS, index=0)], shards=1,
            hash_tokens=TOKENS), lambda: self.clock)

    def new_daemon(self) -> None:
        self.disconnect()
        self.mount.crash()
        self.mount.start()
        self.connect()

    # ---- operations: each says how many blocks it was about ----

    def some(self) -> tuple:
        chain = self.random.choice(self.chains)
        first = self.random.randrange(LENGTH)
        return chain, range(first, min(LENGTH,
                                       first + self.random.randint(1, 16)))

    def save(self, of_this_engine: bool = True) -> int:
        chain, places = self.some()
        stored = self.events.of(chain, chain, 0, places)
        task = self.group.save(chain.ids(places), list(places))
        try:
            task.wait(PATIENCE)
        except UcmfsError:
            pass  # no room, which is right while the blocks are open
        if of_this_engine:
            self.events.saved([block for block, outcome in zip(
                stored, task.outcomes()) if outcome.ok])
        return len(places)

    def others_save(self) -> int:
        return self.save(of_this_engine=False)

    def find(self) -> int:
        chain, places = self.some()
        there = self.index.peek(chain.ids(places))[0]
        self.events.found(chain, chain, 0, [
            place for place, is_there in zip(places, there) if is_there])
        return len(places)

    def evict(self) -> int:
        chain, places = self.some()
        self.blocks.evict(chain.ids(places))
        return len(places)

    def remove(self) -> int:
        """A damaged one, which the engine has met."""
        chain, places = self.some()
        self.blocks.remove(chain.ids(places[:1]))
        self.events.damaged(chain, chain, [(0, places[0])])
        return 1

    def look(self) -> int:
        self.events.look([Peek(self.index)])
        self.router.hear(self.events.take())
        return 1

    # ---- what is to be so ----

    def there(self) -> Set[Any]:
        present, unknown = self.index.peek(self.all_ids)
        return {name for name, *is_there in zip(self.names, present, unknown)
                if any(is_there)}

    def known(self) -> Set[Any]:
        return set(self.events._reported[0].values())

    def find_all(self) -> Set[Any]:
        """What a daemon that has just begun has not read yet, later."""
        for chain in self.chains:
            there = self.index.peek(chain.all[0])[0]
            self.events.found(chain, chain, 0, [
                place for place in range(LENGTH) if there[place]])
        return self.there()

    def settles(self, want: Any) -> bool:
        """The mount evicts a while longer."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for _ in range(len(self.known()) // self.events._share + 1):
                self.look()
            if self.router.view == want():
                return True
        return False


OPERATIONS = (World.save, World.others_save, World.find, World.evict,
              World.remove, World.look)
WEIGHTS = (4, 4, 4, 1, 1, 4)


class Views(unittest.TestCase):
    def run_many(self, blocks: int, seed: int) -> None:
        with mock.patch("ucmfs.vllm.events.CHECKED", 64):
            self.run_in(World(self, seed), blocks)

    def run_in(self, world: World, blocks: int) -> None:
        done = looks = evicted = 0
        while done < blocks:
            run, = world.random.choices(OPERATIONS, WEIGHTS)
            done += run(world)
            if world.random.randrange(100):
                continue
            looks += 1
            self.assertTrue(world.settles(
                lambda: world.known() & world.there()),
                f"after {done}: {len(world.router.view)} in the view")
            evicted += len(world.names) - len(world.there())
            if looks % 7 == 3:
                world.new_engine()
            elif looks % 7 == 5:
                world.new_daemon()
            self.assertTrue(world.settles(world.find_all),
                            f"after {done}, all that is there")
        self.assertGreater(looks, 3)
        self.assertGreater(evicted, looks * len(world.names) // 2)

    def test_after_some_operations(self) -> None:
        self.run_many(10_000, 1)

    def test_after_many_operations(self) -> None:
        self.run_many(100_000, 2)


if __name__ == "__main__":
    unittest.main()
