#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Renames in files/, of files and folders, over what is there, while it is open.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

mkdir "$work/a" "$work/b"
need do_mount "a=$work/a:b=$work/b"
files=$mnt/files

echo new >"$files/from"
echo old >"$files/to"
need rename_file "$files/from" "$files/to"
same 'over a file' new "$(cat "$files/to")"
absent "$files/from"
mkdir "$files/x"
echo x >"$files/x/x"

# folders
mkdir -p "$files/d/e"
echo 2 >"$files/d/e/2"
need mkdir "$files/n"
need rename_file "$files/d" "$files/n/d"
same 'a folder takes along what is in it' 2 "$(cat "$files/n/d/e/2")"
absent "$files/d"
same 'in the directory as well' 2 "$(cat "$work/a/files/n/d/e/2")"
need mkdir "$files/empty"
need rename_file "$files/n/d" "$files/empty"
same 'also over an empty one' 2 "$(cat "$files/empty/e/2")"
refused 'Directory not empty' 'and not over a full one' \
	rename_file "$files/x" "$files/empty"
refused 'Invalid argument' 'nor into itself' \
	rename_file "$files/empty" "$files/empty/e/z"
refused 'Is a directory' 'a file over a folder' \
	rename_file "$files/to" "$files/x"
refused 'Not a directory' 'a folder over a file' \
	rename_file "$files/x" "$files/to"

check 'who is in a renamed folder, or has a replaced file, goes on' \
	python3 - "$files" <<'END'
import os, sys
root = sys.argv[1]
os.makedirs(f"{root}/p/q")
os.chdir(f"{root}/p/q")
with open("f", "w") as file:
    file.write("f")
    file.flush()
    os.rename(f"{root}/p", f"{root}/r")
    file.write("g")
with open("f") as file:
    assert file.read() == "fg"
assert os.getcwd() == f"{root}/r/q"
with open("new", "w") as file:
    file.write("made later")
assert os.path.exists(f"{root}/r/q/new")
old = open("f")
with open("g", "w") as file:
    file.write("other")
os.rename("g", "f")
assert old.read() == "fg"
assert os.fstat(old.fileno()).st_nlink == 0
assert open("f").read() == "other"
# an exchange is not to be had
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.renameat2(-100, b"f", -100, b"new", 2) == -1
assert ctypes.get_errno() == 22
assert libc.renameat2(-100, b"f", -100, b"new", 1) == -1
assert ctypes.get_errno() == 17
END

check 'what gets too long a path is out of reach, and not lost' \
	python3 - "$files" <<'END'
import errno, os, sys
os.chdir(sys.argv[1])
name = "n" * 200
os.mkdir("top")
os.chdir("top")
for _ in range(20):
    os.mkdir(name)
    os.chdir(name)
with open("f", "w") as file:
    file.write("deep")
os.chdir(sys.argv[1])

def down(top):
    fd = os.open(top, os.O_RDONLY)
    for _ in range(20):
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    with os.fdopen(os.open("f", os.O_RDONLY, dir_fd=fd)) as file:
        os.close(fd)
        return file.read()

assert down("top") == "deep"
os.rename("top", "t" * 200)
try:
    down("t" * 200)
    assert False, "found"
except OSError as error:
    assert error.errno == errno.ENAMETOOLONG, error
os.rename("t" * 200, "top")
assert down("top") == "deep"
END
do_umount
