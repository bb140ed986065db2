#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ./configure --enable-library-only, on a machine without libfuse: what is installed is
# the libraries, their headers, pkg-config files and manual pages, and nothing else,
# and a program is linked with them. It builds a tree, so it is for the long form.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
[ "${UCMFS_TEST_LONG:-0}" != 0 ] || skip 'builds a tree: UCMFS_TEST_LONG=1'
cc=${CC:-cc}
start_test campaigns pkg-config make "$cc"
[ -x "$top_srcdir/configure" ] || skip 'no configure in the sources'

# What pkg-config finds, and not libfuse; PKG_CONFIG_LIBDIR is all that it looks at.
mkdir "$work/pc" "$work/build"
pkg-config --variable pc_path pkg-config | tr : '\n' | while read -r dir; do
	for pc in "$dir"/*.pc; do
		[ ! -e "$pc" ] || [ "${pc##*/}" = fuse3.pc ] ||
			[ -e "$work/pc/${pc##*/}" ] || ln -s "$pc" "$work/pc"
	done
done
unset PKG_CONFIG_PATH
export PKG_CONFIG_LIBDIR="$work/pc"
same 'libfuse is hidden' no "$(pkg-config --exists fuse3 || echo no)"

# plain: without what make check has for those that it calls
plain() {
	env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -C "$work/build" "$@"
}
need plain "$top_srcdir/configure" --enable-library-only --with-cuda=no --prefix=/usr \
	CC="$cc" CFLAGS=-O0 >"$work/out" 2>&1
need plain make -j2 >"$work/out" 2>&1
need plain make DESTDIR="$work/dest" install >"$work/out" 2>&1
lib=$work/dest/usr/lib
for name in libucm libucmsparse; do
	check "$name is installed" test -e "$lib/$name.so.0"
	same "$name does not ask for libfuse" '' \
		"$(readelf -d "$lib/$name.so.0" | grep NEEDED | grep -i fuse)"
done
same 'the headers' "$(cd "$top_srcdir/include/ucm" &&
	{ ls ./*.h; echo ./version.h; } | sort -u)" \
	"$(cd "$work/dest/usr/include/ucm" && ls ./*.h | sort)"
same 'the manual pages of the libraries, and no others' \
	"$(cd "$top_srcdir/man" && ls -- *.3)" \
	"$(cd "$work/dest/usr/share/man" && find . -type f | sed 's,.*/,,' | sort)"
same 'pkg-config files' 'ucm.pc
ucmsparse.pc' "$(ls "$lib/pkgconfig")"
same 'no program, no unit' '' "$(find "$work/dest" -name '*.service' -o \
	-path '*bin/*' | head)"

cat >"$work/use.c" <<'END'
#include <stdio.h>
#include <ucm/block.h>
#include <ucm/sparse.h>
int main(void)
{
	printf("%u %08x\n", (unsigned)ucm_star_kept(128, 0.5),
	       (unsigned)ucm_crc32c(0, "123456789", 9));
	return 0;
}
END
export PKG_CONFIG_PATH="$lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$work/dest"
# shellcheck disable=SC2046 # options
check 'a program is linked' "$cc" -o "$work/use" "$work/use.c" \
	$(pkg-config --cflags --libs ucmsparse ucm)
same 'it runs' '64 e3069283' "$(LD_LIBRARY_PATH=$lib "$work/use")"
exit $failed
