#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Blocks on a file server that is stopped, read into pages that may be lent: the
# deadline is kept, and the pages stay lent until the server goes on. What it
# brings then is in these pages, and that they are back is told once. Who lends
# pages to local file systems only has none lent, and none whom threads read for:
# what comes late ends in staging memory.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse
require_client
shape='--direct --plane 65536 --threads 1'

mkdir -p "$work/server" "$work/local"
mnt=$work/server
# see load-hung.sh; and reads that the server does itself
need do_mount -o io_uring=off,passthrough=off "$work/tier"
hung=$mnt/files/hung
need mkdir -p "$hung"
mnt=$work/mnt
# makes them tiers
need do_mount "local=$work/local:hung=$hung"
do_umount
# shellcheck disable=SC2086 # options
start_client $shape tiers "$work/local"
ask 'save 0 8'
answers '8 blocks' 8 0 0 0 0
end_client
need mv "$work/local/blocks" "$work/local/away"
need cp -r "$work/local/away/." "$hung/blocks/"
need mkdir "$work/local/blocks"

# late local|always lent told
late() {
	need freeze "$(cat "$work/run/server.pid")"
	ask "lend $1 0 3 300"
	same "$io, $1: the deadline is kept" "= failed 3 lent $2" "$answer"
	need let_go
	ask 'returned'
	same "$io, $1: pages come back" "= told $3 late $2" "$answer"
	ask 'load 0 8'
	answers "$io, $1: and are loaded again" 8 0 0 0 0
}

for io in uring threads; do
	# shellcheck disable=SC2086 # options
	start_client $shape --io $io tiers "local=$work/local:hung=$hung"
	ask 'load 0 8'
	answers "$io: the server answers" 8 0 0 0 0
	if [ $io = uring ]; then
		late always 3 2
		late local 0 1
	else
		late always 0 1
	fi
	end_client
done
mnt=$work/server
do_umount
