#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A store on a socket, without a mount: programs save, load and look, the tools ask it,
# its end and its start are those of a mount; and it needs neither root nor FUSE.

# shellcheck source=tests/lib/mount.sh
. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
# shellcheck source=tests/lib/load.sh
. "$top_srcdir/tests/lib/load.sh"
start_test client python3

socket=$work/store.sock
mkdir "$work/fast"
tiers="fast=$work/fast"

is_ready() {
	[ "$(cat "$work/ready" 2>/dev/null)" = READY=1 ]
}

# serve SOURCE [OPTIONS...]: $daemon, when it serves $socket
serve() {
	serve_source=$1
	shift
	: >"$work/ready"
	"$ucmfs" serve "$serve_source" --socket "$socket" -f -o ready-fd=3 "$@" \
		3>"$work/ready" 2>>"$work/serve.log" &
	daemon=$!
	keep_pid $daemon
	need wait_until is_ready
}

# What the daemon has read, whatever of.
read_so_far() {
	sed -n 's/^rchar: //p' "/proc/$daemon/io"
}

end_serve() {
	need kill -TERM "$daemon"
	reap "$daemon"
	same 'SIGTERM ends it well' 0 "$reaped"
	absent "$socket"
}

refused 'serve needs SOURCE, and --socket PATH or --private' 'without a socket' \
	"$ucmfs" serve "$work/fast"
refused 'serve needs SOURCE, and --socket PATH or --private' 'with a mount point' \
	"$ucmfs" serve "$work/fast" "$work/mnt" --socket "$socket"
refused '--socket needs a PATH' 'a socket without a path' \
	"$ucmfs" serve "$work/fast" --socket
refused 'No such file or directory' 'in the background, a folder that is not there' \
	"$ucmfs" serve "$work/fast" --socket "$work/none/store.sock"
refused 'File name too long' 'a path that is too long' "$ucmfs" serve \
	"$work/fast" -f --socket "$work/$(printf '%0120d' 0)"

serve "$tiers"
start_client --plane 16384 mount "$socket"
before=$(read_so_far)
ask save 0 20
answers 'blocks are saved' 20 0 0 0 0
check 'of which the daemon has read nothing' \
	test $(($(read_so_far) - before)) -lt $((20 * 4096))
ask load 0 30
answers 'and loaded' 20 0 0 10 0
ask lookup 0 30
same 'and found' '= found 20' "$answer"
same 'their files lie in the tier' 20 \
	"$(find "$work/fast/blocks" -name '*.bin' | wc -l)"
end_client
same 'a program is given descriptors of the blocks' 20 "$(
	python3 - "$socket" "$work/fast/blocks" "$top_srcdir/include/ucm/serve.h" <<'PY'
import os, pathlib, re, socket, struct, sys
verbs = re.findall(r"^\t(UCM_SERVE_[A-Z]+)\b", pathlib.Path(
    sys.argv[3]).read_text().split("enum ucm_serve_verb")[1].split("};")[0], re.M)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
files = sorted(pathlib.Path(sys.argv[2]).glob("*/*.bin"))
s.send(struct.pack("IIIIQ136s", 1 + verbs.index("UCM_SERVE_OPEN"), len(files),
                   0, 0, 0, b"")
       + b"".join(bytes.fromhex(file.stem) for file in files))
data, fds, _, _ = socket.recv_fds(s, 65536, 250)
print(sum(os.pread(fd, 1 << 24, 0) == file.read_bytes()
          for file, fd in zip(files, fds)))
PY
)"
check 'the tools ask it' "$ucm" status "$socket"
# shellcheck disable=SC2046 # a list
set -- $("$ucm" ls -n 2 -j "$socket" | python3 -c 'import json, sys
for block in json.load(sys.stdin)["blocks"]: print(block["id"])')
same 'ls lists the blocks' 20 "$("$ucm" ls "$socket" | sed 1d | wc -l)"
same 'those with a prefix' "$1" "$("$ucm" ls -p "$1" "$socket" | sed 1d | cut -d' ' -f1)"
same 'du counts them' 20 "$("$ucm" du -j "$socket" | python3 -c 'import json, sys
print(json.load(sys.stdin)["total"]["blocks"])')"
check 'stat shows one' sh -c '"$1" stat -m "$2" "$3" | grep -q "^path  *$4"' \
	sh "$ucm" "$socket" "$1" "$work/fast/blocks"
check 'verify compares all of them' "$ucm" verify -m "$socket" --all
printf '%s\n' "$@" >"$work/two"
check 'and some' sh -c '"$1" verify -m "$2" -j "$3" | grep -q "\"intact\": 2"' \
	sh "$ucm" "$socket" "$work/two"
check 'get copies blocks, whose geometry it asks for' \
	"$ucm" get -m "$socket" "$work/raw" "$work/two"
payload=$("$ucm" stat -m "$socket" "$1" | awk '$1 == "payload" { print $2 }')
same 'into pages' $((2 * payload)) "$(stat -c %s "$work/raw")"
check 'put takes them back' "$ucm" put -m "$socket" "$work/raw" "$work/two"
refused 'No such file or directory' 'a space that is not there' \
	"$ucm" verify -m "$socket" -s none --all
refused 'no such space' 'nor is it listed' "$ucm" ls -s none "$socket"
check 'top shows it' "$ucm" top --once "$socket"
"$ucm" doctor "$socket" >"$work/said"
check 'the doctor asks it' grep -q "^OK   $socket: it answers" "$work/said"
check 'and looks at its directories' grep -q "^OK   $work/fast:" "$work/said"
check 'a store is flushed' "$ucm" sync flush --mount "$socket"
mkdir "$work/second"
refused 'Address already in use' 'a second one on that socket' \
	"$ucmfs" serve "$work/second" -f --socket "$socket"
refused "$work/fast" 'and a second one on that directory' \
	"$ucmfs" serve "$tiers" -f --socket "$work/other.sock"
end_serve

# killed, and started again
serve "$tiers"
start_client --plane 16384 mount "$socket"
ask load 0 20
answers 'a new daemon has what the one before had' 20 0 0 0 0
kill -9 "$daemon"
reap "$daemon"
check 'its socket is left' test -S "$socket"
refused 'its daemon is gone' 'ls names the cause' "$ucm" ls "$socket"
refused 'its daemon is gone' 'and verify' "$ucm" verify -m "$socket" --all
"$ucm" doctor "$socket" >"$work/said"
check 'the doctor says how to mend that' \
	grep -q "^FAIL $socket: its daemon is gone; mend: ucmfs serve" "$work/said"
ask load 100 5
answers 'without a daemon nothing is loaded' 0 0 0 0 5
ask save 100 5
answers 'nor saved' 0 0 0 0 5
serve "$tiers"
ask_until '= ok 5 skipped 0 wrong 0 absent 0 failed 0' save 100 5
answers 'the loader finds the next one' 5 0 0 0 0
ask load 100 5
answers 'which has what was saved' 5 0 0 0 0
end_client
no_debris "$work/fast"
end_serve

# systemd listens, and hands its socket over
activate() {
	exec python3 - "$@" <<'PY'
import os, socket, sys
path = sys.argv[1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(path)
s.listen()
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
PY
}
activate "$socket" "$ucmfs" serve "$tiers" --socket "$socket" -f \
	2>>"$work/serve.log" &
daemon=$!
keep_pid $daemon
check 'a socket of systemd is served' wait_until "$ucm" status "$socket"
need kill -TERM "$daemon"
reap "$daemon"
same 'and ends well' 0 "$reaped"
check 'it is not ours to remove' test -S "$socket"
rm "$socket"

# no root, no /dev/fuse
unprivileged() {
	exec unshare --user --map-root-user --mount sh -c '
		mount -t tmpfs none /dev && exec "$@"' sh "$@"
}
if (unprivileged true) 2>/dev/null; then
	: >"$work/ready"
	unprivileged "$ucmfs" serve "$tiers" --socket "$socket" -f \
		2>>"$work/serve.log" &
	daemon=$!
	keep_pid $daemon
	check 'it needs neither privileges nor FUSE' \
		wait_until "$ucm" status "$socket"
	start_client --plane 16384 mount "$socket"
	ask load 0 20
	answers 'and its blocks are loaded' 20 0 0 0 0
	ask save 200 3
	answers 'and saved' 3 0 0 0 0
	end_client
	need kill -TERM "$daemon"
	reap "$daemon"
	same 'it ends well there' 0 "$reaped"
else
	left_out 'a user namespace cannot be made here'
fi
