# SPDX-License-Identifier: Apache-2.0
"""SGLang's file backend of HiCache, called as its cache controller calls it.

    sglang_client.py store|load ROOT PAGES

PAGES: how many, or FIRST:END, by their numbers.

"store" puts pages whose bytes follow from their numbers, "load" looks all of
them up, loads them and compares; a JSON object on stdout says what came of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Dict, List
from unittest import mock

# imported by what the backend imports, and not used by it
for name in ("triton", "triton.language", "IPython", "IPython.display"):
    sys.modules[name] = mock.MagicMock()

os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = sys.argv[2]

import torch  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheFile, HiCacheStorageConfig)

SHAPE = (2, 4, 64, 512)  # 512 KiB of bfloat16


def page_of(number: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(number)
    words = torch.randint(-(1 << 15), 1 << 15, SHAPE, dtype=torch.int16,
                          generator=source)
    return words.view(torch.bfloat16)


def key_of(number: int) -> str:
    """64 hex digits, as the hashes of pages are."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def open_store() -> HiCacheFile:
    return HiCacheFile(HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0,
        attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False,
        is_page_first_layout=False, model_name="org/tiny-model"))


def load(store: HiCacheFile, numbers: List[int]) -> Dict[str, int]:
    keys = [key_of(i) for i in numbers]
    pages = [torch.zeros(SHAPE, dtype=torch.bfloat16) for _ in keys]
    found = store.batch_get(keys, pages)
    return {
        "found": sum(store.exists(key) for key in keys),
        "absent_found": store.exists(key_of(-1)),
        "right": sum(page is not None and
                     torch.equal(page.view(torch.int16),
                                 page_of(i).view(torch.int16))
                     for i, page in zip(numbers, found)),
    }


def main() -> None:
    what, _, pages = sys.argv[1:]
    first, _, end = pages.rpartition(":")
    store, numbers = open_store(), list(range(int(first or 0), int(end)))
    if what == "store":
        print(json.dumps({"stored": store.batch_set(
            [key_of(i) for i in numbers], [page_of(i) for i in numbers])}))
    else:
        print(json.dumps(load(store, numbers)))


if __name__ == "__main__":
    main()
