#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The socket of a mount: where it lies, who may connect, how it ends, what a killed
# daemon leaves; blocks that are read and written through descriptors.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3 setpriv namespace
# each mount that others begin removes dead sockets there
mkdir -p /run/ucmfs
need mount -t tmpfs -o mode=755 none /run/ucmfs
as_nobody test -r "$work" || skip "$work cannot be reached by other users"

# call WHERE VERB [SPACE [ARGUMENT...]] <IDS
call() {
	python3 "$top_srcdir/tests/lib/control.py" "$@"
}

# asks 'what' ANSWER WHERE VERB [SPACE [ARGUMENT...]]: of the first block
asks() {
	asks_what=$1
	asks_want=$2
	shift 2
	same "$asks_what" "$asks_want" "$(ids 1 | call "$@")"
}

socket_of() {
	readlink "$1/.ucmfs/socket"
}

one=$mnt
two=$work/two
mkdir "$two" "$work/tier2"
make_src
first=$(small_paths 1)

# ---- where it lies ----

need do_mount "$work/tier"
need mk "$mnt/blocks"
need mkdir -m 700 "$mnt/spaces/mine"
need mk --count 2 "$mnt/spaces/mine"
socket=$(socket_of "$one")
check 'its link leads to a socket' test -S "$socket"
same 'which each user may find' '755 0' "$(stat -c '%a %u' "${socket%/*}")"
mnt=$two
need do_mount -o allow_other "$work/tier2"
other=$(socket_of "$two")
check 'another mount has one, too' test -S "$other"
check 'and it is another' test "$socket" != "$other"
asks 'the first has the block' 1 "$one" lookup
asks 'by the path of its socket, too' 1 "$socket" lookup
asks 'the second has not' 0 "$two" lookup
for where in "$one" "$socket"; do
	check "ucm pin -m $where" "$ucm" pin -m "$where" "$(ids 1)"
	refused pinned "ucm evict -m $where" "$ucm" evict -m "$where" "$(ids 1)"
	check "ucm pin --off -m $where" "$ucm" pin --off -m "$where" "$(ids 1)"
done
check 'ucm stat' "$ucm" stat -m "$one" "$(ids 1)"
refused 'Operation not permitted' 'a link that leads elsewhere is not made' \
	ln -sfn "$other" "$one/.ucmfs/socket"

# ---- who may connect ----

need as_nobody mkdir -m 700 "$two/spaces/theirs"
need cp "$work/src/$first" "$two/blocks/$first"
need cp "$work/src/$first" "$two/spaces/theirs/$first"
asks 'without allow_other it is for root' EACCES "$socket" lookup '' uid=65534
asks 'with it for others, too' 1 "$two" lookup '' uid=65534
asks 'but no private space' EACCES "$two" lookup theirs uid=1234
asks 'nor its blocks' EACCES "$two" open theirs uid=1234
asks 'its owner has it' 1 "$two" lookup theirs uid=65534
if others_can 'what a library says' test -x "$index_ask"; then
	# whether the daemon refuses before it is asked, or after
	for again in $(seq 100); do
		as_nobody "$index_ask" ask "$socket" </dev/null
	done >"$work/said"
	same 'the library says so' 'open: Permission denied' \
		"$(sort -u "$work/said")"
	same 'of the space, too' 'open: Permission denied' \
		"$(as_nobody "$index_ask" ask "$one" mine </dev/null)"
fi

# ---- blocks through descriptors ----

# removed in three ways while they are read
check 'what has been opened is read, whatever becomes of it' \
	python3 - "$top_srcdir/tests/lib" "$one" "$work/src" <<END
import os, sys
lib, mount, src = sys.argv[1:]
sys.path.append(lib)
import control

paths = """$(small_paths 4)""".split()
ids = [bytes.fromhex(path[3:-4]) for path in paths]
with control.Peer(mount) as peer:
    _, fds = peer.request("open", b"".join(ids), 4)
    os.unlink(f"{mount}/blocks/{paths[0]}")
    peer.request("evict", ids[1], 1)
    peer.request("remove", ids[2], 1)
    data, _ = peer.request("lookup", b"".join(ids), 4)
    assert data == bytes(12) + b"\1\0\0\0", data
for fd, path in zip(fds, paths):
    with open(f"{src}/{path}", "rb") as file:
        want = file.read()
    assert os.read(fd, 2 * len(want)) == want, path
    try:
        os.pwrite(fd, b"x", 0)
    except OSError:
        continue
    sys.exit("it can be written to")
END
check 'blocks are written' python3 - "$top_srcdir/tests/lib" "$one" "$work/src" <<END
import os, struct, sys
lib, mount, src = sys.argv[1:]
sys.path.append(lib)
import control

paths = """$(small_paths 3)""".split()
ids = [bytes.fromhex(path[3:-4]) for path in paths]

def results(data):
    return [result for result, in struct.iter_unpack("<i", data)]

with control.Peer(mount) as peer:
    data, fds = peer.request("create", b"".join(ids), 3, size=$small_size)
    drafts = [draft for _, draft, _, _ in struct.iter_unpack("<iIII", data)]
    commits = [struct.pack("<II4096s", draft, 0, b"") for draft in drafts]
    for fd, path in zip(fds[:2], paths):
        with open(f"{src}/{path}", "rb") as file:
            os.write(fd, file.read())
    os.close(fds[0])
    data, _ = peer.request("commit", b"".join(commits[:2]), 2)
    assert results(data) == [0, -16], results(data)  # EBUSY: it is open
    os.close(fds[1])
    data, _ = peer.request("commit", commits[1], 1)
    assert results(data) == [0], results(data)
    os.close(fds[2])  # it has no bytes
    data, _ = peer.request("commit", commits[2], 1)
    assert results(data) == [-22], results(data)
    # one that is never committed is dropped with its writer
    peer.request("create", ids[2], 1, size=$small_size)
END
need cmp "$work/src/$first" "$one/blocks/$first"
need cmp "$work/src/$(nth_path 2)" "$one/blocks/$(nth_path 2)"
absent "$one/blocks/$(nth_path 3)"
no_debris "$work/tier"

# ---- not a daemon ----

# Memory that its maker can make shorter kills who has mapped it.
# pretend SEALS [PATH]: on $work/fake, to whoever connects
pretend() {
	rm -f "$work/fake"
	python3 - "$top_srcdir/tests/lib" "${2-$work/fake}" "$1" <<'END' &
import fcntl, os, socket, struct, sys
lib, path, seals = sys.argv[1:]
sys.path.append(lib)
import control

fd = os.memfd_create("fake", os.MFD_ALLOW_SEALING)
os.truncate(fd, 16384)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, int(seals))
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind(path)
server.listen()
while True:
    peer, _ = server.accept()
    while True:
        message = peer.recv(65536)
        if not message:
            break
        verb, gives = message[:4], message[8]
        number = int.from_bytes(verb, "little")
        if number == control.VERBS["hello"]:
            socket.send_fds(peer, [
                verb + struct.pack("<IiI", 1, 0, gives) +
                struct.pack("<II4Q", 1, 0, 0, 16384 * gives, 0, 0)],
                [fd] * gives)
        else:
            space = number == control.VERBS["space"]
            peer.send(verb + struct.pack("<IiI", space, 0, 0) +
                      bytes(8 * space))
END
	fake=$!
	keep_pid $fake
	need wait_until test -S "${2-$work/fake}"
}

pretend 2 # F_SEAL_SHRINK
same 'sealed memory is taken' "socket: the daemon's memory cannot be mapped" \
	"$(index_ask ask "$work/fake" </dev/null)"
kill $fake
reap $fake
rm "$work/fake"
pretend 4 # F_SEAL_GROW
same 'other memory is not' 'socket: the memory is not an index' \
	"$(index_ask ask "$work/fake" </dev/null)"
kill $fake
reap $fake

# ---- its end ----

# has_ended SOCKET INODE: another mount may have its number by now
has_ended() {
	[ "$(stat -c %i "$1" 2>/dev/null)" != "$2" ]
}

inode=$(stat -c %i "$other")
do_umount
check 'after umount(8) it is gone' has_ended "$other" "$inode"
check 'the other one is there' test -S "$socket"

mnt=$one
ids 1 >"$work/names"
mkfifo "$work/go"
index_ask wait "$mnt" mine "$work/names" <"$work/go" >"$work/answers" &
reader=$!
keep_pid $reader
exec 6>"$work/go"
need wait_until test -s "$work/answers"
crash_daemon
echo go >&6
exec 6>&-
reap $reader
same 'who was connected to a daemon that is killed hears of it' \
	'lookup: Transport endpoint is not connected' "$(tail -n 1 "$work/answers")"
check 'its socket is left' test -S "$socket"
inode=$(stat -c %i "$socket")
same 'and refuses' 'open: Transport endpoint is not connected' \
	"$(index_ask ask "$socket" </dev/null)"
same 'the dead mount says so, too' 'open: Transport endpoint is not connected' \
	"$(index_ask ask "$one" </dev/null)"
mnt=$two
need do_mount "$work/tier2"
living=$(socket_of "$two")
check 'the next mount removes it' has_ended "$socket" "$inode"
need umount -l "$one"
mnt=$one
need do_mount "$work/tier"
check 'and none that is served' test -S "$living"
asks 'which continues' 1 "$two" lookup
socket=$(socket_of "$one")
inode=$(stat -c %i "$socket")
do_umount TERM
check 'after a signal it is gone, too' has_ended "$socket" "$inode"
mnt=$two
do_umount

# umount(8) returns before the daemon has ended, and its number is free again: one
# that ends has the name yet
need do_mount "$work/tier2"
socket=$(socket_of "$two")
do_umount
pretend 2 "$socket"
need do_mount "$work/tier2"
if [ "$(socket_of "$two")" = "$socket" ]; then
	asks 'a mount has the socket of one whose daemon is ending' 1 "$two" lookup
else
	left_out 'a daemon that is ending: another mount has its number'
fi
kill $fake
reap $fake
do_umount
exit $failed
