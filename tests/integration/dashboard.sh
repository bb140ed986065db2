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
if may_try 'promtool (package prometheus)' promtool; then
	check 'promtool can read its queries' promtool check rules "$work/rules"
fi
do_umount
