#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A database with a rollback journal in files/: four processes add rows at once,
# one of them is killed again and again; locks hold and nothing is damaged.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3
clients_are_killed
python3 -c 'import sqlite3' 2>/dev/null || skip 'needs sqlite3 of python3'

cat >"$work/add.py" <<'END'
import sqlite3, sys
path, who, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
progress = open(sys.argv[4], "w") if len(sys.argv) > 4 else None
db = sqlite3.connect(path, timeout=60, isolation_level=None)
db.execute("pragma journal_mode=delete")
if who == 0:
    db.execute("pragma mmap_size=1048576")
db.execute("create table if not exists t (who, n, unique(who, n))")
for n in range(rows):
    db.execute("begin immediate")
    # a pair, or neither
    db.execute("insert or ignore into t values (?, ?)", (who, n))
    db.execute("insert or ignore into t values (?, ?)", (-1 - who, n))
    db.execute("commit")
    if progress and n >= 3:
        progress.write("begun")
        progress.flush()
END

# serve OPTIONS
serve() {
	rm -rf "$work/a" "$work/b"
	mkdir "$work/a" "$work/b"
	need do_mount -o "$1" "$work/a,$work/b"
	db=$mnt/files/db
	need python3 "$work/add.py" "$db" 0 1
	adders=
	for who in 1 2 3; do
		python3 "$work/add.py" "$db" $who 60 &
		keep_pid $!
		adders="$adders $!"
	done
	for _ in 1 2 3 4 5; do
		rm -f "$work/progress"
		python3 "$work/add.py" "$db" 4 100000 "$work/progress" &
		victim=$!
		keep_pid $victim
		wait_until test -s "$work/progress"
		kill -9 $victim
		wait $victim 2>/dev/null
		forget_pid $victim
	done
	for pid in $adders; do
		wait "$pid" || fail "process $pid could not add its rows"
		forget_pid "$pid"
	done
	same 'all rows are there' '60 60 60 60 60 60' "$(python3 - "$db" <<'END'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(*(row[0] for row in db.execute(
    "select count(*) from t where who in (1,2,3,-2,-3,-4) group by who")))
END
)"
	same 'pairs are whole, and the database is' '0 ok' \
		"$(python3 - "$db" <<'END'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("select sum(who = 4) - sum(who = -5) from t").fetchone()[0],
      db.execute("pragma integrity_check").fetchone()[0])
END
)"
	check 'shared and exclusive locks' python3 - "$mnt/files/lock" <<'END'
import fcntl, os, sys
a = open(sys.argv[1], "w+")
fcntl.lockf(a, fcntl.LOCK_EX)
if os.fork() == 0:
    b = open(sys.argv[1], "r+")
    try:
        fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os._exit(3)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
fcntl.lockf(a, fcntl.LOCK_UN)
fcntl.flock(a, fcntl.LOCK_EX)
b = open(sys.argv[1])
try:
    fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
    sys.exit("flock does not hold")
except OSError:
    pass
END
	do_umount
}

serve passthrough=auto
serve passthrough=off
