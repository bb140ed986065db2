#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The files for containers in packaging/container, as far as no engine of containers is
# needed: they are YAML with the parts that belong together, the daemon's command runs
# as it stands there, and what vLLM gets is JSON.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
. "$top_srcdir/tests/lib/python.sh"
start_test campaigns root fuse python3 python
for each in python3 /usr/bin/python3 none; do
	"$each" -c 'import yaml' 2>/dev/null && break
done
[ "$each" != none ] || skip 'no Python here has PyYAML'

cat >"$work/manifests.py" <<'END'
"""Prints the command of each file's daemon, quoted, a line each."""
import json
import shlex
import sys

import yaml


def engine(command):
    config = json.loads(command[command.index("--kv-transfer-config") + 1])
    return config["kv_connector_extra_config"]["socket"].rpartition("/")[0]


folder = sys.argv[1]
with open(f"{folder}/compose.yaml", encoding="utf-8") as file:
    services = yaml.safe_load(file)["services"]
daemon, user = services["ucmfs"], services["engine"]
shared = engine(user["command"])
for each in (daemon, user):
    assert any(v.endswith(":" + shared) for v in each["volumes"]), each
assert daemon["healthcheck"]["test"][:3] == ["CMD", "ucm", "status"]
print(shlex.join(daemon["command"]))

with open(f"{folder}/kubernetes.yaml", encoding="utf-8") as file:
    daemon, user = yaml.safe_load_all(file)
assert (daemon["kind"], user["kind"]) == ("DaemonSet", "Pod")
spec = daemon["spec"]
labels = spec["template"]["metadata"]["labels"]
assert labels == spec["selector"]["matchLabels"]
pods = spec["template"]["spec"], user["spec"]
shared = engine(pods[1]["containers"][0]["args"])
paths = []
for pod in pods:
    container, = pod["containers"]
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    volumes = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"]}
    assert set(mounts.values()) == set(volumes), pod
    paths.append(volumes[mounts[shared]])
assert paths[0] == paths[1], paths
print(shlex.join(pods[0]["containers"][0]["args"]))
END
"$each" "$work/manifests.py" "$top_srcdir/packaging/container" >"$work/commands" \
	2>"$work/out"
same 'they hang together' 0 $? || cat "$work/out"
same 'each has a daemon' 2 "$(wc -l <"$work/commands")"
sed -n 's/^CMD \[\(.*\)\]$/\1/p' "$top_srcdir/packaging/container/Containerfile" |
	tr -d '",' >>"$work/commands"

mkdir "$work/tiers" "$work/sockets"
while read -r command; do
	rm -f "$work/sockets/kv.sock"
	command=$(echo "$command" | sed "s,/tiers/nvme,$work/tiers,; s,/run/ucmfs,$work/sockets,
		s,^ucmfs ,,")
	eval "exec \"\$ucmfs\" $command" >"$work/said" 2>&1 &
	daemon=$!
	for _ in $(seq 100); do
		"$ucm" status "$work/sockets/kv.sock" >"$work/out" 2>&1 && break
		sleep 0.1
	done
	check "it serves: $command" grep -q "$work/tiers" "$work/out" ||
		cat "$work/said" "$work/out"
	kill $daemon
	wait $daemon
	same 'it ends well' 0 $?
done <"$work/commands"
exit $failed
