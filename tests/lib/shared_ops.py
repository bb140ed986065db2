# SPDX-License-Identifier: Apache-2.0
"""Random operations through several mounts of one shared directory.

    shared_ops.py [--killed FILE | --faults FILE | --restarted]
                  SOURCE OPERATIONS SECONDS BLOCKS...

Of the blocks in SOURCE each mount writes, reads and removes some at random, at the same
time as the others. A read brings the bytes of SOURCE, or there is no such block; a write
succeeds, unless daemons are --killed and mounted again until there is FILE, or calls of the
directory fail (--faults); it goes on for so long. Where a server is --restarted, a read
may be ESTALE: the server has forgotten that the file was open (LIMITS in ucmfs(8)). At the
end, once nothing is changed any more, all can open the same blocks within SECONDS. Every
other block is never removed: of these they have what was written.
"""
import errno
import os
import random
import sys
import threading
import time

from dead_mount import DEAD

# Of a mount whose daemon was killed, and which is away for a moment.
KILLED = DEAD | {errno.ENOENT}
# What a directory answers that fails now and then.
FAULTS = {errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EACCES, errno.EROFS,
          errno.ENOENT}


class Player(threading.Thread):
    # errors that are no failures; a block that is there is never written again
    allowed = {errno.EEXIST, errno.EPERM}
    passing = frozenset()
    passing_reads = frozenset()
    until = "/"

    def __init__(self, where, blocks, operations, seed):
        super().__init__()
        self.where, self.blocks, self.operations = where, blocks, operations
        self.random = random.Random(seed)
        self.counts = {"write": 0, "hit": 0, "miss": 0, "removed": 0}
        self.wrong = []
        self.written = set()

    def write(self, name):
        path = os.path.join(self.where, name)
        try:  # and not the folder of what is not mounted
            os.mkdir(os.path.dirname(path))
        except FileExistsError:
            pass
        with open(path, "wb") as out:
            out.write(self.blocks[name])
        self.counts["write"] += 1
        self.written.add(name)

    def read(self, name):
        try:
            with open(os.path.join(self.where, name), "rb") as block:
                data = block.read()
        except FileNotFoundError:
            self.counts["miss"] += 1
            return
        self.counts["hit"] += 1
        if data != self.blocks[name]:
            self.wrong.append(f"{name}: wrong bytes in {self.where}")

    def remove(self, name):
        try:
            os.unlink(os.path.join(self.where, name))
        except FileNotFoundError:
            return
        self.counts["removed"] += 1

    def run(self):
        names = sorted(self.blocks)
        done = 0
        while done < self.operations or not os.path.exists(self.until):
            done += 1
            call = self.random.choices([self.write, self.read, self.remove],
                                       [4, 8, 1])[0]
            name = self.random.choice(names[::2] if call == self.remove else names)
            try:
                call(name)
            except OSError as error:
                if error.errno in self.passing or (
                        call == self.read and error.errno in self.passing_reads):
                    failed = f"{call.__name__}: {errno.errorcode[error.errno]}"
                    self.counts[failed] = self.counts.get(failed, 0) + 1
                    time.sleep(0.01)
                elif call != self.write or error.errno not in self.allowed:
                    self.wrong.append(f"{name}: {call.__name__}: {error}")


def load(source):
    blocks = {}
    for folder, _, files in os.walk(source):
        for file in files:
            path = os.path.join(folder, file)
            with open(path, "rb") as block:
                blocks[os.path.relpath(path, source)] = block.read()
    return blocks


def can_open(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


def sees(where, names):
    return {name for name in names if can_open(os.path.join(where, name))}


def settle(players, names, seconds):
    """Until all see the same, for that long at most; what differs."""
    until = time.monotonic() + seconds
    while True:
        views = [sees(player.where, names) for player in players]
        if all(view == views[0] for view in views):
            return None
        if time.monotonic() > until:
            return [sorted(view - set.intersection(*views)) for view in views]
        time.sleep(0.1)


def whole(player, name):
    """What is there of it: for who looks for the cause."""
    try:
        path = os.path.join(player.where, name)
        with open(path, "rb") as block:
            return block.read() == player.blocks[name], os.stat(path)
    except OSError as error:
        return str(error)


def main():
    given = sys.argv[1:]
    if given[0] in ("--killed", "--faults"):
        Player.passing = KILLED if given[0] == "--killed" else FAULTS
        Player.until = given[1]
        given = given[2:]
    if given[0] == "--restarted":
        Player.passing_reads = {errno.ESTALE}
        given = given[1:]
    source, operations, seconds, *mounts = given
    blocks = load(source)
    players = [Player(where, blocks, int(operations), seed)
               for seed, where in enumerate(mounts)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    wrong = [text for player in players for text in player.wrong]
    differs = settle(players, sorted(blocks), float(seconds))
    kept = sorted(blocks)[1::2]
    for player in players:
        written = {name for other in players for name in other.written}
        lost = written.intersection(kept) - sees(player.where, kept)
        if lost:
            wrong.append(f"{player.where}: lost {sorted(lost)}")
    if differs:
        wrong.append(f"after {seconds} s some alone see {differs}")
        wrong += (f"{name} in {player.where}: {whole(player, name)}"
                  for name in set().union(*differs) for player in players)
    for player in players:
        print(player.where, player.counts)
        if not player.counts["hit"] or not player.counts["removed"]:
            wrong.append(f"{player.where}: too little was tried")
    for text in wrong[:20]:
        print(text)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
