#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Mounted read-only: blocks are read, nothing is written.

. "${top_srcdir:-$(dirname "$0")/../..}/tests/lib/mount.sh"
start_test root fuse

need do_mount "$work/tier"
need mk "$mnt/blocks"
path=$(small_paths 1)
do_umount
need do_mount -o ro "$work/tier"
check 'blocks are read' verify "$mnt/blocks"
refused 'Read-only file system' 'none is made' mk --start 16 "$mnt/blocks"
refused 'Read-only file system' 'none is removed' rm -f "$mnt/blocks/$path"
refused 'Read-only file system' 'no space is made' mkdir "$mnt/spaces/x"
do_umount
