#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The loader and the vLLM connector over a shared tier: a loader has what another
# host's saved, through a mount and through a private daemon; what the other host has
# evicted is a miss and no failure, and its page stays as it was.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/load.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test root fuse client unshare
. "$top_srcdir/tests/lib/hosts.sh"

# evict_in NAME FIRST LAST: these blocks
evict_in() {
	for number in $(seq "$2" "$3"); do
		ask path "$number"
		need rm "$work/$1/blocks/${answer#= }"
	done
}

mount_host alpha "shared@$dir"
mount_host beta "shared@$dir"
start_client mount "$work/alpha"
ask save 0 40
answers 'one host saves' 40 0 0 0 0
end_client

start_client mount "$work/beta"
ask_until '= ok 20 skipped 0 wrong 0 absent 0 failed 0' load 0 20
answers 'the other loads it' 20 0 0 0 0
ask lookup 0 40
same 'and finds all' '= found 40' "$answer"
evict_in alpha 20 24
ask load 20 20
answers 'what the first has evicted is a miss' 15 0 0 5 0
ask save 20 20
answers 'which the second may save again' 5 15 0 0 0
evict_in beta 30 34
end_client

start_client mount "$work/alpha"
ask_until '= ok 35 skipped 0 wrong 0 absent 5 failed 0' load 0 40
answers 'the first has that, and misses what the second has evicted' 35 0 0 5 0
end_client

mkdir "$work/local"
start_client tiers "fast=$work/local:slow=shared@$dir"
ask load 0 40
answers 'behind a tier of its own, by a private daemon' 35 0 0 5 0
ask save 100 4
answers 'it saves there' 4 0 0 0 0
end_client
start_client mount "$work/beta"
ask_until '= ok 4 skipped 0 wrong 0 absent 0 failed 0' load 100 4
answers 'what it saves the hosts have' 4 0 0 0 0
end_client
same 'nothing was set aside' 0 \
	"$(find "$dir/.ucmfs/quarantine" -type f | wc -l)"
unmount_hosts alpha beta

if (require_python) >/dev/null; then
	require_python
	need do_mount "shared@$dir"
	python_tests test_vllm_mount
	do_umount
else
	left_out 'the connector: the package does not run here'
fi
