# SPDX-License-Identifier: Apache-2.0
"""The configurations that UCM's documents show: each accepted and mapped, or
refused with the reason and what replaces it. And the command lines of our own
documents: each runs as it is printed.

Keys and values are those of the sections named beside them: UCM's guide to
its parts (3 to 14), and the design of its blending connector (B 6).
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import (Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence,
                    Tuple)
from unittest import mock

import ucmfs
from ucmfs import config
from ucmfs.errors import ConfigError
from ucmfs.vllm.options import connector_options

from tests.python.support import BUILDDIR, SRCDIR

try:
    import yaml
except ImportError:
    yaml = None

SPARSE = "sparse attention under vLLM reads it"
CACHE = "a tier of the mount"
DIRECTORY = "shows what it stands on"


class Taken(NamedTuple):
    """It is accepted: these directories, options, and notes of these keys,
    each with that in it, and no others."""

    section: str
    text: str  # YAML
    tiers: Sequence[str]
    notes: Mapping[str, str]
    options: Mapping[str, Any] = {}
    name: str = "UcmPipelineStore"


class Refused(NamedTuple):
    section: str
    text: str
    key: str
    why: str          # the reason
    instead: str      # what replaces it


FILE = """
ucm_connectors:
  - ucm_connector_name: UcmNfsStore
    ucm_connector_config:
      storage_backends: /mnt/nfs/kv_cache
      io_direct: false
      stream_number: 32
      buffer_number: 512
      block_size: 16
ucm_sparse_config:
  ESA: {init_window_sz: 1, sparse_ratio: 0.3, retrieval_stride: 16}
  GSA: {topk_ratio: 0.3, init_window_size: 2, local_window_size: 4}
  GSAOnDevice: {hash_bits: 256, topk_tokens: 1024}
metrics_config_path: /etc/ucm/metrics.yaml
load_only_first_rank: false
enable_prefix_cache: true
"""
_IN_FILE = "ucm_connectors[0].ucm_connector_config"

TAKEN: List[Taken] = [
    Taken("3.4.1", FILE, ["/mnt/nfs/kv_cache"], {
        f"{_IN_FILE}.io_direct": "O_DIRECT",
        f"{_IN_FILE}.stream_number": "`threads`",
        f"{_IN_FILE}.buffer_number": "`staging_bytes`",
        f"{_IN_FILE}.block_size": "the engine's tensors decide",
        "ucm_sparse_config": SPARSE, "metrics_config_path": ".ucmfs/metrics",
        "load_only_first_rank": "share blocks"},
        {"prefix_cache": True}, "UcmNfsStore"),
    Taken("5.6.1", """
pipeline: Cache|Posix
cache: {buffer_number: 512}
posix: {storage_backends: /data/kv, posix_io_engine: aio, timeout_ms: 500}
""", ["/data/kv"], {"pipeline": CACHE,
                    "cache.buffer_number": "`staging_bytes`"},
          {"io": "auto", "deadline_ms": 500}),
    Taken("5.6.1", """
pipeline: Cache|Ds3fs
ds3fs: {storage_backends: /3fs/kv, ior_depth: 8}
""", ["/3fs/kv"], {"pipeline": CACHE, "ds3fs.ior_depth": "3FS"}),
    Taken("5.6.1", "{pipeline: Cache|Nfs, nfs: {storage_backends: /a:/b}}",
          ["/a", "/b"], {"pipeline": CACHE}),
    Taken("14.1.3", """
storage: {backend: posix, path: /data/kv_cache, block_size: 16,
          io_direct: true}
sparse:
  enabled: true
  type: GSAOnDevice
  config: {hash_topk_tokens: 4096, sink_token: 64, recent_token: 512}
vllm: {kv_connector: UCMDirectConnector, enable_prefix_caching: true}
""", ["/data/kv_cache"], {
        "storage.backend": DIRECTORY, "storage.io_direct": "O_DIRECT",
        "storage.block_size": "the engine's tensors decide",
        "sparse": SPARSE, "vllm": "--enable-prefix-caching"}),
    Taken("14.2.1", "{storage_backend: posix, storage_path: /data/kv_cache}",
          ["/data/kv_cache"], {"storage_backend": DIRECTORY}),
    Taken("14.2.3, mounted", """
{storage_backend: nfs, nfs_path: /mnt/kv_cache, enable_distributed: true}
""", ["/mnt/kv_cache"], {"storage_backend": DIRECTORY,
                         "enable_distributed": "one mount"}),
    Taken("14.3.1, mounted", """
