#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ucm status --serve serves the metrics over HTTP, of a mount that may come and go.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

need do_mount "$work/tier"
need mk "$mnt/blocks"
if "$ucm" status --serve --listen 192.0.2.1:0 "$mnt" 2>&1 | grep -q 'built without'; then
	refused 'libmicrohttpd' 'without libmicrohttpd it says so' \
		"$ucm" status --serve "$mnt"
	do_umount
	skip 'the exporter: ucm was built without libmicrohttpd'
fi

# start LISTEN: $url is where it serves
start() {
	rm -f "$work/url"
	"$ucm" status --serve --listen "$1" "$mnt" >"$work/url" 2>"$work/exporter.log" &
	exporter=$!
	keep_pid $exporter
	wait_until test -s "$work/url" || die 'the exporter does not start'
	url=$(cat "$work/url")
}

# get METHOD URL: status, type, then the text, into $work/got
get() {
	python3 - "$@" >"$work/got" <<'END'
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[2], method=sys.argv[1])
try:
    reply = urllib.request.urlopen(request, timeout=30)
except urllib.error.HTTPError as error:
    reply = error
print(reply.status)
print(reply.headers["Content-Type"])
sys.stdout.write(reply.read().decode())
END
}

# got STATUS 'what was asked'
got() {
	same "$2: status" "$1" "$(sed -n 1p "$work/got")"
}

start 127.0.0.1:0
check 'it says where' sh -c 'echo "$1" | grep -qx "http://127.0.0.1:[1-9][0-9]*/metrics"' \
	sh "$url"
get GET "$url"
got 200 'the metrics'
same 'their type' 'text/plain; version=0.0.4; charset=utf-8' \
	"$(sed -n 2p "$work/got")"
check 'are those of the file' grep -qx \
	"ucmfs_commits_total{mount=\"$mnt\"} 16" "$work/got"
same 'all of them' "$(grep -c '^# TYPE' "$mnt/.ucmfs/metrics")" \
	"$(grep -c '^# TYPE' "$work/got")"
get HEAD "$url"
got 200 'HEAD'
same 'has no body' 2 "$(wc -l <"$work/got")"
get GET "${url%metrics}"
got 200 'the root'
get GET "${url}x"
got 404 'another page'
get POST "$url"
got 405 'another method'

port=${url##*:}
port=${port%/*}
refused 'Address already in use' 'a port that is taken' \
	"$ucm" status --serve --listen "127.0.0.1:$port" "$mnt"
for wrong in x 127.0.0.1 127.0.0.1: ::1:1 :1 '[::1:1' 127.0.0.1:x; do
	"$ucm" status --serve --listen "$wrong" "$mnt" >"$work/out" 2>&1
	same "--listen $wrong: status" 2 $?
	check "--listen $wrong: is named" grep -qF -- "--listen '$wrong'" "$work/out"
done

# many at a time, and while it changes
for _ in 1 2 3 4 5 6 7 8; do
	(i=0; while [ $i -lt 5 ]; do get GET "$url" || exit 1; i=$((i + 1)); done) &
	askers="${askers-} $!"
done
need mk --count 50 --seed 2 "$mnt/blocks"
for asker in $askers; do
	wait "$asker" || fail 'an asker got no answer'
done

kill_daemon
get GET "$url"
got 503 'of a dead mount'
check 'and why' grep -q 'Transport endpoint is not connected\|No such file' \
	"$work/got"
need do_mount "$work/tier"
get GET "$url"
got 200 'of a mount that is there again'

kill -TERM $exporter
reap $exporter
same 'SIGTERM ends it well' 0 "$reaped"
do_umount

if grep -q '^0\{31\}1 ' /proc/net/if_inet6 2>/dev/null; then
	start '[::1]:0'
	check 'IPv6' sh -c 'echo "$1" | grep -q "^http://\[::1\]:"' sh "$url"
	kill -INT $exporter
	kill -TERM $exporter
	reap $exporter
else
	left_out 'IPv6: there is no ::1 here'
fi
