# SPDX-License-Identifier: Apache-2.0
"""sparse_probe.py - vLLM's worker for CPUs, whose sparse attention is watched.

$UCMFS_TEST_SPARSE names a file, to which a line of JSON is added for each
layer and step: the layer, and of each row its tokens, how many pages have no
representation, how many are attended to, and how many tokens these have. With
$UCMFS_TEST_INVERT the pages with the lowest scores are chosen: a query's
opposite has the opposite scores.
"""

import json
import os

from pipeline_worker import PipelineWorker
from ucmfs.vllm import sparse_pages

_select = sparse_pages.select_rows


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


class ProbeWorker(PipelineWorker):
    sparse_pages.select_rows = watched
