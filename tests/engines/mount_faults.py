# SPDX-License-Identifier: Apache-2.0
"""What may happen to a mount of ucmfs while an engine uses it, at random.

Blocks are damaged, cut, exchanged and removed in the tiers' directories, the
daemon is stopped, killed and held, and the tiers fill up; after some time
there is a daemon again, and room.
"""

from __future__ import annotations

import os
import random
import threading
from typing import List

from mount import Mount

BLOCKS = ("flip", "zero", "cut", "exchange", "remove", "unlink")
OUTAGES = ("crash", "stop", "freeze", "fill")


class MountFaults:
    """strike() does one of kinds and says which, tick() undoes it later.

    Steps of a fake engine are short: pause lets what watches a mount see it
    come back.
    """

    def __init__(self, mount: Mount, kinds: tuple = BLOCKS + OUTAGES,
                 pause: int = 200) -> None:
        self.mount = mount
        self.kinds = kinds
        self.pause = pause
        self.calm = 0
        self.down = 0
        self.full = 0
        self.filler = ""
        self.timers: List[threading.Timer] = []

    def strike(self, rng: random.Random) -> str:
        kind = rng.choice(self.kinds)
        if kind in OUTAGES:
            if self.down or self.full or self.calm:
                return "none"
            self.calm = self.pause
        return kind if getattr(self, "_" + kind)(rng) else "none"

    def tick(self) -> None:
        """A step has passed."""
        self.calm = max(0, self.calm - 1)
        if self.down:
            self.down -= 1
            if not self.down:
                self.mount.start()
        if self.full:
            self.full -= 1
            if not self.full:
                self.make_room()

    def heal(self) -> None:
        """A daemon, and room; damaged blocks stay so."""
        for timer in self.timers:
            timer.join()
        self.make_room()
        if self.down:
            self.down = 0
            self.mount.start()

    def make_room(self) -> None:
        self.full = 0
        if self.filler:
            os.unlink(self.filler)
            self.filler = ""

    # ---- blocks ----

    def _files(self, rng: random.Random) -> List[str]:
        """Some blocks' files in the tiers, of whatever space."""
        found = []
        for tier in self.mount.tiers:
            top = os.path.join(tier, "spaces")
            for folder, _, names in os.walk(top):
                found += [os.path.join(folder, name) for name in names
                          if name.endswith(".bin")]
        found.sort()
        chosen = rng.sample(found, min(len(found), 4))
        self.mount.wait_for_writers(chosen)
        return chosen

    def _edit(self, rng: random.Random, whole: bool) -> bool:
        files = self._files(rng)
        for path in files:
            try:
                with open(path, "r+b") as file:
                    size = os.fstat(file.fileno()).st_size
                    at = 0 if whole else rng.randrange(size)
                    file.seek(at)
                    old = file.read(1)
                    file.seek(at)
                    file.write(bytes(size) if whole
                               else bytes([old[0] ^ 1 << rng.randrange(8)]))
            except FileNotFoundError:
                pass
        return bool(files)

    def _flip(self, rng: random.Random) -> bool:
        return self._edit(rng, False)

    def _zero(self, rng: random.Random) -> bool:
        return self._edit(rng, True)

    def _cut(self, rng: random.Random) -> bool:
        files = self._files(rng)
        for path in files:
            try:
                os.truncate(path, rng.randrange(os.stat(path).st_size + 1))
            except FileNotFoundError:
                pass
        return bool(files)

    def _exchange(self, rng: random.Random) -> bool:
        """Two blocks under each other's names."""
        files = self._files(rng)
        if len(files) < 2 or os.path.dirname(os.path.dirname(
                files[0])) != os.path.dirname(os.path.dirname(files[1])):
            return False
        one, two = files[:2]
        aside = one + ".aside"
        try:
            os.rename(one, aside)
            os.rename(two, one)
        except FileNotFoundError:
            pass
        try:
            os.rename(aside, two)
        except FileNotFoundError:
            return False
        return True

    def _remove(self, rng: random.Random) -> bool:
        files = self._files(rng)
        for path in files:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        return bool(files)

    def _unlink(self, rng: random.Random) -> bool:
        """The same through the mount, which knows of it."""
        if self.down:
            return False
        done = False
        for path in self._files(rng):
            tier = next(t for t in self.mount.tiers if path.startswith(t))
            try:
                os.unlink(self.mount.path + path[len(tier):])
                done = True
            except OSError:
                pass
        return done

    # ---- the daemon and its room ----

    def _crash(self, rng: random.Random) -> bool:
        self._join()
        self.mount.crash()
        self.down = rng.randint(5, 60)
        return True

    def _stop(self, rng: random.Random) -> bool:
        self._join()
        self.mount.stop()
        self.down = rng.randint(5, 60)
        return True

    def _freeze(self, rng: random.Random) -> bool:
        """For a moment: calls of this process may be what waits for it."""
        self._join()
        self.mount.freeze()
        timer = threading.Timer(rng.random() * 0.1, self.mount.thaw)
        timer.start()
        self.timers = [timer]
        return True

    def _join(self) -> None:
        for timer in self.timers:
            timer.join()

    def _fill(self, rng: random.Random) -> bool:
        """Tiers must be small file systems of their own for this."""
        path = os.path.join(self.mount.tiers[0], "filler")
        with open(path, "wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass
        self.filler = path
        self.full = rng.randint(5, 60)
        return True
