#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The wheel with binaries: who has no privileges and no ucmfs but this wheel mounts
# by fusermount3, keeps blocks by the library that came along, looks at them with
# ucm, and unmounts.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test campaigns fuse setpriv fusermount3 mknod namespace python3 python make strip \
	readelf objdump

[ -e "$(cc -print-file-name=libcrypto.a)" ] || skip 'no libcrypto.a to link with'
open_fuse_to_others
# through env(1): what setpriv itself starts is still looked for by root
for python in "$(command -v "$python")" /usr/bin/python3 none; do
	as_nobody env "$python" -c '' 2>/dev/null && break
done
[ "$python" != none ] || skip 'no python that others may run'
as_nobody test -x "$work" || skip "$work cannot be reached by others"

# ---- the wheel ----

make_binary() {
	MAKEFLAGS= MAKELEVEL= make -s -C "$top_builddir" wheel-binary \
		wheel_dir="$work/python"
}

make_binary >"$work/out" 2>&1 || {
	! grep -q 'no Python here has setuptools' "$work/out" ||
		skip 'needs setuptools and wheel'
	cat "$work/out"
	die 'it is not built'
}
wheel=$(ls "$work"/python/dist/*)
tag=$(basename "$wheel" .whl | sed 's/.*-py3-none-//')
need install_wheel "$wheel" >"$work/out" 2>&1
bundle=$(echo "$work"/venv/lib/python3*/site-packages/ucmfs/bundled)

# by another program than the one that has derived the tag
newest=$(objdump -T "$bundle"/*[!s] | grep -o 'GLIBC_[0-9.]*' | sort -uV |
	tail -n 1 | tr . _)
same 'its tag asks for the glibc that its files need' \
	"manylinux_${newest#GLIBC_}_$(uname -m)" "$tag"
libs='libucm.so.0 libucmsparse.so.0'
[ -f "$top_builddir/libucmsparse.la" ] || libs=libucm.so.0
# shellcheck disable=SC2086 # names
for file in ucmfs ucm $libs; do
	ldd "$bundle/$file" | sed "s/^/$file/"
done | awk -v dir="$bundle/" '$3 == "=>" && index($4, dir) != 1 &&
	$2 !~ /^lib(c|m|dl|rt|pthread)\.so/' >"$work/out"
check 'what it needs is in it' test ! -s "$work/out" || cat "$work/out"
for file in "$bundle"/lib*; do
	case $file in
	*/libucm.so.0 | */libucmsparse.so.0) ;;
	*) check "it has the licence of ${file##*/}" \
		grep -qx "== ${file##*/}" "$bundle/licenses/NOTICE" ;;
	esac
done
check 'the licence of libfuse is in it' grep -q 'GNU LESSER GENERAL PUBLIC' \
	"$bundle/licenses/LGPL-2.1"
first=$(sha256sum <"$wheel")
make_binary >"$work/out" 2>&1
same 'the same files make the same wheel' "$first" "$(sha256sum <"$wheel")"

# ---- who has nothing else ----

as_user() {
	as_nobody env -i PATH="$work/venv/bin:$PATH" "$@"
}

mkdir "$work/tier2"
chown 65534:65534 "$work/tier" "$work/tier2" "$mnt"
ucmfs=$work/venv/bin/ucmfs
ucmfs_wrapper='setpriv --reuid=65534 --regid=65534 --clear-groups'
need do_mount -c budget=10G "$work/tier:$work/tier2"
same 'the daemon is the one that came along' "$bundle/ucmfs" \
	"$(readlink "/proc/$(daemon_pid)/exe")"

mkdir "$work/tests"
cp -r "$top_srcdir/tests/python" "$top_srcdir/tests/lib" "$work/tests"
chmod -R a+rX "$work/tests"
cat >"$work/client.py" <<'END'
import sys
import ucmfs
from tests.python import support

