# SPDX-License-Identifier: Apache-2.0
"""dead_mount.py - what calls on a mount answer whose daemon was killed."""
import errno

# One or the other, as requests are carried; the kernel has ECANCELED for io_uring.
DEAD = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED}
