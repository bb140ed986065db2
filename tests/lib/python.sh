# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# python.sh - the tests of the Python package; sourced behind mount.sh.
#
#   require_python
#   install_wheel FILE         into $work/venv, without a network
#   python_tests MODULE...     of tests/python/, on $mnt if that is mounted

require_python() {
	python=${PYTHON:-${UCMFS_TEST_PYTHON3:-python3}} # with its site-packages
	"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' \
		2>/dev/null || skip 'needs Python 3.9 or later'
	[ -f "$top_builddir/.libs/libucm.so" ] || skip 'libucm.so is not built'
	! nm -D "$top_builddir/.libs/libucm.so" | grep -q '__[at]san' ||
		skip 'the library is built with a sanitizer, and python is not'
}

# By the pip that is there; to make one for the venv takes seconds.
install_wheel() {
	export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1
	if "$python" -m pip --python "$python" --version >/dev/null 2>&1; then
		"$python" -m venv --without-pip "$work/venv" || return
		"$python" -m pip --python "$work/venv/bin/python" install \
			--no-deps "$1"
	else
		"$python" -m venv "$work/venv" || return
		"$work/venv/bin/pip" install --no-deps "$1"
	fi
}

# Warnings count as errors, also those of what was left open; the source tree
# may be read-only.
python_tests() {
	python_pid=
	[ ! -f "$work/run/mnt.pid" ] || python_pid=$(daemon_pid)
	for python_module; do
		check "$python_module" env PYTHONDONTWRITEBYTECODE=1 \
			PYTHONPATH="$top_srcdir/python:$top_srcdir" \
			UCMFS_LIBRARY="$top_builddir/.libs/libucm.so" \
			UCMFS_TEST_MOUNT="${python_pid:+$mnt}" \
			UCMFS_TEST_TIER="$work/tier" \
			UCMFS_TEST_DAEMON="${python_pid:-0}" \
			timeout 300 "$python" -W error -m unittest -v \
			"tests.python.$python_module"
		sed -n "s/^\(.*\) \.\.\. skipped ['\"]\(.*\)['\"]$/SKIP: \1: \2/p" \
			"$work/check.out"
	done
}
