#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A file of files/ that is written under a temporary name and renamed over an old
# one is one rename(2) in one directory, and no more.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse python3 strace

calls=rename,renameat,renameat2,link,linkat,unlink,unlinkat,fsync,fdatasync
mkdir "$work/a"
ucmfs_wrapper="strace -D -f -q -o $work/trace -e trace=$calls"
need do_mount -c checkpoint=0 "$work/a"

# The old ones are there before the first is replaced.
need mkdir "$mnt/files/d"
for i in $(seq 30); do
	echo old >"$mnt/files/d/$i.bin" || die "$i"
done

# marked NAME: all that the daemon did until now is in the trace, and then NAME
marked() {
	need touch "$mnt/files/$1"
	need rm "$mnt/files/$1"
	need wait_until grep -q "unlink.*\"$1\"" "$work/trace"
}

marked begin
check 'each is replaced, by the ways that programs have' \
	python3 - "$mnt/files/d" <<'END'
import os, random, sys
os.chdir(sys.argv[1])
for i in range(1, 31):
    name, number = f"{i}.bin", random.getrandbits(62) | 1 << 61
    temporary = [f"{name}.tmp", f"{name}_{number}.tmp", f".{name}.A1b2C3",
                 f"{name}.tmp.{os.getpid()}.{number}"][i % 4]
    with open(temporary, "w") as file:
        file.write("new")
    os.rename(temporary, name)
    assert open(name).read() == "new"
END

marked end

# made CALL: how often, between the marks. strace pads numbers of threads to
# five places.
made() {
	awk '/"end"/ { exit } marked; /"begin"/ { marked = 1 }' "$work/trace" |
		grep -c "^[0-9]* *$1("
}

same '30 renames' 30 "$(made 'rename[a-z0-9]*')"
for call in 'link[a-z]*' 'unlink[a-z]*' 'f[a-z]*sync'; do
	same "no $call" 0 "$(made "$call")"
done
same 'and nothing else is in the folder' 30 "$(ls -A "$mnt/files/d" | wc -l)"
do_umount
