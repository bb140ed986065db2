#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Files that were damaged while nobody looked: the loader names the block and
# its plane, and all others are loaded.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
start_test root fuse client

path_of() {
	ask path "$1"
	path=$work/tier/blocks/${answer#= }
	hex=$(basename "$path" .bin)
}

need do_mount "$work/tier"
start_client mount "$mnt"
ask save 0 16
answers 'saved' 16 0 0 0 0
end_client
do_umount

# a bit of layer 1 V, one of layer 0 K, in files that the daemon has no reason
# to doubt: it ended well, and does not read all of them again
need do_mount "$work/tier"
start_client mount "$mnt"
path_of 3
third=$hex
flip "$path" $((4096 + 3 * 2048 + 77))
path_of 9
ninth=$hex
flip "$path" 4096
ask load 0 16
answers 'two are damaged, the others loaded' 14 0 0 0 2
client_said "block 3 $third: layer 1 V: plane checksum differs"
client_said "block 9 $ninth: layer 0 K: plane checksum differs"
client_said "block $third: not loaded: layer 1 V"
ask load 0 16
answers 'and they stay so' 14 0 0 0 2
end_client

# the same from the tiers
start_client --io threads tiers "$work/tier"
ask load 0 16
answers 'from the tiers as well' 14 0 0 0 2
client_said "block 3 $third: layer 1 V: plane checksum differs"
path_of 5
truncate -s 9000 "$path"
ask load 0 16
answers 'and one is torn' 13 0 0 0 3
client_said 'shorter than its header announces'
end_client
do_umount
