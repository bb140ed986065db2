#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# git works in files/: clone, commit, branch, merge, gc, fsck.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns root fuse git

HOME=$work
GIT_CONFIG_NOSYSTEM=1
export HOME GIT_CONFIG_NOSYSTEM
git config --global user.name test
git config --global user.email test@localhost
git config --global init.defaultBranch main
git config --global safe.directory '*'

need git init -q "$work/origin"
i=0
while [ $i -lt 200 ]; do
	mkdir -p "$work/origin/dir$((i % 7))"
	echo "file $i" >"$work/origin/dir$((i % 7))/$i"
	i=$((i + 1))
done
need ln -s dir0/7 "$work/origin/link"
need ln -s ../dir0 "$work/origin/dir1/folder"
need ln -s nowhere "$work/origin/dangling"
need git -C "$work/origin" add .
need git -C "$work/origin" commit -qm first

# serve OPTIONS
serve() {
	rm -rf "$work/a" "$work/b" "$work/slow"
	mkdir "$work/a" "$work/b" "$work/slow"
	need do_mount -o "$1" "$work/a,$work/b:$work/slow"
	repo=$mnt/files/repo
	check 'clone' git clone -q --no-local "$work/origin" "$repo"
	check 'the tree is the same' \
		diff -r --no-dereference --exclude .git "$work/origin" "$repo"
	same 'status has nothing to say' '' \
		"$(git -C "$repo" status --porcelain)"
	need git -C "$repo" checkout -qb branch
	need git -C "$repo" mv dir1 renamed
	need git -C "$repo" commit -qam 'a folder renamed'
	need git -C "$repo" checkout -q main
	echo changed >"$repo/dir2/2"
	need ln -sfn dir0/14 "$repo/link"
	need git -C "$repo" commit -qam changed
	check 'merge' git -C "$repo" merge -q -m merged branch
	check 'gc' git -C "$repo" gc -q --prune=now
	check 'fsck' git -C "$repo" fsck --strict
	do_umount
	need do_mount -o "$1" "$work/a,$work/b:$work/slow"
	same 'after a remount, too' '' "$(git -C "$repo" status --porcelain)"
	check 'fsck' git -C "$repo" fsck --strict
	check 'a clone of the clone' git clone -q "$repo" "$work/back"
	rm -rf "$work/back"
	do_umount
}

serve passthrough=auto
serve passthrough=off