io_direct: true
block_size: 32
pipeline:
  - {type: cache, size_gb: 50}
  - {type: posix, path: /nvme/kv_cache}
  - {type: nfs, path: /mnt/kv_cache}
""", ["/nvme/kv_cache", "/mnt/kv_cache"], {
        "io_direct": "O_DIRECT", "block_size": "the engine's tensors decide",
        "pipeline[0]": CACHE}),
    Taken("14.3.2", """
storage_backends: /data/kv
sparse_type: GSAOnDevice
GSAOnDevice: {hash_topk_tokens: 2048, sink_token: 32, recent_token: 256}
""", ["/data/kv"], {"sparse_type": SPARSE, "GSAOnDevice": SPARSE}),
    Taken("14.3.2", """
storage_backends: /data/kv
sparse_type: GSA
GSA: {topk_ratio: 0.3, prefetch_enabled: true, prefetch_ahead: 2}
""", ["/data/kv"], {"sparse_type": SPARSE, "GSA": SPARSE}),
    Taken("14.3.2", """
storage_backends: /data/kv
sparse_type: KVStarMultiStep
KVStarMultiStep: {retrieval_stride: 16, sparse_ratio: 0.2,
                  blk_repre_dim_prune_ratio: 0.7}
""", ["/data/kv"], {"sparse_type": SPARSE, "KVStarMultiStep": SPARSE}),
    Taken("14.3.3", """
storage_backends: /data/kv
enable_memory_pool: true
preallocate_kv_cache: true
""", ["/data/kv"], {"enable_memory_pool": "`staging_bytes`",
                    "preallocate_kv_cache": "at the start"}),
]

MOONCAKE = ("Mooncake is not here", "mem@SIZE")
BLENDING = ("UcmfsConnector reuses prefixes", "UcmfsBlendConnector reuses text")
ADDRESS = ("is an address", "ucmfs nfs=DIRECTORY MOUNT")

REFUSED: List[Refused] = [
    Refused("5.5", """
ucm_connectors:
  - ucm_connector_name: UcmMooncakeStore
    ucm_connector_config: {local_hostname: a, metadata_server: b}
""", "ucm_connectors[0].ucm_connector_name", *MOONCAKE),
    *(Refused("5.5", f"{{storage_backends: /data/kv, {key}: x}}", key,
              *MOONCAKE) for key in (
                  "local_hostname", "metadata_server", "global_segment_size",
                  "local_buffer_size", "protocol")),
    Refused("5.5", "{storage_backend: mooncake, storage_path: /data/kv}",
            "storage_backend", *MOONCAKE),
    Refused("5.6.1", "{pipeline: Cache|Mooncake, storage_backends: /data/kv}",
            "pipeline", *MOONCAKE),
    Refused("14.2.3", """
{storage_backend: nfs, nfs_path: "nfs-server:/kv_cache",
 enable_distributed: true}
""", "nfs_path", *ADDRESS),
    Refused("14.3.1", """
pipeline:
  - {type: cache, size_gb: 50}
  - {type: posix, path: /nvme/kv_cache}
  - {type: nfs, path: "nfs-server:/kv_cache"}
""", "pipeline[2].path", *ADDRESS),
    Refused("14.3.3", "{storage_backends: /a, gpu_memory_utilization: 0.85}",
            "gpu_memory_utilization", "vLLM's", "--gpu-memory-utilization"),
    Refused("14.3.3", "{storage_backends: /a, kv_cache_dtype: fp8}",
            "kv_cache_dtype", "vLLM's", "--kv-cache-dtype"),
    Refused("B 6.2", """
kv_connector: BlendConnector
kv_connector_module_path: ucm.integration.vllm.blend_connector
kv_connector_extra_config: {store_pipeline: Cache|Posix,
                            storage_backends: /data/ucm_cache}
""", "kv_connector", *BLENDING),
    *(Refused("B 6.1", f"""
kv_connector_extra_config: {{store_pipeline: Cache|Posix,
                            storage_backends: /data/ucm_cache, {key}: 1}}
