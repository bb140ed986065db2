#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# files/ is a tree as any other: what cp, tar, rsync, dd and find do in it, and
# what is refused.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3 rsync tar

mkdir "$work/a" "$work/b" "$work/slow" "$work/src"
for dir in one one/two 'a name' .hidden; do
	need mkdir "$work/src/$dir"
	for size in 0 1 4095 4096 100000; do
		head -c $size /dev/urandom >"$work/src/$dir/$size"
	done
done
need ln -s 1 "$work/src/one/link"
need ln -s ../one "$work/src/one/two/folder"
need ln -s nowhere "$work/src/dangling"
need ln -s /etc/passwd "$work/src/absolute"
need ln -s self "$work/src/self"
need chown -h 5:6 "$work/src/dangling"
need touch -h -d 2001-02-03T04:05:06 "$work/src/dangling"
chmod 640 "$work/src/one/4096"
touch -d 2001-02-03T04:05:06 "$work/src/one/two/1" "$work/src/a name"

# whole_tree OPTIONS
whole_tree() {
	rm -rf "$work/a" "$work/b" "$work/slow"
	mkdir "$work/a" "$work/b" "$work/slow"
	need do_mount -o "$1" "fast=$work/a,$work/b:slow=$work/slow"
	files=$mnt/files

	check 'cp -a' cp -a "$work/src" "$files/cp"
	check 'it is the same' diff -r --no-dereference "$work/src" "$files/cp"
	check 'tar' sh -c "tar -C '$work' -cf - src | tar -C '$files' -xf -"
	check 'it is the same' diff -r --no-dereference "$work/src" "$files/src"
	check 'rsync' rsync -a "$work/src/" "$files/rsync"
	same 'once more it finds nothing to do' '' \
		"$(rsync -ai "$work/src/" "$files/rsync")"
	same 'nor does it in what cp made' '' \
		"$(rsync -ai "$work/src/" "$files/cp")"
	same 'all is in the first directory' '' \
		"$(find "$work/b/files" "$work/slow/files" -mindepth 1)"
	same 'find sees each once' "$(cd "$work/src" && find . | sort)" \
		"$(cd "$files/cp" && find . | sort)"
	same 'du counts them' "$(du -s --apparent-size -B1 "$work/src" | cut -f1)" \
		"$(du -s --apparent-size -B1 "$files/cp" | cut -f1)"

	ino=$(stat -c %i "$files/cp/one/4096")
	do_umount
	need do_mount -o "$1" "fast=$work/a,$work/b:slow=$work/slow"
	same 'an inode number survives a remount' "$ino" \
		"$(stat -c %i "$files/cp/one/4096")"
	check 'and all the rest' diff -r --no-dereference "$work/src" "$files/rsync"
	check 'rm -r' rm -r "$files/cp" "$files/src" "$files/rsync"
	same 'nothing is left' '' \
		"$(find "$work/a/files" "$work/b/files" "$work/slow/files" \
			-mindepth 1)"
	same 'nor counted' 0 "$(stat_of files_bytes)"
	one_by_one
	do_umount
}

