# SPDX-License-Identifier: Apache-2.0
"""What a wheel of "make wheel-binary" brings along, in bundled/ beside this
file: libucm, the programs ucmfs and ucm, and the libraries that these need.

A pure wheel ("make wheel") has no such folder, and no scripts that would stand
before an installed ucmfs.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bundled")


def path(name: str) -> str | None:
    """Where a library or program lies. None: it has not been brought along."""
    found = os.path.join(FOLDER, name)
    return found if os.path.exists(found) else None


def _run(name: str) -> NoReturn:
    """Become the program, with our arguments."""
    program = os.path.join(FOLDER, name)
    # Python ignores these, and a program that it becomes would go on doing so
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(program, [name, *sys.argv[1:]])
    except OSError as error:
        print(f"{name}: {program}: {error.strerror}; install the wheel anew, "
              "where programs may be run", file=sys.stderr)
        sys.exit(1)


def run_ucmfs() -> NoReturn:
    _run("ucmfs")


def run_ucm() -> NoReturn:
    _run("ucm")
