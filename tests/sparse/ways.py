# SPDX-License-Identifier: Apache-2.0
"""ways.py - what the oracles share: types, and random cases that each way of the
CPU gets through alike."""
import ctypes as C
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [os.path.join(HERE, "..", "lib"),
             os.path.join(HERE, "..", "..", "python")]
from seed import SEED  # noqa: E402

F16, BF16, F32, INT8 = 1, 2, 3, 6  # enum ucm_dtype


class Failure(Exception):
    pass


def must(condition, what):
    if not condition:
        raise Failure(what)


def succeed(err, what):
    must(err == 0, f"{what}: {err}")


# ---- numbers ----

def to_words(values, dtype):
    """float32 values in a type, as an array of its words."""
    if dtype == F32:
        return values.astype(np.float32)
    if dtype == F16:
        return values.astype(np.float16)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def of_words(words, dtype):
    """What they stand for, in float64."""
    if dtype == BF16:
        words = (words.astype(np.uint32) << 16).view(np.float32)
    return words.astype(np.float64)


# ---- cases ----

class Way:
    """The calls of LIBRARY, by a way of the CPU."""
    kernels = "sparse"

    def __init__(self, path, way):
        self.calls, self.way = C.CDLL(path), way

    def use(self):
        """All calls go this way from now on; False: this CPU cannot."""
        use = getattr(self.calls, f"ucm_{self.kernels}_kernels_use")
        use.restype = C.c_bool
        return use(self.way.encode())


def libraries_of(kind, what):
    """LIBRARY, by each way that this CPU has."""
    found = []
    for way in ("plain", "avx2", "avx512"):
        library = kind(sys.argv[1], way)
        if library.use():
            found.append(library)
        else:
            print(f"SKIP: this CPU has no {way} for {what}")
    return found


def run(kind, what, rounds, *checks):
    """check(library, rand) is called with the same numbers for each way, and its
    results, an array or several, are to be the same."""
    libraries = libraries_of(kind, what)
    rounds = int(os.environ.get("UCMFS_TEST_ROUNDS") or rounds)
    for number in range(rounds):
        for check in checks:
            first = None
            for library in libraries:
                library.use()
                try:
                    results = check(library,
                                    np.random.default_rng([SEED, number]))
                    if isinstance(results, np.ndarray):
                        results = [results]
                    first = results if first is None else first
                    for got, want in zip(results, first):
                        must(np.array_equal(got, want), "differs from plain")
                except Failure as failure:
                    sys.exit(f"FAIL: {check.__name__}, {library.way}:"
                             f" {failure}\n  case {number} of"
                             f" UCMFS_TEST_SEED={SEED}")
    print(f"{what}: {rounds} cases, {len(libraries)} ways; numpy"
          f" {np.__version__}")
