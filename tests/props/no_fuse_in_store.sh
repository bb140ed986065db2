#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# no_fuse_in_store.sh - the store works without FUSE: its objects call no
# fuse_ function, and its sources include no FUSE header and none of the face.
set -u
: "${top_srcdir:?}" "${top_builddir:?}"

command -v nm >/dev/null || { echo "SKIP: no nm"; exit 77; }
failed=0

for lib in libucmcommon libucmhashing libucmformat libucmtrace libucmstore; do
	archive=$top_builddir/.libs/$lib.a
	[ -f "$archive" ] || { echo "SKIP: $archive has not been built"; exit 77; }
	found=$(nm -A "$archive" | grep ' fuse_')
	if [ -n "$found" ]; then
		echo "FAIL: $lib knows FUSE:"
		echo "$found"
		failed=1
	fi
done

# libucmstore_la-tierset.o was made of tierset.c
sources=$(nm "$top_builddir/.libs/libucmstore.a" 2>/dev/null |
	sed -n 's/^libucmstore_la-\(.*\)\.o:$/\1/p')
[ -n "$sources" ] || { echo "FAIL: found no objects in libucmstore.a"; exit 1; }
for source in format $sources; do
	for file in "$top_srcdir/fs/$source.c" "$top_srcdir/fs/$source.h"; do
		[ -f "$file" ] || continue
		found=$(grep -n '#include.*\(fuse\|fs/face\.h\|fs/options\.h\)' \
			"$file")
		if [ -n "$found" ]; then
			echo "FAIL: $file: $found"
			failed=1
		fi
	done
done
exit $failed
