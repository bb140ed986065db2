#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A thousand clients at once are answered, at a known cost; more than the limits allow
# are refused, and cost nothing when they have gone.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test python3

chmod 711 "$work"
"$ucmfs" serve "$work/tier" --socket "$work/socket" -f -o allow_other,ready-fd=3 \
	3>"$work/ready" 2>"$work/log" &
daemon=$!
keep_pid $daemon
log=$work/log
need wait_until grep -q READY=1 "$work/ready"
python3 -B "$top_srcdir/tests/lib/socket_many.py" "$work/socket" $daemon
status=$?
case $status in
0) pass 'many clients' ;;
77) skip 'see above' ;;
*) fail 'see above' ;;
esac
logged 'a peer is refused: Too many open files'
need kill -TERM $daemon
reap $daemon
same 'the daemon ends well' 0 "$reaped"
