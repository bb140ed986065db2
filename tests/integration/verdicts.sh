#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Each way in which a file can be wrong: close(2), or rename(2) of staging, gives
# EINVAL, nothing becomes visible, and the log names the rule.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

# wrong 'text in the log' mkblocks options...
wrong() {
	wrong_text=$1
	shift
	path=$(small_paths 1 "$@")
	refused 'close: Invalid argument' "close ($*)" \
		mk --count 1 "$@" "$mnt/blocks"
	absent "$mnt/blocks/$path"
	logged "$wrong_text"
	refused 'rename: Invalid argument' "rename ($*)" \
		mk --count 1 "$@" --method rename "$mnt/blocks"
	absent "$mnt/blocks/$path"
	same 'the staging stays' "$(basename "$path.tmp")" \
		"$(ls -A "$mnt/blocks/${path%/*}")"
	need rm "$mnt/blocks/$path.tmp"
	same 'nothing is listed' 0 "$(blocks_in "$mnt/blocks")"
}

need do_mount "$work/tier"
wrong 'wrong magic' --spoil magic
wrong 'unknown format version' --spoil version
wrong 'unknown flag' --spoil flags
wrong 'header checksum' --spoil header-crc
wrong 'header field' --spoil field
wrong "not the file's name" --spoil name
wrong 'extension checksum' --spoil extension
wrong 'longer than' --spoil long

path=$(small_paths 1)
check 'a short file is not wrong at close, for more may come' \
	mk --count 1 --spoil short "$mnt/blocks"
absent "$mnt/blocks/$path"
refused 'rename: Invalid argument' 'but it is at rename' \
	mk --count 1 --spoil short --method rename "$mnt/blocks"
absent "$mnt/blocks/$path"
logged 'shorter than'
need rm "$mnt/blocks/$path.tmp"

check 'right ones are taken' mk --start 1 --count 3 "$mnt/blocks"
for form in packed bare; do
	check "and in the $form form" mk --count 3 --form $form --model $form \
		--method rename "$mnt/blocks"
	check 'whose bytes are kept' mk --verify --count 3 --form $form \
		--model $form "$mnt/blocks"
done
refused 'close: Invalid argument' 'another geometry' \
	"$mkblocks" --quiet --layers 3 --heads 1 --dim 16 --count 1 "$mnt/blocks"
logged 'the space has 2 layers of 16 tokens, float16, K 512 + V 512 bytes'
logged 'the block has 3 layers of 16 tokens, float16, K 512 + V 512 bytes'
absent "$mnt/blocks/$path"
no_debris "$work/tier"
# eight of each kind, one that was short, one geometry
same 'every refused file is counted once' 18 "$(stat_of commit_refused)"
do_umount
