#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The loader through a mount: what it saves it loads again, in the default space
# and in others, and from the tiers behind the mount as well.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client

mkdir "$work/fast" "$work/slow"
tiers="fast=$work/fast:slow=$work/slow"
need do_mount "$tiers"
need mkdir "$mnt/spaces/llama"

for how in '--io auto' '--io threads' '--layers 40 --plane 65536'; do
	for space in '' llama; do
		# shellcheck disable=SC2086 # options
		start_client $how ${space:+--space $space} mount "$mnt"
		what="$how, space '$space'"
		ask load 0 20
		answers "$what: nothing is there" 0 0 0 20 0
		ask save 0 20
		answers "$what: saved" 20 0 0 0 0
		ask save 0 22
		answers "$what: what is there is skipped" 2 20 0 0 0
		ask lookup 0 1100
		same "$what: found" '= found 22' "$answer"
		ask load 0 24
		answers "$what: loaded" 22 0 0 2 0
		ask path 3
		path=$mnt/${space:+spaces/}${space:-blocks}/${answer#= }
		check "$what: it is a block" test -f "$path"
		# layer by layer, as engines save
		ask layers 30 10 1 1
		answers "$what: a layer" 10 0 0 0 0
		ask path 30
		absent "$mnt/${space:+spaces/}${space:-blocks}/${answer#= }"
		end_client
		no_debris "$work/fast" "$work/slow"
		rm -rf "${path%/*/*}"/??/*
	done
done

start_client mount "$mnt"
ask save 0 20
ask layers 20 10 1 1
ask layers 20 10 0 1
answers 'the last layer makes a block' 10 0 0 0 0
ask load 0 30
answers 'which is loaded' 30 0 0 0 0
end_client

# more of them than the process may have files open
limit=$(ulimit -S -n)
ulimit -S -n 160
start_client mount "$mnt"
ulimit -S -n "$limit"
ask layers 100 200 1 1
answers 'a layer of many blocks' 200 0 0 0 0
few_open() {
	[ "$(find "/proc/$client/fd" -lname "$work/*/.ucmfs/tmp/*" | wc -l)" -le 40 ]
}
check 'few of their files are open' few_open
ask layers 100 200 0 1
answers 'the last layer of many blocks' 200 0 0 0 0
ask layers 100 200 1 1
answers 'they are there' 0 200 0 0 0
ask load 100 200
answers 'and are loaded' 200 0 0 0 0
# some that stay half: they go with the loader
ask layers 300 200 1 1
answers 'a layer of some more' 200 0 0 0 0
end_client
no_debris "$work/fast" "$work/slow"

# beside the daemon, which is asked to save
start_client tiers "$tiers"
ask load 0 31
answers 'from the tiers' 30 0 0 1 0
ask save 40 2
answers 'and to those of the mount' 2 0 0 0 0
end_client
do_umount

start_client tiers "$tiers"
ask save 30 10
answers 'without a daemon they are' 10 0 0 0 0
end_client
need do_mount "$tiers"
start_client mount "$mnt"
ask load 0 42
answers 'and the next daemon has them all' 42 0 0 0 0
end_client
do_umount

# what is about to be loaded comes up, if the mount is told
mkdir "$work/up" "$work/low"
need do_mount -o write=up:around,promote=never "up=$work/up:low=$work/low"
start_client mount "$mnt"
ask save 0 8
same 'blocks in the slow tier' 8 "$(blocks_in "$work/low/blocks")"
ask prefetch 0 8
same 'they are said to be loaded soon' '= said' "$answer"
are_up() { [ "$(blocks_in "$work/up/blocks")" = 8 ]; }
check 'and come up' wait_until are_up
ask load 0 8
answers 'from where they are loaded' 8 0 0 0 0
end_client
start_client tiers "up=$work/up:low=$work/low"
ask prefetch 0 8
same 'without a mount nobody minds' '= said' "$answer"
end_client
do_umount
