# SPDX-License-Identifier: Apache-2.0
"""Messages of libucm become records of Python's logging.

libucm logs from threads of its own, which read files. Python code must not run
there: such a thread would wait for the GIL, a collection of garbage in it
could close the loader that it belongs to, and it would never come back from an
interpreter that is ending. So libucm sends its lines through a socket
(ucm_log(3), ucm_log_to_socket), which never waits, and a thread of Python's
logs them. What comes after the end of the interpreter has begun, or is more
than the socket holds, goes to standard error.

A child that is forked gets a socket and a thread of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import socket
import threading

from . import _lib

_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
_LINE = 2048  # longer than any message
_END = b"."
_PATIENCE = 5.0  # seconds

_lock = threading.Lock()
_logger = logging.getLogger("ucmfs")
_listener: _Listener | None = None


class _Listener:
    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._run, name="ucmfs-log",
                                        daemon=True)
        self._thread.start()
        library = _lib.lib()
        library.ucm_log_redirect(
            ctypes.cast(library.ucm_log_to_socket, ctypes.c_void_p),
            self._theirs.fileno())

    def _run(self) -> None:
        while True:
            message = self._ours.recv(_LINE)
            if message in (b"", _END):
                return
            _logger.log(_LEVELS[message[0] - ord("0")], "%s",
                        message[1:].decode(errors="replace"))

    def close(self) -> None:
        """What has been sent is logged before it returns, unless a handler
        of logging hangs."""
        _lib.lib().ucm_log_redirect(None, None)
        self._theirs.settimeout(_PATIENCE)
        with contextlib.suppress(OSError):
            self._theirs.send(_END)
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            self.abandon()

    def abandon(self) -> None:
        self._ours.close()
        self._theirs.close()


def start() -> None:
    """From here on messages of libucm are logged. Whoever opens something of
    libucm that may have something to say calls this. Any thread, any number
    of times."""
    global _listener
    with _lock:
        if _listener is None:
            _listener = _Listener()


def use(logger: logging.Logger) -> None:
    """Log to another logger than "ucmfs"."""
    global _logger
    _logger = logger


def stop() -> None:
    """To standard error again."""
    global _listener
    with _lock:
        listener, _listener = _listener, None
    if listener is not None:
        listener.close()


def _after_fork() -> None:
    """The thread has not come along, and the socket is the parent's."""
    global _listener, _lock
    _lock = threading.Lock()
    listener, _listener = _listener, None
    if listener is not None:
        start()
        listener.abandon()


atexit.register(stop)
os.register_at_fork(after_in_child=_after_fork)
