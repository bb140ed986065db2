#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make deb: the packages are built, and installed with apt in a bare system of this
# distribution, where nothing else of ucmfs is: mount, put, get, purge. A long test: it
# builds a tree and fetches a system.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
[ "${UCMFS_TEST_LONG:-0}" != 0 ] || skip 'builds a tree: UCMFS_TEST_LONG=1'
start_test campaigns root namespace fuse make dpkg-buildpackage dh dh_python3 \
	debootstrap apt-get
# $UCMFS_DEBS: packages that are there already
if [ -n "${UCMFS_DEBS-}" ]; then
	debs=$UCMFS_DEBS
else
	debs=$work/deb
	need env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL DEB_CONFIGURE=--with-cuda=no \
		DEB_BUILD_OPTIONS="nocheck noautodbgsym parallel=$(nproc)" \
		make -s -C "$top_builddir" deb deb_dir="$debs" >"$work/out" 2>&1
fi
for name in ucmfs libucm0 libucm-dev libucmsparse0 python3-ucmfs; do
	check "$name" test -f "$(echo "$debs"/"${name}"_*.deb)"
done

# field PACKAGE NAME
field() {
	dpkg-deb -f "$(echo "$debs/$1"_*.deb)" "$2"
}

check 'ucmfs depends on fusermount3' sh -c 'echo "$0" | grep -qw fuse3' \
	"$(field ucmfs Depends)"
check 'libucm0 depends on what it is linked with' sh -c \
	'echo "$0" | grep -qw libc6 && echo "$0" | grep -qw libjansson4' \
	"$(field libucm0 Depends)"
same 'libucm0 does not depend on libfuse' '' \
	"$(field libucm0 Depends | grep -o 'fuse[^,]*')"
if command -v lintian >/dev/null; then
	# what is asked of uploads to Debian does not hold here
	lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs \
		"$debs"/*.deb >"$work/out" 2>&1
	same 'lintian has no errors or warnings' 0 $? || sed 's/^/  | /' "$work/out"
else
	left_out 'lintian: it is not installed'
fi

# ---- a bare system, by what apt of this one knows ----

site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)
suite=$(. /etc/os-release; echo "$VERSION_CODENAME")
root=$work/root
mkdir "$root"
if ! debootstrap --variant=minbase "$suite" "$root" "$site" >"$work/out" 2>&1; then
	tail -n 3 "$work/out" | sed 's,//[^/ ]*,//(host),g'
	skip "no $suite to be had by debootstrap"
fi
rm "$root/etc/apt/sources.list"
cp -r /etc/apt/. "$root/etc/apt/"
cp /etc/resolv.conf "$root/etc/" 2>/dev/null
mkdir "$root/debs"
cp "$debs"/*.deb "$root/debs"
need mount -t proc proc "$root/proc"
need mount --bind /dev "$root/dev"

inside() {
	env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C \
		DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"
}

need inside apt-get update >"$work/out" 2>&1
inside dpkg -l | awk '/^ii/ { print $2 }' >"$work/before"
inside sh -c 'apt-get install -y --no-install-recommends /debs/*.deb' \
	>"$work/out" 2>&1
same 'apt installs them' 0 $? || tail -n 20 "$work/out"
same 'and all that they need' '' "$(inside sh -c \
	'ldd /usr/bin/ucmfs /usr/bin/ucm /usr/lib/*/libucm*.so.0' | grep 'not found')"
cat >"$root/use" <<'END'
set -eu
mkdir /tier /mnt/kv
head -c 4194304 /dev/urandom >/pages.raw
seq -s ' ' 0 31 >/tokens
ucmfs /tier /mnt/kv
ucm hash --meta MODEL:1:torch.float16:0 /tokens >/ids
ucm put --mount /mnt/kv --layers 32 --heads 8 --dim 128 --tokens 16 \
	--dtype float16 /pages.raw /ids >/dev/null
ucm get --mount /mnt/kv /got.raw /ids >/dev/null
cmp /pages.raw /got.raw
ls /mnt/kv/blocks/*/*.bin | wc -l
python3 -c 'import ucmfs
with ucmfs.Index("/mnt/kv") as index:
    print(index.prefix(bytes.fromhex(open("/ids").read()))[0])
from importlib.metadata import distribution
print(*(e.value for e in distribution("ucmfs").entry_points))'
umount /mnt/kv
# it may say that it waits for the other one to end
mount -t fuse.ucmfs /tier /mnt/kv 2>/dev/null
ls /mnt/kv/blocks/*/*.bin | wc -l
umount /mnt/kv
END
same 'they mount, put and get' '2
2
ucmfs.vllm.plugin:register
2' "$(inside sh /use 2>&1)"
inside apt-get purge -y ucmfs libucm0 libucm-dev libucmsparse0 python3-ucmfs \
	>"$work/out" 2>&1
same 'apt purges them' 0 $? || tail -n 20 "$work/out"
same 'nothing is left of them' '' "$(inside find /usr /etc /lib /var/lib \
	-not -path '*/dpkg/*' -not -path '*/apt/*' \( -name '*ucmfs*' -o \
	-name 'libucm*' \))"
same 'but the blocks' 2 "$(inside find /tier -name '*.bin' | wc -l)"
umount "$root/dev" "$root/proc"
exit $failed
