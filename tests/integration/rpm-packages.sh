#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make rpm: the packages are built, each has what is its own, and what rpm installs into
# an empty folder runs from there: mount, put, get. Not tried here is what they depend
# on: that takes a system of RPMs. A long test: it builds a tree.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
[ "${UCMFS_TEST_LONG:-0}" != 0 ] || skip 'builds a tree: UCMFS_TEST_LONG=1'
start_test campaigns root namespace fuse make rpmbuild rpm
# $UCMFS_RPMS: packages that are there already
rpms=${UCMFS_RPMS-$work/rpm}
[ -n "${UCMFS_RPMS-}" ] || need env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL \
	RPM_CONFIGURE=--with-cuda=no \
	make -s -C "$top_builddir" rpm rpm_dir="$rpms" >"$work/out" 2>&1

# one PACKAGE: its file
one() {
	echo "$rpms/$1"-[0-9]*.rpm
}

for each in ucmfs:bin/ucmfs ucmfs:bin/ucm ucmfs:mount.fuse.ucmfs \
	ucmfs:lib/systemd/system/ucmfs@.service \
	ucmfs:share/man/man8/mount.fuse.ucmfs.8 ucmfs:share/doc/ucmfs/LICENSE \
	ucmfs-libs:libucm.so.0 ucmfs-libs:libucmsparse.so.0 \
	ucmfs-devel:libucm.so ucmfs-devel:include/ucm/load.h \
	ucmfs-devel:pkgconfig/ucmsparse.pc ucmfs-devel:share/man/man3/ucm_load.3 \
	python3-ucmfs:site-packages/ucmfs/vllm/connector.py; do
	same "${each#*:} is in one package" "${each%%:*}" "$(
		for name in ucmfs ucmfs-libs ucmfs-devel python3-ucmfs; do
			! rpm -qlp "$(one $name)" | grep -Eq "/${each#*:}(\.gz)?\$" ||
				echo $name
		done)"
done
# needs PACKAGE PATTERN
needs() {
	rpm -qp --requires "$(one "$1")" 2>/dev/null | grep -c "$2"
}
same 'ucmfs needs fusermount3' 1 "$(needs ucmfs '^fuse3$')"
same 'the libraries need jansson' 1 "$(needs ucmfs-libs '^libjansson.so.4()')"
same 'the libraries do not need libfuse' 0 "$(needs ucmfs-libs fuse)"
same 'headers need their libraries' 1 "$(needs ucmfs-devel '^ucmfs-libs.* = ')"

root=$work/root
mkdir "$root"
# --nodeps: the rest of a system is not in there
need rpm --root "$root" --nodeps --nosignature -i "$rpms"/*.rpm >"$work/out" 2>&1
libs=$(echo "$root"/usr/lib*/libucm.so.0)
site=$(echo "$root"/usr/lib/python3*/site-packages)
inside() {
	env PATH="$root/usr/bin:$PATH" LD_LIBRARY_PATH="${libs%/*}" \
		PYTHONPATH="$site" "$@"
}
dir=$work/use
export dir
mkdir "$dir" "$dir/tier" "$dir/kv"
cat >"$dir/use" <<'END'
set -eu
cd "$dir"
ucm --version
ucmfs --help | grep -c '^Usage'
head -c 4194304 /dev/urandom >pages.raw
seq -s ' ' 0 31 >tokens
ucmfs tier "$dir/kv"
ucm hash --meta MODEL:1:torch.float16:0 tokens >ids
ucm put --mount kv --layers 32 --heads 8 --dim 128 --tokens 16 \
	--dtype float16 pages.raw ids >/dev/null
ucm get --mount kv got.raw ids >/dev/null
cmp pages.raw got.raw
python3 -B -c 'import ucmfs
with ucmfs.Index("kv") as index:
    print(index.prefix(bytes.fromhex(open("ids").read()))[0])
from importlib.metadata import distribution
print(*(e.value for e in distribution("ucmfs").entry_points))'
umount kv
END
same 'they mount, put and get' "ucm $(sed -n 's/^Version: //p' \
	"$top_builddir/packaging/ucmfs.spec")
1
2
ucmfs.vllm.plugin:register" "$(inside sh "$dir/use" 2>&1)"
exit $failed
