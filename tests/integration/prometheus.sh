#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A real Prometheus scrapes ucm status --serve, stores what it finds, and answers the
# dashboard's queries with it.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns root fuse python3 setfattr
command -v prometheus >/dev/null || skip 'needs prometheus (package prometheus)'
! "$ucm" status --serve --listen 192.0.2.1:0 "$mnt" 2>&1 | grep -q 'built without' ||
	skip 'ucm was built without libmicrohttpd'

need do_mount "fast=$work/tier"
mkdir "$mnt/spaces/s" "$mnt/files/f"
for f in spaces/s files/f; do
	need setfattr -n user.ucmfs.quota -v 1M "$mnt/$f"
done
need mk "$mnt/blocks"
need verify "$mnt/blocks"

"$ucm" status --serve --listen 127.0.0.1:0 "$mnt" >"$work/url" 2>"$work/exporter.log" &
keep_pid $!
need wait_until test -s "$work/url"
address=$(sed 's,http://\(.*\)/metrics,\1,' "$work/url")

cat >"$work/prometheus.yml" <<END
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: ucmfs
    static_configs:
      - targets: ['$address']
END
prometheus --config.file="$work/prometheus.yml" \
	--storage.tsdb.path="$work/data" --web.listen-address=127.0.0.1:0 \
	>"$work/prometheus.log" 2>&1 &
keep_pid $!
listens() {
	prometheus=$(sed -n 's/.*msg="Listening on" address=\([0-9.:]*\).*/\1/p' \
		"$work/prometheus.log")
	[ -n "$prometheus" ]
}
wait_until listens || {
	sed 's/^/  | /' "$work/prometheus.log"
	die 'prometheus does not start'
}

# query EXPRESSION: "labels value" of each sample
query() {
	python3 - "http://$prometheus" "$1" <<'END'
import json, sys, urllib.parse, urllib.request
url = sys.argv[1] + "/api/v1/query?" + urllib.parse.urlencode({"query": sys.argv[2]})
reply = json.load(urllib.request.urlopen(url, timeout=30))
assert reply["status"] == "success", reply
for sample in reply["data"]["result"]:
    print(sample["value"][1])
END
}

query_is() {
	[ "$(query "$2" 2>/dev/null)" = "$1" ]
}

check 'the target is up' wait_until query_is 1 'up{job="ucmfs"}'
check 'it has the commits' wait_until query_is 16 'ucmfs_commits_total'
same 'and the hits' "$(metric ucmfs_hits_total)" "$(query 'ucmfs_hits_total')"
same 'by tier' $((16 * small_size)) \
	"$(query 'ucmfs_tier_committed_bytes_total{tier="fast"}')"
same 'no limit is infinite' +Inf "$(query 'ucmfs_tier_limit_bytes')"
same 'the histogram is one' 1 "$(query 'count(histogram_quantile(0.99,
	ucmfs_request_duration_seconds_bucket{operation="commit"}) > 0)')"
need mk --count 5 --seed 2 "$mnt/blocks"
check 'it sees it grow' wait_until query_is 21 'ucmfs_commits_total'
# two scrapes make a rate
cat >"$work/ask.py" <<'END'
import json, sys, urllib.parse, urllib.request
board = json.load(open(sys.argv[2]))
# nothing has gone wrong here, and no engine runs: these are rightly empty
empty = ("vllm:ucmfs_", "ucmfs_tier_errors_total", "ucmfs_request_errors_total",
         "ucmfs_commit_refused_total", "ucmfs_tier_limit_bytes")
for panel in board["panels"]:
    for target in panel.get("targets", []):
        expr = target["expr"].replace("$__rate_interval", "1m").replace("$mount", ".*")
        url = sys.argv[1] + "/api/v1/query?" + urllib.parse.urlencode({"query": expr})
        reply = json.load(urllib.request.urlopen(url, timeout=30))
        assert reply["status"] == "success", (expr, reply)
        if not any(name in expr for name in empty):
            assert reply["data"]["result"], (panel["title"], expr)
END
check 'the dashboard is answered, and with data' wait_until \
	python3 "$work/ask.py" "http://$prometheus" "$top_srcdir/doc/grafana/ucmfs.json"
do_umount
check 'the target is down when the mount has gone' \
	wait_until query_is 0 'up{job="ucmfs"}'
