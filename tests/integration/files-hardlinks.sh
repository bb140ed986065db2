#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A file of files/ has as many names as it is given: whatever is done by one of
# them shows by all.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

cat >"$work/hardlinks.py" <<'END'
import errno
import os
import sys

os.chdir(sys.argv[1])


def fails(error, call, *args):
    try:
        call(*args)
    except OSError as seen:
        assert seen.errno == error, (seen, errno.errorcode[error])
    else:
        raise AssertionError(f"{call.__name__}{args} succeeded")


def text_of(name):
    with open(name) as file:
        return file.read()


def write(name, text):
    with open(name, "w") as file:
        file.write(text)


os.mkdir("d")
write("x", "text")
os.link("x", "d/y")
x, y = os.stat("x"), os.stat("d/y")
assert (x.st_ino, x.st_nlink) == (y.st_ino, y.st_nlink), (x, y)
assert x.st_nlink == 2
fails(errno.EEXIST, os.link, "x", "d/y")
fails(errno.ENOENT, os.link, "none", "z")
fails(errno.ENOENT, os.link, "x", "none/z")
fails(errno.EPERM, os.link, "d", "e")

# reading and writing
assert text_of("d/y") == "text"
write("d/y", "other text")
assert text_of("x") == "other text" and os.stat("x").st_size == 10
one, two = os.open("x", os.O_RDWR), os.open("d/y", os.O_RDWR)
os.pwrite(one, b"OTHER", 0)
assert os.pread(two, 20, 0) == b"OTHER text"
os.ftruncate(two, 5)
assert os.fstat(one).st_size == 5 and text_of("x") == "OTHER"
os.close(one)
os.close(two)
os.chmod("x", 0o600)
assert os.stat("d/y").st_mode & 0o777 == 0o600

# one name goes, the other stays; also if the file is open by the one that goes
fd = os.open("x", os.O_RDONLY)
os.unlink("x")
assert os.fstat(fd).st_nlink == 1
assert os.read(fd, 9) == b"OTHER"
assert text_of("d/y") == "OTHER" and os.stat("d/y").st_nlink == 1
here = os.open(".", os.O_RDONLY)
os.link(f"/proc/self/fd/{fd}", "x", src_dir_fd=here)  # or it is link(2)
os.close(here)
assert text_of("x") == "OTHER" and os.stat("d/y").st_nlink == 2
os.close(fd)

# renames: of one name; over the other, which is nothing; and of another file
os.rename("x", "z")
assert text_of("z") == "OTHER" and os.stat("d/y").st_nlink == 2
os.rename("z", "d/y")
assert os.path.exists("z") and os.path.exists("d/y")
write("new", "new")
os.rename("new", "z")
assert text_of("z") == "new" and text_of("d/y") == "OTHER"
assert os.stat("d/y").st_nlink == 1
os.rename("d", "e")
assert text_of("e/y") == "OTHER"

# as programs make a file that must not replace another
write("temp", "made")
os.link("temp", "made")
os.unlink("temp")
assert text_of("made") == "made"
write("temp", "late")
fails(errno.EEXIST, os.link, "temp", "made")
os.unlink("temp")

# many
for i in range(100):
    os.link("made", f"made.{i}")
assert os.stat("made.7").st_nlink == 101
os.unlink("made")
for i in range(99):
    os.unlink(f"made.{i}")
assert text_of("made.99") == "made" and os.stat("made.99").st_nlink == 1
END

counted() {
	[ "$(stat_of files_bytes)" -ge 1048576 ] &&
		[ "$(stat_of files_bytes)" -lt 1600000 ]
}

# serve OPTIONS
serve() {
	rm -rf "$work/a"
	mkdir "$work/a"
	need do_mount -o "$1" "$work/a"
	check 'all names are one file' \
		python3 "$work/hardlinks.py" "$mnt/files"
	head -c 1M /dev/urandom >"$mnt/files/large"
	need ln "$mnt/files/large" "$mnt/files/again"
	check 'its bytes count once' wait_until counted
	do_umount
	need do_mount -o "$1" "$work/a"
	same 'they are one after a remount' \
		"$(stat -c '%i %h' "$mnt/files/large")" \
		"$(stat -c '%i %h' "$mnt/files/again")"
	check 'and count once' wait_until counted
	echo more >>"$mnt/files/again"
	check 'one is written by the other' \
		cmp "$mnt/files/large" "$mnt/files/again"
	for folder in blocks blocks/00 spaces; do
		refused 'Operation not permitted' "none in $folder" \
			ln "$mnt/files/large" "$mnt/$folder/x.tmp"
	done
	check 'rm' rm -r "$mnt/files"/*
	same 'nothing is left' 0 "$(stat_of files_bytes)"
	do_umount
}

serve passthrough=auto
serve passthrough=off
