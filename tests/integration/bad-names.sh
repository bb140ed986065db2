#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Names in buckets that are neither blocks nor staging: they cannot be made, are
# not found, and do no harm.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

# cannot_make 'Error text' NAME: neither as a file nor by rename
cannot_make() {
	refused "$1" "cannot be made: $2" dd if=/dev/null of="$b/$2"
	refused "$1" "cannot be renamed to: $2" rename_file "$b/.staging" "$b/$2"
}

need do_mount "$work/tier"
need mk --count 1 "$mnt/blocks"
good=$(small_paths 1)
name=${good#*/}
b=$mnt/blocks/${good%/*}
: >"$b/.staging"

upper=$(echo "${name%.bin}" | tr a-f A-F).bin
[ "$upper" != "$name" ] || die 'a name without letters: choose another seed'
for bad in "$upper" "${name%.bin}" "${name#?}" "0$name" "$name.bak" "$name~" \
	"${name%.bin}.BIN" "${name%.bin}.txt" 'x' 'a b' "${name%?.bin}g.bin"; do
	cannot_make 'Invalid argument' "$bad"
	absent "$b/$bad"
done
other=00
[ "${good%/*}" != 00 ] || other=01
refused 'Invalid argument' 'a block in the wrong bucket' \
	dd if=/dev/null of="$mnt/blocks/$other/$name"
absent "$mnt/blocks/$other/$name"
refused 'Invalid argument' 'staging becomes no block of another bucket' \
	rename_file "$b/.staging" "$mnt/blocks/$other/$name"
for length in 256 300 1023 4000; do
	long=.$(printf "%0${length}d" 0)
	refused 'File name too long' "a name of $length bytes and one" \
		dd if=/dev/null of="$b/$long"
done
for bad in 0 000 0g AA zz .hidden; do
	refused 'not' "no bucket can be made: $bad" mkdir "$mnt/blocks/$bad"
	absent "$mnt/blocks/$bad"
done
refused 'm' 'no bucket can be removed' rmdir "$mnt/blocks/00"
check 'it is still there' test -d "$mnt/blocks/00"
refused 'm' 'no directory in a bucket' mkdir "$b/dir"
refused 'm' 'no file in the root' dd if=/dev/null of="$mnt/file"
refused 'm' 'no directory in the root' mkdir "$mnt/dir"
refused 'm' 'no file in blocks/' dd if=/dev/null of="$mnt/blocks/file"
refused 'm' 'no file in spaces/' dd if=/dev/null of="$mnt/spaces/file"
check 'the way up leads up' test "$b/../../blocks/$good" -ef "$mnt/blocks/$good"

export BUCKET="$b"
check 'no byte in a name does harm' python3 -c '
import errno, os, random
bucket = os.environ["BUCKET"].encode()
random.seed(1)
names = [bytes([c]) for c in range(1, 256) if c not in b"./"]
names += [bytes(random.choice(range(1, 256)) for _ in range(36))
          .replace(b"/", b"_").lstrip(b".") for _ in range(300)]
names += [b"0" * 31 + bytes([c]) + b".bin" for c in range(1, 256)
          if c not in b"/0123456789abcdef"]
for name in names:
    if name.endswith(b".tmp"):
        continue
    path = bucket + b"/" + name
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        raise SystemExit("made: %r" % name)
    except OSError as e:
        assert e.errno == errno.EINVAL, (name, e)
    try:
        os.stat(path)
        raise SystemExit("found: %r" % name)
    except OSError as e:
        assert e.errno == errno.ENOENT, (name, e)'
need rm "$b/.staging"
check 'the block is as it was' verify --count 1 "$mnt/blocks"
same 'it is alone' 1 "$(find "$mnt/blocks" -type f | wc -l)"
no_debris "$work/tier"
do_umount
