#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Each metric that the dashboard shows, and each label that it shows it by, is one
# that a mount exports, or an engine's connector; and its queries are ones that
# Prometheus can read.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test campaigns root fuse python3 setfattr

need do_mount "$work/tier"
need mk "$mnt/blocks"
mkdir "$mnt/spaces/s" "$mnt/files/f"
for f in spaces/s files/f; do
	need setfattr -n user.ucmfs.quota -v 1M "$mnt/$f"
done
# an error of each kind, so that their series are there
ls "$mnt/blocks/none" >/dev/null 2>&1
cat "$mnt/.ucmfs/metrics" >"$work/metrics"
check 'the dashboard asks for what there is' python3 - \
	"$top_srcdir/doc/grafana/ucmfs.json" "$work/metrics" "$work/rules" \
	"$top_srcdir/python/ucmfs/vllm/metrics.py" <<'END'
import json, re, sys

board = json.load(open(sys.argv[1]))
types, labels = {}, {}
for line in open(sys.argv[2]):
    if line.startswith("# TYPE"):
        _, _, name, kind = line.split()
        types[name] = kind
    elif not line.startswith("#"):
        name, rest = line.split("{", 1)
        labels.setdefault(name, set()).update(re.findall(r'([a-z_]+)="', rest))
# the errnos of tiers come as they happen, and none has
labels.setdefault("ucmfs_tier_errors_total", {"mount", "tier", "errno"})
counters = open(sys.argv[4]).read().split("COUNTERS:")[1].split("GAUGES:")[0]
for name in re.findall(r'^    \("([a-z_]+)", "', counters, re.M):
    types[f"vllm:ucmfs_{name}_total"] = "counter"
    labels[f"vllm:ucmfs_{name}_total"] = {"model_name", "engine"}

panels = [p for p in board["panels"] if p["type"] != "row"]
assert len({p["id"] for p in board["panels"]}) == len(board["panels"])
assert len(panels) >= 20
exprs = [(p["title"], t["expr"], t["legendFormat"])
         for p in panels for t in p["targets"]]
used = set()
for title, expr, legend in exprs:
    names = re.findall(r"\b((?:vllm:)?ucmfs_[a-z_]+)", expr)
    assert names, (title, expr)
    for name in names:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        family = base if types.get(base) == "histogram" else name
        assert family in types, (title, name, "is not exported")
        if "rate(" in expr or "increase(" in expr:
            assert types[family] != "gauge", (title, name, "is a gauge")
        have = labels[name]
        for label in re.findall(r'[{,]([a-z_]+)[=!]~?"', expr):
            assert label in have, (title, name, "has no label", label)
        for by in re.findall(r"by \(([a-z_, ]+)\)", expr):
            assert set(by.replace(" ", "").split(",")) <= have, (title, by)
        for label in re.findall(r"\{\{([a-z_]+)\}\}", legend):
            assert label in have, (title, name, "has no label", label)
        used.add(family)
    assert ('mount=~"$mount"' in expr) != ("vllm:" in expr), (
        title, "not of the mount chosen")
for what in ("hits", "misses", "tier_opened_bytes", "tier_committed_bytes",
             "request_duration_seconds", "tier_used_bytes", "tier_limit_bytes",
             "tier_errors", "request_errors", "commit_refused", "quarantined",
             "tier_promoted", "tier_demoted", "tier_evicted", "unsaved",
             "offers_refused", "space_quota", "folder_quota"):
    assert any(u.startswith("ucmfs_" + what) for u in used), what
variables = {v["name"] for v in board["templating"]["list"]}
assert variables == {"datasource", "mount"}
with open(sys.argv[3], "w") as out:
    json.dump({"groups": [{"name": "dashboard", "rules": [
        {"record": "r:%d" % i,
         "expr": expr.replace("$__rate_interval", "1m").replace("$mount", ".*")}
        for i, (_, expr, _) in enumerate(exprs)]}]}, out) # JSON is YAML
END

