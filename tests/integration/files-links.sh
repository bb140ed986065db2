#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Symbolic links in files/: they are kept as they were made, the kernel follows
# them for who asks, and they come and go as files do.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

cat >"$work/links.py" <<'END'
import errno
import os
import stat
import sys

root, outside = sys.argv[1:3]
os.chdir(root)


def fails(error, call, *args, **options):
    try:
        call(*args, **options)
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


# what they say, and what that leads to
os.mkdir("d")
write("d/f", "text")
targets = {
    "relative": "d/f", "up": "d/../d/f", "absolute": f"{root}/d/f",
    "out": outside, "folder": "d", "dangling": "nowhere", "self": "self",
    "one": "two", "two": "one", "empty folder": "d/", "nonsense": " \\\n",
    "long": "x" * 4095, "long path": "d/" + "./" * 2044 + "f",
}
for name, target in targets.items():
    os.symlink(target, name)
for name, target in targets.items():
    st = os.lstat(name)
    assert os.readlink(name) == target, name
    assert stat.S_ISLNK(st.st_mode) and st.st_nlink == 1, name
    assert st.st_size == len(target), name
    assert (st.st_uid, st.st_gid) == (0, 0), name
for name in ("relative", "up", "absolute", "folder/f", "long path"):
    assert text_of(name) == "text", name
assert text_of("out") == "outside"
assert os.listdir("folder") == ["f"]
fails(errno.ENOENT, open, "dangling")
fails(errno.ELOOP, open, "self")
fails(errno.ELOOP, open, "one")
fails(errno.ENAMETOOLONG, open, "long")
fails(errno.ELOOP, os.open, "relative", os.O_RDONLY | os.O_NOFOLLOW)
fails(errno.EINVAL, os.readlink, "d/f")
fails(errno.EINVAL, os.readlink, "d")
with os.scandir(".") as entries:
    assert {e.name for e in entries if e.is_symlink()} == set(targets)

# names
fails(errno.EEXIST, os.symlink, "x", "d")
fails(errno.EEXIST, os.symlink, "x", "dangling")
fails(errno.ENOTDIR, os.rmdir, "folder")
fails(errno.EEXIST, os.mkdir, "dangling")
fails(errno.EEXIST, os.open, "dangling", os.O_CREAT | os.O_EXCL | os.O_RDWR)
os.link("relative", "hard", follow_symlinks=False)
assert os.readlink("hard") == "d/f"
assert os.lstat("relative").st_nlink == 2
os.unlink("hard")
write("dangling", "made")
assert text_of("nowhere") == "made"
write("old", "old")
os.rename("relative", "old")
assert os.readlink("old") == "d/f"
write("new", "new")
os.rename("new", "old")
assert text_of("old") == "new" and not os.path.islink("old")
os.rename("one", "two")
assert os.readlink("two") == "two"
fails(errno.EISDIR, os.rename, "two", "d")
fails(errno.ENOTDIR, os.rename, "d", "two")
os.unlink("folder")
assert text_of("d/f") == "text"
# git and others replace a link so
os.symlink("d", "current.tmp")
os.rename("current.tmp", "current")
os.symlink("d/..", "current.tmp")
os.rename("current.tmp", "current")
assert os.readlink("current") == "d/.."

# as the cache of the Hugging Face hub has them
os.makedirs("hub/blobs")
os.makedirs("hub/snapshots/main/sub")
write("hub/blobs/3f9a.1a2b3c4d.incomplete", "weights")
os.rename("hub/blobs/3f9a.1a2b3c4d.incomplete", "hub/blobs/3f9a")
os.symlink("../../../blobs/3f9a", "hub/snapshots/main/sub/model")
assert text_of("hub/snapshots/main/sub/model") == "weights"

# attributes: the link's, or those of what it leads to
os.chown("up", 5, 6, follow_symlinks=False)
os.utime("up", (11, 22), follow_symlinks=False)
st = os.lstat("up")
assert (st.st_uid, st.st_gid, st.st_mtime) == (5, 6, 22), st
st = os.stat("up")
assert (st.st_uid, st.st_gid) == (0, 0) and st.st_mtime != 22, st
os.chmod("up", 0o600)
assert stat.S_IMODE(os.stat("d/f").st_mode) == 0o600
assert stat.S_IMODE(os.lstat("up").st_mode) == 0o777
os.chown("dangling", 7, 8, follow_symlinks=False)

# one that is removed, and still held
fd = os.open("self", os.O_PATH | os.O_NOFOLLOW)
os.unlink("self")
assert os.readlink("", dir_fd=fd) == "self"
assert os.fstat(fd).st_nlink == 0
os.close(fd)
END

# serve OPTIONS
serve() {
	rm -rf "$work/a" "$work/b" "$work/slow"
	mkdir "$work/a" "$work/b" "$work/slow"
	need do_mount -o "$1" "$work/a,$work/b:$work/slow"
	files=$mnt/files
	check 'links are what they are anywhere' \
		python3 "$work/links.py" "$files" "$work/outside"
	if python3 -c 'import venv, ensurepip' 2>/dev/null; then
		check 'a virtual environment' \
			python3 -m venv --without-pip "$files/venv"
		same 'and its Python' "$files/venv" "$("$files/venv/bin/python3" \
			-c 'import sys; print(sys.prefix)')"
	else
		left_out 'a virtual environment: needs venv of python3'
	fi
	need mkdir -m 1777 "$files/open"
	need as_nobody ln -s ../d/f "$files/open/mine"
	same "a user's own" '65534 65534' "$(stat -c '%u %g' "$files/open/mine")"
	before=$(find "$files" -type l -printf '%i %U %T@ %P %l\n' | sort)
	do_umount
	need do_mount -o "$1" "$work/a,$work/b:$work/slow"
	same 'after a remount all are the same' "$before" \
		"$(find "$files" -type l -printf '%i %U %T@ %P %l\n' | sort)"
	check 'rm -r' rm -r "$files"/*
	same 'nothing is left' '' "$(find "$work/a/files" "$work/b/files" \
		"$work/slow/files" -mindepth 1)"
	same 'nor counted' 0 "$(stat_of files_bytes)"
	for folder in blocks blocks/00 spaces; do
		refused 'Operation not permitted' "none in $folder" \
			ln -s x "$mnt/$folder/x.tmp"
	done
	do_umount
}

printf outside >"$work/outside"
serve passthrough=auto,allow_other
serve passthrough=off,allow_other
