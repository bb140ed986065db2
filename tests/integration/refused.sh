#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What a tier endures, through a mount: saves that may be refused are once it is
# used up, as the engine is told; what is written without asking is kept. The log
# says so, as do status and metrics.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test root fuse python

metric() { sed -n "s/^$1{[^}]*$2[^}]*} //p" "$mnt/.ucmfs/metrics"; }

need do_mount -c endurance=only:24K/day "only=$work/tier"
python_tests test_refused
logged 'tier only: 24576 bytes a day are used up'
same 'once' 1 "$(grep -c 'are used up' "$log")"
check 'what is copied there is kept' mk "$mnt/blocks"
check 'all of it' verify "$mnt/blocks"
check 'it is counted' test "$(metric ucmfs_tier_endurance_owed_seconds only)" -gt 3600
same 'by the day' 24576 "$(metric ucmfs_tier_endurance_bytes only)"
check 'offers are' test "$(metric ucmfs_offers_refused_total mount)" -gt 0
check 'status tells' sh -c \
	'"$1" status -m "$2" | grep "endurance: 24.* a day, used up"' \
	sh "$ucm" "$mnt"
do_umount

# the same budget is no bound without a policy
need do_mount -c endurance=only:24K -o policy=none "only=$work/tier"
check 'with policy=none' mk --start 100 --count 8 "$mnt/blocks"
same 'nothing is refused' 0 "$(metric ucmfs_offers_refused_total mount)"
do_umount
