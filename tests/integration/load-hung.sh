#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two tiers, one of them on a file server that is stopped: blocks that have to be
# looked for there wait for it, all others are loaded as if it were not there, by
# each kind of I/O. When it goes on, so do the rest.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse
require_client
shape='--plane 65536 --threads 1' # 256 KiB: 100 of them fill any window

# fill_tier DIR FIRST NUM
fill_tier() {
	# shellcheck disable=SC2086 # options
	start_client $shape tiers "$1"
	ask "save $2 $3"
	answers "$3 blocks in ${1##*/}" "$3" 0 0 0 0
	end_client
}

mkdir -p "$work/server" "$work/local" "$work/other"
mnt=$work/server
# Over io_uring the kernel gives requests to a server that is stopped, and waits for
# the answers where no signal reaches: a process could not end before that.
need do_mount -o io_uring=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung"
mnt=$work/mnt
# makes them tiers
need do_mount "local=$work/local:other=$work/other:hung=$hung"
do_umount
fill_tier "$work/local" 0 400
fill_tier "$work/other" 1000 50
need cp -r "$work/other/blocks/." "$hung/blocks/"

for io in uring threads; do
	# shellcheck disable=SC2086 # options
	start_client $shape --io $io tiers "local=$work/local:hung=$hung"
	ask 'load 1000 1'
	answers "$io: the server answers" 1 0 0 0 0
	need freeze "$(cat "$work/run/server.pid")"
	ask 'start load 1000 100'
	ask 'load 0 400 4000'
	answers "$io: 400 are loaded while 100 are looked for" 400 0 0 0 0
	ask 'load 1000 50 300'
	answers "$io: a deadline is kept there" 0 0 0 0 50
	ask 'load 200 200 4000'
	answers "$io: and it is in nobody's way" 200 0 0 0 0
	need let_go
	ask 'wait'
	answers "$io: those that waited are found, or absent" 50 0 0 50 0
	ask 'load 1000 50'
	answers "$io: and are loaded again" 50 0 0 0 0
	end_client
done
mnt=$work/server
do_umount
