#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Whatever somebody plants in a backing directory, files/ does not lead out of
# it, nor to another file than the one that is told.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

back=$work/tier/files
files=$mnt/files

# no other file is opened than the one that was looked up
need do_mount -c entry_timeout=60 "$work/tier"
echo first >"$files/f"
was=$(stat -c %i "$files/f")
echo 'the second' >"$back/new"
mv "$back/new" "$back/f"
exec 3<"$files/f"
is=$(stat -L -c '%i %s' /proc/self/fd/3)
same 'it is the new one' 'the second' "$(cat <&3)"
exec 3<&-
check 'and known as such' test "${is% *}" != "$was"
same 'by its size as well' 11 "${is#* }"
rm "$files/f"
do_umount

mkdir "$work/outside"
echo secret >"$work/outside/secret"
need do_mount -c entry_timeout=0 -o allow_other "$work/tier"

ln -s "$work/outside" "$back/link"
ln -s "$work/outside/secret" "$back/file"
ln -s ../../outside/secret "$back/relative"
mkfifo "$back/fifo"
mknod "$back/device" c 1 5
mkdir "$back/d"
echo good >"$back/d/good"
same 'a link is shown as one' "$work/outside" "$(readlink "$files/link")"
same 'whatever it leads to' ../../outside/secret "$(readlink "$files/relative")"
need chmod 600 "$work/outside/secret"
if as_nobody cat "$files/file" 2>/dev/null; then
	fail 'a link lends the rights of the daemon'
fi
need rm "$files/link" "$files/file" "$files/relative"
same 'what is outside stays' secret "$(cat "$work/outside/secret")"
absent "$files/fifo"
absent "$files/device"
same 'and none of these is listed' d "$(ls -A "$files")"
refused 'Operation not permitted' 'nor overwritten' touch "$files/fifo"
refused 'Directory not empty' 'rmdir spares what is not shown' \
	sh -c "mkfifo '$back/d/hidden'; rm '$files/d/good'; rmdir '$files/d'"

# a folder in use is swapped for a link
mkdir "$back/e"
echo good >"$back/e/secret"
cd "$files/e" || die 'cd'
need cat secret
mv "$back/e" "$back/was"
ln -s "$work/outside" "$back/e"
cat secret >"$work/got" 2>/dev/null
check 'nobody is led outside' test ! -s "$work/got" -o \
	"$(cat "$work/got")" = good
echo overwritten 2>/dev/null >secret
echo new 2>/dev/null >new
cd "$work" || die 'cd'
same 'nothing was written there' secret "$(cat "$work/outside/secret")"
is_absent "$work/outside/new" || fail 'a file was made outside'

# what is replaced behind the daemon is found again
echo one >"$files/f"
need cat "$files/f"
rm "$back/f"
echo other >"$back/f"
same 'a replaced file is the new one' other "$(cat "$files/f")"
rm "$back/f"
refused 'No such file' 'a vanished one is gone' cat "$files/f"
do_umount