want = b"".join(support.payload_of(i) for i in range(16))
ids = b"".join(support.id_of(i) for i in range(16))
memory, layout = support.pages_layout(want)
with ucmfs.Loader(support.MOUNT) as loader:
    group = loader.add_group(layout)
    group.save(ids, range(16)).wait(support.LIMIT)
    memory.clear()
    group.load(ids, range(16), verify="always").wait(support.LIMIT)
assert memory.content == want
with ucmfs.Index(support.MOUNT) as index:
    assert index.prefix(ids)[0] == 16, index.prefix(ids)
    print(index.info()["backend"])
# sha256 is libcrypto's, which is in the library
hasher = ucmfs.Hasher("sha256", block_size=16, model="m", dtype="float16")
print(hasher.request(range(16)).hex())
if "libucmsparse.so.0" in sys.argv:
    import ucmfs.star
    ucmfs.star.kept(128, 0.5)
with open("/proc/self/maps") as maps:
    mapped = {line.split()[5] for line in maps if line.count("/")}
print(*sorted({name for name in mapped if "libucm" in name}))
END
# shellcheck disable=SC2086 # names
seen=$(cd / && as_user env PYTHONPATH="$work" UCMFS_TEST_MOUNT="$mnt" \
	python "$work/client.py" $libs 2>&1)
hash=$(cd / && env PYTHONPATH="$top_srcdir/python" \
	UCMFS_LIBRARY="$top_builddir/.libs/libucm.so" "$python" -c 'import ucmfs
print(ucmfs.Hasher("sha256", block_size=16, model="m",
                   dtype="float16").request(range(16)).hex())')
# shellcheck disable=SC2086 # names
same 'he saves and loads blocks where they lie, by the libraries that came along' \
	"map
$hash
$(echo $libs | sed "s,[^ ]*,$bundle/&,g")" "$seen"
same 'ucm lists them' 16 "$(as_user ucm ls -m "$mnt" | grep -c '^[0-9a-f]\{32\} ')"
check 'ucm tells how the mount is' as_user ucm status
check 'ucm verifies them' as_user ucm verify "$work"/tier*/blocks/*/*.bin
check 'the pipe of a reader that ends early ends ucm, as ever' sh -c '
	"$@" >"$0" 2>&1; ! grep . "$0"' "$work/out" \
	setpriv --reuid=65534 --regid=65534 --clear-groups \
	env -i PATH="$work/venv/bin:$PATH" sh -c 'ucm ls -m "$0" | :' "$mnt"
check 'he unmounts' as_user fusermount3 -u "$mnt"
reap "$(daemon_pid)"
same 'the daemon ends well' 0 "$reaped"
check 'the directory is clean' grep -qx clean=1 "$work/tier/.ucmfs/state"

# ---- directories alone: no mount, and no daemon that he starts ----

mkdir "$work/alone"
chown 65534:65534 "$work/alone"
cat >"$work/alone.py" <<'END'
import os
import sys
import ucmfs
from tests.lib.private_daemon import pid_of, wait_free
from tests.python import support

want = b"".join(support.payload_of(i) for i in range(4))
ids = b"".join(support.id_of(i) for i in range(4))
memory, layout = support.pages_layout(want)
for _ in range(2):  # as engines that are started one after the other
    with ucmfs.Loader(tiers=sys.argv[1]) as loader:
        group = loader.add_group(layout)
        print(group.lookup(ids).count(True))
        group.save(ids, range(4)).wait(support.LIMIT)
        memory.clear()
        group.load(ids, range(4), verify="always").wait(support.LIMIT)
        assert memory.content == want
        print(os.readlink(f"/proc/{pid_of(sys.argv[1])}/exe"))
    wait_free(sys.argv[1])
END
same 'they stay for the next engine; the daemon is the one that came along' "0
$bundle/ucmfs
4
$bundle/ucmfs" "$(cd / && as_user env PYTHONPATH="$work" python "$work/alone.py" \
	"$work/alone" 2>&1)"
