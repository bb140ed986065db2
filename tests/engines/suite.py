# SPDX-License-Identifier: Apache-2.0
"""suite.py - what the tests against vLLM's engine share: prompts, the tokens
that a run without a store gives for them, and one start of the engine.

Each start is a process with a list of steps, see generate.py. The processes
are forks of a server that has imported the engine and done nothing with it,
which halves the time of a start. The model and the reference tokens are made
once, in $UCMFS_ENGINES_CACHE.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import glob
import hashlib
import importlib.util
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
from typing import (Any, Dict, Iterator, List, NamedTuple, Optional,
                    Sequence)

import generate as generate_py

HERE = pathlib.Path(__file__).resolve().parent
BLOCK = 32  # tokens; the smallest that the CPU backend has
MAX_TOKENS = 100  # of the reference
START_S = 120.0  # an engine that starts on a machine with much else to do

SETTLE = {"do": "settle"}
METRICS = {"do": "metrics"}

PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


class Parallel(NamedTuple):
    """Of an engine: its ranks, each with heads or layers of its own. Several
    are processes of their own, each on a processor if there are so many."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def name(self) -> str:
        """"": one rank."""
        return f"-tp{self.tensor}-pp{self.pipeline}" * (self.ranks > 1)

    def arguments(self) -> Dict[str, Any]:
        if self.ranks == 1:
            return {}
        more = {"worker_cls": "pipeline_worker.PipelineWorker"}
        return {"distributed_executor_backend": "mp",
                "tensor_parallel_size": self.tensor,
                "pipeline_parallel_size": self.pipeline,
                **(more if self.pipeline > 1 else {})}

    def environment(self) -> Dict[str, str]:
        if self.ranks == 1:
            return {}
        mine = sorted(os.sched_getaffinity(0))
        return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(
            str(mine[rank % len(mine)]) for rank in range(self.ranks))}


ALONE = Parallel()


def generate(*names: str, **more: Any) -> Dict[str, Any]:
    return {"do": "generate", "prompts": names or TRAFFIC, **more}


def reset(connector: bool = False) -> Dict[str, Any]:
    return {"do": "reset", "connector": connector}


def pause(word: str) -> Dict[str, Any]:
    return {"do": "pause", "say": word}


def samples(metrics: Dict[str, float], name: str, label: str = "") -> float:
    """The sum of a metric's samples that have this label."""
    return sum(value for key, value in metrics.items()
               if key.split("{")[0] == name and label in key)


def make_prompts() -> Dict[str, List[int]]:
    source = random.Random(7)

    def some(count: int) -> List[int]:
        return [source.randrange(3, 1000) for _ in range(count)]

    prompts = {"short": some(300), "middle": some(500), "long": some(1000)}
    prompts["exact"] = some(10 * BLOCK)
    prompts["branch"] = prompts["long"][:600] + some(100)
    prompts["twig"] = prompts["branch"][:-20] + some(80)
    prompts["stray"] = prompts["long"][:500] + some(200)
    for i in range(5):
        prompts[f"crowd{i}"] = some(300)
    return prompts


PROMPTS = make_prompts()
# two that share a prefix with a third, one that ends with a block
TRAFFIC = ["short", "middle", "long", "exact", "branch", "twig"]
# begins as one of them, and is never asked for before it is looked for
STRAY, STRAY_SHARES = "stray", 500 // BLOCK * BLOCK
CROWD = [name for name in PROMPTS if name.startswith("crowd")]


def cached_tokens(name: str, whole: bool) -> int:
    """What a store that has all of a prompt spares the engine. Its last token
    is computed in any case; `whole`: the block that it ends is loaded
    nevertheless."""
    return (len(PROMPTS[name]) - (not whole)) // BLOCK * BLOCK


def num_blocks(names: List[str],
               prompts: Optional[Dict[str, List[int]]] = None) -> int:
    """Different blocks in these prompts."""
    prompts = prompts or PROMPTS
    return len({tuple(prompts[name][:end])
                for name in names
                for end in range(BLOCK, len(prompts[name]) + 1, BLOCK)})


