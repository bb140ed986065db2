# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# build.sh - what quickstart and selftest share; sourced by them.
#
# Sets $top (the source tree). Everything is built below the tree in build-*
# folders, which git ignores; nothing is installed but what install-deps says.

# Nothing here asks, and libtool fails where standard input is closed.
exec </dev/null

top=$(cd "$(dirname "$0")/.." && pwd)
jobs=$(nproc 2>/dev/null || echo 2)
# libtool is a script, run for each object and program: dash takes three quarters of
# the time that bash does.
quick_shell=$(command -v dash || echo /bin/sh)

say() {
	printf '%s\n' "$*"
}

die() {
	printf '%s: %s\n' "$(basename "$0")" "$*" >&2
	exit 1
}

# run_logged LOG WHAT COMMAND...: one line while it lasts, the end of the log
# if it fails.
run_logged() {
	log_=$1
	what_=$2
	shift 2
	printf '%s ... ' "$what_"
	start_=$(date +%s)
	if "$@" >"$log_" 2>&1; then
		printf 'done (%s s)\n' "$(($(date +%s) - start_))"
		return 0
	fi
	printf 'FAILED\n'
	tail -n 30 "$log_"
	return 1
}

# configured DIR [OPTIONS]: $top/DIR, where it is not with these options. Kernels for
# other devices are made again.
configured() {
	dir_=$top/$1
	shift
	mkdir -p "$dir_"
	if [ ! -x "$top/configure" ] || [ ! -f "$top/build-aux/install-sh" ] ||
	   [ "$top/configure.ac" -nt "$top/configure" ]; then
		run_logged "$dir_/autoreconf.log" "autoreconf" \
			autoreconf -fi "$top" || return 1
	fi
	if [ ! -f "$dir_/Makefile" ] || [ "$top/configure" -nt "$dir_/Makefile" ] ||
	   [ "$*" != "$(cat "$dir_/options" 2>/dev/null)" ]; then
		rm -f "$dir_/options" "$dir_"/gpu/*/*.fatbin
		(cd "$dir_" && run_logged configure.log "configure $*" \
			env CONFIG_SHELL="$quick_shell" \
			"$top/configure" "$@") || return 1
		echo "$*" >"$dir_/options"
	fi
}

# build DIR [CONFIGURE OPTIONS]: configure and make in $top/DIR.
build() {
	configured "$@" || return 1
	run_logged "$dir_/make.log" "make in $(basename "$dir_")" \
		make -C "$dir_" -j"$jobs"
}
