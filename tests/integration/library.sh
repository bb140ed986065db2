#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The installed library: the example of doc/tour.md is built with what pkg-config
# says, and loads blocks; those of ucm_load(3), ucm_sparse(3) and
# ucm_sparse_cuda(3) compile, and a program is linked with libucmsparse.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
cc=${CC:-cc}
start_test campaigns root fuse pkg-config make "$cc"
[ -f "$top_builddir/.libs/libucm.so" ] || skip 'libucm.so is not built'
! nm -D "$top_builddir/.libs/libucm.so" | grep -q '__[at]san' ||
	skip 'the library is built with a sanitizer'

install_library() {
	# make check has variables of its own for who it calls
	env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -C "$top_builddir" \
		DESTDIR="$work/dest" install-libLTLIBRARIES \
		install-dist_ucmincludeHEADERS \
		install-nodist_ucmincludeHEADERS install-pkgconfigDATA
}

# compile OUTPUT option...: C on standard input, as strict as we are ourselves
compile() {
	compile_out=$1
	shift
	# shellcheck disable=SC2046 # options
	"$cc" -std=gnu17 -Wall -Wextra -Werror -x c -o "$compile_out" - \
		-x none "$@" $(pkg-config --cflags ucm)
}

check 'install' install_library
pc=$(find "$work/dest" -name ucm.pc)
libdir=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=${pc%/*}${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
PKG_CONFIG_SYSROOT_DIR=$work/dest
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
check 'pkg-config knows what a static library needs' \
	pkg-config --static --libs ucm

sed -n '/^```c$/,/^```$/p' "$top_srcdir/doc/tour.md" | grep -v '^```' \
	>"$work/load.c"
# what a man page has between .EX and .EE and begins with #include
example() {
	awk '/^\.EE$/ { on = 0 } on; begun { on = /^#include/; if (on) print }
		{ begun = /^\.EX$/ }' "$top_srcdir/man/$1" |
		sed 's/\\-/-/g; s/\\e/\\/g; s/\\&//g'
}
check 'load.c was found' grep -q 'ucm_load_submit' "$work/load.c"
# shellcheck disable=SC2046
check 'the example of doc/tour.md' compile "$work/load" \
	$(pkg-config --libs ucm) <"$work/load.c"
for page in "$top_srcdir"/man/*.3; do
	page=${page##*/}
	example "$page" >"$work/man.c"
	check "$page has an example" grep -q 'ucm_[a-z_]*(' "$work/man.c"
	check "the example of $page" compile "$work/man.o" -c <"$work/man.c"
done

cat >"$work/choose.c" <<'END'
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
if [ -f "$top_builddir/libucmsparse.la" ]; then
	# shellcheck disable=SC2046
	check 'a program of libucmsparse' compile "$work/choose" \
		$(pkg-config --libs ucmsparse) <"$work/choose.c"
	same 'it runs' '64 e3069283' "$(LD_LIBRARY_PATH=$libdir "$work/choose")"
else
	left_out 'a program of libucmsparse: it is not built'
fi

mkdir "$work/store"
need do_mount "$work/store"
need "$mkblocks" --quiet --count 3 "$mnt/blocks"
ids=$("$mkblocks" --count 3 --list | sed 's,.*/,,; s/\.bin$//')
# shellcheck disable=SC2086
LD_LIBRARY_PATH=$libdir "$work/load" "$mnt" $ids >"$work/out" 2>&1
same 'it loads: status' 0 $?
same 'it loads' "$(printf '%s ok\n' $ids)" "$(cat "$work/out")"
absent_id=00000000000000000000000000000001
LD_LIBRARY_PATH=$libdir "$work/load" "$mnt" $absent_id >"$work/out" 2>&1
same 'an absent block: status' 1 $?
same 'an absent block' "$absent_id absent" "$(cat "$work/out")"
do_umount
refused 'no mount of ucmfs' 'no mount' \
	env LD_LIBRARY_PATH="$libdir" "$work/load" "$mnt" $absent_id
