#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes copies of files, and closes them all at once.

    closers.py WHEN FROM TO NAME...

Copies FROM/NAME to TO/NAME, without closing any, says "written", waits until
there is a file WHEN, closes each file in a thread of its own, and prints how
each close(2) ended.
"""
import os
import sys
import threading
import time

when, source, target, names = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]


def close(fd):
    try:
        os.close(fd)
        print("closed", flush=True)
    except OSError as error:
        print(os.strerror(error.errno), flush=True)


fds = []
for name in names:
    with open(f"{source}/{name}", "rb") as block:
        data = block.read()
    fd = os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    if os.write(fd, data) != len(data):
        sys.exit(f"{name}: a short write")
    fds.append(fd)
print("written", flush=True)
while not os.path.exists(when):
    time.sleep(0.01)
threads = [threading.Thread(target=close, args=(fd,)) for fd in fds]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
