# SPDX-License-Identifier: Apache-2.0
"""Stop a process, all of its threads: a signal only asks for that."""

import os
import signal
import time


def stop(pid: int, limit: float = 60.0) -> None:
    """Returns when none of its threads runs; SIGCONT lets them go on."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + limit
    for thread in os.listdir(f"/proc/{pid}/task"):
        while not _is_stopped(pid, thread):
            assert time.monotonic() < end, f"process {pid} does not stop"
            time.sleep(0.001)


def _is_stopped(pid: int, thread: str) -> bool:
    try:
        with open(f"/proc/{pid}/task/{thread}/stat",
                  encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended
