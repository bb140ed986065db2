#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Extended attributes of users in files/ are those of the backing files; those of
# ucmfs are not mixed with them.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse getfattr setfattr python3

cat >"$work/xattrs.py" <<'END'
import errno
import os
import sys

files, back = sys.argv[1:3]


def fails(error, call, *args):
    try:
        call(*args)
    except OSError as seen:
        assert seen.errno == error, (seen, errno.errorcode[error])
    else:
        raise AssertionError(f"{call.__name__}{args} succeeded")


def users(path):
    return sorted(name for name in os.listxattr(path)
                  if not name.startswith("user.ucmfs."))


for name in ("file", "folder"):
    path, behind = f"{files}/{name}", f"{back}/{name}"
    if name == "folder":
        os.mkdir(path)
    else:
        open(path, "w").close()
    fails(errno.ENODATA, os.getxattr, path, "user.sum")
    os.setxattr(path, "user.sum", b"\0\1" * 100)
    assert os.getxattr(path, "user.sum") == b"\0\1" * 100
    assert os.getxattr(behind, "user.sum") == b"\0\1" * 100
    os.setxattr(path, "user.empty", b"")
    assert os.getxattr(path, "user.empty") == b""
    assert users(path) == ["user.empty", "user.sum"], users(path)
    fails(errno.EEXIST, os.setxattr, path, "user.sum", b"x", os.XATTR_CREATE)
    fails(errno.ENODATA, os.setxattr, path, "user.no", b"x", os.XATTR_REPLACE)
    os.setxattr(path, "user.sum", b"other", os.XATTR_REPLACE)
    os.removexattr(path, "user.empty")
    fails(errno.ENODATA, os.removexattr, path, "user.empty")
    assert users(path) == ["user.sum"]
    # not ours, and not the system's
    for other in ("user.ucmfs.mine", "trusted.x", "security.x"):
        fails(errno.EOPNOTSUPP, os.setxattr, path, other, b"x")
    os.setxattr(behind, "user.ucmfs.mine", b"x")
    os.setxattr(behind, "trusted.x", b"x")
    assert users(path) == ["user.sum"]
    assert "user.ucmfs.mine" not in os.listxattr(path)
    fails(errno.ENODATA, os.getxattr, path, "user.ucmfs.mine")
    fails(errno.ENODATA, os.getxattr, path, "trusted.x")
    # a long one
    try:
        os.setxattr(path, "user.long", b"l" * 3000)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    else:
        assert os.getxattr(path, "user.long") == b"l" * 3000
        os.removexattr(path, "user.long")

# it goes with the file: by another name, to another name, and when it is removed
path = f"{files}/file"
os.link(path, f"{files}/link")
assert os.getxattr(f"{files}/link", "user.sum") == b"other"
os.rename(path, f"{files}/moved")
fd = os.open(f"{files}/moved", os.O_RDWR)
os.unlink(f"{files}/moved")
os.unlink(f"{files}/link")
assert os.getxattr(fd, "user.sum") == b"other"
os.setxattr(fd, "user.sum", b"last")
assert os.getxattr(fd, "user.sum") == b"last"
os.close(fd)
END

# serve OPTIONS
serve() {
	rm -rf "$work/a"
	mkdir "$work/a"
	need do_mount -o "$1,allow_other" "$work/a"
	check 'attributes are those of the backing file' \
		python3 "$work/xattrs.py" "$mnt/files" "$work/a/files"
	need touch "$mnt/files/f"
	refused 'Permission denied' 'without the right to write none is set' \
		as_nobody setfattr -n user.x -v x "$mnt/files/f"
	need setfattr -n user.x -v kept "$mnt/files/f"
	do_umount
	need do_mount -o "$1,allow_other" "$work/a"
	same 'they survive' kept "$(getfattr --absolute-names --only-values \
		-n user.x "$mnt/files/f")"
	need cp -a "$mnt/files/f" "$mnt/files/copy"
	same 'a copy has them' kept "$(getfattr --absolute-names --only-values \
		-n user.x "$mnt/files/copy")"
	do_umount
}

serve passthrough=auto
serve passthrough=off
