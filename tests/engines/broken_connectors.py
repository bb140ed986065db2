# SPDX-License-Identifier: Apache-2.0
"""Connectors that are wrong in one way each: the runner must notice.

Each is memory_connector.py with one change of a kind that has been found in
real connectors, so that a run of fake_runner.py without a complaint says
something. HOW_CAUGHT names, by class, what the complaint must contain.
"""

from __future__ import annotations

import memory_connector
from memory_connector import MemoryConnector


class LoadsNothing(MemoryConnector):
    """Reports a load as done without copying."""

    def load(self, move, bad, layer=""):
        pass


class SkipsOneLayer(MemoryConnector):
    """Copies all layers but the last."""

    def load(self, move, bad, layer=""):
        saved = self.layers
        self.layers = [names[:-1] for names in saved]
        super().load(move, bad, layer)
        self.layers = saved


class ReportsTooEarly(MemoryConnector):
    """Reports a load one step before its bytes arrive."""

    late: tuple = ()

    def get_finished(self, finished_req_ids):
        for move in self.late:
            super().load(move, self.failing(move))
        self.late = []
        return super().get_finished(finished_req_ids)

    def load(self, move, bad, layer=""):
        if self.random.random() < 0.2:
            self.late.append(move)
        else:
            super().load(move, bad, layer)


class OffByOne(MemoryConnector):
    """Loads each block of a request into the place of its neighbour."""

    def load(self, move, bad, layer=""):
        blocks = move.blocks
        places = [block for _, block, _ in blocks]
        moved = [(group, places[n - 1], key)
                 for n, (group, _, key) in enumerate(blocks)]
        move.blocks = moved
        super().load(move, bad, layer)
        move.blocks = blocks


class WrongStart(MemoryConnector):
    """Takes what is cached locally for the start of what it must load."""

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens:
            start = self.starts[request.request_id]
            if start:
                self.starts[request.request_id] = start - 1
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class SavesBeforeForward(MemoryConnector):
    """Reads the blocks of a step before the step has written them."""

    def release(self, moves, failed):
        if failed:
            super().release(moves, failed)

    def start_save(self, move):
        super().start_save(move)
        self.plan.saves.append(move)

    def bind_connector_metadata(self, connector_metadata):
        super().bind_connector_metadata(connector_metadata)
        self.early = connector_metadata.saves
        for move in self.early:
            self.save(move)

    def wait_for_save(self):
        for move in self.early:
            self.done[move.job] = 1
        self.waiting_layers.clear()


class PinsNothing(MemoryConnector):
    """Lets the scheduler reuse blocks that are still to be saved."""

    def pin(self, move):
        self.pins[move.job] = move

    def unpin(self, job):
        move = self.pins.pop(job)
        self.saving.difference_update(key for _, _, key in move.blocks)


class LeaksPins(MemoryConnector):
    """Forgets one pin in twenty."""

    def unpin(self, job):
        if self.random.random() < 0.05:
            self.pins.pop(job)
        else:
            super().unpin(job)


class ForgetsInvalid(MemoryConnector):
    """Does not report half of the blocks that it could not load."""

    def get_block_ids_with_load_errors(self):
        return {block for block in super().get_block_ids_with_load_errors()
                if self.random.random() < 0.5}


class ReportsInvalidLate(MemoryConnector):
    """Reports invalid blocks one step after their request."""

    late: set = frozenset()

    def get_block_ids_with_load_errors(self):
        now, self.late = self.late, super().get_block_ids_with_load_errors()
        return now


class ReportsTwice(MemoryConnector):
    """Reports a load again in the next step."""

    again: set = frozenset()

    def get_finished(self, finished_req_ids):
        _, received = super().get_finished(finished_req_ids)
        both, self.again = received | self.again, received
        return None, both


class ForgetsToReport(MemoryConnector):
    """Never reports one load in twenty."""

    def get_finished(self, finished_req_ids):
        _, received = super().get_finished(finished_req_ids)
        return None, {req_id for req_id in received
                      if self.random.random() > 0.05}