""", f"kv_connector_extra_config.{key}", *BLENDING) for key in (
        "blend_chunk_size", "min_match_ratio", "position_correction",
        "recompute_boundary")),
    Refused("B 6", "{storage_backends: /a, Blend: {}}", "Blend", *BLENDING),
]

# Shapes that the documents' ones are easily mistaken for.
MISTAKEN = (
    ("{storage: {backend: posix}}", "storage_backends", "missing"),
    ("{storage: /data/kv}", "storage", "mapping"),
    ("{storage: {path: /a, size: 5}}", "storage.size", "unknown"),
    ("{storage: {backend: posx, path: /a}}", "storage.backend", "mean posix"),
    ("{storage_backend: /data/kv}", "storage_backend", "storage_backends"),
    ("{pipeline: []}", "pipeline", "a stage"),
    ("{pipeline: [cache]}", "pipeline", "did you mean Cache?"),
    ("{pipeline: [cache, {type: posix}]}", "pipeline[0]", "mapping"),
    ("{pipeline: [{path: /a}]}", "pipeline[0].type", "cache, ds3fs"),
    ("{pipeline: [{type: posix, pat: /a}]}", "pipeline[0].pat", "unknown"),
    ("{pipeline: [{type: cache, size_gb: much}]}", "pipeline[0].size_gb",
     "whole number"),
    ("{pipeline: Cache|Posix, storage_backends: /a, nfs: {}}", "nfs",
     "no such stage"),
    ("{storage_backends: /a, posix: {}}", "posix", "no such stage"),
    ("{pipeline: Posix, posix: /a}", "posix", "mapping"),
    ("{pipeline: Posix, posix: {storage_backend: /a}}",
     "posix.storage_backend", "did you mean storage_backends"),
    ("{pipeline: Cache|Posix, cache: {timeout_ms: 1}, posix: {timeout_ms: 2,"
     " storage_backends: /a}}", "posix.timeout_ms", "one for all stages"),
    ("{pipeline: Cache|Posix, cache: {tensor_size: 1}, posix: {tensor_size: "
     "2, storage_backends: /a}}", "posix.tensor_size", "cache.tensor_size"),
    ("{kv_connector: UcmfsConnector}", "ucm_connectors", "missing"),
    ("{kv_connector_extra_config: {sparse_type: GSA}}",
     "kv_connector_extra_config.ucm_connectors", "missing"),
    ("{storage_path: 'me@nfs-server:/kv'}", "storage_path", "an address"),
    ("{kv_connector_extra_config: {xyzzy: 1}}",
     "kv_connector_extra_config.xyzzy", "unknown"),
)


def read(text: str) -> config.Config:
    return ucmfs.validate_config(yaml.safe_load(text), check_paths=False)


@unittest.skipUnless(yaml, "needs PyYAML")
class Examples(unittest.TestCase):

    def refused(self, text: str, key: str, *said: str) -> None:
        with self.assertRaises(ConfigError) as caught:
            read(text)
        self.assertEqual(caught.exception.key, key)
        for each in said:
            self.assertIn(each, str(caught.exception))

    def test_taken(self) -> None:
        for case in TAKEN:
            with self.subTest(case.section, text=case.text):
                found = read(case.text)
                self.assertEqual(found.connector, case.name)
                self.assertEqual(found.tiers, case.tiers)
                self.assertEqual({**found.loader_options,
                                  **found.store_options,
                                  **found.engine_options}, case.options)
                left = list(found.notes)
                for key, why in case.notes.items():
                    mine = [note for note in left
                            if note.split(":")[0].split(" ")[0] == key]
                    self.assertEqual(len(mine), 1, (key, left))
                    self.assertIn("no effect: ", mine[0])
                    self.assertIn(why, mine[0])
                    left.remove(mine[0])
                self.assertEqual(left, [])

    def test_refused(self) -> None:
        for case in REFUSED:
            with self.subTest(case.section, text=case.text):
                self.refused(case.text, case.key, case.why, case.instead)

    def test_mistaken(self) -> None:
        for text, key, why in MISTAKEN:
            with self.subTest(text):
                self.refused(text, key, why)


@unittest.skipUnless(yaml, "needs PyYAML")
class Sources(unittest.TestCase):
    """Section 3.4.2 and 14.5.3: where a configuration comes from."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "ucm_config.yaml")
        self.write(FILE)

    def write(self, text: str) -> None:
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

    def refused(self, source: Any) -> ConfigError:
        with self.assertRaises(ConfigError) as caught:
            ucmfs.validate_config(source, check_paths=False)
        return caught.exception

    def test_a_file_by_either_key(self) -> None:
        want = read(FILE)
        for key in config.FILE_KEYS:
            given: Dict[str, Any] = {key: self.path}
            self.assertEqual(ucmfs.validate_config(given, check_paths=False),
                             want)
            found = ucmfs.validate_config(
                {"kv_connector": "UCMConnector",
                 "kv_connector_extra_config": given}, check_paths=False)
            self.assertEqual((found.connector, found.tiers, len(found.notes)),
                             (want.connector, want.tiers, 8))

    def test_what_names_no_file(self) -> None:
        for value in (3, "", ["x"]):
            self.assertEqual(self.refused({"ucm_config_path": value}).key,
                             "ucm_config_path")
        twice = self.refused(dict.fromkeys(config.FILE_KEYS, self.path))
        self.assertIn("names a file already", str(twice))
        self.write(f"ucm_config_path: {self.path}\nstorage_backends: /a\n")
        self.assertIn("cannot name another", str(self.refused(self.path)))

    def test_variables_that_are_not_read_are_told(self) -> None:
        with mock.patch.dict(os.environ, UCM_STORAGE_PATH="/data/kv"):
            os.environ.pop("UCM_CONFIG_FILE", None)
            self.assertIn("$UCM_STORAGE_PATH is not read",
                          str(self.refused(None)))


