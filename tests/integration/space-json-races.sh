#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# space.json: the inode of one being made may be asked for while it is closed, and
# several may be written at once.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3
need do_mount "$work/tier"
need mkdir "$mnt/spaces/x"
check 'setattr and the last close may meet' timeout 60 python3 - "$mnt/spaces/x/space.json" <<'PY'
import os, sys
for i in range(2000):
    fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
    path = os.open("/proc/self/fd/%d" % fd, os.O_PATH)
    os.close(fd) # RELEASE follows by itself
    for j in range(3):
        try:
            os.utime("/proc/self/fd/%d" % path)
        except FileNotFoundError:
            pass
    os.close(path)
PY
check 'the daemon lives' ls "$mnt/spaces"
check 'many writers of one manifest' timeout 60 python3 - "$mnt/spaces/x/space.json" \
	"$work/tier/spaces/x/space.json" <<'PY'
import json, os, sys, threading
errors = []
def write(pad):
    text = json.dumps({"model": "m" * pad, "geometry": {
        "num_layers": 2, "block_size": 16, "dtype": "float16",
        "k_bytes": 512, "v_bytes": 512}}).encode()
    for i in range(200):
        try:
            fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.write(fd, text)
            os.close(fd)
            json.loads(open(sys.argv[2]).read())
        except (OSError, ValueError) as e:
            errors.append(e)
threads = [threading.Thread(target=write, args=(n,)) for n in (1, 300, 60000)]
for t in threads: t.start()
for t in threads: t.join()
sys.exit(str(errors[:3]) if errors else 0)
PY
do_umount
