# SPDX-License-Identifier: Apache-2.0
"""What the tests of ucmfs.plugins share: the installed packages in this
process, and a mount whose blocks can be damaged."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import pathlib
import signal
import sys
import time
import unittest
from typing import Any, Callable, List
from unittest import mock

from mount import Mount
from files_suite import ENVIRONMENT, python

DEADLINE_MS = 1000
# of a mount that fails: the deadline, that of its size, a busy machine
PATIENCE = DEADLINE_MS / 1000 + 4.0


def use_packages() -> None:
    """Let the packages of $UCMFS_FILES_VENV be imported, or SkipTest: they are
    over those of the Python that runs this."""
    venv = pathlib.Path(python()).parent.parent
    version = "python%d.%d" % sys.version_info[:2]
    site = venv / "lib" / version / "site-packages"
    if not site.is_dir():
        raise unittest.SkipTest(f"{venv} is not of {version}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise unittest.SkipTest(f"needs torch: {error}") from None
    os.environ.update(ENVIRONMENT)
    if str(site) not in sys.path:
        sys.path.insert(1, str(site))


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for packages that SGLang imports for a GPU, and does not call
    here."""

    NAMES = ("triton", "IPython", "torchvision", "gguf")

    def find_spec(self, name: str, path: Any = None,
                  target: Any = None) -> Any:
        if name.partition(".")[0] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = mock.MagicMock(name=spec.name, __path__=[], __version__="3.0")
        module.__name__ = spec.name
        return module

    def exec_module(self, module: Any) -> None:
        pass


def use_sglang() -> None:
    """As use_packages(), and SGLang's controller can be imported."""
    use_packages()
    import torch
    import torch.utils.flop_counter  # noqa: F401: looks for triton itself

    sys.modules.setdefault("vllm", None)  # which it looks for
    # it decorates functions for a GPU, and would look into what is absent
    torch.compile = lambda call=None, **_: call or (lambda each: each)
    torch.compiler.disable = lambda call=None, **_: call or (lambda each: each)
    if not any(isinstance(each, _Absent) for each in sys.meta_path):
        sys.meta_path.append(_Absent())


class PluginCase(unittest.TestCase):
    """self.mount has one directory; each test has another."""

    OPTIONS: dict = {}

    def setUp(self) -> None:
        self.mount = Mount(**self.OPTIONS)
        self.addCleanup(self.mount.close)

    def blocks(self, least: int) -> List[pathlib.Path]:
        """Files of blocks of at least so many bytes."""
        return sorted(path for tier in self.mount.tiers
                      for path in pathlib.Path(tier).rglob("*")
                      if path.is_file() and path.stat().st_size >= least)

    def damage(self, path: pathlib.Path) -> None:
        """A bit, in place, as a disk that lies does it."""
        self.mount.wait_for_writers([str(path)])
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        with open(path, "r+b") as file:
            file.write(data)

    def stop_daemon(self) -> None:
        """It hangs from now on."""
        os.kill(self.mount.pid, signal.SIGSTOP)
        self.addCleanup(self.continue_daemon)

    def continue_daemon(self) -> None:
        os.kill(self.mount.pid, signal.SIGCONT)

    def in_time(self, call: Callable[[], Any]) -> Any:
        """What it returns, within the deadline."""
        begin = time.monotonic()
        result = call()
        self.assertLess(time.monotonic() - begin, PATIENCE)
        return result

    def until(self, holds: Callable[[], Any], what: str,
              seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds  # what failed is avoided for 30
        while not holds():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)