# UCM's names: of what there is, and with the values that they must have.
rules=$top_srcdir/doc/grafana/ucm-rules.yml
grep -o '\(vllm:\)\{0,1\}ucmfs_[a-z_]*' "$rules" | grep -vx ucmfs_metrics |
	sed 's/_\(bucket\|sum\|count\)$//' | sort -u >"$work/names"
check 'the rules ask for something' test "$(wc -l <"$work/names")" -ge 12
while read -r name; do
	in_python=${name#vllm:ucmfs_}
	if [ "$in_python" = "$name" ]; then
		check "$name is exported" grep -q "^# TYPE $name " "$work/metrics"
	else
		check "$name is the connector's" grep -q "\"${in_python%_total}\"[,:]" \
			"$top_srcdir/python/ucmfs/vllm/metrics.py"
	fi
done <"$work/names"
cat >"$work/rules-test" <<END
rule_files: ['$rules']
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'ucmfs_lookups_total{mount="/m"}', values: '0+60x10'}
      - {series: 'ucmfs_hits_total{mount="/m"}', values: '0+15x10'}
      - {series: 'ucmfs_request_duration_seconds_count{mount="/m",operation="open"}', values: '7x10'}
      - {series: 'ucmfs_request_duration_seconds_count{mount="/m",operation="lookup"}', values: '5x10'}
      - {series: 'ucmfs_request_duration_seconds_count{mount="/m",operation="commit"}', values: '3x10'}
      - {series: 'ucmfs_request_errors_total{mount="/m",operation="open",errno="ENOENT"}', values: '2x10'}
      - {series: 'ucmfs_request_errors_total{mount="/m",operation="lookup",errno="ENOENT"}', values: '3x10'}
      - {series: 'ucmfs_request_errors_total{mount="/m",operation="commit",errno="EIO"}', values: '1x10'}
      - {series: 'ucmfs_request_duration_seconds_count{mount="/n",operation="open"}', values: '4x10'}
      - {series: 'ucmfs_tier_used_bytes{mount="/m",tier="a"}', values: '100x10'}
      - {series: 'ucmfs_tier_used_bytes{mount="/m",tier="b"}', values: '11x10'}
      - {series: 'vllm:ucmfs_lookups_total{engine="0"}', values: '0+60x10'}
      - {series: 'vllm:ucmfs_lookup_hits_total{engine="0"}', values: '0+45x10'}
      - {series: 'vllm:ucmfs_saved_bytes_total{engine="0"}', values: '0+120e9x10'}
      - {series: 'vllm:ucmfs_save_seconds_bucket{engine="0",le="0.1"}', values: '3x10'}
    promql_expr_test:
      - {expr: ucm_cache_hit_rate, eval_time: 8m, exp_samples: [
          {labels: 'ucm_cache_hit_rate{cache_type="prefix",engine="0"}', value: 0.75},
          {labels: 'ucm_cache_hit_rate{cache_type="block",mount="/m"}', value: 0.25}]}
      - {expr: ucm_requests_total, eval_time: 8m, exp_samples: [
          {labels: 'ucm_requests_total{status="success",mount="/m"}', value: 10},
          {labels: 'ucm_requests_total{status="success",mount="/n"}', value: 4},
          {labels: 'ucm_requests_total{status="error",mount="/m"}', value: 2}]}
      - {expr: ucm_memory_usage_bytes, eval_time: 8m, exp_samples: [
          {labels: 'ucm_memory_usage_bytes{location="external",mount="/m"}', value: 111}]}
      - {expr: 'round(ucm_io_throughput_gbps, 0.001)', eval_time: 8m, exp_samples: [
          {labels: '{operation="dump",engine="0"}', value: 2}]}
      - {expr: ucm_dump_latency_seconds_bucket, eval_time: 8m, exp_samples: [
          {labels: 'ucm_dump_latency_seconds_bucket{engine="0",le="0.1"}', value: 3}]}
END
if may_try 'promtool (package prometheus)' promtool; then
	check 'promtool can read its queries' promtool check rules "$work/rules"
	check "UCM's names have the right values" promtool test rules "$work/rules-test"
fi
do_umount
