#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make release, without what it calls, which other tests run: it refuses what is not
# the version or has no date yet, and what was made is in one folder, with checksums.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns sha256sum tar

mkdir "$work/top" "$work/build" "$work/bin"
cat >"$work/bin/make" <<'END'
#!/bin/sh
# make -s -C BUILD TARGET [NAME=DIR]
dir=${5#*=}
case $4 in
distcheck) echo tarball >"$3/ucmfs-1.2.3.tar.gz" ;;
wheel-binary) mkdir -p "$dir/dist" && echo wheel >"$dir/dist/ucmfs-1.2.3.whl" ;;
deb) mkdir -p "$dir" && echo deb >"$dir/ucmfs_1.2.3-1_amd64.deb" ;;
html) mkdir -p "$dir" && echo page >"$dir/index.html" ;;
*) exit 2 ;;
esac
END
chmod +x "$work/bin/make"
# its programs, so that one can be absent
for each in sh env sed grep git tar gzip sha256sum rm mkdir mv cp cat ls tail mandoc; do
	printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v "$each" || echo false)" \
		>"$work/bin/$each"
	chmod +x "$work/bin/$each"
done
release() {
	env -u RELEASE_CHECK PATH="$work/bin" sh \
		"$top_srcdir/packaging/make-release" "$work/top" "$work/build" \
		"$work/release" 1.2.3 "$1"
}

printf '# Changes\n\n## 1.2.3 (not released)\n\n- new\n\n## 1.2.2 (2026-01-02)\n\n- old\n' \
	>"$work/top/CHANGELOG.md"
refused 'configure.ac has 1.2.3' 'another version' release 1.2.4
refused "no line '## 1.2.3 (YYYY-MM-DD)'" 'changes without a date' release 1.2.3
sed -i 's/not released/2026-02-03/' "$work/top/CHANGELOG.md"
refused 'dh is missing' 'no debhelper' release 1.2.3
cp "$work/bin/mandoc" "$work/bin/dh"
release 1.2.3 >"$work/out" 2>&1
same 'it makes a release' 0 $? || cat "$work/out"
same 'all of it is there' 'CHANGES-1.2.3.md
SHA256SUMS
ucmfs-1.2.3-html.tar.gz
ucmfs-1.2.3.tar.gz
ucmfs-1.2.3.whl
ucmfs_1.2.3-1_amd64.deb' "$(ls "$work/release")"
same 'with checksums' 5 "$(cd "$work/release" && sha256sum -c SHA256SUMS |
	grep -c ': OK$')"
same 'and the changes of this version' '- new' "$(sed '/^$/d' \
	"$work/release/CHANGES-1.2.3.md")"
same 'the pages are in their folder' ucmfs-1.2.3-html/index.html \
	"$(tar -tzf "$work/release/ucmfs-1.2.3-html.tar.gz" | grep html$)"
exit $failed