class Engine(unittest.TestCase):
    """As kv_connector_extra_config of UcmfsConnector."""

    def test_beside_the_mount(self) -> None:
        """Section 14.2.1, and a file by its name: the mount is used."""
        for given in ({"storage_backend": "posix", "storage_path": "/data/kv"},
                      {"storage": {"backend": "posix", "path": "/data/kv"}},
                      {"pipeline": [{"type": "posix", "path": "/data/kv"}]}):
            with self.assertLogs("vllm.ucmfs", "INFO") as logs:
                got = connector_options({"mount": "/m", **given},
                                        check_paths=False)
            self.assertEqual(got.mount, "/m")
            self.assertIn("storage_backends /data/kv: no effect: mount /m "
                          "is used", "\n".join(logs.output))

    def test_directories_alone(self) -> None:
        """Sections 14.2.1, 5.6.1, 14.3.1 and a file: in no mount, paths are
        tiers, in whatever form they are given."""
        with tempfile.TemporaryDirectory() as path:
            one, two = (os.path.join(path, name) for name in ("a", "b"))
            os.mkdir(one)
            os.mkdir(two)
            file = os.path.join(path, "ucm.json")
            with open(file, "w", encoding="utf-8") as out:
                json.dump({"storage_backends": [one, two]}, out)
            for given, tiers in (
                    ({"storage_backend": "posix", "storage_path": one}, one),
                    ({"nfs_path": one}, one),
                    ({"storage": {"backend": "posix", "path": one}}, one),
                    ({"pipeline": "Cache|Posix", "cache": {},
                      "posix": {"storage_backends": [one, two]}},
                     f"{one}:{two}"),
                    ({"pipeline": "Cache|Ds3fs",
                      "ds3fs": {"storage_backends": two}}, two),
                    ({"pipeline": [{"type": "cache", "size_gb": 1},
                                   {"type": "posix", "path": one},
                                   {"type": "nfs", "path": two}]},
                     f"{one}:{two}"),
                    ({"ucm_config_path": file}, f"{one}:{two}")):
                with self.subTest(given), \
                        self.assertLogs("vllm.ucmfs", "WARNING") as logs:
                    got = connector_options(given)
                self.assertEqual((got.mount, got.tiers),
                                 ("tiers=" + tiers, ""))
                self.assertIn(f"{tiers}: {config.NO_MOUNT}", logs.output[0])
            self.check_that_wins({"storage_backends": one}, two)
            self.assertEqual(os.listdir(one), [])

    def check_that_wins(self, given: Dict[str, Any], tiers: str) -> None:
        """Ours do, over UCM's."""
        with self.assertLogs("vllm.ucmfs", "INFO") as logs:
            got = connector_options({**given, "tiers": tiers})
        self.assertEqual(got.mount, "tiers=" + tiers)
        self.assertIn(f"no effect: tiers {tiers} is used", logs.output[0])

    def test_directories_of_others(self) -> None:
        with tempfile.TemporaryDirectory() as path:
            os.mkdir(os.path.join(path, "data"))
            with self.assertRaises(ConfigError) as caught:
                connector_options({"storage_path": path})
        self.assertEqual(caught.exception.key, "storage_path")
        self.assertIn(f"{path} is no tier of ucmfs and has data in it",
                      str(caught.exception))

    def test_blending(self) -> None:
        with self.assertRaises(ConfigError) as caught:
            connector_options({
                "store_pipeline": "Cache|Posix", "storage_backends": "/data",
                "blend_chunk_size": 64, "rope_theta": 10000.0})
        self.assertEqual(caught.exception.key, "blend_chunk_size")