def require_engine() -> None:
    """SkipTest where this Python has no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise unittest.SkipTest("this Python has no vLLM; UCMFS_ENGINES_VENV "
                                "names one that has, see tools/engines-venv")


def cache_dir() -> str:
    path = os.environ.get("UCMFS_ENGINES_CACHE") or os.path.join(
        os.environ.get("top_builddir", "."), "engines-cache")
    os.makedirs(path, exist_ok=True)
    return os.path.abspath(path)


def _digest() -> str:
    """Of all that the reference depends on."""
    files = ["tiny_model.py", "generate.py", "suite.py"]
    files += sorted(path.name for path in HERE.glob("requirements*.txt"))
    digest = hashlib.sha256()
    for name in files:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:12]


@contextlib.contextmanager
def _lacking(path: str) -> Iterator[bool]:
    """Is it still to be made? Others that want it wait meanwhile."""
    with open(path + ".lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield not os.path.exists(path)


def model(kind: str) -> str:
    """The directory of the model (see tiny_model.py); made if it is not
    there."""
    digest = hashlib.sha256((HERE / "tiny_model.py").read_bytes()).hexdigest()
    path = os.path.join(cache_dir(), f"model-{digest[:12]}-{kind}")
    with _lacking(path) as lacking:
        if lacking:
            subprocess.run([sys.executable, HERE / "tiny_model.py", path,
                            kind], check=True, stderr=subprocess.DEVNULL)
    return path


def _make_reference(path: str, kind: str, parallel: Parallel) -> None:
    with Start([generate(*PROMPTS, one_by_one=True, max_tokens=MAX_TOKENS)],
               kind=kind, parallel=parallel,
               engine={"enable_prefix_caching": False}) as start:
        (result,) = start.results()
    tokens = {name: result[name]["tokens"] for name in PROMPTS}
    pathlib.Path(path + ".new").write_text(json.dumps(tokens))
    os.rename(path + ".new", path)


def reference(kind: str = "", parallel: Parallel = ALONE,
              ) -> Dict[str, List[int]]:
    """MAX_TOKENS tokens for each prompt, from an engine that keeps nothing:
    no store, and no cache of its own."""
    path = os.path.join(
        cache_dir(), f"reference-{_digest()}-{kind}{parallel.name}.json")
    with _lacking(path) as lacking:
        if lacking:
            _make_reference(path, kind, parallel)
    return json.loads(pathlib.Path(path).read_text())


@functools.lru_cache(maxsize=None)
def _processes() -> Any:
    """Makes processes: forks of one that has imported the engine."""
    generate_py.set_environment()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preload"])
    return context


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _hide(directories: Sequence[str]) -> None:
    """From this process, which has a network of its own from now on: a
    loopback that nobody else is on."""
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.unshare, CLONE_NEWNS | CLONE_NEWNET)
    _call(libc.mount, None, b"/", None, MS_REC | MS_PRIVATE, None)
    for path in directories:
        _call(libc.mount, b"hidden", path.encode(), b"tmpfs", 0, None)
        assert os.listdir(path) == []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS,
                    struct.pack("16sh22x", b"lo", IFF_UP))


def _in_the_child(config: dict, prompts: Dict[str, List[int]],
                  variables: Dict[str, str], hidden: Sequence[str], log: str,
                  out: str, pipe: Any) -> None:
    """The engine's process; it ends with the one that it was forked from,
    which ends with the tests."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    if hidden:
        _hide(hidden)
    os.environ.pop("PYTHONHASHSEED", None)
    os.environ.update(variables)
    # vLLM leaves a file there when it is killed
    tempfile.tempdir = os.path.dirname(log)

    def pause(word: str) -> None:
        pipe.send(word)
        pipe.recv()

    results = generate_py.run(config, prompts, pause)
    pathlib.Path(out).write_text(json.dumps(results))


