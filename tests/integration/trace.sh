#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The access trace has what was done with each block, while the daemon runs,
# after it was killed, and after it ended.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3

trace=$work/trace
mkdir "$work/slow"

# The end of a file comes when it comes: nothing has, in between.
decode_at_rest() {
	"$ucm" trace "$trace" >"$work/text" &&
		"$ucm" trace --json "$trace" >"$work/json" &&
		"$ucm" trace "$trace" | cmp -s - "$work/text"
}

# decode: into $work/text and $work/json; both say the same
decode() {
	check 'it is decoded as text and as JSON' wait_until decode_at_rest
	check 'which agree' python3 - "$work/text" "$work/json" <<'END'
import datetime, json, sys
text = [l.split() for l in open(sys.argv[1]) if l[0] != "#"]
rows = [json.loads(l) for l in open(sys.argv[2])]
assert rows and len(text) == len(rows), (len(text), len(rows))
for fields, r in zip(text, rows):
    seconds, ns = divmod(r["time_ns"], 10**9)
    t = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    want = [t.strftime("%Y-%m-%dT%H:%M:%S") + ".%09dZ" % ns, r["op"], r["block"],
            str(r["space"]), r["tier"] or "-",
            "-" if r["dir"] is None else str(r["dir"]), str(r["bytes"]),
            str(r["duration_ns"]), r["result"], str(r["pid"]), str(r["uid"])]
    assert fields == want, (fields, want)
assert [r["seq"] for r in rows] == sorted(r["seq"] for r in rows)
END
}

# of HASH: "op tier bytes result" of its records, on one line; the kernel may
# ask twice
of() {
	awk -v hash="$1" '$3 == hash { print $2, $5, $7, $9 }' "$work/text" |
		uniq | paste -sd, | sed 's/,/, /g'
}

hash_of() {
	basename "$1" .bin
}

need do_mount -c trace_size=64K,entry_timeout=0 -o "trace=$trace" \
	"fast=$work/tier:slow=$work/slow"
one=$(small_paths 1)
need mk --count 1 "$mnt/blocks"
need verify --count 1 "$mnt/blocks"
need wait_until sh -c '"$1" trace "$2" | grep -c release | grep -qx 2' sh \
	"$ucm" "$trace"
need rm "$mnt/blocks/$one"
absent "$mnt/blocks/$one"
decode
size=$small_size
same 'from the first question to the last' \
	"lookup - 0 ENOENT, create fast 0 ok, commit fast $size ok, release fast $size ok, lookup fast $size ok, open fast $size ok, release fast $size ok, lookup fast $size ok, unlink fast $size ok, lookup - 0 ENOENT" \
	"$(of "$(hash_of "$one")")"
pid=$(sh -c 'echo $$; exec stat "$1"' sh "$mnt/blocks/$one" 2>/dev/null)
decode
same 'who asked' "$pid 0" "$(awk 'NF == 11 { last = $10 " " $11 }
	END { print last }' "$work/text")"
need mkdir "$mnt/spaces/x"
need mk --count 1 --seed 3 "$mnt/spaces/x"
mk --count 1 --seed 4 --layers 3 "$mnt/spaces/x" >/dev/null 2>&1
decode
same 'spaces have their number' 1 \
	"$(awk '$2 == "commit" && $9 == "ok" && $4 == 1' "$work/text" | wc -l)"
same 'a refused commit is there' 1 \
	"$(awk '$2 == "commit" && $9 == "EINVAL"' "$work/text" | wc -l)"
grep -q '; the mount is there' "$work/text" || fail 'it does not say that it runs'
same 'the metrics count records' \
	"$(wc -l <"$work/json")" "$(metric ucmfs_trace_records_total)"
same 'the trace is for its owner' 600 "$(stat -c %a "$trace")"

# ---- killed ----

need mk --count 600 --seed 5 "$mnt/blocks" # more than the ring holds
last=$("$mkblocks" $small --list --count 600 --seed 5 | tail -n 1)
kill_daemon
decode
same 'after a kill the ring is full' 1024 "$(wc -l <"$work/json")"
check 'and the last block is there' grep -q "commit $(hash_of "$last")" "$work/text"
grep -q 'did not end well' "$work/text" || fail 'it does not say that it was killed'

# ---- a new one ----

need do_mount -o "trace=$trace" "fast=$work/tier:slow=$work/slow"
do_umount
decode_old=$("$ucm" trace "$trace.old" | tail -n 1)
same 'the old one is kept' "$(tail -n 1 "$work/text")" "$decode_old"
same 'the new one is new' '# 0 records of 0; the mount has ended' \
	"$("$ucm" trace "$trace" | tail -n 1)"

# ---- without passthrough the daemon sees the bytes ----

need do_mount -o "trace=$trace,passthrough=off" "$work/tier"
need mk --count 1 --seed 6 "$mnt/blocks"
decode
same 'writes are there' "$size" "$(awk '$2 == "write" { n += $7 }
	END { print n }' "$work/text")"
do_umount

# ---- what is no trace ----

refused 'no trace: wrong magic' 'another file' "$ucm" trace "$ucmfs"
refused 'no trace: too short' 'an empty file' "$ucm" trace /dev/null
refused 'No such file' 'none' "$ucm" trace "$work/none"
refused 'no FILE' 'no argument' "$ucm" trace
echo 'my thesis' >"$work/precious"
"$ucmfs" -f "$work/tier" "$mnt" -o "trace=$work/precious" >"$work/out" 2>&1
same 'another file is not overwritten: status' 2 $?
check 'and it says so' grep -q "trace $work/precious: is there, and is no trace" \
	"$work/out"
same 'and is as it was' 'my thesis' "$(cat "$work/precious")"
