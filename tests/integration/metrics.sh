#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# .ucmfs/metrics moves when things happen, tells neither paths nor names of
# spaces, is well formed whatever the mount point is called, and can be read by
# everybody, node_exporter's textfile collector among them.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

odd=$(printf '%s/m "q" \\ \303\251\nb' "$work")
mkdir "$work/secret-fast" "$work/secret-slow" "$odd"
mnt=$odd
need do_mount -o allow_other,passthrough=off,limit=a.b-c_1:10M \
	"a.b-c_1=$work/secret-fast:-.=$work/secret-slow"
need wait_until stat_is blocks 0

# ---- counters move ----

need mk "$mnt/blocks"
metric_is 16 ucmfs_commits_total
metric_is 16 ucmfs_misses_total
metric_is 0 ucmfs_hits_total
metric_is 16 ucmfs_index_blocks
metric_is 1 ucmfs_index_complete
metric_is 16 ucmfs_tier_commits_total 'tier="a.b-c_1"'
metric_is $((16 * small_size)) ucmfs_tier_committed_bytes_total \
	'tier="a.b-c_1"'
metric_is 0 ucmfs_tier_commits_total 'tier="-."'
metric_is $((16 * small_size)) ucmfs_tier_written_bytes_total 'tier="a.b-c_1"'
metric_is $((10 << 20)) ucmfs_tier_limit_bytes 'tier="a.b-c_1"'
metric_is $((10 << 20)) ucmfs_tier_size_bytes 'tier="a.b-c_1"'
metric_is +Inf ucmfs_tier_limit_bytes 'tier="-."'
metric_is 1 ucmfs_tier_directories 'tier="-."' 'state="good"'
metric_is 0 ucmfs_passthrough
metric_is 16 ucmfs_request_duration_seconds_count 'operation="commit"'
metric_is 16 ucmfs_request_duration_seconds_bucket 'operation="commit"' \
	'le="+Inf"'
metric_is 16 ucmfs_request_duration_seconds_count 'operation="create"'
metric_is 16 ucmfs_request_errors_total 'operation="lookup"' 'errno="ENOENT"'

need verify "$mnt/blocks"
metric_is 16 ucmfs_opens_total
metric_is $((16 * small_size)) ucmfs_tier_opened_bytes_total 'tier="a.b-c_1"'
metric_is $((16 * small_size)) ucmfs_tier_read_bytes_total 'tier="a.b-c_1"'

need mkdir "$mnt/spaces/secret-tenant"
metric_is 2 ucmfs_spaces
mk --layers 3 --seed 7 --count 1 "$mnt/blocks" >/dev/null 2>&1
metric_is 1 ucmfs_commit_refused_total 'cause="geometry"'
refused 'Invalid argument' 'what is no block' cp /etc/passwd \
	"$mnt/blocks/00/00000000000000000000000000000000.bin"
metric_is 1 ucmfs_commit_refused_total 'cause="magic"'
metric_is 0 ucmfs_commit_refused_total 'cause="short"'
metric_is 2 ucmfs_request_errors_total 'operation="commit"' 'errno="EINVAL"'
metric_is 2 ucmfs_log_lines_total 'level="warning"'

path=$(small_paths 1)
need rm "$mnt/blocks/$path"
metric_is 1 ucmfs_tier_removed_total 'tier="a.b-c_1"'
metric_is 15 ucmfs_index_blocks
# damage is found when the block is opened
path=$(nth_path 2)
need stat "$mnt/blocks/$path" >/dev/null
truncate -s 100 "$work/secret-fast/blocks/$path"
cat "$mnt/blocks/$path" >/dev/null 2>&1
metric_is 1 ucmfs_quarantined_total 'cause="short"'
metric_is '' ucmfs_tier_errors_total

# ---- form ----

cat "$mnt/.ucmfs/metrics" >"$work/metrics"
sed -n 's/^# HELP ucmfs_\([a-z_]*\) /\1\t/p' "$work/metrics" >"$work/exported"
# the rows of the table in "Names"; a long text stands between T{ and T}
awk -F '\t' '/^\.TE/ { on = 0 }
	on && $0 != "T}" {
		if (sub("T{$", ""))
			printf "%s", $0
		else
			print
	}
	/^l lx\.$/ { on = ++tables == 1 }' \
	"$top_srcdir/man/ucmfs-metrics.7" >"$work/described"