class ForgetsAborted(MemoryConnector):
    """Drops the load of a request that was aborted, and says nothing."""

    def get_finished(self, finished_req_ids):
        self.loading[:] = [move for move in self.loading
                           if move.request not in finished_req_ids]
        return super().get_finished(finished_req_ids)


class KeepsOldWeights(MemoryConnector):
    """Serves blocks from before reset_cache."""

    def reset_cache(self):
        return True


class SavesGarbage(MemoryConnector):
    """Saves what a step has computed although one of its loads failed."""

    def start_save(self, move):
        super().start_save(move)
        self.plan.saves.append(move)

    def release(self, moves, failed):
        pass


class LeavesGarbageCached(MemoryConnector):
    """Leaves blocks that failed to load in vLLM's own prefix cache."""

    def descendants(self, invalid):
        return set()


class MixesRanks(MemoryConnector):
    """Lets rank 1 load what rank 0 saved."""

    def load(self, move, bad, layer=""):
        rank, self.rank = self.rank, 0
        super().load(move, bad, layer)
        self.rank = rank


class TrustsOneRank(MemoryConnector):
    """Promises what rank 0 has, and does not check on the others."""

    def has(self, key):
        return key + (0,) in self.store

    def failing(self, move):
        return set()

    def load(self, move, bad, layer=""):
        bad = {n for n, (_, _, key) in enumerate(move.blocks)
               if key + (self.rank,) not in self.store}
        super().load(move, bad, layer)


class KeysByContent(MemoryConnector):
    """Names a block by its own tokens, not by all before it."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        request.block_hashes, kept = self.own(request), request.block_hashes
        result = super().get_num_new_matched_tokens(
            request, num_computed_tokens)
        request.block_hashes = kept
        return result

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        request.block_hashes, kept = self.own(request), request.block_hashes
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        request.block_hashes = kept

    def plan_saves(self, output, req_id, computed):
        request = self.requests[req_id]
        request.block_hashes, kept = self.own(request), request.block_hashes
        super().plan_saves(output, req_id, computed)
        request.block_hashes = kept

    def own(self, request):
        size, tokens = self.block_size, request.all_token_ids
        return [str(list(tokens[n * size:(n + 1) * size])).encode()
                for n in range(len(request.block_hashes))]


class ForgetsWindow(MemoryConnector):
    """Asks for the blocks of the window's end only, not for all of it."""

    def window_blocks(self, group, count):
        blocks = super().window_blocks(group, count)
        return blocks if group == 0 else blocks[-1:]


WRONG = "is wrong: it holds"

# class -> (what is to be heard, settings of the run)
HOW_CAUGHT = {
    LoadsNothing: (WRONG, {}),
    SkipsOneLayer: (WRONG, {}),
    ReportsTooEarly: (WRONG, {}),
    OffByOne: (WRONG, {}),
    WrongStart: (WRONG, {}),
    SavesBeforeForward: (WRONG, {}),
    PinsNothing: (WRONG, {"num_blocks": 32}),
    LeaksPins: ("blocks are free in the end", {"num_blocks": 128}),
    ForgetsInvalid: (WRONG, {"load_errors": 0.05}),
    ReportsInvalidLate: (WRONG, {"load_errors": 0.05}),
    ReportsTwice: ("reported 2 times", {}),
    ForgetsToReport: ("never finished", {}),
    ForgetsAborted: ("never finished", {"abort_loading": 0.2}),
    KeepsOldWeights: (WRONG, {"new_weights": 0.02}),
    SavesGarbage: (WRONG, {"load_errors": 0.1, "mode": "sync", "delay": 0}),
    LeavesGarbageCached: (WRONG, {
        "load_errors": 0.3, "mode": "sync", "batch_tokens": 48,
        "arrive": 0.8, "max_running": 12}),
    MixesRanks: (WRONG, {"ranks": 2}),
    TrustsOneRank: (WRONG, {"ranks": 2, "save_errors": 0.1}),
    KeysByContent: (WRONG, {}),
    ForgetsWindow: (WRONG, {"window": 40}),
}