def children_of(pid: int) -> List[int]:
    return [int(child)
            for path in glob.glob(f"/proc/{pid}/task/*/children")
            for child in pathlib.Path(path).read_text().split()]


class Start:
    """One start of the engine, in a process of its own.

        with Start(steps, transfer={...}) as start:
            start.wait_for("word")      # it has come to that pause
            start.go_on()
            results = start.results()   # of all steps

    Whatever happens inside, the process and its shared memory are gone
    afterwards. hidden: directories that are empty for it; it is alone on its
    network then. path: more directories with modules.
    """

    _count = 0

    def __init__(self, steps: List[dict], *, transfer: Optional[dict] = None,
                 engine: Optional[dict] = None, kind: str = "",
                 parallel: Parallel = ALONE,
                 prompts: Optional[Dict[str, List[int]]] = None,
                 hash_seed: Optional[str] = "0",
                 hidden: Sequence[str] = (), path: Sequence[str] = (),
                 environment: Optional[Dict[str, str]] = None) -> None:
        Start._count += 1
        self._name = f"ucmfs-test-{os.getpid()}-{Start._count}"
        if transfer is not None:
            transfer = dict(transfer, engine_id=self._name)
        config = {"model": model(kind),
                  "engine": {**parallel.arguments(), **(engine or {})},
                  "kv_transfer": transfer, "steps": steps,
                  "path": list(path)}
        self._work = tempfile.mkdtemp(prefix="ucmfs-engine.",
                                      dir=os.environ.get("UCMFS_TEST_DIR"))
        self.log = os.path.join(self._work, "log")
        self._out = os.path.join(self._work, "out")
        self._pipe, theirs = multiprocessing.Pipe()
        variables = {**parallel.environment(), **(environment or {})}
        if hash_seed is not None:
            variables["PYTHONHASHSEED"] = hash_seed
        # a daemon in Python's words may have no processes of its own
        self._process = _processes().Process(
            target=_in_the_child, daemon=parallel.ranks == 1,
            args=(config, prompts or PROMPTS, variables, hidden, self.log,
                  self._out, theirs))
        self._process.start()
        theirs.close()

    @property
    def said(self) -> str:
        """What the engine has logged."""
        try:
            return pathlib.Path(self.log).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def wait_for(self, word: str) -> None:
        """Until the pause with this word, which must be the next."""
        if not self._pipe.poll(START_S):
            raise AssertionError(f"no {word!r} in time\n{self._tail()}")
        try:
            said = self._pipe.recv()
        except EOFError:
            raise AssertionError(
                f"ended before {word!r}\n{self._tail()}") from None
        assert said == word, f"{said!r} instead of {word!r}"

    def go_on(self) -> None:
        self._pipe.send("")

    def results(self) -> List[Any]:
        """Of all steps, once the engine has ended well."""
        self._process.join(START_S)
        if self._process.exitcode != 0:
            raise AssertionError(f"the engine ended with status "
                                 f"{self._process.exitcode} (None: it hangs)"
                                 f"\n{self._tail()}")
        return json.loads(pathlib.Path(self._out).read_text())

    def _tail(self) -> str:
        return "".join("  | " + line for line in
                       self.said.splitlines(keepends=True)[-40:])

    def close(self) -> None:
        ranks = children_of(self._process.pid)
        self._process.kill()
        self._process.join()
        for rank in ranks:  # which vLLM does not end if it is killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        self._pipe.close()
        names = {f"vllm_offload_{self._name}",
                 # of several ranks; their name stands in the log alone
                 *re.findall("vllm_dist_[0-9a-f]{32}", self.said)}
        for name in names:
            for path in glob.glob(f"/dev/shm/{name}*"):
                os.unlink(path)
        shutil.rmtree(self._work, ignore_errors=True)

    def __enter__(self) -> Start:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
