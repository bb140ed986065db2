#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# files/ while one of its tiers does not answer: what lies on the other is found,
# read, listed, changed and removed, and new names are made there; what is known to
# lie on the hung one is an error and not absent; a listing says what it lacks; and
# all is there again when it answers. The hung tier is another mount, whose daemon
# is stopped.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"

let_go() {
	kill -CONT "$(cat "$work/run/server.pid")" 2>/dev/null
}

start_test root fuse getfattr python3

# in_time 'what' command...: succeeds, and soon
in_time() {
	in_time_what=$1
	shift
	check "$in_time_what" timeout 10 "$@"
}

missing() {
	getfattr --absolute-names --only-values -n user.ucmfs.missing "$1" \
		2>/dev/null
}

is_whole() {
	! missing "$mnt/files"
}

left_out() {
	metric ucmfs_tier_files_left_out_total 'tier="hung"'
}

names() {
	timeout 10 ls "$1" | tr '\n' ' '
}

# The same calls with the hung tier behind the healthy one and in front of it.
# serve SOURCE
serve() {
	rm -rf "$work/tier" "$work/healthy"
	mkdir "$work/tier" "$work/healthy"
	mnt=$work/server
	need do_mount -o io_uring=off "$work/tier"
	hung=$mnt/files/hung
	need mkdir -p "$hung/files/both" "$hung/files/there"
	echo seen >"$hung/files/there/seen"
	echo old >"$hung/files/unseen"
	echo other >"$hung/files/both/other"
	mkdir -p "$work/healthy/files/both"
	echo here >"$work/healthy/files/here"
	echo here >"$work/healthy/files/both/here"
	mnt=$work/mnt
	need do_mount -o deadline=1,entry_timeout=0 "$1"
	same 'all is listed' 'both here there unseen ' "$(names "$mnt/files")"
	need grep -q seen "$mnt/files/there/seen"
	check 'nothing is missing' is_whole
	check 'no thread of all requests has waited' \
		sh -c '! grep "a defect of ucmfs" "$1"' sh "$log"
	need freeze "$(cat "$work/run/server.pid")"
}

goes_on() {
	in_time 'touch' touch "$mnt/files/new"
	in_time 'a file is written' sh -c 'echo new >"$1"' sh "$mnt/files/made"
	same 'and read' new "$(timeout 10 cat "$mnt/files/made")"
	in_time 'mkdir' mkdir "$mnt/files/folder"
	in_time 'a file in it' touch "$mnt/files/folder/x"
	in_time 'a link' ln -s x "$mnt/files/folder/link"
	same 'a file is read' here "$(timeout 10 cat "$mnt/files/here")"
	in_time 'stat' stat "$mnt/files/both/here"
	in_time 'chmod' chmod 600 "$mnt/files/here"
	in_time 'rm' rm "$mnt/files/both/here"
	in_time 'df' df "$mnt"
	same 'ls' 'both folder here made new ' "$(names "$mnt/files")"
	same 'the listing says what it lacks' hung "$(missing "$mnt/files")"
	in_time 'getfattr -d names it' \
		sh -c 'getfattr -d "$1" | grep -q user.ucmfs.missing' sh \
		"$mnt/files/both"
	same 'and the log, once' 1 "$(grep -c 'goes on without' "$log")"
	check 'and is counted' test "$(left_out)" -gt 0
}

# The new name may be one that the hung tier has. Behind this one that does no
# harm; in front of it, it would hide the file one day.
renames() {
	if [ "$1" = 'and goes on' ]; then
		in_time 'mv' mv "$mnt/files/here" "$mnt/files/both/moved"
		in_time 'a rename over a name' \
			sh -c 'echo 2 >"$1.tmp" && mv "$1.tmp" "$1"' sh \
			"$mnt/files/both/moved"
	else
		refused 'Connection timed out' 'mv' \
			timeout 10 mv "$mnt/files/here" "$mnt/files/both/moved"
		in_time 'cp' cp "$mnt/files/here" "$mnt/files/both/moved"
		in_time 'and rm' rm "$mnt/files/here"
	fi
	same 'ls of a folder of both' 'moved ' "$(names "$mnt/files/both")"
}

# What could be lost by a guess.
is_refused() {
	refused 'Connection timed out' 'what is known to be there' \
		timeout 10 cat "$mnt/files/there/seen"
	refused 'Connection timed out' 'rm of that' \
		timeout 10 rm "$mnt/files/there/seen"
	refused 'Connection timed out' 'writing over it' \
		timeout 10 sh -c 'echo x >"$1"' sh "$mnt/files/there/seen"
	refused 'Connection timed out' 'a name in a folder that is only there' \
		timeout 10 touch "$mnt/files/there/new"
	rm "$mnt/files/both/moved"
	refused 'Connection timed out' 'rmdir of what may not be empty' \
		timeout 10 rmdir "$mnt/files/both"
	refused 'Connection timed out' 'the rename of a folder' \
		timeout 10 python3 -c \
		'import os, sys; os.rename(*sys.argv[1:])' \
		"$mnt/files/both" "$mnt/files/b"
	refused 'Connection timed out' 'new rights of a folder' \
		timeout 10 chmod 700 "$mnt/files/both"
	refused 'Connection timed out' 'fsync of a folder' \
		timeout 10 sync "$mnt/files/both"
	# nobody has looked at it: see files/ in ucmfs(8)
	absent "$mnt/files/unseen"
	in_time 'what may be there is made' \
		sh -c 'echo new >"$1"' sh "$mnt/files/unseen"
}

# comes_back SHOWN: what unseen holds then
comes_back() {
	need let_go
	check 'nothing is missing again' wait_until is_whole
	same 'all is listed' 'both folder made new there unseen ' \
		"$(names "$mnt/files")"
	same 'what is known is read' seen "$(cat "$mnt/files/there/seen")"
	same 'what was made is what was made' new "$(cat "$mnt/files/unseen")"
	do_umount
	need do_mount "$source"
	same 'the first directory wins' "$1" "$(cat "$mnt/files/unseen")"
	same 'nothing is lost' 'new old' \
		"$(echo $(cat "$work/healthy/files/unseen" "$hung/files/unseen"))"
	check 'both of them go' rm "$mnt/files/unseen"
	check 'one' test ! -e "$hung/files/unseen"
	check 'and the other' test ! -e "$work/healthy/files/unseen"
	do_umount
	mnt=$work/server
	do_umount
}

mkdir "$work/server"
shown=new
renames='and goes on'
for source in "healthy=$work/healthy:hung=$work/server/files/hung" \
	"hung=$work/server/files/hung:healthy=$work/healthy"; do
	echo "-- $source"
	serve "$source"
	goes_on
	renames "$renames"
	is_refused
	comes_back $shown
	shown=old
	renames=refused
done
