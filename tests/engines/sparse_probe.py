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

from vllm.v1.worker.cpu_worker import CPUWorker

from ucmfs.vllm import sparse_pages

_select = sparse_pages.select_rows


def watched(pages, rows, queries, table, lengths, out):
    if os.environ.get("UCMFS_TEST_INVERT"):
        queries = -queries
    _select(pages, rows, queries, table, lengths, out)
    size = pages.spec.block_size
    said = []
    for row in rows:
        num = -(-int(lengths[row]) // size)
        left = int(out[1][row])
        said.append([int(lengths[row]),
                     int((pages.valid[table[row, :num]] == 0).sum()),
                     -(-left // size), left])
    with open(os.environ["UCMFS_TEST_SPARSE"], "a", encoding="utf-8") as file:
        print(json.dumps([pages.name, said]), file=file)


class ProbeWorker(CPUWorker):
    sparse_pages.select_rows = watched