# ---- the command lines of our own documents ----

OURS = ("README.md", "CONTRIBUTING.md", "python/README.md", "doc/*.md",
        "man/ucm.1", "man/ucmfs.8")
# What a block between ``` may be; sh is run as it is printed.
KINDS = {"sh", "c", "json", "python", "text", "yaml"}

# Commands that do not run here, and why. All others do.
NOT_HERE = {
    "vllm": "wants a model; the JSON that it is given is parsed",
    "pip": "installs",
    "make": "builds or installs; this runs below it",
    "autoreconf": "as make",
    "configure": "as make",
    "tools/install-deps": "installs",
    "tools/quickstart": "builds, and has a test of its own",
    "tools/selftest": "runs this",
    "bench/mount.sh": "takes minutes of a machine that is free",
    "sudo": "there is no user vllm",
    "id": "the same",
    "mount": "needs the installed helper, or changes /dev/shm for all",
    "python": "needs SGLang, aiohttp or a server",
    "python3": "integration/sparse-example.sh runs it",
    "ucm-bench": "needs aiohttp and a server",
    "journalctl": "does not end",
}
# Blocks of EXAMPLES that are no commands.
NO_COMMANDS = ("/nvme0/kv:/mnt/nfs/kv  /mnt/kv  fuse.ucmfs",)

ROOTS = re.compile(r"(?<![\w.~/-])/(?=(?:etc|mnt|nvme[01]|opt|run|tmp)/)")
BLOCK_ID = "3f9a0c5be2d14f7786a1b3c4d5e6f7e1"
PAGE = 2 << 20
STUB = """#!/bin/sh
for each; do
	case $each in
	{*) printf '%s' "$each" | PYTHON -m json.tool >/dev/null || exit ;;
	esac
done
echo 0
"""
# doctor says what this machine lacks, which is its work.
UCM = """#!/bin/sh
REAL "$@"
status=$?
[ "$1" != doctor ] || [ $status != 1 ] || exit 0
exit $status
"""


class Printed(NamedTuple):
    where: str
    kind: str
    text: str


def of_markdown(path: str, text: str) -> Iterator[Printed]:
    for match in re.finditer(r"^ *```(.*)\n((?:.*\n)*?) *```$", text, re.M):
        line = text.count("\n", 0, match.start()) + 1
        yield Printed(f"{path}:{line}", match[1], match[2])


def of_manual(path: str, text: str) -> Iterator[Printed]:
    start = text.index("\n.SH EXAMPLES")
    for match in re.finditer(r"^\.EX\n((?:.*\n)*?)\.EE$", text, re.M):
        if match.start() < start:
            continue
        line = text.count("\n", 0, match.start()) + 1
        plain = match[1].replace("\\-", "-").replace("\\e", "\\")
        kind = "text" if plain.startswith(NO_COMMANDS) else "sh"
        yield Printed(f"{path}:{line}", kind, plain)


def printed() -> Iterator[Printed]:
    for pattern in OURS:
        for name in sorted(glob.glob(os.path.join(SRCDIR, pattern))):
            with open(name, encoding="utf-8") as file:
                text = file.read()
            path = os.path.relpath(name, SRCDIR)
            yield from (of_markdown if path.endswith(".md")
                        else of_manual)(path, text)


def commands(text: str) -> str:
    """Where lines have prompts, those alone: the others are output."""
    lines = text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line[:2] in ("$ ", "> ")]
    return "\n".join(lines) + "\n"


