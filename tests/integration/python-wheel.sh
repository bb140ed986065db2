#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The wheel: it holds every module, installs without a network or a compiler, and
# works from where it was installed.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test campaigns python3 python

version=$(sed -n 's/^AC_INIT(\[ucmfs\], \[\([^]]*\)\].*/\1/p' \
	"$top_srcdir/configure.ac")
make_wheel() {
	sh "$top_srcdir/python/make-wheel" "$top_srcdir" "$work/python" "$1"
}

make_wheel "$version" >"$work/out" 2>&1
status=$?
cat "$work/out"
if [ $status != 0 ] && grep -q 'no Python here has setuptools' "$work/out"; then
	same 'it says what to install' 1 \
		"$(grep -c 'python3-setuptools and python3-wheel' "$work/out")"
	skip 'needs setuptools and wheel'
fi
same 'it is built' 0 $status
wheel=$work/python/dist/ucmfs-$version-py3-none-any.whl
check 'for every Python 3, on every machine' [ -f "$wheel" ]
same 'nothing else is left behind' dist "$(ls "$work/python" | grep -v log)"
refused 'has not the version 99' 'another version than that of configure' \
	make_wheel 99

(cd "$top_srcdir/python" && find ucmfs -name '*.py' -o -name py.typed) |
	grep -v __pycache__ | sort >"$work/want"
"$python" -m zipfile -l "$wheel" | awk '$1 ~ /^ucmfs\// { print $1 }' |
	sort >"$work/got"
check 'it has all modules' diff "$work/want" "$work/got"

entry='ucmfs = ucmfs.vllm.plugin:register'
same 'vLLM finds its plug-in' "$entry" "$("$python" -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name, = (n for n in wheel.namelist() if n.endswith("/entry_points.txt"))
text = wheel.read(name).decode()
print(text.partition("[vllm.general_plugins]\n")[2].split("\n\n")[0].strip())' \
	"$wheel")"

same 'it has extras' 'all bench proxy vllm yaml' "$("$python" -c 'import sys, zipfile
from email import message_from_bytes
wheel = zipfile.ZipFile(sys.argv[1])
name, = (n for n in wheel.namelist() if n.endswith("/METADATA"))
print(*sorted(message_from_bytes(wheel.read(name)).get_all("Provides-Extra")))' \
	"$wheel")"

"$python" -m venv --without-pip "$work/venv" >"$work/out" 2>&1 ||
	skip "the rest, as there is no venv: $(tail -n 1 "$work/out")"
check 'it is installed' install_wheel "$wheel"
check 'it has no scripts that would hide an installed ucmfs' \
	test ! -e "$work/venv/bin/ucmfs" -a ! -e "$work/venv/bin/ucm"
check 'ucm finds its bench' env -u PYTHONPATH PATH="$work/venv/bin:$PATH" \
	"$top_builddir/ucm" bench run --help
seen=$(cd / && env -u PYTHONPATH \
	UCMFS_LIBRARY="$top_builddir/.libs/libucm.so" \
	"$work/venv/bin/python" -c 'import ucmfs
print(ucmfs.__version__, hex(ucmfs.crc32c(b"123456789")),
      "venv" in ucmfs.__file__)')
same 'it works' "$version 0xe3069283 True" "$seen"
