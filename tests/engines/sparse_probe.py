# SPDX-License-Identifier: Apache-2.0
"""sparse_probe.py - vLLM's worker for CPUs, whose sparse attention is watched.

$UCMFS_TEST_SPARSE names a file, to which a line of JSON is added for each
layer and step: the layer, and of each row its tokens, how many pages have no
representation, how many are attended to, and how many tokens these have. With
$UCMFS_TEST_INVERT the pages with the lowest scores are chosen: a query's
opposite has the opposite scores. With $UCMFS_TEST_AT_ONCE blocks that were
left in the store are loaded before the step that they are left in goes on.
"""

import json
import os

from pipeline_worker import PipelineWorker
from ucmfs.vllm import sparse_pages
from ucmfs.vllm.sparse_storage import Storage

_select = sparse_pages.select_rows
_leave = Storage.leave


def watched(pages, step, queries):
    if os.environ.get("UCMFS_TEST_INVERT"):
        queries = -queries
    _select(pages, step, queries)
    size = pages.spec.block_size
    said = []
    for row in step.rows:
        num = -(-int(step.lengths[row]) // size)
        left = int(step.tokens[row])
        said.append([int(step.lengths[row]),
                     int((pages.built[step.table[row, :num]] == 0).sum()),
                     -(-left // size), left])
    with open(os.environ["UCMFS_TEST_SPARSE"], "a", encoding="utf-8") as file:
        print(json.dumps([pages.name, said]), file=file)


def loaded_at_once(storage, *arguments):
    job = _leave(storage, *arguments)
    for row, lacks in enumerate(storage._lacks):
        if lacks.any():
            storage.need(row, lacks.nonzero()[0][None],
                         lacks.sum()[None] * storage._group.block_tokens)
    return job


if os.environ.get("UCMFS_TEST_AT_ONCE"):
    Storage.leave = loaded_at_once


class ProbeWorker(PipelineWorker):
    sparse_pages.select_rows = watched