class Place:
    """A folder with what the documents' command lines find."""

    def __init__(self, root: str) -> None:
        self.root = root
        for name in ("nvme0/kv", "nvme1/kv", "mnt/kv", "mnt/nfs/kv", "run",
                     "tmp", "home", "bin", "work"):
            os.makedirs(self.at(name))
        for name in NOT_HERE:
            self.program(f"work/{name}" if "/" in name or name == "configure"
                         else f"bin/{name}",
                         STUB.replace("PYTHON", sys.executable))
        self.program("bin/ucm", UCM.replace("REAL", f"{BUILDDIR}/ucm"))
        os.symlink(f"{BUILDDIR}/ucmfs", self.at("bin/ucmfs"))
        self.write("work/tokens", " ".join(map(str, range(64))))
        self.write("work/model/config.json", json.dumps({
            "num_hidden_layers": 32, "num_attention_heads": 32,
            "head_dim": 128, "max_position_embeddings": 4096}))
        for name, pages in (("work/pages.raw", 4), ("run/saved.raw", 9)):
            with open(self.at(name), "wb") as file:
                file.truncate(pages * PAGE)

    def at(self, name: str) -> str:
        return os.path.join(self.root, name)

    def write(self, name: str, text: str) -> None:
        os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
        with open(self.at(name), "w", encoding="utf-8") as file:
            file.write(text)

    def program(self, name: str, text: str) -> None:
        self.write(name, text)
        os.chmod(self.at(name), 0o755)

    def run(self, script: str) -> Tuple[int, str]:
        """Ends what the script has left in the background, too."""
        script = ROOTS.sub(self.root + "/", script)
        with open(self.at("run/said"), "w+", encoding="utf-8") as said, \
                subprocess.Popen(
                    ["sh", "-eu"], cwd=self.at("work"), text=True,
                    stdin=subprocess.PIPE, stdout=said, stderr=said,
                    start_new_session=True,
                    env={**os.environ, "HOME": self.at("home"),
                         "PATH": f"{self.at('bin')}:{os.environ['PATH']}"}
                    ) as shell:
            try:
                shell.communicate(script, timeout=100)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
            said.seek(0)
            return shell.returncode, said.read()

    def mount(self) -> Tuple[int, str]:
        """As the documents have it, with some blocks and a trace."""
        put = ("ucm put --mount /mnt/kv --layers 32 --heads 8 --dim 128 "
               "--tokens 16 --dtype float16")
        return self.run(
            "ucmfs nvme=/nvme0/kv,/nvme1/kv:nfs=/mnt/nfs/kv /mnt/kv "
            "-o allow_other,trace=/run/ucmfs.trace\n"
            "ucm hash --meta MODEL:1:torch.float16:0 tokens >ids\n"
            "ucm hash --meta /models/llama:1:torch.float16:0 tokens >more\n"
            f"echo {BLOCK_ID} | cat ids more - >/run/saved\n"
            f"{put} /run/saved.raw /run/saved\n"
            f"cp /mnt/kv/blocks/3f/{BLOCK_ID}.bin /tmp/copy\n"
            f"cp /tmp/copy /tmp/{BLOCK_ID}.bin\n"
            f"cp /tmp/copy {BLOCK_ID}.bin\n"
            "cp /run/ucmfs.trace /run/kv.trace\n")

    def unmount(self) -> None:
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            for line in mounts:
                point = line.split()[1]
                if point.startswith(self.root + "/"):
                    subprocess.run(["umount", point], check=False)


# Where these are used nothing may be mounted.
MOUNTS = re.compile(r"^ucmfs ", re.M)


class Commands(unittest.TestCase):
    """Each command line of our documents runs as it is printed."""

    def test_each_block_says_what_it_is(self) -> None:
        found = list(printed())
        self.assertGreater(len([x for x in found if x.kind == "sh"]), 30)
        for each in found:
            with self.subTest(each.where):
                self.assertIn(each.kind, KINDS)
                if each.kind == "text":
                    self.assertNotRegex(each.text, r"(?m)^(\$ |ucm |ucmfs )")

    @unittest.skipUnless(os.environ.get("UCMFS_TEST_PLACE"), "needs a place")
    def test_they_run(self) -> None:
        used = set()
        for number, each in enumerate(printed()):
            if each.kind != "sh":
                continue
            script = commands(each.text)
            used |= {name for name in NOT_HERE if re.search(
                rf"(?m)(^|[&|;(] *|\./){name.replace('-', '[- ]')}\b",
                script)}
            place = Place(os.path.join(os.environ["UCMFS_TEST_PLACE"],
                                       str(number)))
            with self.subTest(each.where):
                try:
                    status, said = place.mount()
                    self.assertEqual(status, 0, said)
                    if MOUNTS.search(script):
                        place.unmount()
                    status, said = place.run(script)
                    self.assertEqual(status, 0, f"\n{script}\n{said}")
                finally:
                    place.unmount()
        self.assertEqual(used, set(NOT_HERE), "in no document")


if __name__ == "__main__":
    unittest.main()