check 'ucmfs-metrics(7) has the names and texts that there are, and no more' \
	diff "$work/exported" "$work/described"
check 'every family has HELP and TYPE, once, and every sample a family' \
	python3 - "$work/metrics" "$mnt" <<'END'
import re, sys
text = open(sys.argv[1], encoding="utf-8", newline="\n").read()
mount = sys.argv[2].replace("\\", r"\\").replace('"', r'\"').replace("\n", r"\n")
assert text.endswith("\n")
helps, types, current, samples = set(), {}, None, 0
label = r'[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
sample = re.compile(r'([a-z_]+)\{(' + label + '(?:,' + label + r')*)\} (\S+)$')
seen = set()
for line in text[:-1].split("\n"):
    if line.startswith("# HELP "):
        name = line.split(" ")[2]
        assert name not in helps, line
        helps.add(name)
        current = name
        continue
    if line.startswith("# TYPE "):
        _, _, name, kind = line.split(" ")
        assert name == current and name not in types, line
        types[name] = kind
        continue
    m = sample.match(line)
    assert m, line
    name, labels, value = m.groups()
    family = re.sub(r"_(bucket|sum|count)$", "", name) \
        if types[current] == "histogram" else name
    assert family == current and family.startswith("ucmfs_"), line
    assert (types[family] == "counter") == family.endswith("_total"), line
    assert labels.startswith('mount="%s"' % mount), line
    assert (name, labels) not in seen, line
    seen.add((name, labels))
    float(value)
    samples += 1
assert helps == set(types) and samples > 500, (len(helps), samples)
print(len(helps), "families,", samples, "samples")
END
if may_try 'promtool (package prometheus)' promtool; then
	check 'promtool finds nothing to say' sh -c \
		'said=$(promtool check metrics 2>&1 <"$1") && [ -z "$said" ]' \
		sh "$work/metrics"
fi
check 'it tells no path of a tier and no space' \
	sh -c "! grep -a secret \"\$1\"" sh "$work/metrics"
same 'its mode' 444 "$(stat -c %a "$mnt/.ucmfs/metrics")"
same 'that of what tells more' 400 "$(stat -c %a "$mnt/.ucmfs/stats.json")"
now=$(date +%s)
check 'it is of now' test $((now - $(stat -c %Y "$mnt/.ucmfs/metrics"))) -le 5
if may_try 'what others can read' setpriv; then
	check 'nobody can read it' as_nobody cat "$mnt/.ucmfs/metrics"
	refused 'ermission denied' 'but not stats.json' \
		as_nobody cat "$mnt/.ucmfs/stats.json"
fi

# ---- node_exporter, as it stands ----

exporter=$(command -v prometheus-node-exporter || command -v node_exporter) || {
	left_out 'node_exporter (package prometheus-node-exporter): not there'
	exit $failed
}
mkdir "$work/textfile"
ln -s "$mnt/.ucmfs/metrics" "$work/textfile/ucmfs.prom"
"$exporter" --collector.disable-defaults --collector.textfile \
	--collector.textfile.directory="$work/textfile" \
	--web.listen-address=127.0.0.1:0 >"$work/node.log" 2>&1 &
keep_pid $!
node_address() {
	node=$(sed -n 's/.*msg="Listening on" address=\([0-9.:]*\).*/\1/p' \
		"$work/node.log")
	[ -n "$node" ]
}
need wait_until node_address
check 'node_exporter takes it' python3 - "http://$node/metrics" "$mnt" <<'END'
import sys, urllib.request
text = urllib.request.urlopen(sys.argv[1], timeout=30).read().decode()
mount = sys.argv[2].replace("\\", r"\\").replace('"', r'\"').replace("\n", r"\n")
lines = text.split("\n")
assert "node_textfile_scrape_error 0" in lines
want = 'ucmfs_commits_total{mount="%s"} 16' % mount
assert want in lines, [l for l in lines if l.startswith("ucmfs_commits")]
assert sum(l.startswith("ucmfs_request_duration_seconds_bucket{") for l in lines) > 400
END
