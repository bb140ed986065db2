#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Whatever is wrong with the command line: one line that names it, exit status 2,
# nothing mounted.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

bad_expected=2

# bad 'text that must be in the line' argument...
bad() {
	bad_text=$1
	shift
	timeout 10 "$ucmfs" -f "$@" >"$work/out" 2>"$work/err"
	bad_status=$?
	bad_lines=$(wc -l <"$work/err")
	if [ $bad_status = $bad_expected ] && [ "$bad_lines" = 1 ] &&
		[ ! -s "$work/out" ] &&
		grep -qF -- "$bad_text" "$work/err" && ! is_mounted; then
		pass "$(cat "$work/err")"
		return
	fi
	fail "ucmfs -f $*"
	echo "  | status $bad_status, $bad_lines lines; must name '$bad_text':"
	sed 's/^/  | /' "$work/out" "$work/err"
	! is_mounted || umount -l "$mnt"
}

t=$work/tier
mkdir "$t/sub" "$mnt/tier" "$work/t2" "$work/t3"
: >"$work/file"
ln -s "$t" "$work/link"

bad "$work/none: No such file" "$work/none" "$mnt"
bad "$work/file: Not a directory" "$work/file" "$mnt"
bad "$t: given twice" "$t:$t" "$mnt"
bad "$t: given twice" "$t,$t" "$mnt"
bad "$work/link: given twice" "$t:$work/link" "$mnt"
bad "$t/sub is inside $t" "$t:$t/sub" "$mnt"
bad "$t/sub is inside $t" "$t/sub,$t" "$mnt"
bad "$mnt/tier" "$mnt/tier" "$mnt"
bad "$mnt" "$mnt" "$mnt"
bad 'empty directory' "$t::$work/t2" "$mnt"
bad 'tier name' "a b=$t" "$mnt"
bad "two tiers are called 'a'" "a=$t:a=$work/t2" "$mnt"
bad "$work/nowhere" "$t" "$work/nowhere"
bad "$work/file" "$t" "$work/file"
bad 'SOURCE' "$t"
bad 'too many' "$t" "$mnt" more
bad 'SOURCE' mount
bad 'SOURCE' mount "$t"
bad 'too many' mount "$t" "$mnt" more
bad '-z' -z "$t" "$mnt"
bad "'frobnicate'" "$t" "$mnt" -o frobnicate
bad "'frobnicate'" "$t" "$mnt" -o ro,frobnicate=1
bad 'allow_other' "$t" "$mnt" -o allow_other=1
bad 'durability' "$t" "$mnt" -o durability
bad "durability 'sometimes'" "$t" "$mnt" -o durability=sometimes
bad "policy 'arc': use hazard, lru or none" "$t" "$mnt" -o policy=arc
bad 'threads is a setting of ucmfs.conf(5) now: put `threads: 3` into a file' \
	"$t" "$mnt" -o threads=3
bad "uid 'root'" "$t" "$mnt" -o uid=root
bad "passthrough 'maybe'" "$t" "$mnt" -o passthrough=maybe
bad "io_uring '1'" "$t" "$mnt" -o io_uring=1
bad "log 'file'" "$t" "$mnt" -o log=file
bad "log $work/none/log: No such file" "$t" "$mnt" -o "log=$work/none/log"
bad "log_level 'loud'" "$t" "$mnt" -o log_level=loud
bad "trace $work/none/trace: No such file" "$t" "$mnt" -o "trace=$work/none/trace"
bad "trace $work/t2: is there, and is no trace" "$t" "$mnt" -o "trace=$work/t2"
bad "limit '1G': write TIER:SIZE to say which of 2 tiers it is for: a, b" \
	"a=$t:b=$work/t2" "$mnt" -o limit=1G
bad "limit 'much' of tier" "$t" "$mnt" -o limit=much
bad "'nosuch'" "$t" "$mnt" -o limit=nosuch:1G
bad "'nosuch'" "$t" "$mnt" -o readonly=nosuch
bad "limit 'much'" "$t" "$mnt" -o limit=tier0:much
bad "limit '101%'" "$t" "$mnt" -o limit=tier0:101%

bad "$work/none.yaml: No such file" none "$mnt" -o config="$work/none.yaml"
yaml() {
	printf '%b' "$1" >"$work/c.yaml"
}
yaml "tiers:\n  - name: a\n    directories: [$t]\ncolour: red\n"
bad "c.yaml:4: unknown key 'colour'" none "$mnt" -o config="$work/c.yaml"
yaml "tiers:\n  - name: a\n    shape: round\n"
bad "c.yaml:3: unknown key 'shape'" none "$mnt" -o config="$work/c.yaml"
yaml "tiers:\n  - name: a\n    directories: $t\n"
bad 'c.yaml:3: directories is not a list' none "$mnt" -o config="$work/c.yaml"
yaml "tiers: [\n"
bad 'c.yaml' none "$mnt" -o config="$work/c.yaml"
bad_setting() {
	bad "ucmfs.conf:1: $1" "$t" "$mnt" -o config="$(settings "$2")"
}
bad_setting "placement 'here'" placement=here
bad_setting "placement 'striped': use rendezvous" placement=striped
bad_setting "checkpoint 'soon'" checkpoint=soon
bad_setting "staging_age ''" staging_age=
bad_setting "threads '1.5'" threads=1.5
bad_setting "threads '99999999999999999999'" threads=99999999999999999999
bad_setting "debug: no area 'fs.tear'" debug=fs.tier=1:fs.tear=1
bad_setting "debug: fs.tier: depth '7'" debug=fs.tier=7
yaml ''
bad 'no tier' none "$mnt" -o config="$work/c.yaml"

need copy_ucmfs "$work/ucmfs"
if others_can 'a directory that is not writable' \
	test -x "$work/ucmfs" -a -r "$t"; then
	ucmfs_was=$ucmfs
	printf '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups %s "$@"\n' \
		"$work/ucmfs" >"$work/as-nobody"
	chmod 755 "$work/as-nobody"
	ucmfs=$work/as-nobody
	bad "$work/t3: not writable: Permission denied" "$work/t3" "$mnt"
	bad "$t: not writable: Permission denied" "$t" "$mnt"
	ucmfs=$ucmfs_was
fi

# one that is in use, after some seconds
need do_mount "$work/t2"
mkdir "$work/mnt2"
"$ucmfs" -f "$work/t2" "$work/mnt2" 2>"$work/err"
same 'a directory in use has an exit status of its own' 3 $?
check 'and is named' grep -q "$work/t2: in use by another ucmfs" "$work/err"
do_umount
same 'and none of this has left a block' 0 "$(find "$t" -name '*.bin' | wc -l)"
