# SPDX-License-Identifier: Apache-2.0
"""A mount whose server and the kernel never agreed on a version: INIT fails, and
the device stays open until standard input ends.

Usage: refused_init.py MOUNT_POINT
"""

import ctypes
import errno
import os
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
if libc.mount(b"refused", os.fsencode(sys.argv[1]), b"fuse", 0,
              b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device):
    raise OSError(ctypes.get_errno(), sys.argv[1])
size, opcode, unique = struct.unpack_from("<IIQ", os.read(device, 1 << 20))
os.write(device, struct.pack("<IiQ", 16, -errno.EIO, unique))
print("ready", flush=True)
sys.stdin.read()
