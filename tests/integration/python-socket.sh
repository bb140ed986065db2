#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The Python package with nothing but a daemon's socket: in a namespace of mounts where
# there is neither a mount nor the store's directory, and one of networks.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
# shellcheck source=tests/lib/python.sh
. "$top_srcdir/tests/lib/python.sh"
start_test root python

mkdir "$work/store" "$work/store/tier" "$work/socket"
socket=$work/socket/kv.sock

is_ready() {
	[ "$(cat "$work/ready" 2>/dev/null)" = READY=1 ]
}

: >"$work/ready"
"$ucmfs" serve "nvme=$work/store/tier" --socket "$socket" -f -o ready-fd=3 \
	3>"$work/ready" 2>"$work/serve.log" &
daemon=$!
keep_pid $daemon
need wait_until is_ready

# In the namespaces: the store is hidden, the socket is not.
alone() {
	unshare -m -n --propagation private sh -c '
		mount -t tmpfs hidden "$0" && exec timeout 60 "$@"' \
		"$work/store" env PYTHONDONTWRITEBYTECODE=1 \
		PYTHONPATH="$top_srcdir/python:$top_srcdir" \
		UCMFS_LIBRARY="$top_builddir/.libs/libucm.so" "$@"
}

alone true || skip 'no namespaces of mounts and networks can be made'
check 'there is nothing else' alone test ! -e "$work/store/tier"
check 'spaces, blocks, the index and a store' alone "$python" -W error - \
	"$socket" <<'PY'
import sys
import ucmfs
from ucmfs import namespace
from tests.python.support import LIMIT, id_of, pages_layout, payload_of

socket = sys.argv[1]
payload = payload_of("x")
memory, layout = pages_layout(payload)
manifest = {"model": "m", "geometry": layout.geometry.to_json()}
ids = [id_of("x")]

assert ucmfs.ensure_space(socket, "s", manifest) == ucmfs.space_id(manifest)
assert ucmfs.ensure_space(socket, "s", manifest) == ucmfs.space_id(manifest)
assert namespace.read_manifest(socket, "s") == manifest
assert namespace.read_manifest(socket, "none") is None
try:
    ucmfs.ensure_space(socket, "s", {**manifest, "model": "n"})
except ucmfs.NamespaceMismatch as error:
    assert (error.key, error.here, error.wanted) == ("model", "m", "n"), error
else:
    raise AssertionError("another manifest is taken")

with ucmfs.Loader(socket) as loader:
    group = loader.add_group(layout, "s")
    assert group.save(ids[0], [0]).wait(LIMIT) is None
    memory.clear()
    group.load(ids[0], [0]).wait(LIMIT)
    assert memory.content[:len(payload)] == payload
with ucmfs.Index(socket, "s") as index:
    assert index.lookup(ids[0])[0] == b"\1"
    assert index.info()["backend"] == "map", index.info()
with ucmfs.Blocks(socket) as blocks:
    assert blocks.pin(ids, "s") == [0]
    assert blocks.touch(ids, "s") == [0]
    assert blocks.touch(ids, "s", expected=True) == [0]
assert namespace.spaces(socket) == ["s"]
namespace.remove_space(socket, "s")
assert namespace.spaces(socket) == []
assert namespace.read_manifest(socket, "s") is None
PY
absent "$work/store/tier/spaces/s"
check 'a private space' alone sh -c "umask 077 && exec \"\$@\"" sh "$python" - \
	"$socket" <<'PY'
import sys
import ucmfs
ucmfs.ensure_space(sys.argv[1], "private", {"geometry": ucmfs.Geometry(
    2, 16, "float16", 512, 512, 1, 16).to_json()})
PY
same 'its folder is its users alone' 700 \
	"$(stat -c %a "$work/store/tier/spaces/private")"
need kill -TERM "$daemon"
reap "$daemon"
same 'SIGTERM ends it well' 0 "$reaped"
refused "$socket" 'a socket that has gone' alone "$python" -c \
	'import sys; from ucmfs import namespace; namespace.spaces(sys.argv[1])' "$socket"