one_by_one() {
	echo text >"$files/f"
	refused 'Operation not permitted' 'a FIFO' mkfifo "$files/fifo"
	refused 'Operation not permitted' 'a device' \
		mknod "$files/null" c 1 3
	refused 'File name too long' 'a long name' \
		touch "$files/$(printf %0256d 0)"
	refused 'Is a directory' 'writing to a folder' \
		dd if=/dev/zero of="$mnt/files" count=1
	refused 'File exists' 'mkdir of what is there' mkdir "$files/f"
	refused 'Not a directory' 'below a file' touch "$files/f/g"
	need mkdir -p "$files/d/e"
	refused 'Directory not empty' 'rmdir of what is not empty' \
		rmdir "$files/d"
	need truncate -s 1M "$files/f"
	same 'truncate makes a file longer' 1048576 "$(stat -c %s "$files/f")"
	same 'of zeros' "text" "$(tr -d '\0' <"$files/f")"
	need truncate -s 2 "$files/f"
	same 'and shorter' te "$(cat "$files/f")"
	echo more >>"$files/f"
	same 'and what is appended comes behind' temore "$(cat "$files/f")"
	check 'fallocate' fallocate -l 100000 "$files/f"
	same 'has the size' 100000 "$(stat -c %s "$files/f")"
	need touch -d @1234567890 "$files/f"
	same 'a time is kept' 1234567890 "$(stat -c %Y "$files/f")"
	need chmod 600 "$files/f"
	need chown 1:2 "$files/f"
	refused 'Operation not permitted' 'a set-id bit' chmod 4755 "$files/f"
	refused 'Operation not permitted' 'of either kind' chmod g+s "$files/f"
	refused 'Operation not permitted' 'for a folder as well' \
		chmod u+s "$files/d"
	same 'and mode and owner' '600 1 2' "$(stat -c '%a %u %g' "$files/f")"
	same 'on the file behind as well' '600 1 2' \
		"$(find "$work"/[abs]*/files -name f -exec stat -c '%a %u %g' {} +)"
	refused 'Permission denied' 'which keeps others away' \
		as_nobody cat "$files/f"
	as_nobody touch "$files/other" 2>/dev/null &&
		fail 'anyone may write to the root'
	need mkdir -m 777 "$files/open"
	check 'others make files of their own' \
		as_nobody sh -c "echo mine >'$files/open/f'"
	same 'which are theirs' '65534 65534' \
		"$(stat -c '%u %g' "$files/open/f")"
	need mkdir -m 2777 "$files/group"
	need chgrp 7 "$files/group"
	need chmod 2777 "$files/group"
	need as_nobody touch "$files/group/f"
	same 'a folder hands down its group' '65534 7' \
		"$(stat -c '%u %g' "$files/group/f")"
	rename_between
	while_open
}

rename_between() {
	refused 'Directory not empty' 'a name over a full folder' \
		mv -T "$files/d" "$files/open"
	path=$(small_paths 1)
	need mk --count 1 "$mnt/blocks"
	check 'mv copies what leaves the blocks' \
		mv "$mnt/blocks/$path" "$files/block"
	check 'and what comes to them' \
		mv "$files/block" "$mnt/blocks/$path"
	check 'it is whole' verify --count 1 "$mnt/blocks"
}

while_open() {
	check 'a file that is removed while it is open' python3 - "$files" <<'END'
import os, sys
path = sys.argv[1] + "/gone"
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.write(fd, b"before")
os.unlink(path)
assert not os.path.exists(path)
os.pwrite(fd, b" and after", 6)
assert os.pread(fd, 100, 0) == b"before and after"
st = os.fstat(fd)
assert st.st_size == 16 and st.st_nlink == 0, st
os.ftruncate(fd, 3)
os.fchmod(fd, 0o640)
assert os.fstat(fd).st_size == 3
again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
assert os.read(again, 100) == b"bef"
# one of the same name is another
with open(path, "w") as file:
    file.write("new")
assert os.pread(fd, 100, 0) == b"bef"
assert os.fstat(fd).st_ino != os.stat(path).st_ino
os.close(fd)
# a reader first, then a writer, then through one descriptor
reader = os.open(path, os.O_RDONLY)
writer = os.open(path, os.O_WRONLY | os.O_APPEND)
os.write(writer, b"er")
assert os.pread(reader, 100, 0) == b"newer"
assert os.fstat(reader).st_size == 5
os.close(writer)
os.close(reader)
os.unlink(path)
END
	check 'holes are found' python3 - "$files" <<'END'
import os, sys
fd = os.open(sys.argv[1] + "/sparse", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"x", 1 << 20)
assert os.lseek(fd, 0, os.SEEK_DATA) == 1 << 20
assert os.lseek(fd, 0, os.SEEK_HOLE) == 0
assert os.fstat(fd).st_blocks * 512 < 1 << 20
END
	check 'folders are synced' python3 - "$files" <<'END'
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.fsync(fd)
END
}

whole_tree passthrough=auto,allow_other
whole_tree passthrough=off,allow_other
